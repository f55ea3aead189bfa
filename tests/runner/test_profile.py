"""Settings of a cluster from a profile and the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from realm_lab.errors import UserError
from realm_lab.runner.profile import on_cluster
from realm_lab.runner.study import LauncherSettings, SlurmOptions


def test_the_command_line_goes_before_the_profile_and_that_before_the_study(tmp_path: Path) -> None:
    (tmp_path / "profiles").mkdir()
    (tmp_path / "profiles" / "mine.yaml").write_text("partition: gpu\nmem_gb: 8\n")
    study = LauncherSettings(slurm=SlurmOptions(partition="cpu", cpus_per_task=4))
    found = on_cluster(study, tmp_path, "mine", {"mem_gb": 16}).slurm
    assert (found.partition, found.cpus_per_task, found.mem_gb) == ("gpu", 4, 16)
    with pytest.raises(UserError, match=r"--profile other: no such file; write .*profiles/other.yaml"):
        on_cluster(study, tmp_path, "other", {})
    (tmp_path / "profiles" / "list.yaml").write_text("- gpu\n")
    with pytest.raises(UserError, match=r"list.yaml: no settings; write lines such as"):
        on_cluster(study, tmp_path, "list", {})
    (tmp_path / "profiles" / "number.yaml").write_text("partition: gpu\n8: x\n")
    with pytest.raises(UserError, match=r"number.yaml, line 2: the name '8' .*; put it in quotes"):
        on_cluster(study, tmp_path, "number", {})
    with pytest.raises(UserError, match=r"--slurm: partitoin: .*the settings are partition, account"):
        on_cluster(study, tmp_path, None, {"partitoin": "x"})
