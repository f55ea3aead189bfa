"""What a search leaves in reports/: the table, the best trial, the drawings; and a search of real runs."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from realm_lab.cli import main
from realm_lab.core.files import read_json
from realm_lab.reporting.search_report import write_search_report
from realm_lab.runner.search import SearchOwner, _write_results
from realm_lab.tracking.metric_log import read_metrics
from realm_lab.tracking.views import read_groups
from tests.runner.made_search import PARAMETERS, SPACE, FakeLauncher, owner_of, search, write_search

REAL = """
question: Does a search work?
seeds: [0]
set: {warm_start.reader.steps: 2, warm_start.embedder.steps: 2, pretrain.steps: 2}
space:
  pretrain.retriever.learning_rate: {low: 1.0e-4, high: 1.0e-2, log: true}
trials: 2
"""


def table(root: Path) -> list[dict[str, str]]:
    with open(root / "reports" / "search-mine" / "search.csv", newline="") as file:
        return list(csv.DictReader(file))


def test_every_trial_has_a_row_and_the_best_its_settings(tmp_path: Path) -> None:
    def fails(params: object) -> bool:
        return params.pretrain.refresh.interval_steps == 8  # type: ignore[attr-defined]

    text = SPACE + "parallel: 3\npruning: {after_steps: 4, min_trials: 2}\n"
    owner = search(tmp_path, text, FakeLauncher(tmp_path, fails=fails), trials=8)
    _write_results(owner, as_json=False)
    rows, trials = table(tmp_path), owner.journal.trials()
    assert [(int(row["trial"]), row["state"]) for row in rows] == [(t.number, t.state) for t in trials]
    for row, trial in zip(rows, trials, strict=True):
        assert {name: float(row[name]) for name in trial.values} == trial.values
        if trial.state == "complete":
            assert float(row["retrieval_utility"]) == pytest.approx(trial.value)
            assert (tmp_path / "runs" / row["runs"] / "run.json").exists()
        else:
            assert row["retrieval_utility"] == ""
    summary = read_json(tmp_path / "reports" / "search-mine" / "summary.json")
    best = max((t for t in trials if t.state == "complete"), key=lambda t: t.value or 0.0)
    assert summary["best"]["trial"] == best.cell
    assert summary["best"]["parameters"] == best.values
    assert summary["baseline"]["trial"] == "trial-000"
    assert sum(summary["trials"].values()) == 8
    report = (tmp_path / "reports" / "search-mine" / "report.md").read_text()
    for name, value in best.values.items():
        assert f"--set {name}={value!r}" in report
    assert "does not show that it is better than the baseline" in report
    assert "run both as a study with other seeds" in report
    assert "an importance needs 50 complete trials" in report
    assert {path.name for path in (tmp_path / "reports" / "search-mine" / "figures").iterdir()} == {"history.png"}


def test_where_the_baseline_is_the_best_nothing_is_recommended(tmp_path: Path) -> None:
    owner = search(tmp_path, trials=1)
    _write_results(owner, as_json=False)
    report = (tmp_path / "reports" / "search-mine" / "report.md").read_text()
    assert "No trial reached more than the baseline: retrieval utility 0.8" in report
    assert "--set" not in report
    assert "figures/history.png" not in report


def told(root: Path, count: int) -> SearchOwner:
    """A search whose trials are told without being trained; only the interval matters."""
    owner = owner_of(root, SPACE.replace("trials: 6", "trials: 60\nsampler: random"))
    owner.begin()
    for _ in range(count):
        trial = owner.journal.ask()
        owner.journal.tell(trial.number, "complete", -abs(trial.values["pretrain.refresh.interval_steps"] - 7.0))
    return owner


def test_importances_are_shown_where_there_are_enough_trials(tmp_path: Path) -> None:
    for count, shown in ((49, False), (50, True)):
        root = tmp_path / str(count)
        owner = told(root, count)
        shares = owner.journal.importances()
        folder, _ = write_search_report(root, owner.plan, owner.counted(), {}, lambda shares=shares: shares)  # type: ignore[misc]
        assert ("Importance of the parameters" in (folder / "report.md").read_text()) == shown
    assert max(shares, key=lambda name: shares[name]) == "pretrain.refresh.interval_steps"


@pytest.mark.slow
def test_a_search_of_real_runs_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "params.yaml").write_bytes(PARAMETERS.read_bytes())
    write_search(tmp_path, REAL)
    command = ["search", "search-mine", "--root", str(tmp_path), "--launcher", "inline", "--json"]
    assert main(command) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["trials"] == {"complete": 2, "pruned": 0, "failed": 0, "running": 0}
    stages = {path.name.rpartition("-")[0] for path in (tmp_path / "runs" / "stages").iterdir()}
    assert stages == {"prepare", "warm_start", "pretrain"}  # no fine-tuning is paid
    logs = list((tmp_path / "runs" / "stages").glob("pretrain-*/metrics.jsonl"))
    ends = [[row["retrieval_utility"] for row in read_metrics(path) if "retrieval_utility" in row][-1] for path in logs]
    assert sorted(float(row["retrieval_utility"]) for row in table(tmp_path)) == pytest.approx(sorted(ends))

    assert main([*command, "--trials", "3"]) == 0
    second = json.loads(capsys.readouterr().out)
    assert second["trials"]["complete"] == 3
    assert second["baseline"] == first["baseline"]
    attempts = [read_json(path)["attempt"] for path in (tmp_path / "runs" / "stages").glob("*/status.json")]
    assert attempts == [1] * 5
    main(["status", "search-mine", "--root", str(tmp_path), "--json"])
    shown = json.loads(capsys.readouterr().out)["runs"]
    assert [(run["cell"], run["state"]) for run in shown] == [(f"trial-00{n}", "COMPLETE") for n in range(3)]
    assert [run["retrieval_utility"] for run in shown] == pytest.approx(
        [float(row["retrieval_utility"]) for row in table(tmp_path)]
    )
    [(_, members)] = read_groups(tmp_path / "runs", []).values()
    assert {tuple(member.record.stages) for member in members} == {("warm_start", "pretrain")}
