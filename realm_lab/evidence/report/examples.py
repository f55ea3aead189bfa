"""Worked examples of a run (eval/explorer.json): the paper's Table 3, and the explorer of a page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import Any

from realm_lab.errors import UserError
from realm_lab.evidence.report.frames import StudyFrames, relative
from realm_lab.records.files import read_json
from realm_lab.records.metric_log import finite
from realm_lab.records.run import Run

Example = dict[str, Any]
MOMENTS = {"start": "before pre-training", "end": "after pre-training"}
MOST_SEEDS = 2  # seeds of a cell whose examples are read
PER_GROUP = 10  # sentences or questions of one run and moment in the explorer
CANDIDATES = 8  # most probable candidates of an example; the null document and the gold passage are kept as well
PASSAGE_CHARACTERS = 300
SHOWN = ("cell", "seed", "text", "answer", "null", "marginal")  # fields of an example that a report has
CANDIDATE = ("title", "before", "span", "after", "picture", "probability", "reader", "is_null", "is_gold")


def load_examples(study: StudyFrames) -> list[Example]:
    """The examples of the first seeds of each cell.

    `null` and `marginal` are log-likelihoods in nats; a long passage is cut to the text around its span.
    """
    return [e for cell, _ in study.cells for run in study.of(cell)[:MOST_SEEDS] for e in _read(study, run)]


def explorer_data(study: StudyFrames) -> dict[str, Any]:
    """Return the data of the explorer: a few sentences and questions of each run, equal texts one after the other."""
    groups: dict[tuple[Any, ...], list[Example]] = defaultdict(list)
    for example in load_examples(study):
        groups[tuple(example[key] for key in ("cell", "seed", "kind", "when"))].append(example)
    together: dict[tuple[str, str], list[Example]] = defaultdict(list)
    for example in (example for group in groups.values() for example in group[:PER_GROUP]):
        together[example["kind"], example["text"]].append(example)
    return {"cells": dict(study.cells), "examples": [*chain.from_iterable(together.values())]}


def table_3(study: StudyFrames, examples: Sequence[Example]) -> list[dict[str, Any]]:
    """Three masked sentences of one cell, as in the paper's Table 3: `gain`, its `rank`, and the example.

    Chosen by the gain of the marginal likelihood over the null document: the largest, the median and the smallest, so
    that a failure is shown too. The cell is the first that pre-trains, or else the first with masked sentences.
    """
    sentences = [e for e in examples if (e["kind"], e["when"]) == ("cloze", "end")]
    cell = next((name for name, _ in study.pretrained), sentences[0]["cell"] if sentences else study.record.baseline)
    of_cell = [e for e in sentences if e["cell"] == cell]
    gains = [(e["marginal"] - e["null"], e) for e in of_cell]
    gains.sort(key=lambda pair: (-pair[0], pair[1]["seed"], pair[1]["text"]))
    places = {"largest": 0, "median": len(gains) // 2, "smallest": len(gains) - 1}
    chosen = [(rank, *gains[place]) for rank, place in [*places.items()][: len(gains)]]
    return [{"rank": rank, "gain": gain} | {key: e[key] for key in SHOWN} | _shown(e) for rank, gain, e in chosen]


def _shown(example: Example) -> dict[str, Any]:
    """The candidates that a report shows: the first three, the passage with the fact, and the null document."""
    passages = [one for one in example["candidates"] if not one["is_null"]]
    nulls = [one for one in example["candidates"] if one["is_null"]]
    chosen = [one for place, one in enumerate(passages) if place < 3 or one["is_gold"]]
    kept = [one | {"picture": bool(one["picture"])} for one in (*chosen, *nulls)]
    return {"candidates": [{key: one[key] for key in CANDIDATE} for one in kept]}


def _read(study: StudyFrames, run: Run) -> list[Example]:
    path = run.folder("evaluate").path / "eval" / "explorer.json" if "evaluate" in run.stages else None
    if path is None or not path.exists():
        return []
    try:
        # without pre-training, start and end are the same
        return [_example(item, run) for item in read_json(path) if item["when"] == "end" or "pretrain" in run.stages]
    except (UserError, TypeError, KeyError, AttributeError) as error:
        study.problems.append(relative(f"{path}: {error}", path.parents[3]))
        return []


def _example(item: dict[str, Any], run: Run) -> Example:
    moment = MOMENTS[item["when"]] if "pretrain" in run.stages else "without pre-training"
    by_trust = sorted(map(_candidate, item["candidates"]), key=lambda candidate: -(candidate["probability"] or 0.0))
    return {
        "cell": run.cell,
        "seed": run.seed,
        "kind": item["kind"],
        "when": item["when"],
        "moment": "after fine-tuning" if item["kind"] == "question" else moment,
        "text": item["text"],
        "answer": item["answer"],
        "prediction": item.get("prediction"),
        "null": _round(item["null_log_likelihood"], 3),
        "marginal": _round(item["marginal_log_likelihood"], 3),
        "no_candidates": run.not_measured.get("retrieval", "nothing was retrieved"),
        "candidates": [c for place, c in enumerate(by_trust) if place < CANDIDATES or c["is_null"] or c["is_gold"]],
    }


def _candidate(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a candidate with its passage cut to the text around the span."""
    body, (start, end) = entry["body"], entry["span"] or (0, 0)
    first = max(0, start - (PASSAGE_CHARACTERS - (end - start)) // 2)
    last = max(end, first + PASSAGE_CHARACTERS)
    picture = entry.get("picture") or ""
    return {
        "title": entry["title"],
        "before": "… " * (first > 0) + body[first:start],
        "span": body[start:end],
        "after": body[end:last] + " …" * (last < len(body)),
        "picture": picture if picture.startswith("data:image/jpeg;base64,") else None,  # a page fetches nothing
        "probability": _round(entry["probability"], 4),
        "reader": _round(entry["reader_log_likelihood"], 3),
        "utility": _round(entry["utility"], 2),
        "is_null": entry["is_null"],
        "is_gold": entry["is_gold"],
    }


def _round(value: Any, digits: int) -> float | None:
    value = finite(value)
    return None if value is None else round(value, digits)
