"""Worked examples of a run (eval/explorer.json): read with care, the paper's Table 3, and the page's explorer.

The explorer's data is JSON: {"cells": [[name, title]], "passages": [[title, body]], "examples": [...]}; each text of a
passage is kept once, and candidates refer to it by its place.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

from realm_lab.core.files import read_json
from realm_lab.errors import UserError
from realm_lab.reporting.frames import Run, StudyFrames
from realm_lab.reporting.rendering import NOTHING, probability
from realm_lab.reporting.tables import Rows
from realm_lab.reporting.values import finite

Example = dict[str, Any]
MOMENTS = {"start": "before pre-training", "end": "after pre-training"}
MOST_SEEDS = 2  # of a cell whose examples are read
PER_GROUP = 10  # sentences or questions of one run and moment in the explorer
CANDIDATES = 8  # of an example, by p(z|x); the null document and the passage with the fact are shown besides
SHOWN_PASSAGES = 3  # in the paper's Table 3
PASSAGE_CHARACTERS = 480
SNIPPET_CHARACTERS = 150


def load_examples(study: StudyFrames) -> list[Example]:
    """The examples of the first seeds of each cell.

    `null` and `marginal` are log-likelihoods in nats; the body of a candidate is cut into what is before its span, the
    span, and what is after it.
    """
    return [e for cell, _ in study.cells for run in study.of(cell)[:MOST_SEEDS] for e in _read(study, run)]


def table_3(study: StudyFrames, examples: Sequence[Example]) -> list[dict[str, Any]]:
    """The paper's Table 3 for three masked sentences of one system, beside the same sentence before pre-training.

    Chosen by the gain of the marginal likelihood over the null document: the largest, the median and the smallest, so
    that a failure is shown too. The system is the baseline, or the first cell that pre-trains where that does not.
    """
    cell = next((name for name, _ in study.pretrained), study.record.baseline)
    usable = [e for e in examples if (e["cell"], e["kind"], e["when"]) == (cell, "cloze", "end")]
    usable.sort(key=lambda e: (-_gain(e), e["seed"], e["text"]))
    earlier = {_identity(e): e for e in examples if e["when"] == "start"}
    places: dict[int, str] = {}  # the first name of a place counts: with one or two examples the places fall together
    for place, name in ((0, "Largest gain"), (len(usable) - 1, "Smallest gain"), (len(usable) // 2, "Median gain")):
        places.setdefault(place, name)
    title = study.record.cell(cell).title
    return [
        {
            "title": f"{name}, {title}, seed {usable[place]['seed']}: {_gain(usable[place]):.2f} nats",
            "text": usable[place]["text"],
            "answer": usable[place]["answer"],
            "rows": _rows(usable[place], earlier.get(_identity(usable[place]))),
        }
        for place, name in sorted(places.items())
        if usable
    ]


def _gain(example: Example) -> float:
    return float(example["marginal"] - example["null"])


def _identity(example: Example) -> tuple[Any, ...]:
    """Of a sentence of one run, the same before and after pre-training."""
    return tuple(example[key] for key in ("cell", "seed", "kind", "text", "answer"))


def explorer_data(study: StudyFrames, examples: Sequence[Example]) -> dict[str, Any]:
    """What the page's explorer shows: of each run a few sentences and questions."""
    passages: dict[tuple[str, str], int] = {}
    chosen, counts = [], Counter[Any]()
    for example in examples:
        group = tuple(example[key] for key in ("cell", "seed", "kind", "when"))
        counts[group] += 1
        if counts[group] <= PER_GROUP:
            chosen.append(example)
    return {
        "cells": [list(cell) for cell in study.cells],
        "examples": [_packed(example, passages) for example in chosen],
        "passages": [list(passage) for passage in passages],
    }


def _packed(example: Example, passages: dict[tuple[str, str], int]) -> Example:
    kept = [c for place, c in enumerate(_by_trust(example)) if place < CANDIDATES or c["is_null"] or c["is_gold"]]
    return example | {"candidates": [_packed_candidate(candidate, passages) for candidate in kept]}


def _by_trust(example: Example) -> list[dict[str, Any]]:
    return sorted(example["candidates"], key=lambda candidate: -(candidate["probability"] or 0.0))


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
    if earlier is not None:
        rows.append(_row("(a) before pre-training", likelihood=earlier["null"]))
    real = [candidate for candidate in _by_trust(example) if not candidate["is_null"]]
    for candidate in real[:SHOWN_PASSAGES] + [late for late in real[SHOWN_PASSAGES:] if late["is_gold"]][:1]:
        gold = " [the passage with the fact]" if candidate["is_gold"] else ""
        text = f"{candidate['title']}: {''.join(_cut(candidate, SNIPPET_CHARACTERS))}{gold}"
        rows.append(_row("(b) one document", text, candidate["probability"], candidate["reader"]))
    for empty in [candidate for candidate in example["candidates"] if candidate["is_null"]]:
        rows.append(_row("", "the null document as a candidate", empty["probability"], empty["reader"]))
    rows.append(_row("(c) marginal", likelihood=example["marginal"]))
    if earlier is not None:
        rows.append(_row("(c) before pre-training", likelihood=earlier["marginal"]))
    return rows


def _row(case: str, document: str = "", chance: float | None = None, likelihood: float | None = None) -> dict[str, str]:
    reader = NOTHING if likelihood is None else probability(math.exp(min(likelihood, 0.0)))
    return {"case": case, "document z": document, "p(z|x)": probability(chance), "p(y|z,x)": reader}


def _read(study: StudyFrames, run: Run) -> list[Example]:
    path = run.stages["evaluate"].path / "eval" / "explorer.json" if "evaluate" in run.stages else None
    if path is None or not path.exists():
        return []
    try:
        return [_example(item, run) for item in read_json(path)]
    except (UserError, TypeError, KeyError, AttributeError) as error:
        study.problems.append(f"{path}: {error}".replace(f"{study.folder}/", "runs/"))
        return []


def _example(item: dict[str, Any], run: Run) -> Example:
    when = item["when"]
    return {
        "cell": run.cell,
        "seed": run.seed,
        "kind": item["kind"],
        "when": when,
        "moment": MOMENTS[when] if "pretrain" in run.stages else "not pre-trained",
        "text": item["text"],
        "answer": item["answer"],
        "prediction": item.get("prediction"),
        "null": _round(item["null_log_likelihood"], 3),
        "marginal": _round(item["marginal_log_likelihood"], 3),
        "candidates": [_candidate(entry) for entry in item["candidates"]],
    }


def _candidate(entry: dict[str, Any]) -> dict[str, Any]:
    body = entry["body"]
    start, end = entry["span"] or (0, 0)
    return {
        "title": entry["title"],
        "before": body[:start],
        "span": body[start:end],
        "after": body[end:],
        "probability": _round(entry["probability"], 4),
        "reader": _round(entry["reader_log_likelihood"], 3),
        "utility": _round(entry["utility"], 2),
        "is_null": entry["is_null"],
        "is_gold": entry["is_gold"],
    }


def _cut(candidate: dict[str, Any], most: int) -> tuple[str, str, str]:
    """What is before, in and after the span, cut so that the whole is about `most` characters around the span."""
    before, span, after = candidate["before"], candidate["span"], candidate["after"]
    side = max(20, (most - len(span)) // 2)
    head = before if len(before) <= side else "… " + before[-side:].lstrip()
    rest = max(20, most - len(span) - len(head))
    return head, span, after if len(after) <= rest else after[:rest].rstrip() + " …"


def _round(value: Any, digits: int) -> float | None:
    value = finite(value)
    return None if value is None else round(value, digits)
