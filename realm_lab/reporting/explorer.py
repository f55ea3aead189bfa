"""What the retrieval explorer of a page holds: a sample of the examples, every text and passage once.

The packed form is JSON: {"studies": [{"name", "title", "cells": [[name, title]]}], "texts": [text], "passages":
[[title, body]], "examples": [row]}. A row is [study, cell, seed, kind, when, moment, text, answer, prediction, null,
marginal, further, further probability, candidates]; study and cell are places in their lists, kind to prediction places
in `texts` (-1: none), null and marginal nats, further the number of candidates that are not shown. A candidate is
[passage (-1: the empty document), p(z|x), log p(y|z,x), utility, span start, span end, is gold]; span ends count UTF-16
units, as JavaScript does.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

Packed = dict[str, Any]

CANDIDATES = 8  # of an example, by p(z|x); the empty document and the passage with the fact are shown besides
PASSAGE_CHARACTERS = 480
# Places in a row.
STUDY, CELL, KIND, PREDICTION, OTHERS = 0, 1, 3, 8, 13


class Tables:
    """Texts and passages, each kept once."""

    def __init__(self) -> None:
        self.texts: dict[str, int] = {}
        self.passages: dict[tuple[str, str], int] = {}

    def text(self, text: str | None) -> int:
        """The place of a text; -1 for none."""
        return -1 if text is None else self.texts.setdefault(_sound(text), len(self.texts))

    def passage(self, title: str, body: str) -> int:
        """The place of a passage."""
        return self.passages.setdefault((_sound(title), _sound(body)), len(self.passages))

    def packed(self, studies: list[dict[str, Any]], rows: list[list[Any]]) -> Packed:
        """All of it."""
        passages = [list(passage) for passage in self.passages]
        return {"studies": studies, "texts": list(self.texts), "passages": passages, "examples": rows}


def pack(
    examples: Sequence[dict[str, Any]], study: str, title: str, cells: Sequence[tuple[str, str]], cap: int
) -> Packed:
    """A sample of `worked_examples.load_examples`: of each cell at most `cap` sentences and questions.

    `cells` are the (name, title) to be shown; all labels by their names where there are none.
    """
    titles = dict(cells)
    labels = list(titles or dict.fromkeys(example["label"] for example in examples))
    tables = Tables()
    rows = []
    for place, label in enumerate(labels):
        mine = [example for example in examples if example["label"] == label]
        rows += [_row(tables, 0, place, example) for example in sample(mine, cap)]
    return tables.packed(
        [{"name": study, "title": title, "cells": [[label, titles.get(label, label)] for label in labels]}], rows
    )


def sample(examples: Sequence[dict[str, Any]], cap: int) -> list[dict[str, Any]]:
    """The examples of at most `cap` sentences and questions of one cell, evenly over kinds and seeds, in their order.

    A sentence before and after pre-training counts once, and both are kept. Cells with the same seeds and examples get
    the same sample.
    """
    groups: dict[tuple[Any, str], dict[tuple[str, str], list[int]]] = {}
    for number, example in enumerate(examples):
        group = groups.setdefault((example["seed"], example["kind"]), {})
        group.setdefault((example["text"], example["answer"]), []).append(number)
    chosen: list[int] = []
    queues = [list(items.values()) for items in groups.values()]
    for depth in range(max(map(len, queues), default=0)):
        for queue in queues:
            if depth < len(queue) and cap > 0:
                chosen += queue[depth]
                cap -= 1
    return [examples[number] for number in sorted(chosen)]


def merge(packs: Iterable[Packed]) -> Packed:
    """Several packs as one, what they share kept once."""
    tables = Tables()
    studies: list[dict[str, Any]] = []
    rows = []
    for found in packs:
        texts = [tables.text(text) for text in found["texts"]]
        passages = [tables.passage(title, body) for title, body in found["passages"]]
        for row in found["examples"]:
            new = list(row)
            new[STUDY] += len(studies)
            for place in (3, 4, 5, 6, 7, 8):
                new[place] = texts[row[place]] if row[place] >= 0 else -1
            new[OTHERS] = [[passages[c[0]] if c[0] >= 0 else -1, *c[1:]] for c in row[OTHERS]]
            rows.append(new)
        studies += found["studies"]
    return tables.packed(studies, rows)


def sentences(packed: Packed) -> int:
    """How many sentences and questions it holds."""
    return len({(*row[:4], row[6], row[7]) for row in packed["examples"]})


def _row(tables: Tables, study: int, cell: int, example: dict[str, Any]) -> list[Any]:
    ordered = sorted(example["candidates"], key=lambda candidate: -(candidate["probability"] or 0.0))
    kept = [c for place, c in enumerate(ordered) if place < CANDIDATES or c["is_null"] or c["is_gold"]]
    further = [c["probability"] or 0.0 for c in ordered if not any(c is other for other in kept)]
    names = ("kind", "when", "moment", "text", "answer", "prediction")
    return [
        study,
        cell,
        example["seed"],
        *(tables.text(example[name]) for name in names),
        _short(example["null"], 3),
        _short(example["marginal"], 3),
        len(further),
        _short(sum(further), 4),
        [_candidate(tables, candidate) for candidate in kept],
    ]


def _candidate(tables: Tables, candidate: dict[str, Any]) -> list[Any]:
    numbers = [_probability(candidate["probability"]), _short(candidate["reader"], 3), _short(candidate["utility"], 2)]
    if candidate["is_null"]:
        return [-1, *numbers, 0, 0, 0]
    before, span, after = (_sound(candidate[part]) for part in ("before", "span", "after"))
    before, after = _cut(before, span, after)
    start, length = _units(before), _units(span)
    passage = tables.passage(candidate["title"], before + span + after)
    ends = [start, start + length] if span else [0, 0]
    return [passage, *numbers, *ends, int(candidate["is_gold"])]


def _cut(before: str, span: str, after: str) -> tuple[str, str]:
    """What stands around a span, cut so that long passages stay short: their beginning where the span is in it."""
    if len(before) + len(span) + len(after) <= PASSAGE_CHARACTERS:
        return before, after
    if not span:
        return before[:PASSAGE_CHARACTERS].rstrip() + " …", after
    end = len(before) + len(span)
    if end <= PASSAGE_CHARACTERS:
        return before, after[: PASSAGE_CHARACTERS - end].rstrip() + " …"
    room = max(40, (PASSAGE_CHARACTERS - len(span)) // 2)
    tail = after if len(after) <= room else after[:room].rstrip() + " …"
    return "… " + before[-room:].lstrip(), tail


def _units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def _sound(text: str) -> str:
    """Without halves of surrogate pairs, which no file can hold."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _short(value: float | None, digits: int) -> float | int | None:
    if value is None or not math.isfinite(value):
        return None
    value = round(value, digits)
    return int(value) if value == int(value) else value


def _probability(value: float | None) -> float | int | None:
    """Four decimals, or two digits of a small one."""
    if value is None or not math.isfinite(value):
        return None
    return _short(value, 4) if value >= 0.0005 or value == 0.0 else float(f"{value:.1e}")
