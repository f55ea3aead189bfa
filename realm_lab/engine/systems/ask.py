"""Ask a finished run a question, or let it fill a blank, and return the answer with the passages behind it."""

# Shapes: K candidates, the null document first, M masked positions, V words

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np

from realm_lab.engine.corpus.vocabulary import encode_around_blanks, encode_batch_plain
from realm_lab.engine.masking import MaskedSentence
from realm_lab.engine.systems.context import Context
from realm_lab.engine.systems.reading import DenseRetriever
from realm_lab.engine.systems.registry import Unsupported
from realm_lab.errors import UserError

if TYPE_CHECKING:
    from realm_lab.engine.corpus.store import Sentences

MASK = "[MASK]"
MAX_MASKED_WORDPIECES = 6


@dataclass(frozen=True)
class ReadPassage:
    """A passage that was read, and the answer found in it; `passage` is None for the null document."""

    passage: dict[str, Any] | None  # id, title, body, ...
    span: list[int] | None  # characters of the body
    answer: str
    probability: float  # p(z|x)
    reader_probability: float  # p(y|z,x); for a question p(s|z,x) of the passage's best span s
    utility: float | None  # log p(y|z,x) - log p(y|null,x), nats


@dataclass(frozen=True)
class Reply:
    """The answer to a question. With BM25 as the retriever, p(z|x) is computed from BM25's scores."""

    question: str
    answer: str
    candidates: list[ReadPassage]
    best: int | None  # index of the candidate that the answer is from
    warning: str | None = None


@dataclass(frozen=True)
class Filling:
    """The best filling of a blank (the paper's Table 3); `candidates` are sorted by p(z|x), the largest first."""

    sentence: str
    answer: str
    wordpieces: int
    marginal: float  # p(y|x)
    marginal_log_probability: float
    without: float  # p(y|null,x)
    candidates: list[ReadPassage]


def ask(context: Context, question: str, k: int = 5, retriever: str = "run") -> Reply:
    """Answer from the best k passages of the run's retriever, or of BM25 (`retriever="bm25"`).
    UserError: the question is empty, the run is not finished, or its system answers no questions."""
    if not question.strip():
        raise UserError("the question is empty")
    k = min(k, len(context.passages))
    retrieved = context.bm25.search([question], k) if retriever == "bm25" else None
    answer = context.system.answer([question], retrieved, k)[0]
    utilities = context.system.utilities(question, answer) if answer.candidates else []  # BM25 may find no passage
    candidates = [
        ReadPassage(
            passage=context.passages.text.row(candidate.row),
            span=list(candidate.span),
            answer=candidate.text,
            probability=math.exp(candidate.log_prior),
            reader_probability=math.exp(candidate.log_span),
            utility=utility,
        )
        for candidate, utility in zip(answer.candidates, utilities, strict=True)
    ]
    return Reply(question, answer.text, candidates, answer.best if candidates else None, warning(context, question))


def warning(context: Context, question: str) -> str | None:
    """Return a warning that names the unknown words of a question, or calls the answer meaningless if no word
    is one known wordpiece; None: there is nothing to warn of."""
    encoding = encode_batch_plain(context.tokenizer, [question])[0]
    unknown = [number == context.special.unk for number in encoding.ids]
    words = Counter(encoding.word_ids)
    pieces = zip(encoding.offsets, encoding.word_ids, unknown, strict=True)
    whole = "".join(question[slice(*span)] for span, word, is_unknown in pieces if words[word] == 1 and not is_unknown)
    if not any(map(str.isalnum, whole)):
        return "none of these words is known to this run's tokenizer; the answer means nothing"
    parts = [question[start:end] for start, end in compress(encoding.offsets, unknown)]
    named = [part for part in parts if any(map(str.isalnum, part))]  # without punctuation
    return f"not in this run's vocabulary: {', '.join(named)}" if named else None


def fill(context: Context, sentence: str, k: int = 5) -> Filling:
    """Fill the blank with the words of largest marginal probability, by the models from before fine-tuning.

    Several [MASK] side by side ask for exactly that many wordpieces. One [MASK] leaves the length open: lengths are
    weighed by their frequency among salient spans of the pre-training corpus. UserError: not one blank, a sentence that
    is too long, or a run that is not finished or fills no blanks.
    """
    blank = re.search(r"\[MASK\](?:\s*\[MASK\])*", sentence)
    if blank is None or MASK in sentence[blank.end() :]:
        raise UserError(f"write one blank into the sentence: {MASK}, or several {MASK} side by side")
    system = context.system.before_finetuning()
    if not isinstance(system, DenseRetriever):
        raise Unsupported(f"system {system.name} fills no blanks")
    parts = sentence[: blank.start()], sentence[blank.end() :]
    before, after = encode_around_blanks(context.tokenizer, parts)
    k = min(k, len(context.passages))
    asked = blank[0].count(MASK)
    log_lengths = {asked: 0.0} if asked > 1 else span_length_log_probs(context.corpus.sentences())
    if not log_lengths:
        problem = f"no salient span of the pre-training corpus has {MAX_MASKED_WORDPIECES} wordpieces or fewer"
        raise UserError(problem, f"write several {MASK} side by side, one for each wordpiece")
    longest = context.params.corpus.sentence_length
    room = longest - 2 - len(before) - len(after)
    fitting = {length: prior for length, prior in log_lengths.items() if length <= room}
    if not fitting:
        raise UserError(f"the sentence is longer than corpus.sentence_length = {longest}")
    tried = {length: _fill_length(system, sentence, before, after, length, k) for length in fitting}
    return tried[max(fitting, key=lambda length: fitting[length] + tried[length].marginal_log_probability)]


def span_length_log_probs(sentences: Sentences) -> dict[int, float]:
    """Return log p(number of wordpieces) over the salient spans of the pre-training corpus, up to
    MAX_MASKED_WORDPIECES."""
    spans = np.asarray(sentences.spans.values).reshape(-1, 2)
    counts = np.bincount(spans[:, 1] - spans[:, 0], minlength=2)[: MAX_MASKED_WORDPIECES + 1]
    return {length: math.log(count / len(spans)) for length, count in enumerate(counts) if count}


def _fill_length(
    system: DenseRetriever, sentence: str, before: list[int], after: list[int], length: int, k: int
) -> Filling:
    """Return the best filling of `length` wordpieces, by a beam search from left to right on the marginal."""
    import torch

    from realm_lab.engine.evaluation.cloze_items import best_filling
    from realm_lab.engine.models.candidate_reader import CandidateReader
    from realm_lab.engine.models.realm import retrieval_utility
    from realm_lab.engine.retrieval.candidates import CandidatePolicy
    from realm_lab.engine.retrieval.rows import NULL

    context, retriever, reader = system.context, system.retriever, system.models.reader.eval()
    tokens = np.array([*before, *[context.special.mask] * length, *after], np.int64)
    at = len(before) + np.arange(length)
    with torch.no_grad():
        # As in pre-training, with k passages; the null document is read for comparison, also if it is no candidate.
        policy = CandidatePolicy.of(context.params.pretrain).reading(k)
        query = context.asked(MaskedSentence(tokens, at, tokens[at]), "").query
        found = policy.retrieve(retriever, [query], compare_null=True)
        rows = [int(row) for row in found.rows_BK[0] if row >= NULL]
        log_prior_K = found.log_prior_BK[0, : len(rows)]
        candidate_reader = CandidateReader(context.params, reader, context.passages, context.special)
        log_words_KMV = candidate_reader.word_log_probs(tokens, at, rows)
        words, log_reader_K = best_filling(log_prior_K, log_words_KMV)
        utility_K = retrieval_utility(log_reader_K[None], log_reader_K[None, 0])[0]
    marginal = float((log_prior_K + log_reader_K).logsumexp(0))
    candidates = [
        ReadPassage(
            passage=context.passages.text.row(row) if row >= 0 else None,
            span=None,
            answer=context.tokenizer.decode(log_words_KMV[index].argmax(-1).tolist()).strip(),
            probability=float(log_prior_K[index].exp()),
            reader_probability=float(log_reader_K[index].exp()),
            utility=float(utility_K[index]),
        )
        for index, row in enumerate(rows)
    ]
    return Filling(
        sentence,
        context.tokenizer.decode(words).strip(),
        length,
        math.exp(marginal),
        marginal,
        float(log_reader_K[0].exp()),
        sorted(candidates, key=lambda candidate: -candidate.probability),
    )
