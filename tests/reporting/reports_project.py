"""A project with a default run, a study whose texts are hostile, and a report made by hand; nothing is trained."""

from __future__ import annotations

import json
import random
from pathlib import Path

from realm_lab.core.files import write_json, write_text
from realm_lab.runner.all_reports import report_all
from realm_lab.tracking.study_record import StudyCell, read_study_record, write_study_record
from tests.reporting import studies, synthetic

HOSTILE = "<img src=x onerror=alert(1)></script><script>alert(2)</script> & \"q\" 'r'"
STUDY = "masks"
CELLS = (
    StudyCell("realm", "REALM", "realm", {}),
    StudyCell("random_token", HOSTILE, "realm", {"pretrain.masking": "random_token"}),
    StudyCell("warm_start", "warm start only", "warm_start", {}),
)


def make_project(root: Path) -> Path:
    """Write runs/ and reports/ under `root`; returns the common page."""
    synthetic.make_runs(root / "runs")
    default = (root / "runs" / "studies" / "default" / "study.json").read_text()
    studies.make_study(root / "runs", (0, 1), name=STUDY, cells=CELLS)
    path = root / "runs" / "studies" / STUDY / "study.json"
    record = read_study_record(path)
    write_study_record(
        root / "runs", type(record)(**{**vars(record), "question": f"Which masks? {HOSTILE}", "source": ""})
    )
    for run in record.runs:
        stages = json.loads((root / "runs" / run.run / "run.json").read_text())["stages"]
        examples = synthetic._explorer("realm", random.Random(run.run_key))
        for example in examples:
            example["candidates"][1]["body"] = f"{HOSTILE} {example['candidates'][1]['body']}"
        for example in (examples[0], examples[1], examples[-1]):  # a sentence before and after, and a question
            example["text"] = HOSTILE
        write_json(root / "runs" / stages["evaluate"] / "eval" / "explorer.json", examples)
    assert (root / "runs" / "studies" / "default" / "study.json").read_text() == default
    write_text(root / "reports" / "by-hand" / "report.md", f"# By hand {HOSTILE}\n\nNot made by a study.\n")
    write_text(root / "reports" / STUDY / "discussion.md", "written by a person\n")
    return report_all(root)
