"""A search through its command: its trials, its pruning, and its recovery after a kill."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from realm_lab.cli import main
from realm_lab.engine.params.parameters import Params
from realm_lab.errors import UserError
from realm_lab.lab.plan import plan_study
from realm_lab.lab.stopping import sweeping
from realm_lab.lab.sweep import find_study
from realm_lab.records.files import read_json
from realm_lab.records.run import StageRun
from realm_lab.records.state import StageState
from realm_lab.records.study import read_study_record
from tests import tiny
from tests.factories.errors import refused
from tests.lab.conftest import PARAMETERS
from tests.lab.made_search import SPACE, FakeLauncher, score, search, write_search

INTERVAL, RATE = "pretrain.refresh.interval_steps", "pretrain.retriever.learning_rate"
PRUNING = SPACE + "parallel: 3\npruning: {after_steps: 4, percentile: 50, min_trials: 2}\n"
HEAD = "question: Which?\nseeds: [0]\n"


def read_summary(root: Path) -> dict[str, Any]:
    return dict(read_json(root / "reports" / "search-mine" / "summary.json"))


def test_the_baseline_comes_first_and_every_value_is_a_mean_over_the_seeds(tmp_path: Path) -> None:
    launcher = FakeLauncher(tmp_path)
    ended = search(tmp_path, SPACE.replace("[0]", "[0, 3]"), launcher)
    trials = ended.trials
    assert [(trial["number"], trial["state"]) for trial in trials] == [(n, "complete") for n in range(6)]
    assert trials[0]["values"] == {RATE: 5e-4, INTERVAL: 5} == read_summary(tmp_path)["baseline"]["values"]
    for trial in trials:
        params = tiny.params(trial["values"])
        assert trial["value"] == pytest.approx(statistics.fmean([score(params, 0), score(params, 3)]))
        assert 1e-4 <= trial["values"][RATE] <= 1e-2
        assert trial["values"][INTERVAL] in range(1, 10)
    assert ended.code == 0
    names = [name.partition("-")[0] for name in launcher.submitted]
    assert {name: names.count(name) for name in names} == {"prepare": 2, "warm_start": 2, "pretrain": 12}


def test_a_killed_owner_loses_nothing_and_trains_nothing_twice(tmp_path: Path) -> None:
    """Killed again and again, also while it writes a line of the journal."""
    text, parts = f"{SPACE}parallel: 3\n", 0
    launchers: list[FakeLauncher] = []
    values: list[object] = []
    while parts == 0 or launchers[-1].lives < 0:
        launchers.append(FakeLauncher(tmp_path, lives=5 + parts))
        ended = search(tmp_path, text, launchers[-1])
        now = [trial["values"] for trial in ended.trials]
        assert all(known in now for known in values)
        values, parts = now, parts + 1
        journal = tmp_path / "runs" / "studies" / "search-mine" / "optuna.jsonl"
        with open(journal, "ab") as file:
            file.write(b'{"op_code": 4, "wor')
        Path(f"{journal}.lock").touch()
        assert parts < 40
    assert parts > 1
    assert max(launcher.most_pretraining for launcher in launchers) == 3
    assert [trial["state"] for trial in ended.trials] == ["complete"] * 6
    stages = list((tmp_path / "runs" / "stages").glob("pretrain-*"))
    assert {StageRun(path, "pretrain").status().attempt for path in stages} == {1}
    assert len(stages) == len({str(value) for value in values})


@pytest.mark.slow
def test_finished_runs_are_only_read(tmp_path: Path) -> None:
    """Finished runs are not repeated even if the journal is gone, since the same seed proposes the same trials."""
    before = search(tmp_path).trials
    (tmp_path / "runs" / "studies" / "search-mine" / "optuna.jsonl").unlink()
    launcher = FakeLauncher(tmp_path)
    assert search(tmp_path, SPACE, launcher).trials == before
    assert launcher.submitted == []
    assert len(search(tmp_path, SPACE, launcher, trials=8).trials) == 8


def test_the_hopeless_are_pruned_and_stay_so(tmp_path: Path) -> None:
    launcher = FakeLauncher(tmp_path)
    trials = search(tmp_path, PRUNING.replace("trials: 6", "trials: 9"), launcher).trials
    pruned = [trial for trial in trials if trial["state"] == "pruned"]
    assert len(trials) == 9
    assert pruned
    for trial in pruned:
        assert trial["why"] in ("behind the others at step 4", "behind the others at step 8")
        assert trial["value"] is None
    assert len(launcher.cancelled) == len(pruned)
    assert all(name.startswith("pretrain-") for name in launcher.cancelled)  # not what trials share
    again = FakeLauncher(tmp_path)
    search(tmp_path, PRUNING.replace("trials: 6", "trials: 9"), again)
    assert again.submitted == []


@pytest.mark.slow
def test_the_baseline_is_never_pruned(tmp_path: Path) -> None:
    def worst(params: Params, seed: int) -> float:
        return 0.0 if params.pretrain.refresh.interval_steps == 5 else score(params, seed)

    text = PRUNING.replace("trials: 6", "trials: 9")
    trials = search(tmp_path, text, FakeLauncher(tmp_path, scores=worst)).trials
    assert (trials[0]["values"][INTERVAL], trials[0]["state"]) == (5, "complete")


@pytest.mark.slow
def test_failed_trials_count_and_can_be_tried_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def fails(params: Params) -> bool:
        return params.pretrain.retriever.learning_rate != 5e-4

    ended = search(tmp_path, SPACE, FakeLauncher(tmp_path, fails=fails))
    failed = [trial for trial in ended.trials if trial["state"] == "failed"]
    assert (len(failed), {trial["why"] for trial in failed}) == (5, {"pretrain: RuntimeError: no luck"})
    assert "failed: pretrain: RuntimeError: no luck" in capsys.readouterr().err
    launcher = FakeLauncher(tmp_path)
    assert search(tmp_path, SPACE, launcher).trials == ended.trials
    assert launcher.submitted == []
    again = search(tmp_path, SPACE, launcher, retry_failed=True).trials
    assert [trial["state"] for trial in again] == ["complete"] * 6
    assert [trial["values"] for trial in again[1:]] == [trial["values"] for trial in failed]


def test_nothing_is_searched_when_the_baseline_fails(tmp_path: Path) -> None:
    ended = search(tmp_path, SPACE, FakeLauncher(tmp_path, fails=lambda params: True))
    assert [trial["state"] for trial in ended.trials] == ["failed"]
    assert ended.code == 1


def test_a_trial_that_somebody_stops_stays_open_and_others_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stopped(FakeLauncher):
        def poll(self) -> dict[str, StageState]:
            found = super().poll()
            second = [name for name in self.submitted if name.startswith("pretrain")][1:2]
            self.cancel(second)
            return found

    ended = search(tmp_path, SPACE, Stopped(tmp_path))
    assert [trial["state"] for trial in ended.trials] == ["complete", "running", *["complete"] * 4]
    assert ended.code == 1
    assert "trial-001 left open: " in capsys.readouterr().err
    again = search(tmp_path)
    assert ([trial["state"] for trial in again.trials], again.code) == (["complete"] * 6, 0)
    assert sorted(str(trial["values"]) for trial in again.trials) == sorted(str(t["values"]) for t in ended.trials)


def test_equal_trials_are_trained_once(tmp_path: Path) -> None:
    space = "space:\n  pretrain.refresh.interval_steps: {choices: [3, 5]}\n"
    launcher = FakeLauncher(tmp_path)
    trials = search(tmp_path, f"{HEAD}{space}parallel: 3\ntrials: 8\n", launcher).trials
    assert [trial["state"] for trial in trials] == ["complete"] * 8
    assert len({trial["value"] for trial in trials}) == 2
    assert sum(name.startswith("pretrain") for name in launcher.submitted) == 2
    assert len(read_study_record(tmp_path / "runs" / "studies" / "search-mine" / "study.json").cells) == 2


def test_what_is_not_finite_and_what_is_no_combination_fails(tmp_path: Path) -> None:
    nulls, sources = "  pretrain.null_document: {choices: [encoded, off]}", "{choices: [index, empty]}"
    choices = f"{nulls}\n  pretrain.candidate_source: {sources}\n"

    def scores(params: Params, seed: int) -> float:
        return 1.0 if params.pretrain.null_document == "encoded" else float("nan")

    text = f"{HEAD}space:\n{choices}trials: 12\n"
    found = {
        tuple(trial["values"].values()): (trial["state"], trial["why"])
        for trial in search(tmp_path, text, FakeLauncher(tmp_path, scores=scores)).trials
    }
    assert found["encoded", "index"] == ("complete", None)
    assert found["off", "index"] == ("failed", "retrieval_utility is missing or not finite")
    assert "candidate_source: empty leaves only the null document" in str(found["off", "empty"][1])


def test_values_over_other_sentences_are_not_ranked_together(tmp_path: Path) -> None:
    search(tmp_path, SPACE, trials=1)
    with refused("evaluate.cloze_sentences = 8, not 9"):
        search(tmp_path, SPACE + "set: {evaluate.cloze_sentences: 9}\n", trials=2)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with (
        sweeping(tmp_path, "search-mine", alone=True),
        pytest.raises(UserError, match=r"search-mine: process \d+ on "),
        sweeping(tmp_path, "search-mine", alone=True),
    ):
        pass
    with sweeping(tmp_path, "search-mine", alone=True):
        pass


def test_another_space_is_another_search_and_a_broken_journal_is_named(tmp_path: Path) -> None:
    search(tmp_path, trials=1)
    with refused("another space", path=tmp_path / "runs" / "studies" / "search-mine" / "optuna.jsonl"):
        search(tmp_path, SPACE.replace("high: 9", "high: 8"))
    path = tmp_path / "runs" / "studies" / "search-mine" / "optuna.jsonl"
    path.write_text("no journal\n" + path.read_text())
    with refused("delete it", path=path):
        search(tmp_path)


def space(entry: str, name: str = RATE, more: str = "") -> str:
    return f"{HEAD}space:\n  {name}: {entry}\n{more}"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (SPACE + "trails: 3\n", 7, "'trials'"),
        (space("{low: 1.0e-4, high: 1.0e-2}", "pretrain.retreiver.learning_rate"), 4, f"'{RATE}'"),
        (space("{low: 1, high: 2}", "launch.threads"), 4, "no variant may change it"),
        (space("{low: 0.1}"), 4, "{choices: [...]}"),
        (space("{low: 1.0e-4, high: 1.0e-2, setp: 2}"), 4, "'setp' of space.pretrain"),
        (space("{low: 1.0e-2, high: 1.0e-4}"), 4, "not below high"),
        (space("{low: 0, high: 1.0e-2, log: true}"), 4, "log scale"),
        (space("{low: 1, high: 9, step: 0.5}", INTERVAL), 4, "step"),
        (space("{low: 1.0e-3, high: 1.0e-2}"), 4, "is 0.0005 in the baseline"),
        (space("{low: 1.0e-4, high: 1.0e-2}", more=f"set: {{{RATE}: 1.0e-3}}\n"), 4, "'set'"),
        (space("{low: 1, high: 2}", "pretrain.masking"), 4, "'choices'"),
        (space("{low: 1.0e-4, high: 1.0e-2}", "finetune.reader.learning_rate"), 4, "up to 'pretrain'"),
        (SPACE + "metric: exact_match\n", 7, "'exact_match' is not measured on development data"),
        (SPACE + "pruning: {after_steps: 12}\n", 7, "pruning.after_steps: a trial has 12"),
    ],
)
def test_a_mistake_in_the_file_is_named_with_its_line(
    tmp_path: Path, text: str, line: int | None, message: str
) -> None:
    with refused(message, path=tmp_path / "experiments" / "search-mine.yaml", line=line):
        plan_study(write_search(tmp_path, text), tmp_path, params_path=PARAMETERS)


def test_the_command_line_goes_over_the_file_but_not_over_the_space(tmp_path: Path) -> None:
    path = write_search(tmp_path, SPACE + "set: {pretrain.steps: 10}\npreset: toy\n")
    plan = plan_study(path, tmp_path, params_path=PARAMETERS, overrides={"preset": "smoke", "pretrain.steps": 8})
    assert (plan.runs[0].params.preset, plan.runs[0].params.pretrain.steps) == ("smoke", 8)
    section = plan_study(path, tmp_path, params_path=PARAMETERS, overrides={"pretrain": {"steps": 8}})
    assert section.runs[0].params == tiny.params({"preset": "toy", "pretrain.steps": 8})
    with refused(f"'{RATE}'", path=path, line=4):
        plan_study(path, tmp_path, params_path=PARAMETERS, overrides={RATE: 1e-3})


def test_a_search_by_questions_needs_development_questions(tmp_path: Path) -> None:
    (tmp_path / "z.jsonl").write_text('{"title": "T", "text": "A text."}\n', encoding="utf-8")
    files = "corpus.source: files, corpus.tagger: rule, corpus.pretrain_corpus: same"
    text = SPACE + f"set: {{{files}, corpus.files.knowledge: [{tmp_path / 'z.jsonl'}]}}\n"
    for name in ("recall_at_5", "exact_match_dev"):
        with refused(f"'{name}'", "development", "retrieval_utility"):
            plan_study(write_search(tmp_path, text + f"metric: {name}\n"), tmp_path, params_path=PARAMETERS)


@pytest.mark.parametrize("name", ["search-retriever", "search-smoke"])
def test_a_search_of_the_project_can_be_planned(name: str, repository: Path, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("preset: toy\n", encoding="utf-8")
    plan = plan_study(repository / "experiments" / f"{name}.yaml", tmp_path)
    assert RATE in plan.spaces[0].start
    assert plan.runs[0].last_stage == "pretrain"
    path = write_search(tmp_path, SPACE + "metric: exact_match_dev\n")
    assert plan_study(path, tmp_path, params_path=PARAMETERS).runs[0].last_stage == "evaluate"


def test_the_name_search_prefers_a_search_to_a_study(tmp_path: Path) -> None:
    search = write_search(tmp_path, SPACE)
    study = search.with_name("mine.yaml")
    study.touch()
    assert search.name == "search-mine.yaml"
    assert find_study("mine", tmp_path, is_search=True) == search
    assert find_study("mine", tmp_path) == study


@pytest.mark.slow
def test_a_search_of_real_runs_goes_on_where_it_was(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "params.yaml").write_bytes(PARAMETERS.read_bytes())
    short = "set: {warm_start.reader.steps: 2, warm_start.embedder.steps: 2, pretrain.steps: 2}\n"
    write_search(tmp_path, space("{low: 1.0e-4, high: 1.0e-2, log: true}", more=f"{short}trials: 2\n"))
    command = ["search", "search-mine", "--root", str(tmp_path), "--launcher", "inline", "--json"]
    assert main(command) == 0
    first = json.loads(capsys.readouterr().out)
    assert first["trials"] == {"complete": 2, "pruned": 0, "failed": 0, "running": 0}
    stages = {path.name.rpartition("-")[0] for path in (tmp_path / "runs" / "stages").iterdir()}
    assert stages == {"prepare", "warm_start", "pretrain"}  # no trial is fine-tuned
    write_search(tmp_path, space("{low: 1.0e-4, high: 1.0e-2, log: true}", more=f"{short}trials: 3\n"))
    assert main(command) == 0
    second = json.loads(capsys.readouterr().out)
    assert (second["trials"]["complete"], second["baseline"]) == (3, first["baseline"])
    attempts = [read_json(path)["attempt"] for path in (tmp_path / "runs" / "stages").glob("*/status.json")]
    assert attempts == [1] * 5
    main(["status", "search-mine", "--root", str(tmp_path), "--json"])
    shown = json.loads(capsys.readouterr().out)["runs"]
    assert [(run["cell"], run["state"]) for run in shown] == [(f"trial-00{n}", "COMPLETE") for n in range(3)]
    trials = read_json(tmp_path / "runs" / "studies" / "search-mine" / "trials.json")["trials"]
    assert [run["retrieval_utility"] for run in shown] == [trial["value"] for trial in trials]
