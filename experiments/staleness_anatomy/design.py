"""The arms of the study, from arms.json: which settings, what they are called, what they are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from realm_lab.core.files import read_json

ARMS = Path(__file__).with_name("arms.json")
REPORT = Path(__file__).resolve().parents[2] / "reports" / "staleness-anatomy"
STAGE = "pretrain"


@dataclass(frozen=True)
class Arm:
    """One refresh policy; `overrides` are dotted parameters laid over params.yaml and those that all arms share."""

    name: str
    title: str
    family: str
    overrides: dict[str, Any]

    @property
    def steps(self) -> int:
        """Steps of pre-training."""
        return int(self.overrides["pretrain.steps"])


@dataclass(frozen=True)
class Design:
    """Every arm, in the order of the tables, and the seeds of each."""

    seeds: tuple[int, ...]
    reference: str
    shared: dict[str, Any]
    arms: tuple[Arm, ...]

    def arm(self, name: str) -> Arm:
        """The arm of that name."""
        return next(arm for arm in self.arms if arm.name == name)

    def overrides(self, arm: Arm) -> dict[str, Any]:
        """All that an arm changes in params.yaml."""
        return self.shared | arm.overrides

    def command(self, arm: Arm) -> str:
        """What a shell is told to run the arm, all seeds."""
        settings = [f"{name}={value}" for name, value in self.overrides(arm).items()]
        seeds = ",".join(map(str, self.seeds))
        return " ".join(["realm-lab pretrain", *(f"--set {one}" for one in settings), f"--set 'seeds=[{seeds}]'"])


def read_design(path: Path = ARMS) -> Design:
    """The design in a file like arms.json."""
    values = read_json(path)
    arms = tuple(Arm(name, **arm) for name, arm in values["arms"].items())
    return Design(tuple(values["seeds"]), values["reference"], values["shared"], arms)
