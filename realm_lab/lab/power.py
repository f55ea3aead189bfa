"""`realm-lab sweep STUDY --power`: the differences that a study detects with each number of seeds, and their cost.

Nothing runs. The spread of paired differences comes from finished runs of this study, its report, or another study.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from realm_lab.errors import UserError
from realm_lab.evidence.statistics.paired import FEWEST_SEEDS, compare, smallest_p
from realm_lab.evidence.statistics.planned import POWER_ERROR, Detectable, Spread, detectable_differences
from realm_lab.evidence.statistics.power import FEWEST_FOR_PROJECTION, POWER, STUDIES
from realm_lab.evidence.statistics.sequential import Rule
from realm_lab.evidence.statistics.wording import NOTHING, number, percent, signed
from realm_lab.lab.preview import in_stages, reference_hours
from realm_lab.lab.rules.space import last_stage_for
from realm_lab.lab.rules.tune import Tuned
from realm_lab.lab.status import print_table
from realm_lab.lab.study import StudyPlan
from realm_lab.lab.sweep import Sweep, part_of
from realm_lab.lab.wanted import settled
from realm_lab.records.files import print_json
from realm_lab.records.metrics import Metric
from realm_lab.records.metrics import metric as metric_of
from realm_lab.records.study import Studies

if TYPE_CHECKING:
    import pandas as pd

SEEDS = (4, 5, 6, 7, 8, 10, 12, 16)  # numbers of seeds to plan for; the study's number is added


class Pilot(NamedTuple):
    """Finished runs that give the spread of paired differences. `minutes`: cell -> stage -> minutes per run."""

    study: str
    source: str
    baseline: str
    results: pd.DataFrame
    minutes: Mapping[str, Mapping[str, float]]


@dataclass
class Planned:
    """A variant compared with the baseline in one metric: the spread and the detectable differences."""

    metric: Metric
    cell: str
    deltas: dict[int, float]  # seed -> difference in the pilot; empty: `spread` comes from other cells
    spread: Spread | None
    delta: float | None  # the largest difference that does not matter
    detectable: dict[int, Detectable | None]  # most seeds of a rule -> the detectable difference

    @property
    def enough(self) -> int | None:
        """The smallest planned number of seeds that detects `delta`; None if none does."""
        found = (n for n, one in self.detectable.items() if self.delta and one and one.difference <= self.delta)
        return next(found, None)

    def as_json(self) -> dict[str, Any]:
        """The fields of a comparison in --json."""
        return {
            "metric": self.metric.name,
            "cell": self.cell,
            "deltas": self.deltas,
            "spread": self.spread and self.spread.sd,
            "spread_seeds": self.spread and self.spread.seeds,
            "delta": self.delta,
            "enough": self.enough,
            "detectable": {n: one and one._asdict() for n, one in self.detectable.items()},
        }


def show_power(asked: Sweep) -> int:
    """Print the detectable differences and the cost. UserError: no runs to take the spread from."""
    root = asked.root
    plan, trials = settled(asked.study, asked.results)
    pilot = find_pilot(plan, root, asked.pilot)
    until = plan.design.until
    rules = [Rule(*until)] if until else [Rule(n, n) for n in sorted({*SEEDS, asked.seeds or len(plan.seeds)})]
    planned = plan_power(plan, pilot, rules)
    shown = {run.cell for run in part_of(plan, plan.runs, asked.cells)}
    hours = _hours(plan, pilot, root)
    costs = _costs(plan, pilot, hours, planned, rules, shown)
    tuning = None if trials is None else _cost_of_tuning(trials, hours, shown)
    tests = len(planned)
    planned = [one for one in planned if one.cell in shown]
    if asked.as_json:
        found = {
            "study": plan.name,
            "pilot": {"study": pilot.study, "source": pilot.source},
            "tests": tests,
            "power": POWER,
            "power_error": POWER_ERROR,
            "until": until,
            "comparisons": [one.as_json() for one in planned],
            "costs": costs,
            "tuning": tuning,
        }
        print_json(found)
    elif until:
        _print_rule(plan, pilot, tests, planned, costs[0])
    else:
        _print_counts(plan, pilot, tests, planned, costs)
    if tuning and not asked.as_json:
        hours_of = {"": tuning["device_hours"], " to do": tuning["left"]}
        times = [f"{number(value, 2)} device hours{what}" for what, value in hours_of.items() if value is not None]
        runs = f"{tuning['trials']} trials of {tuning['seeds']} runs each"
        print(f"Before the seeds come {', '.join([runs, *times])}.")
        if trials and not trials.choices:
            print("Tuning can change spread and times: here they are those of parameters that were not tuned.")
    return 0


def find_pilot(plan: StudyPlan, root: Path, named: str | None) -> Pilot:
    """Return the first pilot with enough seeds for a spread. UserError: there is none."""
    reports = (path.parent.name for part in ("*", "reference/*") for path in root.glob(f"reports/{part}/results.csv"))
    if named is not None and named not in (known := sorted({*Studies(root / "runs").names(), *reports})):
        raise UserError(f"--power {named}: no study with runs or a report here", value=named, known=known)
    most = 0
    for pilot in _pilots(plan, root, named):
        compared = _deltas(pilot.results, _base(plan, pilot), _metrics(plan)).values()
        most = max(most, *(len(deltas) for deltas in compared), 0)
        if most >= FEWEST_FOR_PROJECTION:
            return pilot
    of = f"{named or plan.name}: {most} finished seeds that a variant shares with the baseline"
    more = f"give it {FEWEST_FOR_PROJECTION} seeds and " if len(plan.seeds) < FEWEST_FOR_PROJECTION else ""
    run = f"{more}run a pilot, `realm-lab sweep {plan.name} --seeds {FEWEST_FOR_PROJECTION}`"
    name, dear = "name an earlier study with --power STUDY", " (which tunes every variant first)"
    raise UserError(
        f"--power: study {of}; {FEWEST_FOR_PROJECTION} are needed for a spread (runs of --try are too small to count)",
        remedy=f"{name}, or {run}{dear}" if plan.tuning else f"{run}, or {name}",
    )


def _pilots(plan: StudyPlan, root: Path, named: str | None) -> Iterator[Pilot]:
    """Yield pilots: the study's runs as planned now, its runs as recorded, its report, and its reference report."""
    from realm_lab.evidence.report.frames import load_committed, load_runs  # brings pandas

    name, studies = named or plan.name, Studies(root / "runs")
    records = [plan.record(plan.runs)] if named is None else []
    records += [studies.read(name)] if name in studies.names() else []
    for record in records:
        frames = load_runs(studies.runs, record)
        minutes = {cell: frames.minutes(cell) for cell, _ in frames.cells}
        yield Pilot(name, "runs", record.baseline, frames.results, minutes)
    for folder in (Path("reports") / name, Path("reports") / "reference" / name):
        if (root / folder / "results.csv").is_file():
            summary, results = load_committed(root / folder)
            minutes = {cell: of_cell["minutes"] for cell, of_cell in summary.get("cost", {}).items()}
            yield Pilot(name, folder.as_posix(), str(summary["design"]["baseline"]), results, minutes)


def _metrics(plan: StudyPlan) -> list[str]:
    """Return the metrics whose comparisons are in a study's family of tests."""
    from realm_lab.evidence.report.comparison import is_tested
    from realm_lab.evidence.report.report_data import DEFAULT_METRICS

    names = plan.design.metrics or DEFAULT_METRICS
    return [name for name in names if is_tested(name, names[0], plan.design.delta)]


def _base(plan: StudyPlan, pilot: Pilot) -> str:
    return plan.baseline.name if (pilot.results["cell"] == plan.baseline.name).any() else pilot.baseline


def _deltas(results: pd.DataFrame, base: str, metrics: Sequence[str]) -> dict[tuple[str, str], dict[int, float]]:
    """Return (metric, cell) -> seed -> difference from the baseline."""
    from realm_lab.evidence.report.frames import column

    found = {}
    for metric in metrics:
        values = column(results, base, metric)
        for cell in dict.fromkeys(results["cell"]):
            if cell != base and (comparison := compare(column(results, cell, metric), values)):
                found[metric, str(cell)] = comparison.by_seed
    return found


def plan_power(plan: StudyPlan, pilot: Pilot, rules: Sequence[Rule]) -> list[Planned]:
    """Return every comparison of the study's family, with the differences that it can detect.

    A cell that the pilot lacks gets the root mean square of the other cells' spreads. A metric that the pilot lacks has
    no spread, but counts in the family. A cell of the pilot that has too few values of a metric is not tested in it.
    """
    base, metrics, delta = _base(plan, pilot), _metrics(plan), plan.design.delta
    everything = _deltas(pilot.results, base, metrics)
    is_same = base == plan.baseline.name
    measured = set(pilot.results["cell"][pilot.results["status"] == "COMPLETE"])
    planned = []
    for metric in metrics:
        known = {cell: deltas for (name, cell), deltas in everything.items() if name == metric and len(deltas) > 2}
        spreads = {cell: Spread(float(np.std([*one.values()], ddof=1)), len(one)) for cell, one in known.items()}
        others = None  # spread for a cell without one, with the fewest seeds of any spread
        if spreads:
            sd = float(np.sqrt(np.mean([one.sd**2 for one in spreads.values()])))
            others = Spread(sd, min(one.seeds for one in spreads.values()))
        for cell in (cell.name for cell in plan.cells[1:]):
            if is_same and cell in spreads:
                found = Planned(metric_of(metric), cell, known[cell], spreads[cell], delta.get(metric), {})
            elif is_same and spreads and cell in measured:
                continue
            else:
                found = Planned(metric_of(metric), cell, {}, others, delta.get(metric), {})
            planned.append(found)
    seeds = sorted({seed for one in planned for seed in one.deltas})
    table = np.array([[one.deltas.get(seed, np.nan) for one in planned] for seed in seeds]).reshape(-1, len(planned))
    for rule in rules:
        detected = detectable_differences(table, [one.spread for one in planned], rule)
        for one, found_by in zip(planned, detected, strict=True):
            is_possible = found_by is not None and found_by.difference <= one.metric.span
            one.detectable[rule.at_most] = found_by if is_possible else None
    return planned


def _hours(plan: StudyPlan, pilot: Pilot, root: Path) -> dict[str, dict[str, float]]:
    """Return cell -> stage -> device hours of a run: from the pilot, else from the reference reports, else the mean of
    the known cells. Empty: nothing was measured."""
    rows = pilot.results.dropna(subset=["device_hours"]) if "device_hours" in pilot.results else pilot.results[:0]
    measured = {str(cell): float(of_cell["device_hours"].mean()) for cell, of_cell in rows.groupby("cell")}
    first = {cell.name: runs[0] for cell in plan.cells if (runs := plan.of(cell.name))}
    known = {cell: in_stages(measured[cell], run, pilot.minutes.get(cell, {})) for cell, run in first.items()
             if cell in measured}  # fmt: skip
    known = reference_hours(plan, root) | known
    whole = measured | {cell: sum(stages.values()) for cell, stages in known.items()}
    if not whole:
        return {}
    average = float(np.mean([*whole.values()]))
    return {cell: known.get(cell) or in_stages(average, run, {}) for cell, run in first.items()}


def _cost_of_tuning(known: Tuned, hours: Mapping[str, Mapping[str, float]], shown: set[str]) -> dict[str, Any]:
    """Return the number of trials, the runs per trial, and the device hours of all trials and of the trials that are
    left; None if nothing was measured."""
    cells, seeds = [cell for cell in known.trials if cell in shown], len(known.tuning.seeds)
    trials, last = known.tuning.trials, last_stage_for(known.tuning.metric)
    found: dict[str, Any] = {"trials": trials * len(cells), "seeds": seeds, "device_hours": None, "left": None}
    if hours:
        each = {}
        for cell in cells:
            stages = [*hours[cell]]
            each[cell] = seeds * sum(hours[cell][stage] for stage in stages[: stages.index(last) + 1])
        ended = {cell: sum(trial["state"] != "pending" for trial in known.trials[cell]) for cell in cells}
        found["device_hours"] = trials * sum(each.values())
        found["left"] = sum(value * (trials - ended[cell]) for cell, value in each.items())
    return found


def _costs(
    plan: StudyPlan,
    pilot: Pilot,
    hours: Mapping[str, Mapping[str, float]],
    planned: Sequence[Planned],
    rules: Sequence[Rule],
    cells: set[str],
) -> list[dict[str, Any]]:
    """Return the device hours for each number of seeds, and for the runs that are left. A rule with looks also has the
    expected hours if the first metric of every cell has its detectable difference. None: nothing was measured."""
    done = Counter[str]()
    if pilot.source == "runs" and pilot.study == plan.name:
        done.update(pilot.results["cell"][pilot.results["status"] == "COMPLETE"])
    first = planned[0].metric if planned else None
    found = []
    for rule in rules:
        seeds = rule.at_most
        row: dict[str, Any] = {"seeds": seeds, "runs": seeds * len(cells), "device_hours": None, "left": None}
        if hours:
            each = {cell: sum(hours[cell].values()) for cell in cells}
            row["device_hours"] = sum(each.values()) * seeds
            row["left"] = sum(hour * max(seeds - done[cell], 0) for cell, hour in each.items())
            if rule.at_least < rule.at_most:
                taken = {one.cell: one.detectable[seeds] for one in planned if one.metric == first}
                counts = {cell: one.seeds if one else seeds for cell, one in taken.items()}
                counts[plan.baseline.name] = max(counts.values(), default=seeds)
                row["expected"] = sum(hour * counts.get(cell, seeds) for cell, hour in each.items())
        found.append(row)
    return found


def _print_counts(
    plan: StudyPlan, pilot: Pilot, tests: int, planned: Sequence[Planned], costs: Sequence[dict[str, Any]]
) -> None:
    """Print a table with a column for each number of seeds that can give a significant difference."""
    costs = [row for row in costs if row["seeds"] >= FEWEST_SEEDS]
    last, most = ["seeds for delta"] if any(one.delta for one in planned) else [], costs[-1]["seeds"]
    rows = [
        (
            *_names(one),
            *(_difference(one, one.detectable[row["seeds"]]) for row in costs),
            *(f"{one.enough or f'over {most}'} (±{one.delta:g})" if one.delta else NOTHING for _ in last),
        )
        for one in planned
    ]
    totals = {"device hours, at most": "device_hours", "of these to do": "left"}
    if all(row["left"] == row["device_hours"] for row in costs):
        del totals["of these to do"]
    for title, key in totals.items():
        rows.append((title, "", "", "", *(number(row[key], 2) for row in costs), *("" for _ in last)))
    columns = ["metric", "variant", "observed", "spread", *(f"{row['seeds']} seeds" for row in costs), *last]
    print_table(_title(plan), columns, rows)
    print(*_notes(pilot, tests, planned), sep="\n")
    few = [f"{count} seeds: {number(smallest_p(count))}" for count in SEEDS if count < FEWEST_SEEDS]
    print(f"Nothing is significant with fewer than {FEWEST_SEEDS} seeds (smallest possible p: {', '.join(few)}).")


def _print_rule(plan: StudyPlan, pilot: Pilot, tests: int, planned: Sequence[Planned], cost: dict[str, Any]) -> None:
    """Print a table for a rule that looks after each seed: a row per comparison."""
    assert plan.design.until is not None
    least, most = plan.design.until
    rows = []
    for one in planned:
        found = one.detectable[most]
        rows.append((*_names(one), _difference(one, found), number(found and found.seeds, 1)))
    columns = ["metric", "variant", "observed", "spread", f"{least} to {most} seeds, a look after each", "seeds taken"]
    print_table(_title(plan), columns, rows)
    print(*_notes(pilot, tests, planned), sep="\n")
    print("Seeds taken: the mean; a study that misses the difference takes all. Only the first metric stops a variant.")
    if cost["device_hours"] is not None:
        left = f" ({number(cost['left'], 2)} of these to do)" if cost["left"] != cost["device_hours"] else ""
        expected = f"{number(cost['expected'], 2)} if every variant differs by this much in the first metric"
        print(f"Device hours: at most {number(cost['device_hours'], 2)}{left}, {expected}.")


def _title(plan: StudyPlan) -> str:
    return f"{plan.name}: the smallest true difference that is found in {number(100 * POWER, 0)} % of studies"


def _names(one: Planned) -> tuple[str, str, str, str]:
    digits, spread = one.metric.digits, one.spread
    mean = signed(float(np.mean([*one.deltas.values()])), digits) if one.deltas else NOTHING
    origin = "" if one.deltas else ", as other variants"
    shown = f"{number(spread.sd, digits)}{origin}" if spread else "not known"
    return one.metric.title, one.cell, mean, shown


def _difference(one: Planned, found: Detectable | None) -> str:
    return number(found and found.difference, one.metric.digits)


def _notes(pilot: Pilot, tests: int, planned: Sequence[Planned]) -> list[str]:
    seeds = sorted({len(one.deltas) for one in planned if one.deltas})
    of = f", {seeds[0]}{f' to {seeds[-1]}' * (len(seeds) > 1)} seeds" if seeds else ""
    where = f"finished runs of {pilot.study}" if pilot.source == "runs" else pilot.source
    return [
        f"Observed and spread: mean and standard deviation of the paired differences in {where}{of}.",
        f"Simulated: {STUDIES:,} studies, {tests} tests in the family; power is known to ± {percent(POWER_ERROR)}.",
    ]
