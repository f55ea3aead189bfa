"""The tables of the study -> summary.json, report.md, figures. `python -m experiments.staleness_anatomy.report`

Reads results.csv, steps.csv, evaluations.csv and discussion.md, which a person wrote; needs no runs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from experiments.staleness_anatomy.design import REPORT, Design, read_design
from experiments.staleness_anatomy.drawings import draw_all
from realm_lab.core.files import write_json, write_text
from realm_lab.reporting.markdown import pipe_table
from realm_lab.reporting.verdict import significance

MINUS = "−"
# Measure -> its name, decimals, column of results.csv.
MEASURES = {
    "utility": ("utility, nats a span", 2, "utility_late"),
    "recall_at_5": ("recall@5", 3, "recall_at_5_late"),
    "likelihood": ("log-likelihood, nats a span", 3, "likelihood_late"),
}
COMPUTE = "compute_against_reference"
MEANS = (
    "steps",
    "refreshes",
    "training_gflop",
    "refresh_gflop",
    "total_gflop",
    "refresh_share_of_flops",
    "refresh_share_of_time",
    "mean_age_steps",
    "highest_age_steps",
    "mean_age_seconds",
    "mean_overlap",
    "mean_overlap_exact",
    "mean_shift",
    "mean_divergence",
    "utility_start",
    "utility_late",
    "utility_end",
    "recall_at_5_start",
    "recall_at_5_late",
    "recall_at_5_end",
    "recall_at_1_end",
    "likelihood_late",
    "likelihood_end",
    "cloze_exact_match_end",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report beside its tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=REPORT, help="of the tables")
    parser.add_argument("--output", type=Path, help="where the report goes (default: the folder of the tables)")
    options = parser.parse_args(arguments)
    write_report(read_design(), options.folder, options.output or options.folder)
    return 0


def write_report(design: Design, folder: Path, output: Path) -> None:
    """summary.json, report.md and figures/ in `output`, from the tables in `folder`."""
    results, steps, evaluations = (
        pd.read_csv(folder / name, keep_default_na=True) for name in ("results.csv", "steps.csv", "evaluations.csv")
    )
    summary = summarise(design, results, evaluations)
    write_json(output / "summary.json", summary)
    write_text(output / "report.md", _markdown(design, summary, (folder / "discussion.md").read_text("utf-8")))
    draw_all(design, results, steps, evaluations, output / "figures")


def summarise(design: Design, results: pd.DataFrame, evaluations: pd.DataFrame) -> dict[str, Any]:
    """Means and ranges of every arm, and its paired differences from the reference."""
    reference = results[results["arm"] == design.reference].set_index("seed")
    arms: dict[str, Any] = {}
    for arm in design.arms:
        rows = results[results["arm"] == arm.name].set_index("seed")
        compute = (rows["total_gflop"] / reference["total_gflop"]).tolist()
        arms[arm.name] = {
            "title": arm.title,
            **{name: round(float(rows[name].mean()), 4) for name in MEANS},
            "range": {
                name: [float(rows[name].min()), float(rows[name].max())]
                for name in ("refreshes", *(column for _, _, column in MEASURES.values()))
            },
            COMPUTE: [round(min(compute), 4), round(max(compute), 4)],
            "flags": sorted(set(rows["flags"].dropna()) - {""}),
            "differences": _differences_of(results, arm.name, design.reference),
        }
    likes = {arm.name: _nearest_schedules(design, arms, arm.name) for arm in design.arms if arm.family == "drift"}
    looked = evaluations[evaluations["step"] > 0].dropna(subset=["overlap", "overlap_exact"])
    ratio = reference["refresh_gflop"] / reference["refreshes"] / (reference["training_gflop"] / reference["steps"])
    return {
        "study": "staleness-anatomy",
        "reference": design.reference,
        "seeds": list(design.seeds),
        "engine_version": int(results["engine_version"].iloc[0]),
        "refresh_in_steps": round(float(ratio.mean()), 3),
        "largest_compute_deviation": max(abs(side - 1) for arm in arms.values() for side in arm[COMPUTE]),
        "overlap_estimate_error": {
            "points": len(looked),
            "mean": round(float((looked["overlap"] - looked["overlap_exact"]).mean()), 4),
            "largest": round(float((looked["overlap"] - looked["overlap_exact"]).max()), 4),
        },
        "drift_against_schedule": {
            name: {other: _differences_of(results, name, other) for other in others} for name, others in likes.items()
        },
        "arms": arms,
    }


def _nearest_schedules(design: Design, arms: dict[str, Any], name: str) -> list[str]:
    """The fixed schedule whose number of refreshes is the most like that of `name`, unless that is the reference."""
    fixed = [arm.name for arm in design.arms if arm.family == "fixed"]
    made = math.log(arms[name]["refreshes"])
    nearest = min(fixed, key=lambda other: abs(math.log(arms[other]["refreshes"]) - made))
    return [nearest] if nearest != design.reference else []


def _differences_of(results: pd.DataFrame, name: str, other: str) -> dict[str, Any]:
    one, two = (results[results["arm"] == arm].set_index("seed") for arm in (name, other))
    return {measure: difference(one[column], two[column]) for measure, (_, _, column) in MEASURES.items()}


def difference(values: pd.Series, reference: pd.Series) -> dict[str, Any]:
    """Paired by seed: each difference, their mean and range, and no bolder words than they allow."""
    each = (values - reference).round(4)
    if (each == 0).all():
        says = "the reference"
    elif (each > 0).all():
        says = f"higher in all {len(each)}"
    elif (each < 0).all():
        says = f"lower in all {len(each)}"
    else:
        says = "not distinguishable"
    return {
        "each": {str(seed): float(value) for seed, value in each.items()},
        "mean": round(float(each.mean()), 4),
        "low": float(each.min()),
        "high": float(each.max()),
        "says": says,
    }


def _markdown(design: Design, summary: dict[str, Any], discussion: str) -> str:
    seeds = ", ".join(map(str, design.seeds))
    reference = design.arm(design.reference)
    parts = [
        "# Index staleness on the toy world: what a refresh policy costs, and what it buys",
        f"{len(design.arms)} policies, seeds {seeds} each, equal compute, engine version {summary['engine_version']}. "
        "Made by `python -m experiments.staleness_anatomy.report` from the tables in this folder.",
        "## Verdict",
        *_verdict(design, summary),
        discussion.split("<!-- method -->")[0].strip(),
        "## Quality against measured staleness",
        _figure("quality_against_staleness", "Quality at the end of training against measured staleness"),
        "Numbers are those of the table. Large marks are means, small ones the seeds, lines their range. Quality is "
        "the mean of the last three evaluations, always with a fresh index; staleness is the mean over training.",
        _table(design, summary),
        "*Refreshes* counts how often all vectors were replaced. *Share of work* is what refreshing takes of all "
        "floating-point operations, drift checks included and measurements not; *work* is all of them relative to arm "
        "1 with the same seed, lowest to highest. *Overlap* is the share of the fresh top 11 that the searched index "
        "finds: exactly, every 84 steps, and *estimated*, every 7 steps. *Shift* is the total variation between p(z|x) "
        "over what it finds and over the fresh top 11, estimated alike.",
        f"## Differences from {reference.title}, seed by seed",
        _differences(design, summary),
        f"Mean (lowest to highest) of {len(design.seeds)} paired differences; {significance(len(design.seeds))}. "
        "Where the differences have both signs, the arms are called not distinguishable; one sign in all seeds is a "
        "hint, no proof.",
        "## Drift-triggered against fixed schedules",
        _figure("drift_against_schedule", "Quality against the number of refreshes, and when drift asked for one"),
        "## Over steps",
        *(_figure(f"{name}_over_steps", title) for name, title in _OVER_STEPS),
        "## How compute was made equal",
        _equal_compute(summary),
        discussion.split("<!-- method -->")[1].strip(),
        "## Make it again",
        _commands(design),
    ]
    return "\n\n".join(parts) + "\n"


_OVER_STEPS = (
    ("age", "Age of the searched vectors over steps"),
    ("overlap", "Overlap of the stale and the fresh top k over steps"),
    ("utility", "Retrieval utility over steps"),
    ("recall", "Zero-shot recall@5 over steps"),
)


def _verdict(design: Design, summary: dict[str, Any]) -> list[str]:
    """A point for each drift arm: what it saves, and how it compares with the reference and with its like."""
    arms, reference = summary["arms"], design.reference
    found = []
    for name, likes in summary["drift_against_schedule"].items():
        values = arms[name]
        low, high = values["range"]["refreshes"]
        saved = 1 - values["refreshes"] / arms[reference]["refreshes"]
        title = values["title"][0].upper() + values["title"][1:]
        found.append(
            f"- **{title}**: {values['refreshes']:.0f} refreshes a run ({low:.0f} to {high:.0f}) instead of "
            f"{arms[reference]['refreshes']:.0f}, {saved:.0%} fewer. With the checks, refreshing takes "
            f"{values['refresh_share_of_flops']:.1%} of the work instead of "
            f"{arms[reference]['refresh_share_of_flops']:.1%}. "
            f"Against “{arms[reference]['title']}”: {_said(values['differences'])}."
        )
        found += [
            f"  Against “{arms[other]['title']}”, which makes {arms[other]['refreshes']:.0f}: {_said(differences)}."
            for other, differences in likes.items()
        ]
    return ["\n".join(found)]


def _said(differences: dict[str, Any]) -> str:
    return "; ".join(
        f"{title} {_signed(differences[name], digits)}, {differences[name]['says']}"
        for name, (title, digits, _) in MEASURES.items()
    )


def _table(design: Design, summary: dict[str, Any]) -> str:
    rows = []
    for number, arm in enumerate(design.arms, 1):
        values = summary["arms"][arm.name]
        low, high = values[COMPUTE]
        rows.append(
            {
                "": str(number),
                "policy": arm.title,
                "steps": f"{values['steps']:.0f}",
                "refreshes": f"{values['refreshes']:.0f}",
                "share of work": f"{values['refresh_share_of_flops']:.1%}",
                "work": f"{low:.3f} to {high:.3f}",
                "age, steps": f"{values['mean_age_steps']:.1f}",
                "overlap": f"{values['mean_overlap_exact']:.2f}",
                "estimated": f"{values['mean_overlap']:.2f}",
                "shift": f"{values['mean_shift']:.3f}",
                "utility": _ranged(values, "utility_late", 2),
                "recall@5": _ranged(values, "recall_at_5_late", 3),
                "log-likelihood": _ranged(values, "likelihood_late", 3),
            }
        )
    return pipe_table(pd.DataFrame(rows))


def _differences(design: Design, summary: dict[str, Any]) -> str:
    rows = []
    for number, arm in enumerate(design.arms, 1):
        if arm.name == design.reference:
            continue
        row = {"": str(number), "policy": arm.title}
        for name, (title, digits, _) in MEASURES.items():
            difference = summary["arms"][arm.name]["differences"][name]
            row[title] = f"{_signed(difference, digits)}, {difference['says']}"
        rows.append(row)
    return pipe_table(pd.DataFrame(rows))


def _ranged(values: dict[str, Any], column: str, digits: int) -> str:
    low, high = values["range"][column]
    return f"{_number(values[column], digits)} ({_number(low, digits)} to {_number(high, digits)})"


def _signed(difference: dict[str, Any], digits: int) -> str:
    mean, low, high = (_number(difference[key], digits, sign=True) for key in ("mean", "low", "high"))
    return f"{mean} ({low} to {high})"


def _number(value: float, digits: int, *, sign: bool = False) -> str:
    return f"{value:{'+' if sign else ''}.{digits}f}".replace("-", MINUS)


def _equal_compute(summary: dict[str, Any]) -> str:
    error = summary["overlap_estimate_error"]
    return (
        "One refresh of all 2,048 passages costs as many floating-point operations as "
        f"{summary['refresh_in_steps']:.2f} steps of training. Each arm was given so many steps that training and "
        "refreshing together cost what arm 1 costs in 800 steps; the warm-ups were stretched by the same factor, and "
        "the decay of the rates spans all steps. How often a drift arm would refresh was guessed beforehand. Measured "
        "afterwards, the work of a run differs from that of arm 1 with the same seed by at most "
        f"{summary['largest_compute_deviation']:.1%}.\n\n"
        "The overlap in the curves and the figures is estimated every 7 steps from few fresh vectors, and never too "
        f"low; at the {error['points']} evaluations where the exact one is known it was {error['mean']:.3f} too high "
        f"on average, {error['largest']:.3f} at most."
    )


def _figure(name: str, title: str) -> str:
    return f"![{title}](figures/{name}.png)"


def _commands(design: Design) -> str:
    seeds = ",".join(map(str, design.seeds))
    lines = [f"realm-lab {verb} --set 'seeds=[{seeds}]'" for verb in ("prepare", "warm-start")]
    for arm in design.arms:
        lines += [f"# {arm.title}", design.command(arm)]
    lines += [f"python -m experiments.staleness_anatomy.{name}" for name in ("collect", "report")]
    return "```sh\n" + "\n".join(lines) + "\n```"


if __name__ == "__main__":
    raise SystemExit(main())
