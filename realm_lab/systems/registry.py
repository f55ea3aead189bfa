"""What a system is, and which systems there are. No torch when this is imported.

A system is whatever is trained and evaluated as a whole: REALM, its own warm start, BM25 with a reader. It declares the
stages that it consists of, each with the parameters that it depends on, and how a finished run of it retrieves and
answers. Identity, the runner, DVC, studies, reports, MLflow and the command line work from this declaration and name no
system. A new system is one file in this folder (`@register_system`), or a class of your own, `package.module:Class`,
wherever a system is asked for.
"""

from __future__ import annotations

import difflib
import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from realm_lab.errors import UserError

if TYPE_CHECKING:
    import numpy as np

    from realm_lab.evaluation.answering import Answer
    from realm_lab.tracking.run_dir import StageRun


@dataclass(frozen=True)
class Stage:
    """One stage of a system.

    Attributes:
        name: what DVC and the command line call it: warm_start, pretrain, finetune, evaluate, or one of your own.
        depends_on: the parameters that its results depend on, as dotted names of sections or single parameters; a name
            with a minus before it is left out again (`-pretrain.initial_reader`).
        work: `package.module:function`, called with (Context, StageRun) to do the stage; imported when it is done.
        variant: tells apart stages of the same name and parameters that do different work; part of the key.
        keeps: the folder of the finished stage that others use (`model`), copied to `models/` for DVC; "": none.
        uses_ranks: whether several processes can share the work.
    """

    name: str
    depends_on: tuple[str, ...]
    work: str
    variant: str = ""
    keeps: str = "model"
    uses_ranks: bool = True

    def function(self) -> Callable[[Any, StageRun], None]:
        """The function behind `work`."""
        found: Callable[[Any, StageRun], None] = load_named(self.work, "stage work")
        return found


class Retrieved(NamedTuple):
    """Passages of some questions, best first. Q questions, K passages."""

    rows_QK: np.ndarray  # int64, rows of the knowledge corpus, -1 where there are fewer
    scores_QK: np.ndarray  # float32, larger is better; only the order is comparable between systems


class System:
    """A whole system; subclass it, and register it or name it as `package.module:Class`.

    One instance belongs to one finished run. What a system cannot do raises UserError, whose message says why.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    stages: ClassVar[tuple[Stage, ...]]

    def __init__(self, context: Any):  # realm_lab.systems.context.Context, which imports this file
        self.context = context

    def retrieve(self, questions: Sequence[str], k: int) -> Retrieved:
        """The best k passages of each question."""
        raise UserError(f"system {self.name} retrieves no passages")

    def answer(self, questions: Sequence[str], retrieved: Retrieved | None = None) -> list[Answer]:
        """One answer to each question, from the system's own passages or from those given."""
        raise UserError(f"system {self.name} answers no questions")

    @classmethod
    def stage(cls, name: str) -> Stage:
        """The stage of that name."""
        return next(stage for stage in cls.stages if stage.name == name)


SYSTEMS: dict[str, type[System]] = {}
Class = TypeVar("Class", bound=type[System])


def register_system(system: Class) -> Class:
    """Make a system known by its name; a decorator."""
    if system.name in SYSTEMS and SYSTEMS[system.name] is not system:
        raise ValueError(f"system '{system.name}' is registered already; choose another name")
    SYSTEMS[system.name] = system
    return system


def system_names() -> list[str]:
    """The registered systems."""
    _import_all()
    return sorted(SYSTEMS)


def system_of(name: str) -> type[System]:
    """The system of that name, or `package.module:Class`.

    Raises:
        UserError: there is none; it names the nearest.
    """
    if ":" in name:
        found = load_named(name, "system")
        if not (isinstance(found, type) and issubclass(found, System)):
            raise UserError(f"system '{name}': not a subclass of realm_lab.systems.registry.System; make it one")
        return found
    _import_all()
    if name not in SYSTEMS:
        near = difflib.get_close_matches(name, SYSTEMS, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise UserError(f"system '{name}': choose {', '.join(sorted(SYSTEMS))} or package.module:Class{hint}")
    return SYSTEMS[name]


def load_named(name: str, what: str) -> Any:
    """What `package.module:attribute` names; `what` is said in errors.

    Raises:
        UserError: no such module or attribute.
    """
    module, _, attribute = name.partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"{what} '{name}': {error}; write package.module:name, importable from here") from None


@functools.cache
def _import_all() -> None:
    """Import the files of this folder that register a system; the others need not be imported, and bring torch."""
    for path in sorted(Path(__file__).parent.glob("*.py")):
        if "\n@register_system\n" in path.read_text(encoding="utf-8"):
            importlib.import_module(f"realm_lab.systems.{path.stem}")
