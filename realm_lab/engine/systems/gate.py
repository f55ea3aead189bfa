"""The gate (evaluation/gate.py) of a run: measured on its corpus, with the initial models of its pre-training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from realm_lab.engine.corpus.store import NO_ROW, Sentences
from realm_lab.engine.corpus.vocabulary import encode_batch_plain
from realm_lab.engine.evaluation.cloze_items import MASK, cloze_items
from realm_lab.engine.evaluation.gate import SPANS, Gate, measure_gate, measure_support
from realm_lab.engine.evaluation.utility import MAIN_KIND, evenly_spaced, mask_first_span
from realm_lab.engine.masking import MaskedSentence
from realm_lab.engine.models.candidate_reader import passage_reader
from realm_lab.engine.models.encoder import evaluating
from realm_lab.engine.retrieval.candidates import CandidatePolicy
from realm_lab.engine.systems.asked import stored_questions
from realm_lab.engine.systems.context import Context
from realm_lab.engine.systems.initial import initial_state
from realm_lab.errors import UserError


def gate(context: Context) -> Gate:
    """Measure the gate on up to SPANS spans: of development sentences and, if these are too few, of X. UserError: a
    stage before pre-training is not finished, or no sentence has a salient span."""
    params = context.params
    reader, embedder, null_offset = initial_state(context, "pretrain")
    masked: list[MaskedSentence] = []
    origins: list[int] = []
    gold: list[int] = []
    for part in ("cloze_dev", "sentences"):
        sentences = context.sentences(part)
        rows = _asking(sentences)
        for row in rows[evenly_spaced(len(rows), SPANS - len(masked))].tolist():
            one = mask_first_span(sentences, row, context.special.mask, context.asked)
            if context.special.unk not in one.targets:  # unknown words in passages cannot be compared
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
        found = measure_gate(policy, retriever, read_by, masked, np.array(origins), np.array(gold))
        clozes = _supported_clozes(context)
        known = [number for number, row in enumerate(gold) if row >= 0]
        supported = [_Supported(masked[number], origins[number], (gold[number],)) for number in known] + clozes
        if not supported:
            return found
        every, own, supporting = zip(*supported, strict=True)
        return found._replace(support=measure_support(policy, retriever, read_by, every, np.array(own), supporting))


class _Supported(NamedTuple):
    """A masked sentence, the row of its origin or NO_ROW, and the rows of passages that support its answer."""

    masked: MaskedSentence
    origin: int
    supporting: Sequence[int]


def _supported_clozes(context: Context) -> list[_Supported]:
    """Return up to SPANS development questions with a [MASK] that name passages that support the answer. A question is
    left out if it is too long for a query, the answer has an unknown word, or its wordpieces change once filled in."""
    stored = context.corpus.questions("dev")
    questions = {one.id: one for one in stored_questions(stored) if one.supporting and MASK in one.question}
    gold = {name: stored.gold[number].tolist() for number, name in enumerate(stored.ids)}
    longest = context.params.corpus.sentence_length - 2
    found = []
    for item in cloze_items([*questions.values()], context.tokenizer, context.special, longest)[0]:
        whole = item.tokens.copy()
        whole[item.positions] = item.targets
        is_whole = encode_batch_plain(context.tokenizer, [item.text])[0].ids == whole.tolist()
        if is_whole and context.special.unk not in item.targets:
            supporting = questions[item.id].supporting
            origin = next((row for row in gold[item.id] if row not in supporting), NO_ROW)
            one = context.asked(MaskedSentence(item.tokens, item.positions, item.targets, item.text), "")
            found.append(_Supported(one, origin, supporting))
    return [found[number] for number in evenly_spaced(len(found), SPANS)]


def _asking(sentences: Sentences) -> np.ndarray:
    """Return the rows of sentences with a salient span; if any gold passage is known, only sentences of MAIN_KIND that
    have one."""
    with_span = sentences.rows_with_spans()
    asks = (np.asarray(sentences.gold)[with_span] >= 0) & (sentences.kinds()[with_span] == MAIN_KIND)
    return with_span[asks] if asks.any() else with_span
