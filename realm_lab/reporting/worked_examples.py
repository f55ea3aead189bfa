"""eval/explorer.json: read with care, cut for display, and the examples of the paper's Table 3."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from realm_lab.core.files import read_json
from realm_lab.errors import UserError
from realm_lab.reporting.document import NOTHING, Block, Quote, Table, Text, number, probability
from realm_lab.reporting.table import Collection, Run, finite
from realm_lab.tracking.run_dir import stage_of

# "end" is also the only state of a system that is never pre-trained.
WHEN = {"start": "before pre-training", "end": "final system"}
MOMENTS = {"start": "before pre-training", "end": "after pre-training"}
SHOWN_PASSAGES = 3
MOST_SEEDS = 6  # of a cell whose examples are read: more would make a page that nobody can open
SNIPPET_CHARACTERS = 150


def load_examples(collection: Collection) -> tuple[list[dict[str, Any]], list[str]]:
    """(every example of the first seeds of each cell, sentences on what is missing), in the order of labels and seeds.

    An example has label, seed, kind, when, moment (when, in words), text, answer, prediction (of a question), null,
    marginal (nats or None) and candidates; a candidate has title, before, span, after (its body cut at the span),
    probability, reader, utility, is_null, is_gold.
    """
    examples: list[dict[str, Any]] = []
    notes: list[str] = []
    for label in collection.labels:
        for run in collection.of(label)[:MOST_SEEDS]:
            found, note = _examples_of(collection, run)
            examples.extend(found)
            if note:
                notes.append(f"{label}, seed {run.record.seed}: {note}")
    return examples, notes


def worked_examples(collection: Collection, examples: list[dict[str, Any]]) -> list[Block]:
    """The paper's Table 3 for three masked sentences of the treatment: largest, median and smallest gain.

    The choice is by the gain of the marginal likelihood over the empty document, so that a failure is shown too.
    """
    usable = _usable(examples, collection.treatment)
    if not usable:
        return [
            Text(
                "No worked example: no run left masked sentences in eval/explorer.json after pre-training.",
                missing=True,
            )
        ]
    text = (
        f"Of the {len(usable)} masked sentences kept for the explorer, the three with the largest, the median and "
        "the smallest gain of the marginal likelihood over the empty document: not the three best. "
        "As in Table 3 of the paper: (a) no retrieval, (b) each document, (c) the marginal over all candidates."
    )
    return [Text(text), *_three(examples, usable, None)]


def table_3(examples: list[dict[str, Any]], label: str, title: str, warm: str | None) -> list[Block]:
    """The paper's Table 3 of one cell of a study, `label`, beside the cell `warm` that was only warm-started.

    Without such a cell, or without its example, the cell's own state before pre-training stands for it. Shown are the
    sentences with the largest, the median and the smallest gain over all seeds: a rule, and a failure shows too.
    """
    usable = _usable(examples, label)
    if not usable:
        text = f"No worked example: no run of {title} left masked sentences in eval/explorer.json."
        return [Text(text, missing=True)]
    seeds = len({example["seed"] for example in usable})
    text = (
        f"Table 3 of the paper, regenerated for {title}: how likely the masked words y are without retrieval (a), "
        "given one document, the one with the fact among them where it was found (b), and marginally over all "
        f"candidates (c). Of the {len(usable)} held-out sentences of {seeds} seed{'s' * (seeds > 1)}, those with "
        "the largest, the median and the smallest gain of (c) over (a): not the three best. Before pre-training is the "
        "warm start, whose reader without retrieval is the paper's BERT."
    )
    return [Text(text), *_three(examples, usable, warm)]


def _usable(examples: list[dict[str, Any]], label: str | None) -> list[dict[str, Any]]:
    """The masked sentences of a system in its final state, the largest gain first."""
    usable = [
        example
        for example in examples
        if (example["label"], example["kind"], example["when"]) == (label, "cloze", "end")
        and example["null"] is not None
        and example["marginal"] is not None
    ]
    return sorted(usable, key=lambda example: (example["null"] - example["marginal"], example["seed"], example["text"]))


def _three(examples: list[dict[str, Any]], usable: list[dict[str, Any]], warm: str | None) -> list[Block]:
    """Quote and table of the first, the last and the middle one."""
    # The first name of a place counts: with one or two examples the places fall together.
    places: dict[int, str] = {}
    for index, name in ((0, "Largest gain"), (len(usable) - 1, "Smallest gain"), (len(usable) // 2, "Median gain")):
        places.setdefault(index, name)
    blocks: list[Block] = []
    for index, name in sorted(places.items()):
        example = usable[index]
        gain = example["marginal"] - example["null"]
        blocks.append(Quote(f"{name}, seed {example['seed']}: {number(gain, 2)} nats", example["text"]))
        blocks.append(_table_of(example, _of_cell(examples, example, warm) or _earlier(examples, example)))
    return blocks


def _of_cell(examples: list[dict[str, Any]], example: dict[str, Any], label: str | None) -> dict[str, Any] | None:
    """The same sentence as another cell's final system sees it."""
    keys = ("seed", "kind", "text", "answer")
    matches = (
        item
        for item in examples
        if (item["label"], item["when"]) == (label, "end") and all(item[key] == example[key] for key in keys)
    )
    return next(matches, None)


def _table_of(example: dict[str, Any], earlier: dict[str, Any] | None) -> Table:
    rows = [("(a) no retrieval", "", "", _exp(example["null"]))]
    if earlier is not None and earlier["null"] is not None:
        rows.append(("(a) before pre-training", "", "", _exp(earlier["null"])))
    candidates = sorted(example["candidates"], key=lambda candidate: -(candidate["probability"] or 0.0))
    real = [candidate for candidate in candidates if not candidate["is_null"]]
    shown = real[:SHOWN_PASSAGES] + [candidate for candidate in real[SHOWN_PASSAGES:] if candidate["is_gold"]][:1]
    for candidate in shown:
        gold = " [the passage with the fact]" if candidate["is_gold"] else ""
        document = f"{candidate['title']}: {_snippet(candidate)}{gold}"
        rows.append(("(b) one document", document, probability(candidate["probability"]), _exp(candidate["reader"])))
    if len(real) > len(shown):
        rest = sum(candidate["probability"] or 0.0 for candidate in real if candidate not in shown)
        rows.append(("", f"{len(real) - len(shown)} further documents", probability(rest), ""))
    empty = [candidate for candidate in candidates if candidate["is_null"]]
    if empty:
        rows.append(
            ("", "the empty document as a candidate", probability(empty[0]["probability"]), _exp(empty[0]["reader"]))
        )
    rows.append(("(c) marginal", "", "", _exp(example["marginal"])))
    if earlier is not None:
        rows.append(("(c) before pre-training", "", "", _exp(earlier["marginal"])))
    frame = pd.DataFrame(rows, columns=["case", "document z", "p(z|x)", "p(y|z,x)"])
    return Table(f"p(y = {example['answer']})", frame)


def _examples_of(collection: Collection, run: Run) -> tuple[list[dict[str, Any]], str | None]:
    evaluate = stage_of(collection.runs_folder, run.record, "evaluate")
    path = evaluate.path / "eval" / "explorer.json" if evaluate else None
    if path is None or not path.exists():
        return [], "no examples (eval/explorer.json is not there)."
    try:
        raw = read_json(path)
    except UserError as error:
        return [], str(error).replace(f"{collection.runs_folder}/", "runs/")
    items = raw if isinstance(raw, list) else []
    examples = [_example(item, run) for item in items if isinstance(item, dict)]
    return examples, None if examples else "eval/explorer.json holds no example."


def _example(item: dict[str, Any], run: Run) -> dict[str, Any]:
    candidates = [_candidate(entry) for entry in item.get("candidates") or [] if isinstance(entry, dict)]
    when = str(item.get("when", ""))
    return {
        "label": run.label,
        "seed": run.record.seed,
        "kind": str(item.get("kind", "")),
        "when": when,
        "moment": MOMENTS.get(when, when) if "pretrain" in run.record.stages else "not pre-trained",
        "text": str(item.get("text", "")),
        "answer": str(item.get("answer", "")),
        "prediction": str(item["prediction"]) if item.get("prediction") is not None else None,
        "null": finite(item.get("null_log_likelihood")),
        "marginal": finite(item.get("marginal_log_likelihood")),
        "candidates": candidates,
    }


def _candidate(entry: dict[str, Any]) -> dict[str, Any]:
    body = str(entry.get("body") or "")
    # Cut here and not in the page: JavaScript counts characters in another way than Python.
    start, end = _span(entry.get("span"), len(body))
    return {
        "title": str(entry.get("title") or ""),
        "before": body[:start],
        "span": body[start:end],
        "after": body[end:],
        "probability": _round(entry.get("probability"), 6),
        "reader": _round(entry.get("reader_log_likelihood"), 4),
        "utility": _round(entry.get("utility"), 4),
        "is_null": bool(entry.get("is_null")),
        "is_gold": bool(entry.get("is_gold")),
    }


def _span(span: Any, length: int) -> tuple[int, int]:
    """A valid (start, end), or an empty one at the end of the body."""
    if isinstance(span, list) and len(span) == 2 and all(isinstance(edge, int) for edge in span):
        if 0 <= span[0] < span[1] <= length:
            return span[0], span[1]
    return length, length


def _earlier(examples: list[dict[str, Any]], example: dict[str, Any]) -> dict[str, Any] | None:
    """The same sentence before pre-training, if it was kept."""
    keys = ("label", "seed", "kind", "text", "answer")
    matches = (item for item in examples if item["when"] == "start" and all(item[key] == example[key] for key in keys))
    return next(matches, None)


def _snippet(candidate: dict[str, Any]) -> str:
    """The neighbourhood of the span, or the beginning of the body."""
    before, span, after = candidate["before"], candidate["span"], candidate["after"]
    if not span:
        return before if len(before) <= SNIPPET_CHARACTERS else before[:SNIPPET_CHARACTERS].rstrip() + " …"
    room = max(20, (SNIPPET_CHARACTERS - len(span)) // 2)
    head = before if len(before) <= room else "… " + before[-room:].lstrip()
    tail = after if len(after) <= room else after[:room].rstrip() + " …"
    return head + span + tail


def _exp(log_likelihood: float | None) -> str:
    return NOTHING if log_likelihood is None else probability(math.exp(min(log_likelihood, 0.0)))


def _round(value: Any, digits: int) -> float | None:
    value = finite(value)
    return None if value is None else round(value, digits)
