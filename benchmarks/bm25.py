"""Recall of realm_lab's BM25, which the reports use, on real questions.

    python -m benchmarks.bm25 --data FOLDER [--questions 500] [--output FILE]

FOLDER holds squad/train-v1.1.json.gz, squad/dev-v1.1.json and nq_gold/nq_open_gold_passages.public.jsonl. The corpus is
every distinct paragraph of both SQuAD files; the gold passage of a question is its paragraph. For Natural Questions
the gold passages are the hundred-word passages of its file, which are added to the corpus. An answer counts if it is
in a passage as whole words, both normalised as for exact match.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.machine import table
from realm_lab.engine.corpus.answers import holds_answer, normalise_answer
from realm_lab.engine.systems.bm25 import Bm25
from realm_lab.errors import UserError
from realm_lab.records.files import write_json

DEPTHS, ANSWER_DEPTHS = (1, 5, 20, 100), (5, 20, 100)


class Text(NamedTuple):
    """A passage."""

    title: str
    body: str


class Item(NamedTuple):
    """A question, its answers and the row of its gold passage."""

    question: str
    answers: list[str]
    gold: int


def squad(data: Path) -> tuple[list[Text], list[Item]]:
    """The distinct paragraphs of both SQuAD files, and the questions of the dev file."""
    rows: dict[str, int] = {}
    texts: list[Text] = []
    items: list[Item] = []
    for name in ("train-v1.1.json.gz", "dev-v1.1.json"):
        for article in _json(data / "squad" / name)["data"]:
            for paragraph in article["paragraphs"]:
                row = rows.setdefault(paragraph["context"], len(texts))
                if row == len(texts):
                    texts.append(Text(article["title"].replace("_", " "), paragraph["context"]))
                if name.startswith("dev"):
                    items += [Item(q["question"], [a["text"] for a in q["answers"]], row) for q in paragraph["qas"]]
    return texts, items


def natural_questions(data: Path, texts: Sequence[Text]) -> tuple[list[Text], list[Item]]:
    """`texts` followed by the gold passages of Natural Questions, and its questions."""
    path = data / "nq_gold" / "nq_open_gold_passages.public.jsonl"
    rows: dict[str, int] = {}
    more, items = list(texts), []
    for record in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
        row = rows.setdefault(record["passage"], len(more))
        if row == len(more):
            more.append(Text(record["title"], record["passage"]))
        items.append(Item(record["question"], record["answer"], row))
    return more, items


def measure(texts: Sequence[Text], items: Sequence[Item], titles: bool) -> dict[str, float]:
    """Recall of the gold passage, its mean reciprocal rank within the first 100, and recall of an answer."""
    index = Bm25.of_texts([text.body for text in texts], [text.title for text in texts] if titles else ())
    rows_BK = index.search([item.question for item in items], max(DEPTHS)).rows_QK
    gold_BK = rows_BK == np.array([item.gold for item in items])[:, None]
    rank_B = np.where(gold_BK.any(1), gold_BK.argmax(1) + 1, 0)
    found = {f"gold_recall_at_{k}": float(((rank_B > 0) & (rank_B <= k)).mean()) for k in DEPTHS}
    found["mean_reciprocal_rank"] = float(np.where(rank_B > 0, 1 / np.maximum(rank_B, 1), 0).mean())
    normal: dict[int, str] = {}
    answer_rank = np.zeros(len(items), np.int64)
    for number, (item, rows) in enumerate(zip(items, rows_BK.tolist(), strict=True)):
        for place, row in enumerate(rows, 1):
            if row not in normal:
                normal[row] = normalise_answer(texts[row].body)
            if holds_answer(normal[row], item.answers):
                answer_rank[number] = place
                break
    return found | {f"recall_at_{k}": float(((answer_rank > 0) & (answer_rank <= k)).mean()) for k in ANSWER_DEPTHS}


def run(data: Path, questions: int | None = None) -> dict[str, Any]:
    """Measure every setting. `questions`: take at least this many from each data set, evenly spaced."""
    texts, items = squad(data)
    more, open_items = natural_questions(data, texts)
    settings = {
        "SQuAD dev, text": (texts, items, False),
        "SQuAD dev, title and text": (texts, items, True),
        "Natural Questions, title and text": (more, open_items, True),
    }
    results: dict[str, Any] = {}
    for name, (corpus, asked, titles) in settings.items():
        step = max(1, len(asked) // questions) if questions else 1
        chosen = asked[::step]
        figures = measure(corpus, chosen, titles)
        results[name] = {"questions": len(chosen), "passages": len(corpus), **figures}
    return results


def _json(path: Path) -> Any:
    if not path.exists():
        raise UserError(f"{path}: no such file; --data names the folder of the data")
    return json.loads(gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes())


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data")
    parser.add_argument("--questions", type=int, help="so many of each data set (default: all)")
    parser.add_argument("--output", type=Path, help="JSON file for the results")
    chosen = parser.parse_args(arguments)
    try:
        results = run(chosen.data, chosen.questions)
    except UserError as error:
        parser.error(str(error))
    names = list(next(iter(results.values())))
    shown = [[f"{v:.3f}" if isinstance(v, float) else v for v in found.values()] for found in results.values()]
    rows = [[name, *figures] for name, figures in zip(results, shown, strict=True)]
    print(table(["", *names], rows))
    if chosen.output:
        write_json(chosen.output, results)


if __name__ == "__main__":
    main()
