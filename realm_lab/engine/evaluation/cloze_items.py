"""Read sentences with a blank and a known answer (Table 4 of the paper) with retrieval, excluding the source document.

The blank becomes as many [MASK] as the answer has wordpieces, as in pre-training, so the length is given away. A causal
language model fills no blank. It measures the answer's likelihood, and the answer counts as exact if it is the most
likely text after the most likely passage.
"""

# Shapes: B sentences, K candidates with the null document first, M masked positions, V words

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from realm_lab.engine.corpus.answers import holds_answer, normalise_answer
from realm_lab.engine.corpus.chunking import split_sentences
from realm_lab.engine.corpus.records import Question
from realm_lab.engine.corpus.vocabulary import SpecialIds, encode_around_blanks, encode_batch_plain, wordpieces_by_id
from realm_lab.engine.evaluation.open_qa import exact_match
from realm_lab.engine.evaluation.utility import SENTENCES_AT_ONCE
from realm_lab.engine.masking import MaskedSentence, asked_form
from realm_lab.engine.models.candidate_reader import AnyReader, CandidateReader, FrozenReader
from realm_lab.engine.models.reader import Reader
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.retrieval.candidates import CandidatePolicy
from realm_lab.engine.retrieval.retriever import Retriever
from realm_lab.engine.retrieval.rows import NULL

MASK = "[MASK]"
BEAM = 8


class ClozeItem(NamedTuple):
    """A sentence with its answer masked."""

    id: str
    tokens: np.ndarray  # with one [MASK] for each wordpiece of the answer
    positions: np.ndarray
    targets: np.ndarray  # wordpieces of the (first) answer
    answers: tuple[str, ...]
    source: str | None  # document it was made from, which is never retrieved
    shortened: bool
    text: str  # with the answer in the blank
    span: tuple[int, int]  # the characters of the answer in the text, [first, end)
    evidence: tuple[str, ...] = ()  # documents that support the answer


class ClozeReading(NamedTuple):
    """Result of reading a sentence under its candidates."""

    id: str
    prediction: str  # of a causal language model: the known answer, or "" if another text is more likely
    exact_match: bool
    log_likelihood: float  # log p(y|x) of the answer, nats
    null_log_likelihood: float  # log p(y|null, x)
    wordpieces: int
    answer_retrieved: bool  # true: a candidate contains the answer
    passages: list[str]  # ids of the candidates, most likely first
    evidence_retrieved: bool | None = None  # true: a candidate supports the answer; None: no evidence is named


def cloze_items(
    questions: Sequence[Question], tokenizer: Tokenizer, special: SpecialIds, longest: int
) -> tuple[list[ClozeItem], list[str]]:
    """Return the items, and for each question that cannot be an item its id with the reason.

    `longest` counts the wordpieces of a query without its two specials. A longer text is cut to the sentence with the
    blank. If that sentence is too long as well, it is cut to the wordpieces around the blank.
    """
    items, skipped = [], []
    for question in questions:
        found = _item(question, tokenizer, special, longest)
        if isinstance(found, str):
            skipped.append(f"{question.id}: {found}")
        else:
            items.append(found)
    return items, skipped


def _item(question: Question, tokenizer: Tokenizer, special: SpecialIds, longest: int) -> ClozeItem | str:
    if question.question.count(MASK) != 1:
        return f"{question.question.count(MASK)} times {MASK} in the text, not once"
    targets = encode_batch_plain(tokenizer, question.answers[:1] or [""])[0].ids
    if not 0 < len(targets) <= longest:
        return f"an answer of {len(targets)} wordpieces"
    text = question.question
    before, after = encode_around_blanks(tokenizer, text.split(MASK))
    shortened = len(before) + len(targets) + len(after) > longest
    if shortened:
        position = text.index(MASK)
        sentences = [text[start:end] for start, end in split_sentences(text) if start <= position < end]
        if sentences and MASK in sentences[0]:
            before, after = encode_around_blanks(tokenizer, sentences[0].split(MASK))
        room = max(0, longest - len(targets))
        left = min(len(before), max(room // 2, room - len(after)))
        before, after = before[len(before) - left :], after[: room - left]
    tokens = np.array([*before, *[special.mask] * len(targets), *after], np.int64)
    positions = len(before) + np.arange(len(targets))
    wanted = np.array(targets, np.int64)
    start, answer = question.question.index(MASK), question.answers[0]
    whole = question.question.replace(MASK, answer), (start, start + len(answer))
    known = question.answers, question.document
    return ClozeItem(question.id, tokens, positions, wanted, *known, shortened, *whole, question.evidence)


@torch.no_grad()
def read_cloze_items(
    params: Params,
    retriever: Retriever,
    reader: AnyReader,
    tokenizer: Tokenizer,
    special: SpecialIds,
    items: Sequence[ClozeItem],
) -> list[ClozeReading]:
    """Read each item under its candidates, found and ranked as in pre-training.

    No passage of an item's source document is a candidate. The null document is always read, but has no share of p(z|x)
    if pre-training has no null document.
    """
    reader.eval()
    retriever.embedder.eval()
    policy = CandidatePolicy.of(params.pretrain)
    asked = asked_form(params.pretrain, wordpieces_by_id(tokenizer))
    read_by = CandidateReader(params, reader, retriever.passages, special) if isinstance(reader, Reader) else reader
    sources: dict[str | None, list[int]] = {}
    for row, document in enumerate(retriever.passages.text.column("document")):
        sources.setdefault(document, []).append(row)
    readings = []
    for start in range(0, len(items), SENTENCES_AT_ONCE):
        part = items[start : start + SENTENCES_AT_ONCE]
        own = [sources.get(item.source, []) for item in part]
        queries = [asked(MaskedSentence(item.tokens, item.positions, item.targets), "").query for item in part]
        found = policy.retrieve(retriever, queries, compare_null=True, forbidden=own)
        for item, rows_K, log_prior_K in zip(part, found.rows_BK, found.log_prior_BK, strict=True):
            rows = [int(row) for row in rows_K if row >= NULL]
            log_prior_K = log_prior_K[: len(rows)]
            readings.append(_read(read_by, tokenizer, special.unk, item, rows, log_prior_K))
    return readings


def _read(
    reader: CandidateReader | FrozenReader,
    tokenizer: Tokenizer,
    unknown: int,
    item: ClozeItem,
    rows: list[int],
    log_prior_K: Tensor,
) -> ClozeReading:
    if isinstance(reader, FrozenReader):
        log_prior_K = log_prior_K.cpu()
        log_reader_K, likeliest_K = reader.read_text(item.text, item.span, rows)
        is_exact = bool(likeliest_K[1 + int(log_prior_K[1:].argmax()) if len(rows) > 1 else 0])
        prediction = item.answers[0] if is_exact else ""
    else:
        log_words_KMV = reader.word_log_probs(item.tokens, item.positions, rows)
        log_reader_K = filling_log_probs(log_words_KMV, torch.from_numpy(item.targets))
        words, _ = best_filling(log_prior_K, log_words_KMV)
        prediction = tokenizer.decode(words).strip()
        is_exact = exact_match(prediction, item.answers) or (words == item.targets.tolist() and unknown not in words)
    texts = [reader.passages.text.row(row) for row in rows if row >= 0]
    order = np.argsort(-log_prior_K.cpu().numpy(), kind="stable")
    return ClozeReading(
        item.id,
        prediction,
        is_exact,
        float((log_prior_K + log_reader_K).logsumexp(0)),
        float(log_reader_K[rows.index(NULL)]),
        len(item.targets),
        any(holds_answer(normalise_answer(text["body"]), item.answers) for text in texts),
        [reader.passages.id_of(rows[position]) for position in order if rows[position] >= 0],
        any(text["document"] in item.evidence for text in texts) if item.evidence else None,
    )


def best_filling(log_prior_K: Tensor, log_words_KMV: Tensor, beam: int = BEAM) -> tuple[list[int], Tensor]:
    """Return the words of the largest p(y|x) that a beam search finds, and their log p(y|z,x) under each candidate,
    [K].

    p(y|z,x) is a product over positions (section 3.2). So a beam grows position by position, with the words that make
    its p(y|x) largest.
    """
    beams: list[tuple[list[int], Tensor]] = [([], torch.zeros(len(log_prior_K), device=log_prior_K.device))]
    for position in range(log_words_KMV.shape[1]):
        grown = []
        for words, log_reader in beams:
            marginal_V = (log_prior_K[:, None] + log_reader[:, None] + log_words_KMV[:, position]).logsumexp(0)
            for word in marginal_V.topk(min(beam, len(marginal_V))).indices.tolist():
                grown.append(([*words, word], log_reader + log_words_KMV[:, position, word]))
        grown.sort(key=lambda grown_beam: -float((log_prior_K + grown_beam[1]).logsumexp(0)))
        beams = grown[:beam]
    return beams[0]


def filling_log_probs(log_words_KMV: Tensor, words: Tensor) -> Tensor:
    """Return log p(y|z,x) of given words under each candidate, [K]."""
    words_KM1 = words.to(log_words_KMV.device).expand(len(log_words_KMV), -1)[:, :, None]
    return log_words_KMV.gather(-1, words_KM1)[:, :, 0].sum(1)
