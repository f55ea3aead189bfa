"""Settings of SLURM: from the study, a profile and the command line, checked before anything is submitted."""

import copy
from pathlib import Path
from typing import Any

import pytest

from realm_lab.cli import main
from realm_lab.lab.launchers import LAUNCHERS, Launcher, LauncherSettings, Part, SlurmOptions, on_cluster
from realm_lab.records.study import study_record_paths
from tests.factories.errors import refused
from tests.lab.conftest import PARAMETERS
from tests.lab.fake_slurm import Fake


@pytest.mark.parametrize(
    ("option", "remedy"),
    [
        ("partition", "use the setting partition"),
        ("t", "use the setting timeout_min"),
        ("--gpus_per_node", "use the setting gpus_per_node"),
        ("n", "use launch.ranks"),
        ("dependency", "leave it out"),
    ],
)
def test_an_option_that_realm_lab_sets_is_refused_with_the_setting(option: str, remedy: str) -> None:
    with pytest.raises(ValueError, match=f"additional: '{option}': {remedy}"):
        SlurmOptions(additional={option: 1})
    allowed: dict[str, str | int | float | bool] = {"gres": "gpu:1", "exclusive": True, "mem-per-cpu": "2G"}
    assert SlurmOptions(additional=allowed).additional == allowed


@pytest.fixture
def study(write: Any, root: Path) -> list[str]:
    """The command line of a sweep of one cell and two seeds."""
    path = write("baseline: realm\ncells:\n  realm:\n")
    return ["sweep", str(path), "--root", str(root), "--params", str(PARAMETERS), "--launcher", "slurm"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--profile", "nope"], "--profile nope: "),
        (["--launcher", "local", "--slurm", "mem_gb=8"], "the launcher 'local' has no such settings"),
        (["--slurm", "prtition=gpu"], "'partition'"),
        (["--slurm", "gres=gpu:1"], "additional: {gres: ...}"),
        (["--slurm", "time=10"], "timeout_min"),
        (["--slurm", "timeout_min=0"], "timeout_min must be at least 1"),
        (["--slurm", "nodes=2", "--set", "launch.ranks=3"], "launcher.slurm.nodes: 3 processes"),
        (["--slurm", "nodes=2", "--set", "launch.ranks=3", "--json"], "launcher.slurm.nodes: 3 processes"),
    ],
)
def test_a_dry_run_refuses_what_a_sweep_would(
    fake: Fake, study: list[str], options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*study, "--dry-run", *options]) == 2
    printed = capsys.readouterr()
    assert (printed.out, len(printed.err.splitlines())) == ("", 1)
    assert words in printed.err


def test_a_dry_run_shows_the_jobs_and_submits_none(
    fake: Fake, study: list[str], root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([*study, "--dry-run", "--slurm", "partition=gpu", "--slurm", "array_parallelism=3"]) == 0
    printed = capsys.readouterr().out
    assert "partition gpu" in printed
    assert "at most 3 at a time" in printed
    assert not list(fake.folder.glob("script-*"))
    assert not root.exists()
    monkeypatch.setenv("PATH", "")
    assert main([*study, "--dry-run"]) == 0
    assert "no sbatch on this machine" in capsys.readouterr().out


def test_a_refused_submission_leaves_no_study(fake: Fake, study: list[str], root: Path) -> None:
    fake.answer("sbatch", "sbatch: error: invalid partition specified: gpus\n", code=1)
    assert main([*study, "--slurm", "partition=gpus"]) == 2
    assert list(study_record_paths(root / "runs")) == []
    (fake.folder / "sbatch.answer").unlink()
    assert main(study) == 0
    assert len(list(study_record_paths(root / "runs"))) == 1


class Site(Part):
    site: str


class Elsewhere(Launcher):
    detached = True

    def __init__(self, settings: LauncherSettings, root: Path, study: str, options: Site):
        super().__init__(settings, root, study)


def test_a_launcher_with_a_required_option_does_not_keep_others_from_cancelling(
    fake: Fake, study: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("realm_lab.lab.launchers.LAUNCHERS", found := copy.deepcopy(LAUNCHERS))
    found.register("elsewhere")(Elsewhere)
    assert main([*study, "--cancel"]) == 0
    assert "'elsewhere'" in capsys.readouterr().err


def test_the_command_line_goes_before_the_profile_and_that_before_the_study(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "mine.yaml").write_text("partition: gpu\nmem_gb: 8\n")
    study = LauncherSettings(slurm=SlurmOptions(partition="cpu", cpus_per_task=4))
    found = on_cluster(study, tmp_path, "mine", {"mem_gb": 16}).slurm
    assert (found.partition, found.cpus_per_task, found.mem_gb) == ("gpu", 4, 16)
    with refused("profiles/other.yaml", path="--profile other"):
        on_cluster(study, tmp_path, "other", {})
    (tmp_path / "profiles" / "list.yaml").write_text("- gpu\n")
    with refused(path=tmp_path / "profiles" / "list.yaml"):
        on_cluster(study, tmp_path, "list", {})
