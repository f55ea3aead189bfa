"""The runs that a study compares: records are read back as written, and broken ones are named."""

from dataclasses import replace
from pathlib import Path

from realm_lab.records.digests import write_last
from realm_lab.records.files import read_json, write_json
from realm_lab.records.run import Run
from realm_lab.records.study import StudyCell, StudyRecord, read_study_record, write_study_record
from tests.factories.errors import refused

STUDY = StudyRecord(
    name="masking",
    question="Which spans should be masked?",
    baseline="realm",
    cells=(
        StudyCell("realm", "REALM", "realm", {}),
        StudyCell("tokens", "random tokens", "realm", {"pretrain.masking": "random_token"}),
    ),
    seeds=(0, 1),
    runs=(
        Run("realm", 0, "a" * 64, "realm-s0-aaaaaaaaaaaa"),
        Run("tokens", 1, "c" * 64, "realm-s1-cccccccccccc"),
        Run("tokens", 0, "b" * 64, "realm-s0-bbbbbbbbbbbb"),
    ),
    metrics=("exact_match",),
    axes={"pretrain.masking": ("salient_span", "random_token")},
    source="experiments/masking.yaml",
)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = write_study_record(tmp_path, STUDY)
    assert path == tmp_path / "studies" / "masking" / "study.json"
    assert read_study_record(path) == STUDY
    assert [run.seed for run in STUDY.of("tokens")] == [0, 1]
    before = path.stat().st_mtime_ns
    write_study_record(tmp_path, STUDY)
    assert path.stat().st_mtime_ns == before
    write_study_record(tmp_path, replace(STUDY, seeds=(0,)))
    assert read_study_record(path).seeds == (0,)


def test_the_command_names_a_study_of_the_project_and_the_file_of_another() -> None:
    assert STUDY.command == "realm-lab sweep masking"
    other = replace(STUDY, source="other/experiments/masking.yaml")
    assert other.command == "realm-lab sweep other/experiments/masking.yaml"


def test_a_broken_record_names_file_and_field(tmp_path: Path) -> None:
    path = write_study_record(tmp_path, STUDY)
    found = read_json(path)
    write_json(path, found | {"seeds": ["many"]})
    with refused("seeds.0", path=path, remedy="delete the file and plan the study again"):
        read_study_record(path)
    write_last(path, found | {"name": "other"}, names=())
    with refused("other", path=path):
        read_study_record(path)


def test_an_edited_record_is_refused_until_the_study_is_planned_again(tmp_path: Path) -> None:
    """Here two runs are exchanged in the record."""
    path = write_study_record(tmp_path, STUDY)
    first, second, *others = read_json(path)["runs"]
    exchanged = [first | {"run": second["run"]}, second | {"run": first["run"]}, *others]
    write_json(path, read_json(path) | {"runs": exchanged})
    with refused(path=path, remedy="delete the file and plan the study again"):
        read_study_record(path)
    write_study_record(tmp_path, STUDY)
    assert read_study_record(path) == STUDY
