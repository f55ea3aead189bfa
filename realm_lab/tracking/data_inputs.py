"""The data of a run, for MLflow's column Datasets: its corpus and its questions. No MLflow here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from realm_lab.core.files import read_object
from realm_lab.tracking.run_dir import KEY_LENGTH, RunRecord, stage_folder

# data set -> what it is used for, the names of its files in corpus.files, and the columns of its rows
PARTS = {
    "corpus": ("training", ("knowledge", "knowledge_updated", "pretrain"), ("id", "title", "body")),
    "questions": ("evaluation", ("questions_train", "questions_dev", "questions_test"), ("id", "question", "answers")),
}


class DataInput(NamedTuple):
    """A data set that a run used. `use`: training or evaluation. `counts`: part of it -> number of records."""

    name: str
    digest: str
    use: str
    source: str
    columns: tuple[str, ...]
    counts: dict[str, int]


def data_inputs(runs: Path, record: RunRecord) -> tuple[DataInput, ...]:
    """The corpus and the questions of a run, once they are prepared. UserError: a broken file; the message names it."""
    key = record.inputs["corpus"]
    path = stage_folder(runs, "prepare", key) / "results.json"
    if not path.exists():
        return ()
    counts: dict[str, int] = read_object(path)["counts"]
    corpus: dict[str, Any] = record.params["corpus"]
    source = corpus["source"]["name"] if isinstance(corpus["source"], Mapping) else corpus["source"]
    found = []
    for part, (use, names, columns) in PARTS.items():
        files = [file for name in names for file in corpus["files"][name]] if source == "files" else []
        is_of_part = {name: name.startswith("questions") == (part == "questions") for name in counts}
        found.append(
            DataInput(
                name=f"{source} {part}",
                digest=key[:KEY_LENGTH],
                use=use,
                source=", ".join(dict.fromkeys(files)) or f"runs/corpora/{key[:KEY_LENGTH]}",
                columns=columns,
                counts={name: count for name, count in counts.items() if is_of_part[name]},
            )
        )
    return tuple(found)
