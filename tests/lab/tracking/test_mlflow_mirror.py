"""The mirror: MLflow has the content of the run folders once, however often a mirror ran or died before."""

import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from realm_lab.lab.tracking.mirror import Mirror, mirror
from realm_lab.lab.tracking.views import UNPLANNED
from realm_lab.records.run import StageRun, write_run
from realm_lab.records.study import read_study_record, write_study_record
from realm_lab.records.tracking_store import default_uri
from tests.factories.finished import finished
from tests.lab.tracking import made_runs, shown
from tests.lab.tracking.made_runs import BEGAN_AT

STUDY = ("studies", "default", "study.json")


def dump(runs: Path) -> list[str]:
    """Everything in the database."""
    with sqlite3.connect(runs.parent / "mlflow.db") as database:
        return list(database.iterdump())


def points_of(stage: StageRun) -> dict[str, list[tuple[int, int, float]]]:
    """Return the expected points in MLflow of a stage's metrics.jsonl."""
    points: dict[str, list[tuple[int, int, float]]] = {}
    for row in stage.metrics.rows():
        for name, value in row.items():
            if name not in ("step", "time"):
                points.setdefault(f"pretrain/{name}", []).append((row["step"], round(row["time"] * 1000), value))
    return {name: sorted(values) for name, values in points.items()}


def only_run(runs: Path) -> dict[str, Any]:
    (run,) = shown.content(runs).values()
    return run


def grow(stage: StageRun, last: int, checkpoint: bool = True) -> None:
    """The stage goes on from step 100 to `last`."""
    made_runs.write_points(stage.metrics, made_runs.pretrain_rows("realm", 0, 110, last, BEGAN_AT))
    made_runs.set_status(stage, step=last)
    if checkpoint:
        made_runs.checkpoint(stage, last)


def test_a_finished_run_is_shown_as_its_folder_says(runs: Path) -> None:
    record = made_runs.make_run(runs, "realm", 0)
    summary = mirror(runs)
    assert (summary.states, summary.created, summary.problems) == ({"COMPLETE": 1}, 1, ())
    run = only_run(runs)
    assert run["status"] == "FINISHED"
    # Pre-training starts at 200; the warm start before it is shared. Its stages took 90, 100 and 20 seconds.
    assert run["times"] == ((BEGAN_AT + 200) * 1000, (BEGAN_AT + 200 + 210) * 1000)
    # All parameters, also those that are as the preset has them.
    identity = {"seed": "0", "system": "realm", "variant": "realm", "preset": "toy"}
    corpus = {"corpus.source": "toy", "corpus.files.knowledge": "[]", "corpus.toy.world_seed": "none"}
    pretrain = {"masking": "salient_span", "reader.learning_rate": "3e-05", "steps": "200"}
    assert run["params"] == identity | corpus | {f"pretrain.{name}": value for name, value in pretrain.items()}
    assert run["inputs"] == {
        "toy corpus": (made_runs.CORPUS[:12], "training", {"passages": 2048, "sentences": 3936}),
        "toy questions": (made_runs.CORPUS[:12], "evaluation", {"questions_test": 648}),
    }
    tags = {"run_key": record.run_key, "variant": "realm", "study": "default", "seed": "0", "state": "COMPLETE"}
    tags |= {"git_commit": "0123456789abcdef0123456789abcdef01234567", "system": "realm", "changes": "nothing"}
    assert {f"realm.{name}": value for name, value in tags.items()}.items() <= run["tags"].items()
    stage = StageRun(record.folders(runs)["pretrain"], "pretrain")
    assert stage is not None
    curves = {name: points for name, points in run["points"].items() if name.startswith("pretrain/")}
    assert curves == points_of(stage)
    assert {name for name in run["points"] if "/" not in name} == {"exact_match", "recall_at_5", "retrieval_utility"}
    values = {(row[0], row[1]): row[2] for row in run["values"]}
    assert values["evaluate", "bm25/recall_at_5"] == 0.71
    assert values["pretrain", "retrieval_utility"] == 0.8  # the last point of its curve is not this one
    assert ("evaluate", "bm25/gold_recall_at_5") not in values  # null
    minutes = {"warm_start": 100 / 60, "pretrain": 1.5, "finetune": 100 / 60, "evaluate": 20 / 60}
    assert {stage: value for (stage, name), value in values.items() if name == "minutes"} == minutes
    took = {name: run["points"][f"system/{name}"][0][2] for name in ("wall_seconds", "peak_memory_gibibytes")}
    assert took == {"wall_seconds": 310.0, "peak_memory_gibibytes": 0.5}
    assert {"run.json", "params.yaml", "pretrain/config.yaml", "evaluate/eval/predictions.jsonl"} <= set(run["files"])


@pytest.mark.slow
def test_many_mirrors_leave_the_same_database_and_a_deleted_one_is_built_again(runs: Path) -> None:
    made_runs.make_runs(runs, seeds=(0,))
    empty = (runs.parent / "mlflow.db").read_bytes()
    assert mirror(runs).created == 3
    once = dump(runs)
    for _ in range(3):
        again = Mirror(runs, shown.opener(runs, default_uri(runs))).update()
        assert (again.created, again.updated, again.recreated, again.points) == (0, 0, 0, 0)
    assert dump(runs) == once
    # Under another name, since this process keeps connections to the old file.
    (runs.parent / "other.db").write_bytes(empty)
    uri = f"sqlite:///{runs.parent / 'other.db'}"
    before = shown.everything(runs)
    shutil.rmtree(runs.parent / "mlartifacts")
    assert mirror(runs, uri).created == 3
    assert shown.everything(runs, uri) == before


def test_a_mirror_with_nothing_new_does_not_open_the_store(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_runs.make_runs(runs, seeds=(0,))
    first = mirror(runs)
    nothing = replace(first, created=0, points=0)
    with monkeypatch.context() as patch:
        patch.setattr("realm_lab.lab.tracking.mirror.Mirror", None)
        assert mirror(runs) == nothing
    client, run = shown.client_of(runs), next(iter(shown.run_ids(runs).values()))
    client.delete_run(run)  # by a person, in MLflow
    assert mirror(runs).created == 1
    assert mirror(runs) == nothing
    for path in (runs.parent / "reports" / "default" / "report.md", next(runs.glob("stages/*/results.json"))):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.read_text() + " " if path.exists() else "# new")
        if path.name == "results.json":
            finished(path.parent)
        assert mirror(runs).updated <= 1
        with monkeypatch.context() as patch:
            patch.setattr("realm_lab.lab.tracking.mirror.Mirror", None)
            assert mirror(runs) == nothing


@pytest.mark.slow
@pytest.mark.parametrize("grows", [False, True])
def test_killed_at_any_call_the_next_mirror_ends_with_the_same_content(
    runs: Path, empty_database: Path, monkeypatch: pytest.MonkeyPatch, grows: bool
) -> None:
    """The mirror dies when a run is shown for the first time, or after it has grown by a checkpoint."""
    monkeypatch.setattr("realm_lab.lab.tracking.mlflow_store.MAX_METRICS", 30)
    _, stage = made_runs.begin_pretrain(runs, 100)
    uri = iter(f"sqlite:///{shutil.copy(empty_database, runs.parent / f'{number}.db')}" for number in range(60))
    complete_uri = next(uri)
    if grows:
        first = {path: path.read_bytes() for path in stage.path.rglob("*") if path.is_file()}
        grow(stage, 200)
    mirror(runs, complete_uri)
    expected = shown.everything(runs, complete_uri)
    instant = 0
    while True:
        instant, store = instant + 1, next(uri)
        if grows:
            later = {path: path.read_bytes() for path in stage.path.rglob("*") if path.is_file()}
            for path in later:
                path.write_bytes(first[path]) if path in first else path.unlink()
            mirror(runs, store)
            for path, data in later.items():
                path.write_bytes(data)
        survived = mirror_dying(runs, store, monkeypatch, instant)
        mirror(runs, store)
        assert shown.everything(runs, store) == expected, instant
        if survived:
            break
    assert instant > 4


def mirror_dying(runs: Path, uri: str, monkeypatch: pytest.MonkeyPatch, instant: int) -> bool:
    """Run a mirror whose client dies after its call number `instant`; True if it made fewer calls."""
    calls = 0

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            result = real(*arguments, **named)
            calls += 1
            if calls == instant:
                raise KeyboardInterrupt("killed")
            return result

        return call

    calling = "create_run delete_run log_batch log_inputs log_artifacts set_tag update_run set_terminated"
    with monkeypatch.context() as patch:
        for name in calling.split():
            patch.setattr(MlflowClient, name, dying(getattr(MlflowClient, name)))
        try:
            Mirror(runs, shown.opener(runs, uri)).update()
        except KeyboardInterrupt:
            return False
    return True


def test_what_has_not_begun_is_scheduled_in_its_study_and_stays_one_run(runs: Path) -> None:
    stages = [made_runs.planned_pretrain(runs, seed) for seed in (0, 1)]
    write_run(runs, made_runs.record_of("random_mask", 7, {"pretrain": "stages/pretrain-0123"}))  # of no study
    assert mirror(runs).created == 2
    runs_shown = shown.content(runs)
    assert {(run["status"], run["tags"]["realm.state"]) for run in runs_shown.values()} == {("SCHEDULED", "PENDING")}
    assert all(run["times"][1] is None for run in runs_shown.values())
    [whole] = shown.content(runs, kind="study").values()
    assert whole["tags"]["realm.progress"] == "0 of 2 runs complete"
    assert shown.content(runs, UNPLANNED) == {}
    before = shown.everything(runs)
    (runs / ".mirror.json").unlink()
    again = mirror(runs)
    assert (again.created, again.updated, again.recreated, shown.everything(runs)) == (0, 0, 0, before)
    made_runs.set_status(stages[0], step=10)
    made_runs.heard_of(stages[0])
    assert mirror(runs).recreated == 1
    assert sorted(run["tags"]["realm.state"] for run in shown.content(runs).values()) == ["PENDING", "RUNNING"]
    assert len(shown.content(runs, kind="study")) == 1


def test_a_running_run_grows_by_checkpoints_and_ends(runs: Path) -> None:
    _, stage = made_runs.begin_pretrain(runs, 100)
    view = Mirror(runs, shown.opener(runs, default_uri(runs)))
    view.update()
    run = only_run(runs)
    assert (run["status"], run["times"]) == ("RUNNING", (BEGAN_AT * 1000, None))
    first = points_of(stage)
    assert run["points"] == first
    grow(stage, 200, checkpoint=False)
    summary = view.update()
    assert (summary.updated, summary.recreated) == (0, 0)
    assert only_run(runs)["points"] == first  # a resume would start at step 100
    made_runs.checkpoint(stage, 200)
    view.update()
    assert only_run(runs)["points"] == points_of(stage) != first
    made_runs.complete(stage, 200, {"steps": 200}, BEGAN_AT, 90.0)
    view.update()
    run = only_run(runs)
    assert (run["status"], run["times"]) == ("FINISHED", (BEGAN_AT * 1000, (BEGAN_AT + 90) * 1000))
    assert points_of(stage).items() <= run["points"].items()
    assert view.summary.recreated == 0


def test_a_run_whose_folder_contradicts_what_is_shown_is_recreated_with_peoples_tags(runs: Path) -> None:
    _, stage = made_runs.begin_pretrain(runs, 150)
    mirror(runs)
    first = shown.run_ids(runs)["live-s0"]
    client = shown.client_of(runs)
    client.set_tag(first, "checked", "by Ada")
    client.set_tag(first, "mlflow.runColor", "#123456")
    note = client.get_run(first).data.tags["mlflow.note.content"]
    client.set_tag(first, "mlflow.note.content", f"{note}look at step 90")
    stage.metrics.truncate_after(100)  # the checkpoint of step 150 turned out to be broken
    made_runs.write_points(stage.metrics, made_runs.pretrain_rows("random_mask", 3, 110, 200, BEGAN_AT + 500))
    made_runs.checkpoint(stage, 200)
    made_runs.set_status(stage, flags=[{"name": "non_finite_results", "text": "non_finite_results"}])
    assert mirror(runs).recreated == 1
    assert shown.run_ids(runs)["FLAGGED live-s0"] != first
    run = only_run(runs)
    assert (run["points"], run["tags"]["checked"]) == (points_of(stage), "by Ada")
    assert run["tags"]["mlflow.runColor"] == "#123456"
    assert run["tags"]["realm.flags"] == "pretrain: non_finite_results"
    note = run["tags"]["mlflow.note.content"]
    assert note.endswith("look at step 90")
    client.set_tag(shown.run_ids(runs)["FLAGGED live-s0"], "mlflow.note.content", "only mine")  # replaces it all
    assert mirror(runs).updated == 1
    assert only_run(runs)["tags"]["mlflow.note.content"] == note.removesuffix("look at step 90") + "only mine"
    assert mirror(runs).updated == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "mlflow_status", "ended", "last"),
    [
        # Stopped or interrupted: it goes on when it is submitted again, so its end is not known.
        ({"state": "PREEMPTED", "finished_at": BEGAN_AT + 70}, "KILLED", None, 100),
        ({"state": "RUNNING"}, "FAILED", None, 100),
        # Ended by its own error: all of it is shown.
        (
            {"state": "FAILED", "finished_at": BEGAN_AT + 80, "wall_seconds": 80.0, "error": "out of memory"},
            *("FAILED", BEGAN_AT + 80, 150),
        ),
    ],
)
def test_how_a_run_ended_is_exact_and_may_be_resumed(
    runs: Path, status: dict[str, Any], mlflow_status: str, ended: float | None, last: int
) -> None:
    _, stage = made_runs.begin_pretrain(runs, 150, checkpoint_step=100)
    made_runs.set_status(stage, **status)
    if status["state"] == "RUNNING":
        made_runs.heard_of(stage, 200.0)
    mirror(runs)
    run = only_run(runs)
    assert (run["status"], run["times"][1]) == (mlflow_status, ended and ended * 1000)
    assert max(step for step, _, _ in run["points"]["pretrain/loss"]) == last
    error = {"FAILED": "pretrain: out of memory", "RUNNING": "pretrain: process 4711 on node7 is gone or silent"}
    assert run["tags"].get("realm.error") == error.get(status["state"])
    assert run["tags"]["realm.state"] == {"RUNNING": "LOST"}.get(status["state"], status["state"])
    before = shown.run_ids(runs)
    stage.metrics.truncate_after(100)
    made_runs.set_status(stage, attempt=2)
    made_runs.heard_of(stage)
    mirror(runs)
    assert only_run(runs)["status"] == "RUNNING"
    assert (shown.run_ids(runs) == before) == (last == 100)  # points of the failed attempt cannot be taken back
    (study,) = shown.content(runs, kind="study").values()
    assert (study["status"], study["times"][1]) == ("RUNNING", None)


def test_names_and_values_that_mlflow_does_not_take(runs: Path) -> None:
    record, stage = made_runs.begin_pretrain(runs, 100)
    row = '{"step": 1, "time": 1790000001.0, "recall@5": 0.5, "what?": 1.0, "lost": null, "nan": NaN, "inf": Infinity}'
    stage.metrics.path.write_text(row + "\n")
    (runs / record.name / "run.json").unlink()
    params = {"list": list(range(5000)), "odd name!": "x", "empty": ""}
    write_run(runs, replace(record, params=record.params | params))
    assert mirror(runs).problems == ()
    run = only_run(runs)
    assert set(run["points"]) == {"pretrain/recall_at_5", "pretrain/what_"}
    assert (len(run["params"]["list"]), run["params"]["odd name_"]) == (6000, "x")


def test_broken_files_are_named_and_the_others_are_shown(runs: Path) -> None:
    record, _ = made_runs.make_runs(runs, systems=("realm",))
    mirror(runs)
    (runs / record.name / "run.json").write_text('{"label": "realm"}')
    summary = mirror(runs)
    assert summary.removed == 0
    assert any(f"{record.name}/run.json: " in problem for problem in summary.problems)
    (runs.joinpath(*STUDY)).write_text('{"name": 3}')
    summary = mirror(runs)
    assert (summary.removed, summary.states) == (0, {"COMPLETE": 1})
    assert any("study.json: " in problem for problem in summary.problems)
    assert set(shown.content(runs)) == {"realm-s0", "realm-s1"}


@pytest.mark.slow
def test_a_run_of_two_studies_is_below_both_and_counts_once(runs: Path) -> None:
    made_runs.make_runs(runs, seeds=(0,))
    record = made_runs.make_run(runs, "realm", 0, study=None)
    made_runs.add_to_study(runs, record, cell="fresh", study="staleness")
    summary = mirror(runs)
    assert (summary.studies, sum(summary.states.values()), summary.created) == (2, 3, 4)
    (run,) = shown.content(runs, "staleness").values()
    twin = shown.content(runs)["realm-s0"]
    assert (run["tags"]["realm.variant"], twin["tags"]["realm.variant"]) == ("fresh", "realm")
    assert run["points"] == twin["points"]


@pytest.mark.slow
def test_what_a_study_no_longer_has_is_shown_as_unplanned(runs: Path) -> None:
    first, second = made_runs.make_runs(runs, systems=("realm",))
    view = Mirror(runs, shown.opener(runs, default_uri(runs)))  # one that follows
    view.update()
    design = read_study_record(runs.joinpath(*STUDY))
    write_study_record(runs, replace(design, seeds=(0,), runs=design.runs[:1]))
    summary = view.update()
    assert (summary.created, summary.removed) == (3, 1)
    assert set(shown.content(runs)) == {"realm-s0"}
    assert set(shown.content(runs, "unplanned")) == {second.name}
    shutil.rmtree(runs / "studies")  # the whole study goes, and with it what is shown of it
    view.update()
    assert (shown.content(runs), shown.content(runs, kind="study")) == ({}, {})
    assert set(shown.content(runs, "unplanned")) == {first.name, second.name}
    write_study_record(runs, design)  # it comes back
    view.update()
    assert set(shown.content(runs)) == {"realm-s0", "realm-s1"}
    assert shown.content(runs, "unplanned") == {}


def test_the_store_of_linked_runs_is_in_the_project(tmp_path: Path) -> None:
    link = tmp_path / "project" / "runs"
    link.parent.mkdir()
    link.symlink_to(tmp_path, target_is_directory=True)
    assert default_uri(link) == f"sqlite:///{link.parent / 'mlflow.db'}"


def test_two_folders_of_runs_share_a_store_without_touching_each_other(runs: Path, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere" / "runs"
    made_runs.make_runs(runs, systems=("realm",), seeds=(0,))
    made_runs.make_runs(other, systems=("realm",), seeds=(1,))
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    mirror(runs, uri)
    for folder in (other, runs, other):
        summary = mirror(folder, uri)
        assert (summary.recreated, summary.removed) == (0, 0)
    assert {"realm-s0", "realm-s1"} <= set(shown.run_ids(runs))


def test_follow_ends_when_all_runs_are_final_or_with_control_c(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, stage = made_runs.begin_pretrain(runs, 100)

    def control_c(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("realm_lab.lab.tracking.mirror.time.sleep", control_c)
    assert mirror(runs, follow=True).states == {"RUNNING": 1}
    slept: list[float] = []

    def work_instead(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 2:
            grow(stage, 200)
            made_runs.complete(stage, 200, {}, BEGAN_AT, 90.0)

    monkeypatch.setattr("realm_lab.lab.tracking.mirror.time.sleep", work_instead)
    assert mirror(runs, follow=True, interval_seconds=7.0).states == {"COMPLETE": 1}
    assert slept == [7.0, 7.0]
    assert points_of(stage).items() <= only_run(runs)["points"].items()
