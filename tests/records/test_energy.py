"""Joules are the increments of the machine's counters, also after a wrap-around."""

import ctypes
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from realm_lab.records import energy
from realm_lab.records.run import StageRun

RANGE = 1000.0  # joules


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two packages, one with a part, which the package counts as well."""
    for name in ("intel-rapl:0", "intel-rapl:1", "intel-rapl:0:0"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "max_energy_range_uj").write_text(f"{RANGE * 1e6:.0f}\n")
        count(tmp_path / name, 100.0)
    monkeypatch.setattr(energy, "RAPL", tmp_path)
    return tmp_path


def count(package: Path, joules: float) -> None:
    (package / "energy_uj").write_text(f"{joules * 1e6:.0f}\n")


def test_joules_of_all_packages(packages: Path) -> None:
    meter = energy.EnergyMeter("cpu")
    assert meter.joules() == 0.0
    count(packages / "intel-rapl:0", 130.0)
    count(packages / "intel-rapl:0:0", 130.0)
    count(packages / "intel-rapl:1", 105.0)
    assert meter.joules() == pytest.approx(35.0)
    count(packages / "intel-rapl:0", 20.0)  # it has gone round: 890 J
    assert meter.joules() == pytest.approx(925.0)


def test_a_machine_that_counts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "RAPL", tmp_path / "absent")
    assert energy.EnergyMeter("cpu").joules() == 0.0


def test_a_package_that_may_not_be_read_is_left_out(packages: Path) -> None:
    (packages / "intel-rapl:1" / "energy_uj").unlink()
    meter = energy.EnergyMeter("cpu")
    count(packages / "intel-rapl:0", 107.0)
    assert meter.joules() == pytest.approx(7.0)


def test_the_attempts_of_a_stage_are_summed(packages: Path, tmp_path: Path) -> None:
    for before, after in ((100.0, 150.0), (400.0, 425.0)):
        count(packages / "intel-rapl:0", before)
        stage = StageRun.open(tmp_path / "runs", "prepare", "0" * 64, {})
        stage.start(1)
        count(packages / "intel-rapl:0", after)
        stage.preempt()
    assert stage.status().energy_joules == pytest.approx(75.0)


NVML = """
static int calls;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char *name, void **device) { *device = (void *) name; return 0; }
int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    *millijoules = 6000000000ULL + 1500 * ++calls;
    return device == 0;
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_devices_are_asked_through_their_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packages: Path
) -> None:
    (tmp_path / "nvml.c").write_text(NVML)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "nvml.so", tmp_path / "nvml.c"], check=True)
    library = ctypes.CDLL(str(tmp_path / "nvml.so"))
    monkeypatch.setattr("ctypes.CDLL", {"libnvidia-ml.so.1": library}.__getitem__)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda number: SimpleNamespace(uuid="ab-cd"))
    assert energy.EnergyMeter("cuda:0").joules() == pytest.approx(1.5)
