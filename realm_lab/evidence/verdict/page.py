"""One static page that judges a CSV in the browser, with the same digits as `realm-lab verdict`.

The tests are in `evidence/report/templates/verdict.js`. Words, bounds and levels that are defined in Python are put
into the page, with the first state of the random generator and the simulated power, so that page and Python agree.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from realm_lab.evidence.report.rendering import page
from realm_lab.evidence.statistics import calibration, family, intervals, paired, power, wording
from realm_lab.evidence.verdict import answer, runs, status, tables
from realm_lab.records.files import write_text
from realm_lab.records.metrics import FLOOR, METRICS

MOST_DIFFERENCES = 4000  # paired differences that the page judges, in some seconds; it refuses more


def write_page(path: Path) -> None:
    """Write the page to a file."""
    text = json.dumps(_constants(), ensure_ascii=False).replace("<", "\\u003c")
    write_text(path, page("verdict.html.j2", "verdict.js", title="A verdict on your runs", constants=Markup(text)))


def _constants() -> dict[str, Any]:
    """The values that the script shares with Python."""
    state: Any = np.random.default_rng(intervals.SEED).bit_generator.state["state"]
    effects = power.simulated_effects()
    fields = ("low", "high", "better", "digits", "unit")
    return {
        "alpha": family.ALPHA,
        "level": intervals.LEVEL,
        "equivalenceLevel": power.EQUIVALENCE_LEVEL,
        "power": power.POWER,
        "tied": paired.TIED,
        "suspect": calibration.SUSPECT,
        "floor": FLOOR,
        "largest": runs.LARGEST,
        "fewestSeeds": paired.FEWEST_SEEDS,
        "fewestForSpread": intervals.FEWEST_FOR_SPREAD,
        "fewestForProjection": power.FEWEST_FOR_PROJECTION,
        "mostSeeds": power.MOST_SEEDS,
        "exactSeeds": paired.EXACT_SEEDS,
        "resamples": paired.RESAMPLES,
        "studies": calibration.STUDIES,
        "mostSigns": calibration.MOST_SIGNS,
        "widest": calibration.WIDEST,
        "grid": calibration.GRID,
        "pairsShown": answer.PAIRS_SHOWN,
        "mostDifferences": MOST_DIFFERENCES,
        "mostTests": min(map(len, effects.values())),
        "simulated": effects,
        "state": str(state["state"]),
        "increment": str(state["inc"]),
        "blank": sorted(runs.NO_VALUE),
        "noState": status.BLANK,
        "done": sorted(status.DONE),
        "notDone": sorted(status.NOT_DONE),
        "stateColumn": status.COLUMN.pattern,
        "nested": tables.NESTED,
        "metrics": {name: {field: asdict(one)[field] for field in fields} for name, one in METRICS.items()},
        "legend": {
            "tests": answer.TESTS,
            "clusters": answer.CLUSTERS,
            "control": answer.CONTROL,
            "alarms": wording.FALSE_ALARMS,
        },
    }
