"""The gate of a run's parameters: held-out spans, and the initial models of pre-training."""

from __future__ import annotations

import numpy as np

from realm_lab.corpus.store import Sentences
from realm_lab.errors import UserError
from realm_lab.evaluation.gate import SPANS, Gate, measure_gate
from realm_lab.evaluation.utility import MAIN_KIND, evenly_spaced, mask_first_span
from realm_lab.masking import MaskedSentence
from realm_lab.models.encoder import evaluating
from realm_lab.models.likelihoods import passage_reader
from realm_lab.retrieval.candidates import CandidatePolicy
from realm_lab.systems.context import Context
from realm_lab.systems.initial import initial_state


def gate(context: Context) -> Gate:
    """Measure the gate on SPANS spans: of development sentences, and of X where these are too few. UserError: a stage
    before pre-training is not finished, or no sentence has a salient span."""
    params = context.params
    reader, embedder, null_offset = initial_state(context, "pretrain")
    masked: list[MaskedSentence] = []
    origins: list[int] = []
    gold: list[int] = []
    for part in ("cloze_dev", "sentences"):
        sentences = context.sentences(part)
        rows = _asking(sentences)
        for row in rows[evenly_spaced(len(rows), SPANS - len(masked))].tolist() if len(rows) else []:
            one = mask_first_span(sentences, row, context.special.mask, context.asked)
            if context.special.unk not in one.targets:  # wordpieces do not tell which passages have an unknown word
                masked.append(one)
                origins.append(int(sentences.origins[row]))
                gold.append(int(sentences.gold[row]))
    if not masked:
        raise UserError(
            "no sentence of the corpus has a salient span; check corpus.tagger and pretrain.recurring_spans"
        )
    retriever = context.retriever(embedder, null_offset)
    with evaluating(reader), evaluating(embedder):
        read_by = passage_reader(params, context.pretraining_reader(reader), context.passages, context.special)
        policy = CandidatePolicy.of(params.pretrain)
        return measure_gate(policy, retriever, read_by, masked, np.array(origins), np.array(gold))


def _asking(sentences: Sentences) -> np.ndarray:
    """Return sentences with a salient span; if gold passages are known, those that ask for a fact of one."""
    with_span = sentences.rows_with_spans()
    asks = (np.asarray(sentences.gold)[with_span] >= 0) & (sentences.kinds()[with_span] == MAIN_KIND)
    return with_span[asks] if asks.any() else with_span
