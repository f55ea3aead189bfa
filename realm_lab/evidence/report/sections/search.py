"""The report of a search: reports/NAME with search.csv, summary.json and report.md with its drawing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from realm_lab.evidence.report.figures import Sketch, draw, history_figure
from realm_lab.evidence.report.frames import frame, results_text
from realm_lab.evidence.report.rendering import render_piece
from realm_lab.evidence.report.report_files import tidy, write_figures
from realm_lab.evidence.statistics.wording import NOTHING, number
from realm_lab.records.files import read_json, write_json, write_text
from realm_lab.records.metrics import CURVES, metric
from realm_lab.records.parameters import show
from realm_lab.records.study import study_folder

STATES = ("complete", "pruned", "failed", "running")
TEMPLATE = """\
# Search: {{ plan.name }}

{{ plan.question }} · {{ plan.metric }} · seeds {{ plan.seeds | join(", ") }} · \
{% for state, count in counts.items() if count %}{{ count }} {{ state }}{{ ", " if not loop.last }}\
{% else %}no trials{% endfor %}


{% if not best %}
**No trial is complete, so there is no best one.**
{% elif best == baseline %}
**No trial reached more than the baseline: {{ title }} {{ best.value | number }}.**
{% else %}
**The best of {{ counts.complete }} complete trials is {{ best.cell }}: {{ title }} \
{{ best.value | number }}{% if baseline and baseline.value is not none %}; the baseline \
reaches {{ baseline.value | number }}{% endif %}. This does not show that it is better than the baseline: it \
was chosen for being the best with these seeds.**

Its parameters, over those of experiments/{{ plan.source }}:

```sh
{{ settings }}
```

To claim that it beats the baseline, run both as a study with other seeds than {{ plan.seeds | join(", ") }}.
{% endif %}

## Trials

{% if rows %}
{{ table(rows) }}

Values are means over the seeds.

{% endif %}
{% for entry in entries %}
{{ figure(entry) }}

{% endfor %}
## Search space

{{ table(space) }}

## How to reproduce

```sh
realm-lab sweep experiments/{{ plan.source }}
```
"""


def write_search_report(root: Path, name: str) -> tuple[Path, dict[str, Any]]:
    """Write everything from runs/studies/NAME/trials.json; returns the folder and the content of summary.json."""
    plan = read_json(study_folder(Path(root) / "runs", name) / "trials.json")
    folder, trials = Path(root) / "reports" / plan["name"], sorted(plan["trials"], key=lambda trial: trial["number"])
    counts = {state: sum(trial["state"] == state for trial in trials) for state in STATES}
    complete = [trial for trial in trials if trial["state"] == "complete"]
    best = max(complete, key=lambda trial: trial["value"], default=None)
    baseline = next((trial for trial in trials if trial["values"] == plan["baseline"]), None)
    title = (CURVES.get(plan["metric"]) or metric(plan["metric"])).title
    caption = f"{title} of every complete trial, in the order in which they were proposed."
    alt = f"{title} of each complete trial, with the best so far"
    level = baseline["value"] if baseline else None
    sketch = Sketch("history", caption, alt, lambda: history_figure(frame(complete), level, title))
    drawing = draw(sketch)
    entries = [sketch.entry] if drawing else []
    rows = []
    for trial in trials:
        row = {"trial": f"{trial['number']}{' (best)' * (trial is best)}{' (baseline)' * (trial is baseline)}"}
        row |= {"state": trial["state"], plan["metric"]: number(trial["value"])}
        rows.append(row | {k: show(v) for k, v in trial["values"].items()} | {"why": trial["why"] or NOTHING})
    changed = {k: v for k, v in (best["values"] if best else {}).items() if v != plan["baseline"][k]}
    text = render_piece(
        TEMPLATE,
        plan=plan,
        counts=counts,
        best=best,
        baseline=baseline,
        title=title,
        rows=rows,
        settings=" ".join(f"--set {k}={json.dumps(v)}" for k, v in changed.items()),
        entries=entries,
        space=[
            {"parameter": k, "searched": show(v), "baseline": show(plan["baseline"][k])}
            for k, v in plan["space"].items()
        ],
    )
    summary = {"search": plan["name"]} | {key: plan[key] for key in ("question", "metric", "seeds")}
    summary |= {"trials": counts, "baseline": baseline, "best": best, "figures": entries}
    table = [
        {"trial": trial["number"], "state": trial["state"], plan["metric"]: trial["value"]}
        | trial["values"] | {"runs": " ".join(trial["runs"]), "why": trial["why"]}
        for trial in trials
    ]  # fmt: skip
    write_text(folder / "search.csv", results_text(frame(table)))
    write_figures(folder, [drawing] if drawing else [], {entry["name"] for entry in entries})
    write_text(folder / "report.md", tidy([text]))
    write_json(folder / "summary.json", summary)
    return folder, summary
