"""What a tracker is told of the runs of a study's grid."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from realm_lab.tracking.run_dir import stage_statuses
from realm_lab.tracking.run_view import read_run
from realm_lab.tracking.study_record import StudyRun, StudyTuning, TunedStudyCell, write_study_record
from realm_lab.tracking.study_view import UNPLANNED, read_groups, read_study
from tests.tracking import made_runs


def test_runs_of_the_grid_are_runs_of_the_study_and_say_at_which_value(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    made_runs.make_run(runs, "realm", 0)
    record = made_runs.make_run(runs, "random_mask", 0)
    other = made_runs.make_run(runs, "random_mask", 1, study=None)  # stands for the same cell at another value
    study = made_runs.add_to_study(runs, record)
    tuned = TunedStudyCell("random_mask,batch_size=9", "random, batch size = 9", "random_mask", 9)
    member = StudyRun(tuned.name, 1, other.run_key, other.name)
    tuning = StudyTuning("pretrain.batch_size", (8, 9), 8, "cloze_exact_match", (1,), (tuned,), (member,))
    write_study_record(runs, replace(study, tuning=tuning))

    problems: list[str] = []
    [group] = read_groups(runs, problems)
    assert problems == []
    assert group.name != UNPLANNED, "no run is left over"
    places = {member.record.name: member.place for member in group.members}
    assert len(places) == 3
    assert places[other.name].tuned == "random_mask at pretrain.batch_size = 9"
    assert places[record.name].tuned == ""
    tags = read_run(runs, other, places[other.name]).tags
    assert tags["realm.cell"] == tuned.name
    assert tags["realm.tuned"] == "random_mask at pretrain.batch_size = 9"
    assert tags["realm.changes"] == "pretrain.masking = random_token", "against the baseline at the same value"
    assert tags["realm.baseline"] == "false"
    assert "differs from the baseline at that value by" in tags["mlflow.note.content"]
    assert "realm.tuned" not in read_run(runs, record, places[record.name]).tags

    assert group.study is not None
    statuses = {member.record.name: stage_statuses(runs, member.record) for member in group.members}
    view = read_study(runs, group.study, group.members, statuses)
    assert view.params["tune.pretrain.batch_size"] == "8, 9"
    assert view.tags["realm.progress"] == "3 of 3 runs complete"
    assert tuned.name in view.params["cells"]
