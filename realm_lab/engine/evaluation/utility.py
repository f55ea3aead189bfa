"""Retrieval utility (Eq. 2) and likelihood on held-out masked sentences."""

# Shapes: B sentences, K candidates with the null document first, M masked positions

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from realm_lab.engine.corpus.store import Sentences
from realm_lab.engine.corpus.vocabulary import SpecialIds
from realm_lab.engine.masking import AskedForm, MaskedSentence, mask
from realm_lab.engine.models.candidate_reader import AnyReader, passage_reader
from realm_lab.engine.models.realm import marginal_log_likelihood, retrieval_utility
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.retrieval.candidates import CandidatePolicy
from realm_lab.engine.retrieval.retriever import Retriever
from realm_lab.engine.retrieval.rows import NULL

SENTENCES_AT_ONCE = 128  # read
MAIN_KIND = "object"  # if gold passages are known, headline measures count only masked spans of this kind


class ClozeResult(NamedTuple):
    """Results for each sentence, on the CPU. Column 0 is the null document."""

    masked: list[MaskedSentence]
    rows_BK: np.ndarray
    log_prior_BK: Tensor  # log p(z|x); about -1e4 for a null document that is read only to compare
    log_reader_BK: Tensor  # log p(y|z,x), nats per span
    utility_BK: Tensor  # RU(z|x)
    top1_correct_B: Tensor  # all masked wordpieces right, read with the top passage
    gold_B: np.ndarray  # -1: unknown, and the next two fields are meaningless
    log_gold_B: Tensor  # log p(y|gold,x), whether retrieved or not
    gold_rank_B: np.ndarray  # from 1, among all passages except trivial candidates
    kind_B: np.ndarray  # the label of the masked span

    def only(self, chosen_B: np.ndarray) -> ClozeResult:
        """Select some of the sentences."""
        masked = [one for one, is_chosen in zip(self.masked, chosen_B, strict=True) if is_chosen]
        return self._replace(masked=masked, **{name: getattr(self, name)[chosen_B] for name in self._fields[1:]})


@torch.no_grad()
def run_cloze(
    params: Params,
    retriever: Retriever,
    reader: AnyReader,
    sentences: Sentences,
    special: SpecialIds,
    count: int,
    asked: AskedForm | None = None,
) -> ClozeResult:
    """Read held-out sentences (`chosen_sentences`), each with its one span masked, under every candidate.

    Candidates are found and ranked as in pre-training, and p(z|x) is over these candidates. But the null document is
    always read, and the passage that a sentence was taken from never is, so that utility is comparable between runs.
    """
    reader.eval()
    retriever.embedder.eval()
    policy = CandidatePolicy.of(params.pretrain)
    candidate_reader = passage_reader(params, reader, retriever.passages, special)
    numbers = chosen_sentences(sentences, count)
    masked = [mask_first_span(sentences, int(number), special.mask, asked) for number in numbers]
    origins, gold_B = (np.asarray(rows[numbers], np.int64) for rows in (sentences.origins, sentences.gold))
    tokens = [sentence.query for sentence in masked]
    exclude = policy.exclusion(retriever, origins, always=True)
    found = policy.retrieve(retriever, tokens, exclude, compare_null=True)  # each candidate is embedded once
    readers, right = [], []
    for start in range(0, len(masked), SENTENCES_AT_ONCE):
        here = slice(start, start + SENTENCES_AT_ONCE)
        readers.append(candidate_reader.read(masked[here], found.rows_BK[here]).log_probs_BK.cpu())
        right.append(candidate_reader.restores(masked[here], found.rows_BK[here, 1]))
    log_reader_BK = torch.cat(readers)
    is_gold_BK = found.rows_BK == gold_B[:, None]  # an unknown gold row, -1, equals NULL, and is not used
    log_gold_B = log_reader_BK[np.arange(len(masked)), is_gold_BK.argmax(1)]
    if len(missed := np.flatnonzero(~is_gold_BK.any(1))):
        read = candidate_reader.read([masked[number] for number in missed], gold_B[missed, None])
        log_gold_B[missed] = read.log_probs_BK[:, 0].cpu()
    known_or_first_B = gold_B.clip(min=0)  # the rank of an unknown passage is not used
    return ClozeResult(
        masked,
        found.rows_BK,
        found.log_prior_BK.cpu(),
        log_reader_BK,
        retrieval_utility(log_reader_BK, log_reader_BK[:, 0]),
        torch.cat(right),
        gold_B,
        log_gold_B,
        retriever.rank(retriever.embed_queries(tokens), known_or_first_B, exclude),
        sentences.kinds()[numbers],
    )


def mask_first_span(sentences: Sentences, number: int, mask_id: int, asked: AskedForm | None = None) -> MaskedSentence:
    """Return a sentence with its first span masked (a held-out sentence has only one), in the query form `asked`."""
    first, end = sentences.salient_spans(number)[0]
    masked = mask(sentences.tokens[number], np.arange(first, end), mask_id, sentences.text(number))
    return masked if asked is None else asked(masked, sentences.kind(number, masked.positions))


def chosen_sentences(sentences: Sentences, count: int) -> np.ndarray:
    """Return up to `count` evenly spaced sentences per kind, ascending; over all kinds if no gold passage is known."""
    kind_N, has_span_N = sentences.kinds(), np.asarray(sentences.spans.lengths) > 0
    if not (sentences.gold >= 0).any():
        kind_N[:] = ""
    groups = [np.flatnonzero((kind_N == kind) & has_span_N) for kind in np.unique(kind_N[has_span_N])]
    return np.sort(np.concatenate([group[evenly_spaced(len(group), count)] for group in groups]))


def evenly_spaced(total: int, count: int) -> np.ndarray:
    """Return up to `count` numbers from 0 to total - 1, evenly spaced, the first and the last among them."""
    return np.unique(np.linspace(0, total - 1, min(count, total)).round().astype(np.int64))


def cloze_metrics(result: ClozeResult) -> dict[str, float]:
    """Return means over the sentences; utilities and likelihoods in nats per span.

    `passage_utility` weighs only the passages, by p(z|x) / (1 - p(null|x)). `retrieval_utility` includes the null
    document, with a utility of 0, so that it also moves with p(null|x). If any sentence has a known gold passage and a
    masked span of MAIN_KIND, only such sentences count. Also returned are measures of gold passages and p(null). If
    there are several kinds of spans, p(null), coverage of gold passages, likelihood and exact match are also returned
    by kind.
    """
    is_main_B = (result.gold_B >= 0) & (result.kind_B == MAIN_KIND)
    main = result.only(is_main_B) if is_main_B.any() else result
    prior_BK = main.log_prior_BK.exp()
    is_real_BK = torch.from_numpy(main.rows_BK[:, 1:] >= 0)
    top = main.log_prior_BK[:, 1:].argmax(1, keepdim=True)
    utility_B = (prior_BK * main.utility_BK).sum(1)
    passages_B = (main.log_prior_BK[:, 1:].softmax(1) * main.utility_BK[:, 1:]).sum(1)
    best_B = main.utility_BK[:, 1:].masked_fill(~is_real_BK, -torch.inf).max(1).values
    values = {
        "passage_utility": passages_B.mean().item(),
        "retrieval_utility": utility_B.mean().item(),
        "retrieval_utility_top1": main.utility_BK[:, 1:].gather(1, top).mean().item(),
        "retrieval_utility_best": best_B.mean().item(),
        "cloze_log_likelihood": marginal_log_likelihood(main.log_prior_BK, main.log_reader_BK).mean().item(),
        "cloze_null_log_likelihood": main.log_reader_BK[:, 0].mean().item(),
        "cloze_exact_match": main.top1_correct_B.float().mean().item(),
    }
    known_B = main.gold_B >= 0
    if known_B.any():
        values["cloze_gold_log_likelihood"] = main.log_gold_B[known_B].mean().item()
        values["cloze_gold_known"] = float(known_B.sum())
        values["cloze_gold_rank"] = float(np.median(main.gold_rank_B[known_B]))
    values |= _retrieved(main)
    kinds = np.unique(result.kind_B).tolist()
    for kind in kinds if len(kinds) > 1 else []:
        part = result.only(result.kind_B == kind)
        found = _retrieved(part) | {
            "cloze_log_likelihood": marginal_log_likelihood(part.log_prior_BK, part.log_reader_BK).mean().item(),
            "cloze_exact_match": part.top1_correct_B.float().mean().item(),
        }
        values |= {f"{name}_{kind}": value for name, value in found.items()}
    return values


def _retrieved(result: ClozeResult) -> dict[str, float]:
    """Return p(null|x), and how often the gold passage is a candidate if it is known."""
    known_B, is_null_BK = result.gold_B >= 0, torch.from_numpy(result.rows_BK == NULL)
    values = {"cloze_null_probability": (result.log_prior_BK.exp() * is_null_BK).sum(1).mean().item()}
    if known_B.any():
        is_gold_BK = result.rows_BK == result.gold_B[:, None]
        values["cloze_gold_among_candidates"] = float(is_gold_BK.any(1)[known_B].mean())
    return values
