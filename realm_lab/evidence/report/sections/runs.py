"""The runs of a study, and how to make them again."""

from __future__ import annotations

import functools
import shlex
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from realm_lab.evidence.report.frames import StudyFrames
from realm_lab.evidence.report.section import ReportSection, Rows
from realm_lab.evidence.reproduce import expected_rows
from realm_lab.evidence.statistics.wording import NOTHING
from realm_lab.records.parameters import show
from realm_lab.records.study import DEFAULT, SCRATCH

DIGEST_CHARACTERS = 12


class Runs(ReportSection):
    """Every run with its commit and corpus; an incomplete run also with its stage and the reason."""

    name = "runs"
    heading = "Runs"
    group = "Per run"

    @property
    def tables(self) -> dict[str, tuple[str, Rows]]:
        """Empty, since a paper has no table of runs."""
        return {}

    @functools.cached_property
    def rows(self) -> Rows:
        results = self.report.results
        found = dict(zip(zip(results["cell"], results["seed"], strict=True), results.to_dict("records"), strict=True))
        rows = []
        for run in self.report.data["runs"]:
            told = found[run["cell"], run["seed"]]
            row = {"variant, seed": f"{run['cell']}, {run['seed']}", "run": run["run"], "state": told["status"]}
            rows.append(row)
            if "commits" in run:
                commits = ", ".join(commit[:DIGEST_CHARACTERS] for commit in run["commits"]) or NOTHING
                row |= {"engine": str(told["engine_version"]), "commit": commits + " + changes" * run["is_changed"]}
                row["corpus"] = str(run["corpus"] or NOTHING)[:DIGEST_CHARACTERS]
            if "stage" in run:
                row |= {"stage": run["stage"], "step": f"{run['step']} of {run['total_steps']}"}
            if "error" in run:
                row["why"] = run["error"] or NOTHING
        return rows

    @staticmethod
    def of_runs(study: StudyFrames) -> dict[str, Any]:
        """Return each run with its commits, corpus and flags; for an incomplete run also its stage and the reason."""
        found = {(run.cell, run.seed): run for run in study.runs}
        rows = []
        for member in study.record.runs:
            row: dict[str, Any] = {"cell": member.cell, "seed": member.seed, "run": member.name}
            rows.append(row)
            run = found.get((member.cell, member.seed))
            if run is None:
                row["error"] = "not readable"
                continue
            row["commits"] = sorted(run.environment("git_commit"))
            row["is_changed"] = "True" in run.environment("git_dirty")
            row["corpus"] = run.corpus_key
            if run.flags:
                row["flags"] = [{"stage": stage, "name": flag.name, "text": flag.text} for stage, flag in run.flags]
            if run.stage:
                deciding = run.states[run.stage]
                row |= {"stage": run.stage, "step": deciding.status.step, "total_steps": deciding.status.total_steps}
                row |= {"error": run.error, "why": asdict(deciding.reason) if deciding.reason else None}
        return {"runs": rows}


class Reproduction(ReportSection):
    """The commands that make the runs again, and the numbers to expect."""

    name = "reproduction"
    heading = "Commands and expected values"
    group = "How to reproduce"
    template = """\
```sh
{% if section.commits | length == 1 %}
git checkout {{ section.commits[0] }}
{% endif %}
{% for command in report.data.commands %}
{{ command }}
{% endfor %}
```

{% if section.expected %}
**Expected values**

{{ table(section.expected) }}

Mean ± the largest deviation, in 95 % of cases, of the mean of as many new runs with other rounding. It is computed \
from the spread over the seeds, so it needs three of them. The same kind of processor with the same libraries gives \
the same digits. `realm-lab reproduce` compares (docs/reproduce.md).

{% endif %}
{% if report.data.machines %}
Made on: {{ report.data.machines | join("; ") }}.
{% endif %}
"""

    @property
    def commits(self) -> list[str]:
        return sorted({commit for run in self.report.data["runs"] for commit in run.get("commits", ())})

    @property
    def expected(self) -> Rows:
        """The table of expected values, a row for each cell."""
        return expected_rows(self.report.record, self.report.results)

    @staticmethod
    def of_runs(study: StudyFrames) -> dict[str, Any]:
        """Return presets, commands, machines, and the day on which the last run ended; "" if none has ended."""
        ended = [status.status.finished_at for run in study.runs for status in run.states.values()]
        known = [one for one in ended if one]
        return {
            "presets": sorted({run.preset for run in study.runs}),
            "commands": _commands(study),
            "date": datetime.fromtimestamp(max(known), UTC).date().isoformat() if known else "",
            "machines": sorted({machine for run in study.runs for machine in run.environment("cpu")}),
        }


def _commands(study: StudyFrames) -> tuple[str, ...]:
    """Return the commands that reproduce a study. A study without a file is the default pipeline, `realm-lab run` with
    other parameters, or a DVC experiment."""
    record = study.record
    if record.source:
        return f"realm-lab sweep {record.source}", f"realm-lab report {record.name}"
    if record.name == SCRATCH:
        flags = [f"--preset {run.preset}" for run in study.runs[:1]]
        flags += [f"--set {shlex.quote(f'{name}={show(value)}')}" for name, value in record.common.items()]
        return " ".join(["realm-lab run", *flags]), f"realm-lab report {SCRATCH}"
    return ("dvc repro",) if record.name == DEFAULT else (f"dvc exp apply {record.name}", "dvc repro")
