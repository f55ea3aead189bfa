"""`realm-lab ask` and `realm-lab fill`: one question or masked sentence, with the passages behind the answer."""

# Shapes: K candidates, the null document first

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from realm_lab.corpus.store import Sentences
from realm_lab.corpus.vocabulary import encode_batch_plain
from realm_lab.errors import UserError
from realm_lab.evaluation.answering import answer_questions, read_answers
from realm_lab.evaluation.filling import best_filling, filling_log_probs
from realm_lab.models.candidate_reader import CandidateReader
from realm_lab.models.reader import Reader
from realm_lab.models.realm import retrieval_utility
from realm_lab.params.parameters import Params
from realm_lab.retrieval.candidates import CandidatePolicy
from realm_lab.retrieval.retriever import NULL, Retriever
from realm_lab.systems.bm25 import Bm25
from realm_lab.systems.context import Context
from realm_lab.systems.identity import plan_run
from realm_lab.systems.initial import initial_state
from realm_lab.systems.registry import system_of

MASK = "[MASK]"
MAX_MASKED_WORDPIECES = 6


def open_run(params: Params, root: Path, seed: int, system: str) -> Context:
    """The run to ask."""
    system_of(system)
    return Context(params, plan_run(params, system, seed), root)


def ask(
    question: str,
    params: Params,
    root: Path,
    seed: int,
    system: str,
    k: int = 5,
    as_json: bool = False,
    retriever_name: str = "run",
) -> None:
    """Print the answer, and of each passage its span, p(z|x), p(y|z,x) and utility.

    The reader's probability is that of the passage's best span among all its spans. With `bm25` in the place of the
    run's own retriever p(z|x) is the softmax of BM25's scores.
    """
    if not question.strip():
        raise UserError("the question is empty")
    context = open_run(params, root, seed, system)
    wide = params.model_copy(update={"finetune": params.finetune.model_copy(update={"candidates": k})})
    reader, embedder, _ = context.load_models("finetune")
    query = encode_batch_plain(context.tokenizer, [question])[0].ids[: params.corpus.sentence_length - 2]
    tokens = [np.array(query, np.int64)]
    models = (reader, context.tokenizer, context.special)
    if retriever_name == "bm25":
        rows_1K, scores_1K = Bm25(context.passages).search_scored([question], k)
        scores = torch.from_numpy(scores_1K).to(context.device)
        answer = read_answers(wide, context.passages, *models, tokens, rows_1K, scores)[0]
    else:
        retriever = context.retriever(embedder)
        retriever.refresh(0)
        answer = answer_questions(wide, retriever, *models, tokens)[0]
    utilities = _answer_utilities(context, tokens[0], [candidate.row for candidate in answer.candidates], answer)
    rows = [
        {
            "passage": context.passages.text.row(candidate.row),
            "span": list(candidate.span),
            "answer": candidate.text,
            "probability": math.exp(candidate.log_prior),
            "reader_probability": math.exp(candidate.log_span),
            "utility": utility,
        }
        for candidate, utility in zip(answer.candidates, utilities, strict=True)
    ]
    if as_json:
        print(json.dumps({"question": question, "answer": answer.text, "candidates": rows}, ensure_ascii=False))
        return
    console = Console()
    console.print(Text.assemble(("answer  ", "dim"), (answer.text, "bold")))
    console.print(_table(rows, "p(span|z,x)", answer.best))


@torch.no_grad()
def _answer_utilities(context: Context, query: np.ndarray, rows: list[int], answer: Any) -> list[float]:
    """RU of each passage for the chosen answer: log p(y|z,x) - log p(y|null,x), with the question followed by masks.

    The span head cannot read an empty passage, so utility is measured with the masked-word head of the run before
    fine-tuning: the question followed by as many [MASK] as the answer has wordpieces.
    """
    reader = initial_state(context, "finetune").reader.eval()
    targets = np.array(answer.candidates[answer.best].wordpieces, np.int64)
    tokens = np.concatenate([query, np.full(len(targets), context.special.mask)])
    candidate_reader = CandidateReader(context.params, reader, context.passages, context.special)
    log_words_KMV = candidate_reader.word_log_probs(tokens, len(query) + np.arange(len(targets)), [NULL, *rows])
    log_reader = filling_log_probs(log_words_KMV, torch.from_numpy(targets))
    return retrieval_utility(log_reader[None], log_reader[None, 0])[0, 1:].tolist()


def fill(sentence: str, params: Params, root: Path, seed: int, system: str, k: int = 5, as_json: bool = False) -> None:
    """Print the best filling of the blank: without retrieval, per passage, and marginal (the paper's Table 3).

    Several [MASK] side by side ask for just as many wordpieces. One [MASK] leaves the length open: lengths are weighed
    by how often salient spans of the pre-training corpus have them.
    """
    blank = re.search(r"\[MASK\](?:\s*\[MASK\])*", sentence)
    if blank is None or MASK in sentence[blank.end() :]:
        raise UserError(f"write one blank into the sentence: {MASK}, or several {MASK} side by side")
    context = open_run(params, root, seed, system)
    reader, embedder, null_offset = initial_state(context, "finetune")
    reader.eval()
    embedder.eval()
    retriever = context.retriever(embedder, null_offset=null_offset)
    retriever.refresh(0)
    parts = (sentence[: blank.start()], sentence[blank.end() :])
    before, after = (encode_batch_plain(context.tokenizer, [part])[0].ids for part in parts)
    asked = blank[0].count(MASK)
    log_lengths = {asked: 0.0} if asked > 1 else span_length_log_probs(context.corpus.sentences())
    room = params.corpus.sentence_length - 2 - len(before) - len(after)
    fitting = {length: prior for length, prior in log_lengths.items() if length <= room}
    if not fitting:
        raise UserError(f"the sentence is longer than corpus.sentence_length = {params.corpus.sentence_length}")
    tried = [
        (prior, _fill_length(context, retriever, reader, before, after, length, k)) for length, prior in fitting.items()
    ]
    _, best = max(tried, key=lambda found: found[0] + found[1]["marginal_log_probability"])
    if as_json:
        print(json.dumps({"sentence": sentence, **best}, ensure_ascii=False))
        return
    console = Console()
    console.print(Text.assemble(("marginal      ", "dim"), (best["answer"], "bold"), f"  p = {best['marginal']:.3g}"))
    console.print(Text.assemble(("no retrieval  ", "dim"), (best["answer"], ""), f"  p = {best['without']:.3g}"))
    console.print(_table(best["candidates"], "p(y|z,x)", None))


def span_length_log_probs(sentences: Sentences) -> dict[int, float]:
    """log p(number of wordpieces) over the salient spans of the pre-training corpus, up to MAX_MASKED_WORDPIECES."""
    spans = np.asarray(sentences.spans.values).reshape(-1, 2)
    counts = np.bincount(spans[:, 1] - spans[:, 0], minlength=2)[: MAX_MASKED_WORDPIECES + 1]
    return {length: math.log(count / len(spans)) for length, count in enumerate(counts) if count}


@torch.no_grad()
def _fill_length(
    context: Context, retriever: Retriever, reader: Reader, before: list[int], after: list[int], length: int, k: int
) -> dict[str, Any]:
    """The best filling of `length` wordpieces, by a beam over the marginal of left-to-right choices."""
    mask = context.special.mask
    tokens = np.array([*before, *[mask] * length, *after], np.int64)
    at = len(before) + np.arange(length)
    # As in pre-training, with k passages; the null document is read to compare with, whether it is a candidate or not.
    policy = CandidatePolicy.of(context.params.pretrain).reading(k)
    found = policy.retrieve(retriever, [tokens], compare_null=True)
    rows = [int(row) for row in found.rows_BK[0] if row >= NULL]
    log_prior = found.log_prior_BK[0, : len(rows)]
    candidate_reader = CandidateReader(context.params, reader, context.passages, context.special)
    log_words_KMV = candidate_reader.word_log_probs(tokens, at, rows)
    words, log_reader = best_filling(log_prior, log_words_KMV)
    utility = retrieval_utility(log_reader[None], log_reader[None, 0])[0]
    marginal = float((log_prior + log_reader).logsumexp(0))
    candidates: list[dict[str, Any]] = []
    for place, row in enumerate(rows):
        own = log_words_KMV[place].argmax(-1).tolist()
        candidates.append(
            {
                "passage": context.passages.text.row(row) if row >= 0 else None,
                "span": None,
                "answer": context.tokenizer.decode(own),
                "probability": float(log_prior[place].exp()),
                "reader_probability": float(log_reader[place].exp()),
                "utility": float(utility[place]),
            }
        )
    candidates.sort(key=lambda candidate: -candidate["probability"])
    return {
        "answer": context.tokenizer.decode(words),
        "wordpieces": length,
        "marginal": math.exp(marginal),
        "marginal_log_probability": marginal,
        "without": float(log_reader[0].exp()),
        "candidates": candidates,
    }


def _table(rows: list[dict[str, Any]], reader_column: str, best: int | None) -> Table:
    """The candidates; the answer's span is highlighted in its passage."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name, justify in (("p(z|x)", "right"), (reader_column, "right"), ("utility", "right"), ("answer", "left")):
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    table.add_column("passage")
    for number, row in enumerate(rows):
        passage = row["passage"]
        text = Text("(null document)", style="dim")
        if passage is not None:
            text = Text.assemble((passage["title"], "bold"), "  ", passage["body"])
            if row["span"]:
                offset = len(passage["title"]) + 2
                text.stylize("reverse", offset + row["span"][0], offset + row["span"][1])
        utility = f"{row['utility']:+.2f}" if row["utility"] is not None else "-"
        style = "bold" if number == best else ""
        table.add_row(
            f"{row['probability']:.3f}",
            f"{row['reader_probability']:.3g}",
            utility,
            Text(row["answer"], style),
            text,
        )
    return table
