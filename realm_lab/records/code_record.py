"""code.json of a stage: the code that computed it, the data that custom code read, and accepted later changes.

The key of a stage does not depend on code (except ENGINE_VERSION, and the source of a custom part). This record does,
so that results of other code are named before they are used again.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field, replace
from pathlib import Path
from typing import NamedTuple

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass

from realm_lab.errors import UserError
from realm_lab.records.code import DIGITS, MISSING, CodeReader, differing
from realm_lab.records.digests import rewrite
from realm_lab.records.environment import user
from realm_lab.records.files import digest, digest_file
from realm_lab.records.opened import opened_by
from realm_lab.records.run import KEY_LENGTH
from realm_lab.records.validation import read_record

NAME = "code.json"
CODE_LOCK = ".code.lock"  # in the folder of runs: held by the process that accepts or deletes results of other code
STRICT = ConfigDict(extra="forbid")
SHOWN = 6  # modules named in a message
EDITED = "edited while it ran"  # used instead of a digest
UNRECORDED = "all (its code was not recorded)"
EARLIER = "an earlier stage (computed again)"


@dataclass(frozen=True, config=STRICT)
class Acceptance:
    """A user's decision that a change of the code does not matter. `modules`: changed module or file -> new digest."""

    modules: dict[str, str]
    before: str  # as in CodeRecord
    by: str | None
    at: float  # unix seconds


@dataclass(frozen=True, config=STRICT)
class CodeRecord:
    """Contents of code.json. `roots`: modules in which the stage's code starts. `modules`: digests of the roots and of
    all modules that they import, directly or not. `before`: digest of the record of the stage before ("" for the
    first). `files`: digests of the files that custom modules opened; paths in the project are relative to it."""

    roots: tuple[str, ...]
    modules: dict[str, str]
    before: str
    accepted: tuple[Acceptance, ...] = field(default=())
    files: dict[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Digest of the code and files of this stage and of all stages before it."""
        return digest([self.modules, self.before, *([self.files] if self.files else [])])

    @property
    def known(self) -> dict[str, str]:
        """Return `modules` and `files` with the accepted changes; a module that is no longer reached is MISSING."""
        return functools.reduce(lambda found, one: found | one.modules, self.accepted, self.modules | self.files)

    def changes(self, now: Mapping[str, str], before: str | None) -> list[str]:
        """Return the names whose recorded digests differ from those in `now`, and EARLIER if the record of the stage
        before has another digest than `before` (None: unknown). Accepted changes are left out."""
        known = {name: found for name, found in self.known.items() if found != MISSING}
        found = differing(known, {name: found for name, found in now.items() if found != MISSING})
        accepted = {self.before, *(one.before for one in self.accepted)}
        return found + ([EARLIER] if before is not None and before not in accepted else [])


RECORD = TypeAdapter(CodeRecord)


class StageCode(NamedTuple):
    """A stage that can be used again. `changes`: differences between the code that computed it and the current code."""

    stage: str
    folder: Path
    record: CodeRecord | None
    changes: tuple[str, ...]


class CodeStates:
    """The code records of the stages under a folder of runs, each code.json read once."""

    def __init__(self, runs: Path) -> None:
        self._runs, self._reader = Path(runs).absolute(), code_reader(Path(runs))
        self._records: dict[Path, CodeRecord | None] = {}

    def of_run(self, folders: Mapping[str, Path], roots: Mapping[str, Sequence[str]] | None = None) -> list[StageCode]:
        """Return the stages of a run that can be used again. `folders`: stage -> folder, in order, from `prepare` on.
        `roots`: stage -> modules in which the stage's code starts now; None: the roots of its record."""
        found: list[StageCode] = []
        before: str | None = ""
        for stage, folder in folders.items():
            record = self.record(folder)
            if is_kept(stage, folder):
                changes: tuple[str, ...] = (UNRECORDED,)
                if record is not None:
                    now = self._reader.reached(record.roots if roots is None else roots[stage]) | self.files(folder)
                    changes = tuple(record.changes(now, before))
                found.append(StageCode(stage, folder, record, changes))
            before = None if record is None else record.digest
        return found

    def record(self, folder: Path) -> CodeRecord | None:
        """Return code.json of a stage; None if there is none."""
        if folder not in self._records:
            self._records[folder] = read_code(folder)
        return self._records[folder]

    def write(self, stage: str, folders: Mapping[str, Path], roots: Sequence[str]) -> None:
        """Record the current code for a stage that starts without a checkpoint."""
        self._put(folders[stage], CodeRecord(tuple(roots), self._reader.reached(roots), self._before(stage, folders)))

    def accept(self, stage: str, folders: Mapping[str, Path], roots: Sequence[str]) -> None:
        """Record that the changes of a stage's code do not matter. `folders`: as in `of_run`."""
        before = self._before(stage, folders)
        record = self.record(folders[stage]) or CodeRecord(tuple(roots), {}, before)
        now = self._reader.reached(roots) | self.files(folders[stage])
        modules = {name: now.get(name, MISSING) for name in differing(record.known, now)}
        acceptance = Acceptance(modules, before, user(), time.time())
        self._put(folders[stage], replace(record, roots=tuple(roots), accepted=(*record.accepted, acceptance)))

    def check_unedited(self, roots: Sequence[str]) -> None:
        """Raise a UserError if the code was edited after this process read it, which would mix old and new code."""
        if edited := self._edited(roots):
            remedy = "start the command again"
            raise UserError(f"the code was edited since this command started: {', '.join(edited[:SHOWN])}", remedy)

    def end(self, folder: Path) -> None:
        """Add the files that custom modules opened to the record of a stage, at the end of its work. Files and modules
        that were edited during the work get the digest EDITED, which equals no later digest."""
        record = self.record(folder)
        if record is None:
            return
        edited = dict.fromkeys(self._edited(record.roots), EDITED)
        if edited:
            print(f"{folder.name}: edited while it ran, so it counts as computed by other code: "
                  f"{', '.join(edited)}", file=sys.stderr)  # fmt: skip
        sources = {path.resolve() for path in map(self._reader.file, record.modules) if path is not None}
        files = {
            self._name(path): self._file_digest(path) if same else EDITED
            for path, same in opened_by(record.modules).items()
            if path.resolve() not in sources and self._runs not in path.parents
        }
        if edited or files.items() - record.files.items():
            self._put(folder, replace(record, modules=record.modules | edited, files=record.files | files))

    def _edited(self, roots: Sequence[str]) -> list[str]:
        try:
            return differing(self._reader.reached(roots), new_reader(self._runs).reached(roots))
        except UserError as error:  # a file saved half-edited is not valid Python
            return [str(error)]

    def files(self, folder: Path) -> dict[str, str]:
        """Return the present digests of the files that custom code opened in a stage."""
        record = self.record(folder)
        return {name: self._file_digest(self._runs.parent / name) for name in record.files} if record else {}

    def _name(self, path: Path) -> str:
        project = self._runs.parent
        return path.relative_to(project).as_posix() if project in path.parents else str(path)

    def _file_digest(self, path: Path) -> str:
        """Return the digest of a file (of Python code: without its comments); MISSING if there is no file."""
        if not path.is_file():
            return MISSING
        return self._reader.source(path) if path.suffix == ".py" else digest_file(path)[:DIGITS]

    def _before(self, stage: str, folders: Mapping[str, Path]) -> str:
        """Return the digest of the record of the stage before, "" for the first stage."""
        names = list(folders)
        number = names.index(stage)
        record = self.record(folders[names[number - 1]]) if number else None
        return "" if record is None else record.digest

    def _put(self, folder: Path, record: CodeRecord) -> None:
        rewrite(folder / NAME, asdict(record))
        self._records[folder] = record
        self._reader.save()


def changes_line(found: Sequence[StageCode], runs: int) -> str:
    """Describe results of other code, and its differences from the current code, in a line."""
    changes = tuple(dict.fromkeys(change for one in found for change in one.changes))
    more = f" and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
    stages = ", ".join(dict.fromkeys(one.stage.replace("_", "-") for one in found))
    of = f"{runs} run{'s' * (runs != 1)}"
    return f"computed by other code: {stages} of {of}; changed since then: {', '.join(changes[:SHOWN])}{more}"


def accepted_lines(found: Iterable[StageCode]) -> list[str]:
    """List accepted changes of the code, with stages, user and time: a line for each decision."""
    lines: dict[tuple[str | None, str, str], dict[str, None]] = {}
    for one in found:
        for accepted in one.record.accepted if one.record else ():
            day = time.strftime("%Y-%m-%d", time.gmtime(accepted.at))
            what = ", ".join(accepted.modules) or EARLIER
            lines.setdefault((accepted.by, day, what), {})[one.stage.replace("_", "-")] = None
    return [
        f"Accepted as harmless by {by or 'an unknown user'} on {day}: a change of {what}, after {', '.join(stages)}."
        for (by, day, what), stages in lines.items()
    ]


@functools.cache
def code_reader(runs: Path) -> CodeReader:
    """Return this process's reader. It reads a module once, at about the time when the module is imported."""
    return new_reader(runs)


def new_reader(runs: Path) -> CodeReader:
    """Return a reader of modules as they are now."""
    return CodeReader(runs / ".code.json")


def read_code(folder: Path) -> CodeRecord | None:
    """Read code.json of a stage's folder; None if there is none. UserError: it is broken."""
    path = folder / NAME
    remedy = "delete it; the stage then counts as computed by other code"
    return read_record(path, RECORD, remedy) if path.exists() else None


def is_kept(stage: str, folder: Path) -> bool:
    """True if something of a stage would be used again: its results, or a checkpoint to resume from."""
    results = (folder / "results.json").exists()
    if stage == "prepare":
        corpora, key = folder.parents[1] / "corpora", folder.name.rpartition("-")[2][:KEY_LENGTH]
        return results or (corpora / key / "manifest.json").exists() or any(corpora.glob(f".{key}.*.cuts"))
    return results or any((folder / "checkpoints").glob("[!.]*"))
