"""metrics.jsonl: one JSON object per line, appended while a stage runs, cut back when it resumes."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from realm_lab.errors import UserError
from realm_lab.records.files import atomic_write, room_for

RESERVED = ("step", "time")
LARGEST = 1e100  # sums of squares of larger numbers can overflow


class MetricLog:
    """The metrics of one stage; `path` need not exist yet. One writer at a time, any number of readers."""

    def __init__(self, path: Path) -> None:
        self.path = Path(path)
        self._tail_is_whole = False

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Append one line {"step", "time" (unix seconds), **values} and flush it.

        `float()` must accept the values. JSON has no NaN or infinity: they become null.
        """
        row: dict[str, Any] = {"step": int(step), "time": round(time.time(), 3)}
        for name, value in values.items():
            assert name not in RESERVED, f"'{name}' is not a metric name"
            row[name] = float(value) if math.isfinite(value) else None
        line = json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
        with room_for(self.path):
            if not self._tail_is_whole:
                self._drop_torn_line()
            with open(self.path, "ab") as file:
                # One write, so that a reader sees at most one torn line: the last.
                file.write(line.encode())

    def truncate_after(self, step: int) -> int:
        """Drop lines with a step greater than `step`, and a torn last line; atomic. Returns the number of dropped
        lines."""
        if not self.path.exists():
            return 0
        lines, torn = _whole_lines(self.path)
        kept = [text for text, row in lines if row["step"] <= step]
        dropped = len(lines) - len(kept) + torn
        if dropped:
            with atomic_write(self.path, "wb") as file:
                file.writelines(text + b"\n" for text in kept)
        self._tail_is_whole = True
        return dropped

    def rows(self) -> list[dict[str, Any]]:
        """Return all whole lines in file order; a torn last line is ignored, an absent file is empty. UserError: a
        broken line before the last, with file and line number."""
        return [row for _, row in _whole_lines(self.path)[0]] if self.path.exists() else []

    def _drop_torn_line(self) -> None:
        """Remove half a line that a crash may have left: appending to it would break the file in the middle."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists():
            lines, torn = _whole_lines(self.path)
            if torn:
                os.truncate(self.path, sum(len(text) + 1 for text, _ in lines))
        self._tail_is_whole = True


def scalars(values: Any, separator: str = ".", prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield (name, number) for the finite numbers of nested `values`, the names joined by `separator`."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield from scalars(value, separator, f"{prefix}{separator}{name}" if prefix else name)
    elif (value := finite(values)) is not None:
        yield prefix, value


def finite(value: Any) -> float | None:
    """Return `value` as a float; None if it is not a number, not finite, or not below LARGEST in size."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < LARGEST:
        return None
    return float(value)


def _whole_lines(path: Path) -> tuple[list[tuple[bytes, dict[str, Any]]], int]:
    """Return ([(bytes without newline, row)], number of torn lines at the end: 0 or 1)."""
    *texts, tail = path.read_bytes().split(b"\n")
    lines: list[tuple[bytes, dict[str, Any]]] = []
    for number, text in enumerate(texts, 1):
        try:
            row = json.loads(text)
            if not isinstance(row, dict) or not isinstance(row.get("step"), int) or not row.get("time"):
                raise ValueError("no 'step' or no 'time'")
        except ValueError as error:
            # A machine that loses power can leave a last line of the right length with wrong bytes.
            if number == len(texts) and not tail:
                return lines, 1
            raise UserError(
                f"not a metrics record ({error})",
                "delete this line, or the stage's folder to run it again",
                path=path,
                line=number,
            ) from None
        lines.append((text, row))
    return lines, int(bool(tail))
