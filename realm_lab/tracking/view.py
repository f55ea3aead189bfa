"""What a tracker shows: names, points and texts within its limits, without a word about any one tracker's client."""

from __future__ import annotations

import colorsys
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from realm_lab.core.files import digest, digest_file
from realm_lab.tracking.run_dir import State
from realm_lab.tracking.study_record import StudyCell

# Limits of MLflow 3 (mlflow/utils/validation.py); longer values are cut with an ellipsis.
MAX_NAME_LENGTH = 250
MAX_PARAM_LENGTH = 6000
MAX_TAG_LENGTH = 5000

HEADLINES = ("exact_match", "f1", "recall_at_1", "recall_at_5", "retrieval_utility_start", "retrieval_utility_end")


class Point(NamedTuple):
    """One value of one metric; `time_ms` is unix time."""

    name: str
    value: float
    time_ms: int
    step: int


Row = tuple[Point, ...]  # the points of one line of metrics.jsonl


@dataclass(frozen=True)
class View:
    """A run, or a study as a whole, as a tracker shows it.

    `rows`: stage -> all its lines in order, the final scalars (at step 0) last; of these, the first `settled[stage]`
    can never be taken back by a resume. `ended_ms` is None as long as the run may go on.
    """

    key: str  # among all that is shown of a study
    name: str
    state: State
    started_ms: int | None
    ended_ms: int | None
    params: dict[str, str]
    tags: dict[str, str]
    rows: dict[str, list[Row]]
    settled: dict[str, int]
    inputs: dict[str, str]  # data set -> digest
    files: dict[str, Path | str]  # artifact path -> file, or text

    def files_digest(self) -> str:
        """Changes when a file comes, goes or changes."""
        parts = [
            f"{name}:{digest_file(content) if isinstance(content, Path) else digest(content)}"
            for name, content in sorted(self.files.items())
        ]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


class Place(NamedTuple):
    """A run's place in a study. `cell` is None for a run that is in no study."""

    study: str
    cell: StudyCell | None
    baseline: StudyCell | None
    color: str
    tuned: str = ""  # of a run of the study's grid: which cell it is of, and at which value


def run_color(cell_rank: int, seed_rank: int) -> str:
    """#rrggbb: a hue for each cell of a study, a shade for each seed."""
    hue = (0.6 + 0.618034 * cell_rank) % 1.0  # steps of the golden ratio stay far apart
    red, green, blue = colorsys.hls_to_rgb(hue, 0.36 + 0.13 * (seed_rank % 3), 0.65)
    return f"#{round(255 * red):02x}{round(255 * green):02x}{round(255 * blue):02x}"


def rows_digest(rows: list[Row]) -> str:
    """Equal for equal points in equal order."""
    return hashlib.sha256(repr(rows).encode()).hexdigest()[:16]


def differences(cell: StudyCell, baseline: StudyCell) -> dict[str, Any]:
    """What a cell changes in the baseline, dotted name -> value; `system` where one of the two is not pre-trained."""
    return {**({"system": cell.system} if cell.system != baseline.system else {}), **cell.changes}


def in_words(changes: Mapping[str, Any]) -> str:
    """For example "pretrain.masking = random_token, pretrain.steps = 100"."""
    return ", ".join(f"{name} = {show(value)}" for name, value in changes.items()) or "nothing"


def metric_name(name: str) -> str:
    """A name MLflow takes: letters, digits and _ - . / : blank; recall@5 becomes recall_at_5."""
    return re.sub(r"[^\w\-. :/]", "_", name.replace("@", "_at_").replace("%", "percent"))[:MAX_NAME_LENGTH].strip("/")


def show(value: Any) -> str:
    if value is None:
        return "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def cut(text: str, length: int) -> str:
    """`text`, with an ellipsis at the end where it is longer than `length`."""
    return text if len(text) <= length else text[: length - 1] + "…"


def milliseconds(seconds: float) -> int:
    return round(seconds * 1000)
