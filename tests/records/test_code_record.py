"""code.json: results of other code, accepted changes, and the chain of stages."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from realm_lab.records import code_record
from realm_lab.records.code_record import EARLIER, UNRECORDED, CodeStates, accepted_lines, is_kept
from realm_lab.records.files import write_json, write_text
from tests.factories.errors import refused

ROOTS: dict[str, Sequence[str]] = {"prepare": ("p",), "warm_start": ("w",), "evaluate": ("e",)}


class Code:
    """The code of today: root -> module -> digest."""

    def __init__(self) -> None:
        self.reaches = {"p": {"p": "1"}, "w": {"w": "1", "shared": "1"}, "e": {"e": "1", "shared": "1"}}

    def reached(self, roots: Sequence[str]) -> dict[str, str]:
        return {name: found for root in roots for name, found in self.reaches[root].items()}

    def save(self) -> None:
        pass


@pytest.fixture
def today(monkeypatch: pytest.MonkeyPatch) -> Code:
    made = Code()
    monkeypatch.setattr(code_record, "code_reader", lambda runs: made)
    return made


@pytest.fixture
def folders(tmp_path: Path, today: Code) -> dict[str, Path]:
    """A run of three complete stages, by the code of today."""
    found = {stage: tmp_path / "runs" / "stages" / f"{stage}-key" for stage in ROOTS}
    for stage, folder in found.items():
        write_json(folder / "results.json", {})
        CodeStates(tmp_path / "runs").write(stage, found, ROOTS[stage])
    return found


def changes(folders: Mapping[str, Path]) -> dict[str, tuple[str, ...]]:
    runs = folders["prepare"].parents[1]
    return {one.stage: one.changes for one in CodeStates(runs).of_run(folders, ROOTS) if one.changes}


def test_a_stage_is_of_other_code_where_a_module_that_it_reaches_differs(folders: dict[str, Path], today: Code) -> None:
    assert not changes(folders)
    today.reaches["w"]["shared"] = today.reaches["e"]["shared"] = "2"
    assert changes(folders) == {"warm_start": ("shared",), "evaluate": ("shared",)}
    today.reaches["w"]["shared"] = today.reaches["e"]["shared"] = "1"
    today.reaches["e"]["new"] = "1"
    assert changes(folders) == {"evaluate": ("new",)}
    del today.reaches["e"]["new"], today.reaches["e"]["shared"]
    assert changes(folders) == {"evaluate": ("shared",)}


def test_a_stage_after_one_that_was_computed_again_is_of_other_code(folders: dict[str, Path], today: Code) -> None:
    today.reaches["w"]["w"] = "2"
    runs = folders["prepare"].parents[1]
    CodeStates(runs).write("warm_start", folders, ROOTS["warm_start"])
    assert changes(folders) == {"evaluate": (EARLIER,)}
    CodeStates(runs).accept("evaluate", folders, ROOTS["evaluate"])
    assert not changes(folders)


def test_what_is_accepted_is_named_no_more_until_it_changes_again(folders: dict[str, Path], today: Code) -> None:
    runs = folders["prepare"].parents[1]
    today.reaches["w"]["shared"] = "2"
    del today.reaches["w"]["w"]
    CodeStates(runs).accept("warm_start", folders, ROOTS["warm_start"])
    assert not changes(folders)
    [found] = [one for one in CodeStates(runs).of_run(folders, ROOTS) if one.record and one.record.accepted]
    [line] = accepted_lines([found])
    assert "shared, w" in line
    assert found.record is not None
    assert found.record.modules == {"w": "1", "shared": "1"}, "what computed it stays as it was"
    today.reaches["w"]["shared"] = "3"
    assert changes(folders) == {"warm_start": ("shared",)}


def test_a_stage_without_a_record_is_of_other_code_and_can_be_accepted(folders: dict[str, Path]) -> None:
    (folders["evaluate"] / "code.json").unlink()
    assert changes(folders) == {"evaluate": (UNRECORDED,)}
    CodeStates(folders["prepare"].parents[1]).accept("evaluate", folders, ROOTS["evaluate"])
    assert not changes(folders)
    write_text(folders["evaluate"] / "code.json", "{}")
    with refused(path=folders["evaluate"] / "code.json"):
        changes(folders)


@pytest.mark.parametrize(
    ("stage", "left", "kept"),
    [
        ("pretrain", "stages/pretrain-key/checkpoints/step-00000004/checkpoint.json", True),
        ("pretrain", "stages/pretrain-key/checkpoints/.step-00000004.0a.tmp/checkpoint.json", False),
        ("pretrain", "stages/pretrain-key/metrics.jsonl", False),
        ("prepare", "corpora/key/manifest.json", True),
        ("prepare", "corpora/.key.0123.cuts/sentences/0", True),
        ("prepare", "corpora/other/manifest.json", False),
    ],
)
def test_only_what_would_be_used_again_counts(tmp_path: Path, stage: str, left: str, kept: bool) -> None:
    write_text(tmp_path / left, "{}")
    assert is_kept(stage, tmp_path / "stages" / f"{stage}-key") == kept
