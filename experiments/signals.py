"""The section `prediction` in the report of signals.yaml. `python -m experiments.signals` measures the cosines."""

from __future__ import annotations

import csv
import functools
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from scipy import stats

from realm_lab.evidence.report.section import ReportSection
from realm_lab.evidence.statistics.intervals import t_interval
from realm_lab.evidence.statistics.paired import sign_flip_p
from realm_lab.evidence.statistics.wording import number, span
from realm_lab.records.files import atomic_write

COSINES = Path(__file__).with_name("signals_cosines.csv")
ESTIMATES = {"top 12": "marginal", "reinforce draws 1": "reinforce", "jsa draws 16": "jsa"}  # estimate -> variant


class Prediction(ReportSection):
    """Rank correlations over the signals, on each seed: their cosine and bias at step 30 with recall@5 at the end."""

    name = "prediction"
    heading = "Does the cosine predict recall?"
    group = ""

    @functools.cached_property
    def measured(self) -> list[dict[str, Any]]:
        """A dict for each run with a cosine and a recall@5: cell, seed, cosine, bias and recall."""
        ends = self.report.results.set_index(["cell", "seed"])["recall_at_5"].dropna().to_dict()
        with COSINES.open(encoding="utf-8", newline="") as file:
            rows = [(row["cell"], int(row["seed"]), row) for row in csv.DictReader(file)]
        return [
            {"cell": cell, "seed": seed, "recall": ends[cell, seed]}
            | {name: float(row[name]) for name in ("cosine", "bias")}
            for cell, seed, row in rows
            if (cell, seed) in ends
        ]

    @functools.cached_property
    def correlations(self) -> dict[str, dict[int, float]]:
        """`cosine` and `bias` -> seed -> Spearman's correlation with recall, over the signals; seeds with fewer than
        three signals are left out."""
        found: dict[str, dict[int, float]] = {"cosine": {}, "bias": {}}
        for seed in sorted({one["seed"] for one in self.measured}):
            runs = [one for one in self.measured if one["seed"] == seed]
            for name, by_seed in found.items() if len(runs) > 2 else ():
                values = [[one[key] for one in runs] for key in (name, "recall")]
                by_seed[seed] = float(stats.spearmanr(*values).statistic)
        return found

    @functools.cached_property
    def rows(self) -> list[dict[str, str]]:
        """A row for each signal: means over the seeds."""
        rows = []
        for name, title in self.report.cells:
            runs = [one for one in self.measured if one["cell"] == name]
            means = {
                column: number(statistics.fmean(one[key] for one in runs)) for column, key in COLUMNS.items() if runs
            }
            rows.append({"signal": title, "n": str(len(runs))} | (means or dict.fromkeys(COLUMNS, "–")))
        return rows

    @property
    def note(self) -> str:  # type: ignore[override]
        """The mean correlations, and the interval and p of the cosine's."""
        cosine, bias = (list(one.values()) for one in self.correlations.values())
        if not cosine:
            return ""
        interval = t_interval(cosine)
        return (
            f"Spearman's rank correlation of the cosine with recall@5, mean of {len(cosine)} seeds: "
            f"{number(statistics.fmean(cosine), 2)} (95 % {span(interval, 2)}, "
            f"p = {sign_flip_p(cosine):.3f}); of the squared bias {number(statistics.fmean(bias), 2)}. Cosine "
            "and bias: of the retriever's gradient in its weights after 30 steps of Eq. 1, against the exact one over "
            "all passages."
        )

    def data(self) -> dict[str, Any]:
        """The correlations by seed."""
        return {"prediction": self.correlations}


COLUMNS = {"cosine at step 30": "cosine", "bias²": "bias", "recall@5 at the end": "recall"}


def main() -> None:
    """Write signals_cosines.csv from the runs of signals_at_30."""
    with atomic_write(COSINES, "w") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["cell", "seed", "cosine", "bias"])
        for seed in range(69, 77):
            command = [sys.executable, "-m", "realm_lab", "gradients", "--run", f"signals_at_30/marginal-s{seed}"]
            asked = [*command, "--candidates", "12", "--json"]
            found = json.loads(subprocess.run(asked, check=True, stdout=subprocess.PIPE).stdout)
            for one in found["estimates"]:
                cell = ESTIMATES.get(one["name"], one["name"])
                writer.writerow([cell, seed, f"{one['weights_cosine']:.6g}", f"{one['weights_bias']:.6g}"])


if __name__ == "__main__":
    main()
