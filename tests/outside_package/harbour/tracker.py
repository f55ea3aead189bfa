"""A tracker with an option: a file of JSON lines for each study."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from realm_lab import Section, Tracker, register_tracker


class Folder(Section):
    folder: str = "tracked"
    """Folder of the files, below the project."""


@register_tracker("lines")
class Lines(Tracker):
    """Writes a line for each study and each run, whole."""

    def __init__(self, runs: Path, options: Folder):
        self.where = str(runs.parent / options.folder)
        self.lines: dict[str, dict[str, dict[str, Any]]] = {}

    def show(self, study: str, view: Any) -> str:
        points = {point.name: point.value for points in view.points.values() for point in points}
        row = {"name": view.name, "state": view.state, "params": view.params, "points": points}
        self.lines.setdefault(study, {})[view.key] = row
        self.points += len(points)
        return "created"

    def keep(self, study: str, keys: Collection[str]) -> int:
        path = Path(self.where) / f"{study}.jsonl"
        path.parent.mkdir(exist_ok=True)
        rows = [row for key, row in self.lines.get(study, {}).items() if key in keys]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return 0
