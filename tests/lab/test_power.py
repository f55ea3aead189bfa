"""`sweep --power`: differences and costs from a report, from another study, and without any runs."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from realm_lab.cli import main
from realm_lab.records.files import write_json
from tests.lab.conftest import PARAMETERS

CELLS = """
question: Does it matter?
seeds: {seeds}
baseline: realm
cells:
  realm:
  warm: {{system: warm_start}}
  long: {{set: {{pretrain.steps: 24}}}}
metrics: [exact_match]
delta: {{exact_match: 0.5}}
"""
DELTAS = {"warm": [0.1, -0.1, 0.2, 0.0, -0.2, 0.1], "long": [0.1, 0.3, 0.2, 0.4, 0.2, 0.0]}


def leave_report(root: Path, study: str, deltas: Mapping[str, list[float]], baseline: str = "realm") -> None:
    folder = root / "reports" / study
    folder.mkdir(parents=True)
    write_json(folder / "summary.json", {"design": {"baseline": baseline}})
    rows = [(baseline, seed, 0.5, 1.0) for seed in range(6)]
    rows += [(cell, seed, 0.5 + delta, 2.0) for cell, mine in deltas.items() for seed, delta in enumerate(mine)]
    text = "".join(f"{study},{cell},{seed},k,COMPLETE,{value},{hours}\n" for cell, seed, value, hours in rows)
    (folder / "results.csv").write_text("study,cell,seed,run_key,status,exact_match,device_hours\n" + text)


def power(
    root: Path, capsys: pytest.CaptureFixture[str], *more: str, seeds: str = "[0, 1]", cells: str = CELLS
) -> dict[str, Any]:
    path = root / "study.yaml"
    path.write_text(cells.format(seeds=seeds))
    command = ["sweep", str(path), "--power", "--root", str(root), "--params", str(PARAMETERS), *more]
    assert main(command) == 0
    printed = capsys.readouterr().out
    return dict(json.loads(printed)) if "--json" in more else {"text": printed}


@pytest.mark.slow
def test_a_report_of_the_study_gives_spread_and_cost(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave_report(tmp_path, "study", DELTAS)
    found = power(tmp_path, capsys, "--json")
    assert (found["pilot"]["source"], found["tests"]) == ("reports/study", 2)
    for one in found["comparisons"]:
        assert one["spread"] == pytest.approx(np.std(DELTAS[one["cell"]], ddof=1))
        sizes = [one["detectable"][str(seeds)] for seeds in (4, 5, 6, 8, 16)]
        assert sizes[:2] == [None, None]
        assert sizes[2]["difference"] > sizes[3]["difference"] > sizes[4]["difference"] > one["spread"] / 2
        assert one["detectable"][str(one["enough"])]["difference"] <= 0.5
    at = {cost["seeds"]: cost for cost in found["costs"]}
    assert at[6]["device_hours"] == at[6]["left"] == pytest.approx(6 * (1 + 2 + 2))
    assert at[2]["runs"] == 6, "the study's own number"
    some = power(tmp_path, capsys, "--json", "--cells", "long")
    assert [one["cell"] for one in some["comparisons"]] == ["long"]
    assert some["tests"] == 2
    assert {cost["seeds"]: cost for cost in some["costs"]}[6]["device_hours"] == pytest.approx(12)
    assert "0.125" in power(tmp_path, capsys)["text"]
    assert not (tmp_path / "runs").exists()


def test_an_unknown_cell_gets_the_spread_of_another_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave_report(tmp_path, "earlier", DELTAS, baseline="other")
    found = power(tmp_path, capsys, "--json", "--power", "earlier")
    pooled = np.sqrt(np.mean([np.var(mine, ddof=1) for mine in DELTAS.values()]))
    assert [one["spread"] for one in found["comparisons"]] == pytest.approx([pooled, pooled])
    assert all(one["deltas"] == {} for one in found["comparisons"])


TUNED = """
tune: {{trials: 3, seeds: [10, 11], space: {{finetune.reader.learning_rate: {{low: 1.0e-3, high: 1.0e-2}}}}}}
"""


@pytest.mark.slow
def test_trials_come_before_the_seeds_of_a_study_that_is_tuned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    leave_report(tmp_path, "earlier", DELTAS)
    rule = "{until: decided, at_least: 4, at_most: 8}"
    found = power(tmp_path, capsys, "--json", "--power", "earlier", cells=CELLS + TUNED, seeds=rule)
    assert found["until"] == [4, 8]
    [cost] = found["costs"]
    assert cost["device_hours"] == pytest.approx(8 * (1 + 2 + 2))
    taken = [one["detectable"]["8"]["seeds"] for one in found["comparisons"]]
    assert all(6 < seeds < 8 for seeds in taken)
    assert cost["expected"] == pytest.approx(2 * sum(taken) + max(taken))
    tuning = {"trials": 9, "seeds": 2, "device_hours": pytest.approx(3 * 2 * 5), "left": pytest.approx(3 * 2 * 5)}
    assert found["tuning"] == tuning
    text = power(tmp_path, capsys, "--power", "earlier", cells=CELLS + TUNED, seeds=rule)["text"]
    assert "seeds taken" in text
    assert "9 trials of 2 runs each, 30.00 device hours, 30.00 device hours to do" in text
    assert not (tmp_path / "runs").exists()


def test_without_enough_seeds_it_asks_for_a_pilot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    leave_report(tmp_path, "study", {"warm": [0.1, 0.2, 0.3, 0.4]})
    path = tmp_path / "study.yaml"
    path.write_text(CELLS.format(seeds="[0, 1]"))
    command = ["sweep", str(path), "--power", "--root", str(tmp_path), "--params", str(PARAMETERS)]
    assert main(command) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "give it 5 seeds and run a pilot, `realm-lab sweep study --seeds 5`" in line
    assert "4 finished seeds" in line
    assert main([*command[:3], "studi", *command[3:]]) == 2
    assert "--power studi: no study" in capsys.readouterr().err
    assert main([*command, "--try"]) == 2
