"""Worked examples of a run (eval/explorer.json): read with care, the paper's Table 3, and the page's explorer.

The explorer's data is JSON: {"cells": [[name, title]], "passages": [[title, body]], "examples": [...]}; each text of a
passage is kept once, and candidates refer to it by its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from realm_lab.core.files import read_json
from realm_lab.errors import UserError
from realm_lab.reporting.frames import Run, StudyFrames
from realm_lab.reporting.rendering import NOTHING, number, probability
from realm_lab.reporting.tables import Rows
from realm_lab.reporting.values import finite

Example = dict[str, Any]
MOMENTS = {"start": "before pre-training", "end": "after pre-training"}
MOST_SEEDS = 2  # of a cell whose examples are read
PER_CELL = 40  # sentences and questions of a cell in the explorer
CANDIDATES = 8  # of an example, by p(z|x); the null document and the passage with the fact are shown besides
SHOWN_PASSAGES = 3  # in the paper's Table 3
PASSAGE_CHARACTERS = 480
SNIPPET_CHARACTERS = 150


def load_examples(study: StudyFrames) -> tuple[list[Example], list[str]]:
    """(examples of the first seeds of each cell, a sentence for each run that has none).

    An example has cell, seed, kind (cloze, question), when (start, end), moment (in words), text, answer, prediction,
    null and marginal (log-likelihoods in nats or None) and candidates; a candidate has title, before, span, after
    (its body cut at the span), probability, reader, utility, is_null, is_gold.
    """
    examples: list[Example] = []
    notes = []
    for cell, _ in study.cells:
        for run in study.of(cell)[:MOST_SEEDS]:
            found, note = _read(study, run)
            examples += found
            notes += [f"{cell}, seed {run.seed}: {note}"] if note else []
    return examples, notes


def table_3(study: StudyFrames, examples: Sequence[Example]) -> list[dict[str, Any]]:
    """The paper's Table 3 for three masked sentences of one system, beside the same sentence before pre-training.

    Chosen by the gain of the marginal likelihood over the null document: the largest, the median and the smallest, so
    that a failure is shown too. The system is the baseline, or the first cell that pre-trains where that does not.
    """
    cell = next((name for name, _ in study.pretrained), study.record.baseline)
    usable = [e for e in examples if (e["cell"], e["kind"], e["when"]) == (cell, "cloze", "end")]
    usable = [e for e in usable if e["null"] is not None and e["marginal"] is not None]
    usable.sort(key=lambda e: (e["null"] - e["marginal"], e["seed"], e["text"]))
    places: dict[int, str] = {}  # the first name of a place counts: with one or two examples the places fall together
    for place, name in ((0, "Largest gain"), (len(usable) - 1, "Smallest gain"), (len(usable) // 2, "Median gain")):
        places.setdefault(place, name)
    title = study.record.cell(cell).title
    return [
        {
            "title": f"{name}, {title}, seed {usable[place]['seed']}: {gain(usable[place])} nats",
            "text": usable[place]["text"],
            "answer": usable[place]["answer"],
            "rows": _rows(usable[place], _before(examples, usable[place])),
        }
        for place, name in sorted(places.items())
        if usable
    ]


def gain(example: Example) -> str:
    """log p(y|x) over all candidates less that of the null document, in nats."""
    return number(example["marginal"] - example["null"], 2)


def explorer_data(study: StudyFrames, examples: Sequence[Example]) -> dict[str, Any]:
    """What the page's explorer shows: of each cell at most `PER_CELL` sentences and questions."""
    passages: dict[tuple[str, str], int] = {}
    chosen = [e for cell, _ in study.cells for e in _sample([e for e in examples if e["cell"] == cell])]
    return {
        "cells": [list(cell) for cell in study.cells],
        "examples": [_packed(example, passages) for example in chosen],
        "passages": [list(passage) for passage in passages],
    }


def _sample(examples: Sequence[Example]) -> list[Example]:
    """In turn from each seed and kind; a sentence before and after pre-training counts once, and both are kept."""
    groups: dict[Any, dict[Any, list[Example]]] = {}
    for example in examples:
        group = groups.setdefault((example["seed"], example["kind"]), {})
        group.setdefault((example["text"], example["answer"]), []).append(example)
    queues = [list(group.values()) for group in groups.values()]
    longest = max(map(len, queues), default=0)
    turns = [queue[depth] for depth in range(longest) for queue in queues if depth < len(queue)]
    return [example for pair in turns[:PER_CELL] for example in pair]


def _packed(example: Example, passages: dict[tuple[str, str], int]) -> Example:
    ordered = sorted(example["candidates"], key=lambda candidate: -(candidate["probability"] or 0.0))
    kept = [c for place, c in enumerate(ordered) if place < CANDIDATES or c["is_null"] or c["is_gold"]]
    packed = {key: value for key, value in example.items() if key != "candidates"}
    packed["candidates"] = [_packed_candidate(candidate, passages) for candidate in kept]
    packed["further"] = [
        len(ordered) - len(kept),
        round(sum(c["probability"] or 0.0 for c in ordered if c not in kept), 4),
    ]
    return packed


def _packed_candidate(candidate: dict[str, Any], passages: dict[tuple[str, str], int]) -> list[Any]:
    """[passage (-1: null document), p(z|x), log p(y|z,x), utility, is gold, span's ends in UTF-16 units]."""
    numbers = [candidate["probability"], candidate["reader"], candidate["utility"], int(candidate["is_gold"])]
    if candidate["is_null"]:
        return [-1, *numbers, 0, 0]
    before, span, after = _cut(candidate, PASSAGE_CHARACTERS)
    start = len(before.encode("utf-16-le")) // 2
    place = passages.setdefault((candidate["title"], before + span + after), len(passages))
    return [place, *numbers, start, start + len(span.encode("utf-16-le")) // 2]


def _rows(example: Example, earlier: Example | None) -> Rows:
    """As in the paper: (a) no retrieval, (b) each document, (c) the marginal over all candidates."""
    rows = [_row("(a) no retrieval", likelihood=example["null"])]
    if earlier is not None and earlier["null"] is not None:
        rows.append(_row("(a) before pre-training", likelihood=earlier["null"]))
    candidates = sorted(example["candidates"], key=lambda candidate: -(candidate["probability"] or 0.0))
    real = [candidate for candidate in candidates if not candidate["is_null"]]
    shown = real[:SHOWN_PASSAGES] + [candidate for candidate in real[SHOWN_PASSAGES:] if candidate["is_gold"]][:1]
    for candidate in shown:
        gold = " [the passage with the fact]" if candidate["is_gold"] else ""
        text = f"{candidate['title']}: {''.join(_cut(candidate, SNIPPET_CHARACTERS))}{gold}"
        rows.append(_row("(b) one document", text, candidate["probability"], candidate["reader"]))
    if len(real) > len(shown):
        rest = sum(candidate["probability"] or 0.0 for candidate in real if candidate not in shown)
        rows.append(_row("", f"{len(real) - len(shown)} further documents", rest))
    for empty in [candidate for candidate in candidates if candidate["is_null"]][:1]:
        rows.append(_row("", "the null document as a candidate", empty["probability"], empty["reader"]))
    rows.append(_row("(c) marginal", likelihood=example["marginal"]))
    if earlier is not None:
        rows.append(_row("(c) before pre-training", likelihood=earlier["marginal"]))
    return rows


def _row(case: str, document: str = "", chance: float | None = None, likelihood: float | None = None) -> dict[str, str]:
    reader = NOTHING if likelihood is None else probability(math.exp(min(likelihood, 0.0)))
    return {"case": case, "document z": document, "p(z|x)": probability(chance), "p(y|z,x)": reader}


def _before(examples: Iterable[Example], example: Example) -> Example | None:
    """The same sentence of the same run before pre-training, if it was kept."""
    keys = ("cell", "seed", "kind", "text", "answer")
    return next((e for e in examples if e["when"] == "start" and all(e[k] == example[k] for k in keys)), None)


def _read(study: StudyFrames, run: Run) -> tuple[list[Example], str | None]:
    path = run.stages["evaluate"].path / "eval" / "explorer.json" if "evaluate" in run.stages else None
    if path is None or not path.exists():
        return [], "no examples (eval/explorer.json is not there)."
    try:
        raw = read_json(path)
    except UserError as error:
        return [], str(error).replace(f"{study.folder}/", "runs/")
    examples = [_example(item, run) for item in (raw if isinstance(raw, list) else []) if isinstance(item, dict)]
    return examples, None if examples else "eval/explorer.json holds no example."


def _example(item: dict[str, Any], run: Run) -> Example:
    entries = item.get("candidates")
    when = str(item.get("when", ""))
    return {
        "cell": run.cell,
        "seed": run.seed,
        "kind": str(item.get("kind", "")),
        "when": when,
        "moment": MOMENTS.get(when, when) if "pretrain" in run.stages else "not pre-trained",
        "text": _sound(item.get("text")),
        "answer": _sound(item.get("answer")),
        "prediction": None if item.get("prediction") is None else _sound(item["prediction"]),
        "null": _round(item.get("null_log_likelihood"), 3),
        "marginal": _round(item.get("marginal_log_likelihood"), 3),
        "candidates": [_candidate(e) for e in (entries if isinstance(entries, list) else []) if isinstance(e, dict)],
    }


def _candidate(entry: dict[str, Any]) -> dict[str, Any]:
    body, span = _sound(entry.get("body")), entry.get("span")
    start = end = len(body)
    if isinstance(span, list) and len(span) == 2 and all(isinstance(edge, int) for edge in span):
        if 0 <= span[0] < span[1] <= len(body):
            start, end = span
    return {
        "title": _sound(entry.get("title")),
        "before": body[:start],
        "span": body[start:end],
        "after": body[end:],
        "probability": _round(entry.get("probability"), 4),
        "reader": _round(entry.get("reader_log_likelihood"), 3),
        "utility": _round(entry.get("utility"), 2),
        "is_null": bool(entry.get("is_null")),
        "is_gold": bool(entry.get("is_gold")),
    }


def _cut(candidate: dict[str, Any], most: int) -> tuple[str, str, str]:
    """What is before, in and after the span, cut so that the whole is about `most` characters around the span."""
    before, span, after = candidate["before"], candidate["span"], candidate["after"]
    if len(before) + len(span) + len(after) <= most:
        return before, span, after
    if not span:
        return before[:most].rstrip() + " …", span, after
    side = max(20, (most - len(span)) // 2)
    head = before if len(before) <= side else "… " + before[-side:].lstrip()
    tail = after if len(after) <= side else after[:side].rstrip() + " …"
    return head, span, tail


def _sound(text: Any) -> str:
    """Text without halves of surrogate pairs, which no file can hold."""
    return "" if text is None else str(text).encode("utf-8", "replace").decode("utf-8")


def _round(value: Any, digits: int) -> float | None:
    value = finite(value)
    return None if value is None else round(value, digits)
