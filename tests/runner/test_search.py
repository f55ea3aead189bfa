"""The owner of a search: what it asks for, gives up, tells, and finds again after a kill."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest
from realm_lab.runner.search_values import Cut, cut_of

from realm_lab.errors import UserError
from realm_lab.params.parameters import Params
from realm_lab.runner.search import SearchOwner, owning
from realm_lab.runner.search_file import Pruning
from realm_lab.tracking.run_dir import StageRun
from realm_lab.tracking.study_record import read_study_record
from tests import tiny
from tests.runner.made_search import SPACE, FakeLauncher, owner_of, score, search

INTERVAL, RATE = "pretrain.refresh.interval_steps", "pretrain.retriever.learning_rate"
GRID = """
question: Which?
seeds: [0]
space:
  pretrain.refresh.interval_steps: {choices: [3, 5, 7]}
  pretrain.search_query: {choices: [stale, fresh]}
sampler: grid
trials: 10
"""
PRUNING = SPACE + "parallel: 3\npruning: {after_steps: 4, percentile: 50, min_trials: 2}\n"


def told(owner: SearchOwner) -> list[tuple[object, ...]]:
    return [(t.number, t.state, t.value, t.values) for t in owner.journal.trials()]


def test_the_baseline_comes_first_and_every_value_is_a_mean_over_the_seeds(tmp_path: Path) -> None:
    launcher = FakeLauncher(tmp_path)
    owner = search(tmp_path, SPACE.replace("[0]", "[0, 3]"), launcher)
    trials = owner.journal.trials()
    assert [(trial.number, trial.state) for trial in trials] == [(n, "complete") for n in range(6)]
    assert trials[0].values == {RATE: 5e-4, INTERVAL: 5}
    for trial in trials:
        params = tiny.params(trial.values)
        assert trial.value == pytest.approx(statistics.fmean([score(params, 0), score(params, 3)]))
        assert 1e-4 <= trial.values[RATE] <= 1e-2
        assert trial.values[INTERVAL] in range(1, 10)
    assert len({tuple(trial.values.values()) for trial in trials}) == 6
    assert owner.exit_code() == 0
    names = [name.partition("-")[0] for name in launcher.submitted]
    assert {name: names.count(name) for name in names} == {"prepare": 2, "warm_start": 2, "pretrain": 12}


def test_trials_are_cells_of_a_study(tmp_path: Path) -> None:
    owner = search(tmp_path, SPACE, trials=3)
    record = read_study_record(tmp_path / "runs" / "studies" / "search-mine" / "study.json")
    trials = owner.journal.trials()
    assert [cell.name for cell in record.cells] == ["trial-000", "trial-001", "trial-002"]
    assert (record.baseline, record.source) == ("trial-000", "experiments/search-mine.yaml")
    assert record.cells[0].changes == {}
    assert record.cells[1].changes == trials[1].values
    assert [run.run_key for run in record.runs] == [key for trial in trials for key in trial.notes["run_keys"]]
    for run in record.runs:
        assert record.record(tmp_path / "runs", run).run_key == run.run_key


@pytest.mark.parametrize("parallel", [1, 2, 4])
def test_no_more_trials_at_a_time_than_allowed(tmp_path: Path, parallel: int) -> None:
    launcher = FakeLauncher(tmp_path)
    owner = search(tmp_path, f"{SPACE}parallel: {parallel}\n", launcher)
    assert launcher.most_pretraining == parallel
    assert len(owner.journal.trials()) == 6


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[object, ...]]:
    """The trials of a search that was left alone."""
    return told(search(tmp_path_factory.mktemp("whole")))


@pytest.mark.parametrize("lives", [1, 4, 10])
def test_a_killed_owner_loses_nothing(tmp_path: Path, lives: int, whole: list[tuple[object, ...]]) -> None:
    """Killed again and again, it asks for the same trials with the same values."""
    root, parts = tmp_path / "parts", 0
    launchers: list[FakeLauncher] = []
    while parts == 0 or launchers[-1].lives < 0:
        launchers.append(FakeLauncher(root, lives=lives + parts))
        owner = search(root, SPACE, launchers[-1])
        parts += 1
        assert parts < 40
    assert parts > 1
    assert told(owner) == whole
    for path in (root / "runs" / "stages").glob("pretrain-*/status.json"):
        assert StageRun(path.parent, "pretrain").status().attempt == 1
    assert len(list((root / "runs" / "stages").glob("pretrain-*"))) == 6


def test_a_killed_owner_with_several_trials_does_each_once(tmp_path: Path) -> None:
    text = SPACE + "parallel: 3\n"
    first = search(tmp_path, text, FakeLauncher(tmp_path, lives=5))
    left = [trial for trial in first.journal.trials() if trial.state == "running"]
    assert len(left) == 3
    second = search(tmp_path, text)
    now = second.journal.trials()
    assert [now[trial.number].values for trial in left] == [trial.values for trial in left]
    assert [trial.state for trial in now] == ["complete"] * 6
    assert len(list((tmp_path / "runs" / "stages").glob("pretrain-*"))) == 6


def test_a_trial_without_all_of_its_values_gets_them(tmp_path: Path) -> None:
    """The owner was killed between asking and naming the values, and while it wrote a line."""
    owner = owner_of(tmp_path)
    owner.begin()
    owner.journal._study.ask()
    path = tmp_path / "runs" / "studies" / "search-mine" / "optuna.jsonl"
    with open(path, "ab") as file:
        file.write(b'{"op_code": 4, "wor')
    Path(f"{path}.lock").touch()
    again = search(tmp_path)
    trials = again.journal.trials()
    assert trials[0].values == {RATE: 5e-4, INTERVAL: 5}
    assert [trial.state for trial in trials] == ["complete"] * 6


def test_finished_runs_are_only_read(tmp_path: Path) -> None:
    """Also when the journal is gone."""
    before = told(search(tmp_path))
    (tmp_path / "runs" / "studies" / "search-mine" / "optuna.jsonl").unlink()
    launcher = FakeLauncher(tmp_path)
    assert told(search(tmp_path, SPACE, launcher)) == before
    assert launcher.submitted == []
    assert len(search(tmp_path, SPACE, launcher, trials=8).journal.trials()) == 8
    assert len(launcher.submitted) == 2


def test_pruning_is_what_one_computes_by_hand() -> None:
    pruning = Pruning(after_steps=4, percentile=50.0, min_trials=3)
    mine = {0: {0: 9.0, 4: 1.0, 8: 2.0}}
    others = [{0: {4: 5.0, 8: value}} for value in (1.0, 2.5, 3.0)]
    assert cut_of(mine, others, pruning) == Cut(8, 2.0, 2.5, 3)
    assert cut_of(mine, others[:2], pruning) is None  # too few to compare with
    assert cut_of({0: {0: 9.0}}, others, pruning) is None  # too early
    assert cut_of(mine, [*others, {0: {8: 2.1}}], pruning) == Cut(8, 2.0, 2.3, 4)
    lenient = Pruning(after_steps=4, percentile=25.0, min_trials=3)  # 1 + 0.5 * 1.5 = 1.75
    assert cut_of(mine, others, lenient) is None
    # Two seeds, the second not as far: each is compared where it is, with those that have been there.
    two = {0: {4: 1.0, 8: 2.0}, 1: {4: 1.0}}
    there = [{0: {4: 1.0, 8: 4.0}, 1: {4: 1.0 + n, 8: 0.0}} for n in range(3)]
    assert cut_of(two, [*there, {0: {4: 0.0, 8: 0.0}}], pruning) == Cut(4, 1.5, 3.0, 3)


def test_the_hopeless_are_given_up_and_can_go_on_later(tmp_path: Path) -> None:
    launcher = FakeLauncher(tmp_path)
    owner = search(tmp_path, PRUNING, launcher)
    trials = owner.journal.trials()
    pruned = [trial for trial in trials if trial.state == "pruned"]
    assert len(trials) == 6
    assert pruned
    assert trials[0].state == "complete"
    for trial in pruned:
        assert trial.notes["step"] in (4, 8)
        assert trial.value == pytest.approx(score(tiny.params(trial.values), 0) * trial.notes["step"] / 12)
    assert len(launcher.cancelled) == len(pruned)
    assert all(name.startswith("pretrain-") for name in launcher.cancelled)  # not what trials share
    again = FakeLauncher(tmp_path)
    search(tmp_path, PRUNING, again)
    assert again.submitted == []  # told once and for all


def test_a_trial_given_up_by_another_metric_has_no_value(tmp_path: Path) -> None:
    trials = search(tmp_path, PRUNING + "metric: cloze_exact_match\n").journal.trials()
    assert {(trial.state, trial.value) for trial in trials} == {("complete", 0.5), ("pruned", None)}
    assert all("retrieval_utility" in trial.notes["why"] for trial in trials if trial.state == "pruned")


def test_the_baseline_is_never_given_up(tmp_path: Path) -> None:
    def worst(params: Params, seed: int) -> float:
        return 0.0 if params.pretrain.refresh.interval_steps == 5 else 1.0

    trials = search(tmp_path, PRUNING, FakeLauncher(tmp_path, scores=worst)).journal.trials()
    assert trials[0].values[INTERVAL] == 5
    assert (trials[0].state, trials[0].value) == ("complete", 0.0)


def test_failed_trials_are_told_and_count_and_can_be_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(params: Params) -> bool:
        return params.pretrain.refresh.interval_steps == 7

    owner = search(tmp_path, GRID, FakeLauncher(tmp_path, fails=fails))
    trials = owner.journal.trials()
    failed = [trial for trial in trials if trial.state == "failed"]
    assert [trial.values[INTERVAL] for trial in failed] == [7, 7]
    assert {trial.notes["error"] for trial in failed} == {"RuntimeError: no luck"}
    assert len(trials) == 6
    assert "failed: RuntimeError: no luck" in capsys.readouterr().err
    launcher = FakeLauncher(tmp_path)
    assert search(tmp_path, GRID, launcher).journal.trials() == trials
    assert launcher.submitted == []
    owner = search(tmp_path, GRID, launcher, retry_failed=True)
    assert [trial.state for trial in owner.counted()] == ["complete"] * 6
    assert len(launcher.submitted) == 2


def test_nothing_is_searched_when_the_baseline_fails(tmp_path: Path) -> None:
    owner = search(tmp_path, SPACE, FakeLauncher(tmp_path, fails=lambda params: True))
    assert [trial.state for trial in owner.journal.trials()] == ["failed"]
    assert owner.exit_code() == 1


def test_a_grid_has_every_point_once(tmp_path: Path) -> None:
    trials = search(tmp_path, GRID.replace("sampler:", "parallel: 2\nsampler:")).journal.trials()
    points = [tuple(trial.values.values()) for trial in trials]
    assert sorted(points) == [(n, query) for n in (3, 5, 7) for query in ("fresh", "stale")]
    assert points[0] == (5, "stale")


def test_equal_trials_are_trained_once(tmp_path: Path) -> None:
    launcher = FakeLauncher(tmp_path)
    text = GRID.replace("sampler: grid", "sampler: random\nparallel: 3")
    owner = search(tmp_path, text, launcher)
    trials = owner.journal.trials()
    assert len(trials) == 10
    assert sum(name.startswith("pretrain") for name in launcher.submitted) == len(
        {tuple(t.values.values()) for t in trials}
    )
    twins = [trial for trial in trials if "same_as" in trial.notes]
    assert twins
    for trial in twins:
        assert (trial.values, trial.value) == (trials[trial.notes["same_as"]].values, trial.value)
    record = read_study_record(tmp_path / "runs" / "studies" / "search-mine" / "study.json")
    assert len(record.cells) == len(trials) - len(twins)


def test_a_value_that_is_not_finite_is_a_failure(tmp_path: Path) -> None:
    def scores(params: Params, seed: int) -> float:
        return float("nan") if params.pretrain.refresh.interval_steps == 3 else 1.0

    trials = search(tmp_path, GRID, FakeLauncher(tmp_path, scores=scores)).journal.trials()
    bad = [trial for trial in trials if trial.values[INTERVAL] == 3]
    assert [(t.state, t.notes["error"]) for t in bad] == [("failed", "retrieval_utility is missing or not finite")] * 2


def test_a_combination_that_is_none_is_a_failed_trial(tmp_path: Path) -> None:
    text = """
question: Which?
seeds: [0]
space:
  model.share_towers: {choices: [true, false]}
  model.share_projection: {choices: [false, true]}
sampler: grid
"""
    trials = search(tmp_path, text).journal.trials()
    states = {tuple(trial.values.values()): trial.state for trial in trials}
    assert states == dict.fromkeys([(True, False), (True, True), (False, False)], "complete") | {
        (False, True): "failed"
    }
    assert "share_projection: true needs share_towers: true" in trials[-1].notes["error"]


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        owning(tmp_path, "search-mine"),
        pytest.raises(UserError, match=r"search 'search-mine' is done by process \d+ on .*; stop it with --cancel"),
        owning(tmp_path, "search-mine"),
    ):
        pass
    with owning(tmp_path, "search-mine"):
        pass


def test_another_space_is_another_search(tmp_path: Path) -> None:
    search(tmp_path, trials=1)
    with pytest.raises(UserError, match="was begun with another space, metric, seeds or parameters; rename"):
        search(tmp_path, SPACE.replace("high: 9", "high: 8"))
    assert len(search(tmp_path, SPACE.replace("trials: 6", "trials: 2")).journal.trials()) == 2


def test_a_broken_journal_is_named(tmp_path: Path) -> None:
    search(tmp_path, trials=1)
    path = tmp_path / "runs" / "studies" / "search-mine" / "optuna.jsonl"
    path.write_text("no journal\n" + path.read_text())
    with pytest.raises(UserError, match=r"optuna.jsonl: not a journal of Optuna .*; delete it"):
        search(tmp_path)
