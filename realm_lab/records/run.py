"""Run folders: runs/<system>-s<seed>-<key>/run.json and the stages they share, runs/stages/<stage>-<key>/.

These files are the truth about what ran; reports and MLflow only read them.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import resource
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass
from ruamel.yaml import YAML

from realm_lab.errors import UserError
from realm_lab.records.digests import DIGESTS, check_file, check_folder, is_whole, write_last
from realm_lab.records.environment import describe
from realm_lab.records.files import (
    DiskFull,
    atomic_write,
    check_name,
    overwrite_json,
    read_json,
    read_object,
    write_json,
    write_text,
)
from realm_lab.records.metric_log import MetricLog
from realm_lab.records.validation import read_record, validated
from realm_lab.records.yaml_file import read_yaml

# State of a stage, a task or a run (see state.py); status.json has only the states that the stage's process can set.
State = Literal["PENDING", "QUEUED", "RUNNING", "PREEMPTED", "LOST", "CANCELLED", "FAILED", "COMPLETE"]
KEY_LENGTH = 12
KIB = 1 if sys.platform == "darwin" else 1024  # bytes per unit of ru_maxrss
HEARTBEAT_INTERVAL_SECONDS = 2.0


COLLAPSED = "collapsed"  # name of a flag: retrieval failed, or no longer matters


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Flag:
    """A warning about a stage: `name` for programs, `text` for people."""

    name: str
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Status:
    """status.json of a stage. Times are unix seconds; `wall_seconds` is the sum over attempts, `peak_memory_bytes` the
    peak of the process. `training_flop` counts each step once, however often it was done.

    `host` and `pid` name the writer. Its lease shows whether that process still works on the stage.
    """

    state: State = "PENDING"
    attempt: int = 0
    host: str = ""
    pid: int = 0
    started_at: float | None = None
    heartbeat_at: float | None = None
    finished_at: float | None = None
    step: int = 0
    total_steps: int = 0
    steps_per_second: float = 0.0
    wall_seconds: float = 0.0
    peak_memory_bytes: int = 0
    training_flop: float = 0.0
    error: str | None = None
    flags: tuple[Flag, ...] = ()


STATUS = TypeAdapter(Status)


def stage_folder(runs: Path, stage: str, key: str) -> Path:
    """Return the folder of a stage with this key; it need not exist."""
    return Path(runs, f"stages/{stage}-{key[:KEY_LENGTH]}")


def is_stage_folder(path: Path) -> bool:
    """True if a folder is a stage's: its config.yaml has the stage and the key that its name is made of."""
    try:
        config = read_yaml(path / "config.yaml")
        return bool(path.name == f"{config['stage']}-{config['key'][:KEY_LENGTH]}")
    except (UserError, KeyError, TypeError):
        return False


class StageRun:
    """One execution of one stage: runs/stages/<stage>-<key[:12]>/. One process opens it to write; others only read.

    `key` is the stage's full key, or its first characters if only the folder is known.
    """

    def __init__(self, path: Path, stage: str, key: str = "") -> None:
        self.path = Path(path)
        self.stage = stage
        self.key = key or self.path.name.rpartition("-")[2]
        self.metrics = MetricLog(self.path / "metrics.jsonl")
        self.launch: dict[str, Any] = {}  # settings that change rounding, for env.json
        self._began = time.monotonic()
        self._wall_before = 0.0
        self._anchor: tuple[int, float] | None = None
        self._last_beat = -math.inf
        self._current: Status | None = None
        self._is_checked = False
        self.at_end: Callable[[], None] = lambda: None  # called before COMPLETE is written, to complete code.json

    @classmethod
    def open(cls, runs: Path, stage: str, key: str, config: Mapping[str, Any]) -> StageRun:
        """Open the stage's folder; if it is new, write config.yaml."""
        path = stage_folder(runs, stage, key)
        if not (path / "config.yaml").exists():
            plain = json.loads(json.dumps({"stage": stage, "key": key, **config}, allow_nan=False))
            writer = YAML(typ="safe", pure=True)
            writer.default_flow_style = False
            writer.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
            with atomic_write(path / "config.yaml") as file:
                writer.dump(plain, file)
        return cls(path, stage, key)

    def status(self) -> Status:
        """Read status.json; PENDING if there is none. UserError: it is broken, or was edited once it was COMPLETE."""
        path = self.path / "status.json"
        status = read_record(path, STATUS) if path.exists() else Status()
        if status.state == "COMPLETE":
            check_file(path)
        return status

    def check(self) -> None:
        """Refuse a complete stage whose files differ from those written, or belong to another stage. Checked once."""
        if not self._is_checked and (self.path / DIGESTS).is_file():
            check_folder(self.path)
            self._is_checked = True

    def environment(self) -> dict[str, Any]:
        """Read env.json, the environment of the stage; empty before its first attempt."""
        path = self.path / "env.json"
        return read_json(path) if path.exists() else {}

    def is_complete(self) -> bool:
        """True if the stage has finished and every file that it wrote is still there."""
        return self.status().state == "COMPLETE" and is_whole(self.path)

    def start(self, total_steps: int, device: str = "cpu") -> None:
        """Start an attempt: RUNNING, with env.json, and code.patch if the code differs from its commit. The start of
        the first attempt, the flags and the wall time so far are kept."""
        before = self.status()
        now = time.time()
        self._began = time.monotonic()
        self._wall_before = before.wall_seconds
        self._anchor = None
        self._last_beat = -math.inf
        (self.path / DIGESTS).unlink(missing_ok=True)
        environment = describe(self.launch.get("device", device)) | {"launch": self.launch}
        patch, path = environment.pop("patch"), self.path / "code.patch"
        write_json(self.path / "env.json", environment)
        write_text(path, patch) if patch else path.unlink(missing_ok=True)
        self._write(
            replace(
                before,
                state="RUNNING",
                attempt=before.attempt + 1,
                host=socket.gethostname(),
                pid=os.getpid(),
                started_at=before.started_at or now,
                heartbeat_at=now,
                finished_at=None,
                total_steps=int(total_steps),
                steps_per_second=0.0,
                error=None,
            )
        )

    def heartbeat(self, step: int, *, force: bool = False) -> None:
        """Record that `step` is done; written at most every 2 s unless `force`."""
        now = time.monotonic()
        anchor_step, anchor_time = self._anchor = self._anchor or (step, now)
        elapsed = now - anchor_time
        rate = (step - anchor_step) / elapsed if elapsed > 0 else 0.0
        self._current = replace(self._now(), step=int(step), steps_per_second=rate)
        if force or now - self._last_beat >= HEARTBEAT_INTERVAL_SECONDS:
            self._last_beat = now
            self._write(self._current)

    def count_flop(self, flop: float) -> None:
        """Set the floating-point operations of training so far; written with the next heartbeat."""
        self._current = replace(self._now(), training_flop=flop)

    def flag(self, flag: Flag) -> None:
        """Add a warning to the status, once."""
        current = self._now()
        if flag not in current.flags:
            self._write(replace(current, flags=(*current.flags, flag)))

    def finish(self, results: Mapping[str, Any]) -> None:
        """Write results.json, the digests of all files, then COMPLETE. Non-finite numbers become null and set the flag
        non_finite_results."""
        plain, non_finite = _plain(results)
        write_json(self.path / "results.json", plain)
        self.at_end()
        if non_finite:
            self.flag(Flag("non_finite_results", "non_finite_results"))
        self._write(replace(self._now(), state="COMPLETE", finished_at=time.time(), error=None))

    def fail(self, message: str) -> None:
        """Set FAILED, with the last line of `message` that is not empty."""
        lines = [line.strip() for line in message.splitlines() if line.strip()]
        error = lines[-1] if lines else "unknown error"
        self._end(replace(self._now(), state="FAILED", finished_at=time.time(), error=error))

    def lose(self, error: str) -> None:
        """Record that another process of the run is gone; the state stays RUNNING. A new attempt resumes."""
        self._end(replace(self._now(), error=error))

    def preempt(self) -> None:
        """Set PREEMPTED: stopped on request after a checkpoint; the next `start` resumes from it."""
        self._end(replace(self._now(), state="PREEMPTED", finished_at=time.time()))

    def results(self) -> dict[str, Any]:
        """Read results.json. UserError: the stage has not finished, or its files are not those that were written."""
        self.check()
        path = self.path / "results.json"
        if not path.exists():
            raise UserError(
                "no results yet", f"the stage {self.stage} is {self.status().state}, run it again", path=path
            )
        return read_object(path)

    def _now(self) -> Status:
        """Return the status as known to this process, with current times."""
        wall = self._wall_before + time.monotonic() - self._began
        current = self._current or self.status()
        is_ours = (current.host, current.pid) == (socket.gethostname(), os.getpid())
        if not is_ours or current.state != "RUNNING":
            return current  # of another process or an ended attempt: times stay
        peak = max(current.peak_memory_bytes, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * KIB)
        return replace(current, heartbeat_at=time.time(), wall_seconds=wall, peak_memory_bytes=peak)

    def _end(self, status: Status) -> None:
        """Write how an attempt ended, unless it had completed the stage: a signal may arrive after that."""
        if self._current is None or self.status().state != "COMPLETE":
            self._write(status)

    def _write(self, status: Status) -> None:
        self._current = status
        path = self.path / "status.json"
        if status.state == "COMPLETE":
            write_last(path, asdict(status), name=self.path.name + self.key[KEY_LENGTH:])
            return
        try:
            write_json(path, asdict(status))
        except DiskFull:
            if status.state == "RUNNING" or not path.exists():
                raise
            overwrite_json(path, asdict(status))  # the end is recorded on a full disk, too


Value = TypeVar("Value")
Unlisted = Annotated[Value, Field(exclude=True)]  # not in study.json


@dataclasses.dataclass(frozen=True)  # not pydantic's: `RUN` validates a run that is read
class Run:
    """A system with its parameters at one seed; in a study, one cell at one seed. Planning makes it. study.json has its
    first five fields, run.json those in FIELDS. `StageStates.look` (state.py) adds the states of its stages.

    `stages`: stage -> key, in order. A run that was read has the first KEY_LENGTH characters of each key.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", validate_by_name=True, serialize_by_alias=True)

    cell: str
    seed: int
    run_key: str  # key of the last stage of its system
    name: Annotated[str, Field(validation_alias="run", serialization_alias="run")]  # its folder under runs/
    trial: int | None = None  # its number in the tuning of its cell
    system: Unlisted[str] = ""
    params: Unlisted[Any] = None  # Params of a planned run, plain values of one that was read
    corpus_key: Unlisted[str] = ""
    stages: Unlisted[dict[str, str]] = dataclasses.field(default_factory=dict)
    preset: Unlisted[str] = ""
    engine_version: Unlisted[int] = 0
    cell_key: Unlisted[str] = ""  # equal for runs that differ only in the seed
    fixed: Unlisted[tuple[str, ...]] = ()  # parameters that its system fixes
    last_stage: Unlisted[str] = ""  # the last stage to compute, if its system has more
    chosen: Unlisted[dict[str, Any]] = dataclasses.field(default_factory=dict)  # values of its trial or of the tuning
    runs: Unlisted[Path] = Path()  # the folder that it was read from
    states: Unlisted[dict[str, Any]] = dataclasses.field(default_factory=dict)  # stage -> its StageState (state.py)
    environments: Unlisted[dict[str, dict[str, Any]]] = dataclasses.field(default_factory=dict)  # stage -> its env.json
    values: Unlisted[dict[str, float]] = dataclasses.field(default_factory=dict)  # its numbers, once it is complete
    # part of the evaluation, or metric -> the reason why it was not measured
    not_measured: Unlisted[dict[str, str]] = dataclasses.field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name of its cell, with the number of the trial."""
        return self.cell if self.trial is None else f"{self.cell}, trial {self.trial}"

    def key(self, stage: str) -> str:
        """Return the key of a stage; for prepare, the key of the corpus."""
        return self.corpus_key if stage == "prepare" else self.stages[stage]

    def keys(self, until: str = "") -> dict[str, str]:
        """Return stage -> key, without prepare, as far as the stage `until`, or the run's last stage."""
        names, last = ["prepare", *self.stages], until or self.last_stage
        names = names[: names.index(last) + 1] if last in names else names
        return {name: self.stages[name] for name in names[1:]}

    def folders(self, runs: Path, until: str = "") -> dict[str, Path]:
        """Return stage -> its folder, in order, from prepare as far as the stage `until`, or the run's last stage."""
        return {stage: stage_folder(runs, stage, self.key(stage)) for stage in ("prepare", *self.keys(until))}

    def folder(self, stage: str) -> StageRun:
        """Return a stage in the folder `runs`, which `StageStates.look` sets."""
        return StageRun(stage_folder(self.runs, stage, self.key(stage)), stage)

    def begun(self) -> dict[str, StageRun]:
        """Return the stages whose folder exists, without prepare."""
        return {stage: one for stage in self.keys() if ((one := self.folder(stage)).path / "config.yaml").exists()}

    @property
    def stage(self) -> str | None:
        """The stage that determines the run's state: the first that is not complete; None if all are."""
        return next((name for name, one in self.states.items() if one.state != "COMPLETE"), None)

    @property
    def state(self) -> State:
        """COMPLETE if all stages are, else the state of the first that is not."""
        whole: State = "COMPLETE" if self.states else "PENDING"
        return next((one.state for one in self.states.values() if one.state != "COMPLETE"), whole)

    @property
    def error(self) -> str | None:
        """The reason for the state of the stage `stage`, as `<stage>: <reason>`; None if there is none."""
        found = self.states[self.stage].error if self.stage else None
        return None if found is None else f"{self.stage}: {found}"

    @property
    def is_complete(self) -> bool:
        """True if every stage is complete and its numbers could be read."""
        return self.state == "COMPLETE" and bool(self.values)

    def environment(self, key: str) -> set[str]:
        """Return the values under one key of the stages' env.json, as text."""
        return {str(env[key]) for env in self.environments.values() if env.get(key) is not None}

    @property
    def has_collapsed(self) -> bool:
        """True if one of its stages was flagged as collapsed."""
        return any(flag.name == COLLAPSED for _, flag in self.flags)

    @property
    def flags(self) -> list[tuple[str, Flag]]:
        """Each warning with its stage."""
        return [(stage, flag) for stage, one in self.states.items() for flag in one.status.flags]


RUN = TypeAdapter(Run)
FIELDS = ("system", "seed", "run_key", "cell_key", "preset", "engine_version", "params", "inputs", "stages")


def write_run(runs: Path, run: Run) -> Path:
    """Write runs/<name>/run.json, once: the run's key is a digest of its contents. Returns its path. UserError: a
    system that cannot be a folder name."""
    check_name(run.system, "system", "=,+")
    path = Path(runs) / run.name / "run.json"
    if not path.exists():
        stages = {stage: f"stages/{stage}-{key[:KEY_LENGTH]}" for stage, key in run.stages.items()}
        more = {"inputs": {"corpus": run.corpus_key}, "stages": stages}
        content = {name: more[name] if name in more else getattr(run, name) for name in FIELDS}
        content |= {"fixed": run.fixed} if run.fixed else {}
        write_last(path, content, names=(), name=run.name + run.run_key[KEY_LENGTH:])
    return path


def read_run(path: Path) -> Run:
    """Read one run.json, without a cell; one that is broken or was edited is a UserError that names the file."""
    found = read_object(path)
    try:
        folders, corpus = found["stages"], found["inputs"]["corpus"]
        keys = {stage: folder.rpartition("-")[2] for stage, folder in folders.items()}
        kept = {name: found[name] for name in FIELDS if name != "inputs"} | {"stages": keys, "corpus_key": corpus}
        kept["fixed"] = found.get("fixed", ())
        name = f"{found['system']}-s{found['seed']}-{found['run_key'][:KEY_LENGTH]}"
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"not a record of a run ({error})", "repair or delete the file", path=path) from None
    run = validated(RUN, kept | {"cell": "", "name": name}, path)
    check_file(path)
    if path.parent.name != run.name:
        raise UserError(f"the record is of {run.name}", "rename the folder back, or delete the copy", path=path)
    return run


def run_paths(runs: Path) -> list[Path]:
    """Return all run.json files under `runs`, sorted."""
    return sorted(Path(runs).glob("*/run.json"))


def read_runs(runs: Path) -> list[Run]:
    """Return all runs, sorted by system and seed; a broken run.json is a UserError that names the file."""
    return sorted(map(read_run, run_paths(runs)), key=lambda run: (run.system, run.seed, run.run_key))


def _plain(value: Any) -> tuple[Any, bool]:
    """Return (value of plain JSON types, true if a non-finite number became null)."""
    if isinstance(value, Mapping):
        pairs = {str(key): _plain(item) for key, item in value.items()}
        return {key: item for key, (item, _) in pairs.items()}, any(bad for _, bad in pairs.values())
    if isinstance(value, list | tuple):
        items = [_plain(item) for item in value]
        return [item for item, _ in items], any(bad for _, bad in items)
    if hasattr(value, "item"):
        value = value.item()  # numpy and torch scalars
    if isinstance(value, float) and not math.isfinite(value):
        return None, True
    return value, False
