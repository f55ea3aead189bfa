"""The benchmark of the report: its study is one that the report takes, and a report written twice is the same."""

from __future__ import annotations

from pathlib import Path

from benchmarks.report import report, run


def test_a_small_study_is_reported_twice_with_the_same_bytes(tmp_path: Path) -> None:
    result = run(tmp_path, 2, 4)
    assert result["runs"] == 4
    assert result["same_bytes"]
    assert "the same bytes" in report(result)
    assert "Incomplete" not in (tmp_path / "reports" / "index.html").read_text()
