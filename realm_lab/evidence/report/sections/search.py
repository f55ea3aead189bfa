"""The report of a search: reports/NAME with search.csv, summary.json and report.md with its drawing."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from realm_lab.evidence.report.figures import Sketch, draw, history_figure
from realm_lab.evidence.report.frames import frame, results_text
from realm_lab.evidence.report.rendered import tidy, write_figures
from realm_lab.evidence.report.section import ReportSection, Rows
from realm_lab.evidence.statistics.wording import NOTHING, number
from realm_lab.records.files import read_json, write_json, write_text
from realm_lab.records.metrics import CURVES, metric
from realm_lab.records.parameters import show
from realm_lab.records.study import study_folder

STATES = ("complete", "pruned", "failed", "running")

Trial = dict[str, Any]  # as trials.json has it: number, cell, state, values, value, runs, why


def write_search_report(root: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """Write everything from runs/studies/NAME/trials.json; returns the folder and the content of summary.json."""
    plan = SimpleNamespace(**read_json(study_folder(Path(root) / "runs", name) / "trials.json"))
    plan.trials.sort(key=lambda trial: trial["number"])
    folder, section = Path(root) / "reports" / plan.name, Search(plan)  # type: ignore[arg-type]
    drawn = [drawing for sketch in section.figures() if (drawing := draw(sketch))]
    section.entries = [sketch.entry for sketch in section.figures()] if drawn else []
    summary = section.data()
    rows = [
        {"trial": trial["number"], "state": trial["state"], plan.metric: trial["value"]}
        | trial["values"] | {"runs": " ".join(trial["runs"]), "why": trial["why"]}
        for trial in plan.trials
    ]  # fmt: skip
    write_text(folder / "search.csv", results_text(frame(rows)))
    write_figures(folder, drawn, {drawing.name for drawing in drawn})
    write_text(folder / "report.md", tidy([section.text]))
    write_json(folder / "summary.json", summary)
    return folder, summary


class Search(ReportSection):
    """The trials of a search, the best one, and the importance of the parameters. `report` is the plan with trials."""

    name = "search"
    report: Any
    entries: Sequence[dict[str, str]] = ()  # of the drawn figures
    template = """\
# Search: {{ report.name }}

{{ report.question }} · {{ report.metric }} · seeds {{ report.seeds | join(", ") }} · \
{% for state, count in section.counts.items() if count %}{{ count }} {{ state }}{{ ", " if not loop.last }}\
{% else %}no trials{% endfor %}


{% if not section.best %}
**No trial is complete, so there is no best one.**
{% elif section.best == section.baseline %}
**No trial reached more than the baseline: {{ section.title }} {{ section.best.value | number }}.**
{% else %}
**The best of {{ section.counts.complete }} complete trials is {{ section.best.cell }}: {{ section.title }} \
{{ section.best.value | number }}{% if section.baseline and section.baseline.value is not none %}; the baseline \
reaches {{ section.baseline.value | number }}{% endif %}. This does not show that it is better than the baseline: it \
was chosen for being the best with these seeds.**

Its parameters, over those of experiments/{{ report.source }}:

```sh
{{ section.settings }}
```

To claim that it beats the baseline, run both as a study with other seeds than {{ report.seeds | join(", ") }}.
{% endif %}

## Trials

{% if rows %}
{{ table(rows) }}

Values are means over the seeds.

{% endif %}
{% for entry in section.entries %}
{{ figure(entry) }}

{% endfor %}
{% if section.importance %}
**Importance of the parameters in this space (PED-ANOVA)**

{{ table(section.importance) }}

{% endif %}
## Search space

{{ table(section.space) }}

## How to reproduce

```sh
realm-lab sweep experiments/{{ report.source }}
```
"""

    @functools.cached_property
    def counts(self) -> dict[str, int]:
        return {state: sum(trial["state"] == state for trial in self.report.trials) for state in STATES}

    @functools.cached_property
    def best(self) -> Trial | None:
        """The complete trial with the highest value, if there is any."""
        complete = (trial for trial in self.report.trials if trial["state"] == "complete")
        return max(complete, key=lambda trial: trial["value"], default=None)

    @functools.cached_property
    def baseline(self) -> Trial | None:
        """The trial with the parameters as they are, if it was proposed."""
        return next((trial for trial in self.report.trials if trial["values"] == self.report.baseline), None)

    @property
    def title(self) -> str:
        return (CURVES.get(self.report.metric) or metric(self.report.metric)).title

    @functools.cached_property
    def rows(self) -> Rows:
        rows = []
        for trial in self.report.trials:
            mark = " (best)" * (trial is self.best) + " (baseline)" * (trial is self.baseline)
            row = {"trial": f"{trial['number']}{mark}", "state": trial["state"]}
            row |= {self.report.metric: number(trial["value"])} | {k: show(v) for k, v in trial["values"].items()}
            rows.append(row | {"why": trial["why"] or NOTHING})
        return rows

    @property
    def settings(self) -> str:
        """The best trial's changes of the present parameters, as options of the command line."""
        base, best = self.report.baseline, self.best["values"] if self.best else {}
        return " ".join(f"--set {name}={json.dumps(best[name])}" for name in best if best[name] != base[name])

    @property
    def importance(self) -> Rows:
        ordered = sorted(self.report.importances.items(), key=lambda item: -item[1])
        return [{"parameter": parameter, "importance": number(value, 2)} for parameter, value in ordered]

    @property
    def space(self) -> Rows:
        base = self.report.baseline
        return [{"parameter": k, "searched": show(v), "baseline": show(base[k])} for k, v in self.report.space.items()]

    def figures(self) -> list[Sketch]:
        title, trials = self.title, [trial for trial in self.report.trials if trial["state"] == "complete"]
        caption = f"{title} of every complete trial, in the order in which they were proposed."
        alt = f"{title} of each complete trial, with the best so far"
        base = self.baseline["value"] if self.baseline else None
        return [Sketch("history", caption, alt, lambda: history_figure(frame(trials), base, title))]

    def data(self) -> dict[str, Any]:
        plan = self.report
        found = {"search": plan.name, "question": plan.question, "metric": plan.metric, "seeds": list(plan.seeds)}
        found |= {"trials": self.counts, "baseline": self.baseline, "best": self.best}
        return found | {"figures": list(self.entries)}
