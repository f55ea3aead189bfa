"""The interface of a system, and the registry of systems. Importing this file imports no torch.

A system is trained and evaluated as a whole: REALM, its warm start, BM25 with a reader. It declares its
stages, each with the parameters that it depends on, and how a finished run of it retrieves and
answers. Identity, the runner, DVC, studies, reports, MLflow and the command line work from this declaration and name no
system. A custom system is a class, `package.module:Class` wherever a system is expected, or registered by a plug-in
(records/plugins.py). A cell chooses one with its options: `system: {name: dpr, steps: 300}`. docs/systems.md has
an example.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, cast

from pydantic import ValidationError

from realm_lab.engine.evaluation.answers import Answer
from realm_lab.engine.params.load import is_inside, is_option, parameter_fields
from realm_lab.engine.params.sections import Section
from realm_lab.errors import UserError, suggestion
from realm_lab.records.code import OURS
from realm_lab.records.parameters import CHANGES, OPTIONS, is_system_option
from realm_lab.records.plugins import Choice, Kind, Plugin, checked_options, load_object
from realm_lab.records.validation import validation_line

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from realm_lab.engine.corpus.store import Passages
    from realm_lab.engine.evaluation.cloze_items import ClozeItem, ClozeReading
    from realm_lab.engine.params.parameters import Params


# Parameter that names a plug-in -> its kind, imported only when needed, so that a stage does not import all plug-ins.
PARTS = {
    "corpus.source": "realm_lab.engine.corpus.sources:CORPUS_SOURCES",
    "corpus.tagger": "realm_lab.engine.corpus.sources:TAGGERS",
    "pretrain.masking": "realm_lab.engine.masking:MASKING_SCHEMES",
    "pretrain.refresh.policy": "realm_lab.engine.retrieval.refresh_policies:REFRESH_POLICIES",
    "pretrain.search.backend": "realm_lab.engine.retrieval.backends:SEARCH_BACKENDS",
    "pretrain.candidate_source": "realm_lab.engine.retrieval.candidate_sources:CANDIDATE_SOURCES",
    "pretrain.objective": "realm_lab.engine.models.objectives:OBJECTIVES",
    "pretrain.reward": "realm_lab.engine.models.rewards:REWARDS",
    "finetune.objective": "realm_lab.engine.models.objectives:OBJECTIVES",
}


SYSTEM = "system"  # in `depends_on`: the system itself
ALWAYS_READ = ("launch",)  # parameters that every stage can read, about how it is run


class Unsupported(UserError):
    """Raised for an operation that a system cannot do; evaluation leaves it out and notes the reason."""


@dataclass(frozen=True)
class Stage:
    """One stage of a system.

    Attributes:
        name: its name in DVC and on the command line: warm_start, pretrain, finetune, evaluate, or a new one.
        depends_on: the parameters that its results depend on, as dotted names of sections or single parameters; a name
            with a minus before it is left out again (`-pretrain.initial_reader`). They are part of its key. Its
            work can read these, those of the stages before it, `observes` and `launch`; any other raises an error.
            "system" is the system itself, with all of its options, for work that calls `context.system`.
        work: `package.module:function`, called with (Context, StageRun) to do the stage; imported when it is done.
        observes: further parameters that its work can read: they change its log or refuse a run, but change no result.
        keeps: the folder inside the stage's folder that others use, or ""; DVC gets `model` as a copy in `models/`.
        uses_ranks: true if several processes can share the work.
        version: part of its key if above 1; raise it if only this stage's numbers change on purpose (and
            ENGINE_VERSION if those of all stages change).
    """

    name: str
    depends_on: tuple[str, ...]
    work: str
    observes: tuple[str, ...] = ()
    keeps: str = "model"
    uses_ranks: bool = True
    version: int = 1

    @property
    def module(self) -> str:
        """The module of its work."""
        return self.work.partition(":")[0]

    @property
    def is_own(self) -> bool:
        """True if its work is custom code."""
        return not self.module.startswith(f"{OURS}.")

    @property
    def calls_system(self) -> bool:
        """True if its work calls the system."""
        return SYSTEM in self.depends_on

    def declares(self, name: str) -> bool:
        """True if its results depend on a parameter: the last entry of `depends_on` that covers the name decides."""
        found = self.calls_system and is_inside(name, OPTIONS)
        for declared in self.depends_on:
            if is_inside(name, declared.removeprefix("-")):
                found = not declared.startswith("-")
        return found


PREPARE = Stage(
    "prepare",
    ("corpus", "tokenizer"),
    "realm_lab.engine.systems.prepare:prepare",
    observes=("finetune.max_span_wordpieces",),  # to refuse a world whose names are longer
    keeps="",
    uses_ranks=False,
)
"""The first stage of every run, before those that its system declares."""
EVALUATE = Stage(
    "evaluate",
    # utility is measured with the settings of `pretrain`; the initial models are in the keys of earlier stages
    (
        SYSTEM,
        "pretrain",
        "-pretrain.initial_reader",
        "-pretrain.initial_retriever",
        f"-{CHANGES}",
        "evaluate",
        "finetune.answer_by",
    ),
    "realm_lab.engine.systems.evaluate:evaluate",
    keeps="eval",
    uses_ranks=False,
    version=2,  # 2: the BM25 for comparison has Lucene's terms and finds only passages that share a term
)
"""The last stage of every system: the same measurements of each, except those that a system does not support."""


class Retrieved(NamedTuple):
    """Passages of some questions, best first. Q questions, K passages."""

    rows_QK: np.ndarray  # int64, rows of the knowledge corpus, negative if there are fewer
    scores_QK: np.ndarray  # float32, larger is better, finite; only the order is comparable between systems

    @classmethod
    def padded(
        cls, found: Sequence[tuple[Sequence[int] | np.ndarray, Sequence[float] | np.ndarray]], k: int
    ) -> Retrieved:
        """Return the first k (rows, scores) of each question; row -1 with NO_SCORE if there are fewer."""
        import numpy as np

        from realm_lab.engine.retrieval.rows import NO_SCORE

        rows_QK, scores_QK = np.full((len(found), k), -1, np.int64), np.full((len(found), k), NO_SCORE, np.float32)
        for number, (rows, scores) in enumerate(found):
            size = min(k, len(rows))
            rows_QK[number, :size], scores_QK[number, :size] = rows[:size], scores[:size]
        return cls(rows_QK, scores_QK)


class System:
    """A whole system; subclass it, and register it or name it as `package.module:Class`.

    One instance belongs to one run with finished training stages. Methods that a system does not support raise
    Unsupported, the default below, and evaluation leaves out the measurements that need them.
    """

    name: ClassVar[str]  # letters, digits and _; the first part of the name of a run's folder
    title: ClassVar[str]
    stages: ClassVar[tuple[Stage, ...]]
    reads_pictures: ClassVar[bool] = False  # true if passages may be pictures
    only_bert: ClassVar[bool] = False  # true if model.checkpoint must be a BERT, whose layers the system uses
    options: ClassVar[type[Section]] = Section  # parameters of this system only, system_options.NAME; its training
    # stages depend on them as "system_options" or "system_options.OPTION"
    fixed: ClassVar[Mapping[str, Any]] = {}  # parameters that its runs always have: {"finetune.softmax": "joint"}

    def __init__(self, context: Any):  # realm_lab.engine.systems.context.Context, which imports this file
        self.context = context

    @property
    def params(self) -> Params:
        """The run's parameters, with the system's fixed ones."""
        params: Params = self.context.params
        return params

    def retrieve(self, questions: Sequence[str], k: int) -> Retrieved:
        """Return the best k passages of each question."""
        raise Unsupported(f"system {self.name} retrieves no passages")

    def answer(
        self, questions: Sequence[str], retrieved: Retrieved | None = None, k: int | None = None
    ) -> list[Answer]:
        """Return one answer to each question, from the passages given, else from the system's retrieval, k of them
        (None: as many as in training)."""
        raise Unsupported(f"system {self.name} answers no questions")

    def before_finetuning(self) -> System:
        """Return the system with the models from before its fine-tuning, whose retrieval is zero-shot. Return itself
        if fine-tuning trains no retriever."""
        return self

    def on_corpus(self, passages: Passages, digest: str) -> System:
        """Return the same system, not trained again, on another version of the knowledge corpus."""
        raise Unsupported(f"system {self.name} cannot be asked with another corpus")

    def utilities(self, question: str, answer: Answer) -> list[float | None]:
        """Return the retrieval utility of each of the answer's candidates in nats: log p(y|z,x) - log p(y|null,x)."""
        return [None] * len(answer.candidates)

    def read_blanks(self, items: Sequence[ClozeItem]) -> list[ClozeReading]:
        """Read sentences with a blank and a known answer, with retrieval (the paper's Table 4)."""
        raise Unsupported(f"system {self.name} fills no blanks")

    def modules(self) -> Sequence[nn.Module]:
        """Return the models that retrieve and answer, to count their weights; empty: no weights are counted."""
        return ()

    def measure(self) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        """Return measurements that only this system has, such as those on masked sentences, with worked examples."""
        raise Unsupported(f"system {self.name} reads no masked sentences")

    @classmethod
    def stage(cls, name: str) -> Stage:
        """Return the stage of that name. UserError: the system has no such stage."""
        found = next((stage for stage in (PREPARE, *cls.stages) if stage.name == name), None)
        if found is None:
            known = ", ".join(stage.name for stage in (PREPARE, *cls.stages))
            raise UserError(f"system {cls.name} has no stage '{name}'; its stages are {known}")
        return found


class Systems(Kind[type[System]]):
    """The registered systems. A system's options are its attribute `options`."""

    def find(self, parameter: str, name: str) -> Plugin[type[System]]:
        plugin = super().find(parameter, name)
        system = plugin.load()
        return replace(plugin, code=system, model=system.options)

    def examine(self, parameter: str, name: str, code: Any) -> type[Section]:
        _check(name, code)
        options: type[Section] = code.options
        return options


@functools.cache  # per class
def _check(name: str, system: Any) -> None:
    """Refuse a class that lacks a declaration of a system, names an unknown parameter, or has an option that no stage
    depends on."""
    if not (isinstance(system, type) and issubclass(system, System)):
        raise UserError(f"system '{name}': not a subclass of realm_lab.System; make it one")
    for attribute in ("name", "title", "stages"):
        if not getattr(system, attribute, None):
            raise UserError(f"system '{name}': the class has no '{attribute}'; add it (docs/systems.md has an example)")
    if not all(isinstance(stage, Stage) for stage in system.stages):
        raise UserError(f"system '{name}': 'stages' must be a tuple of Stage; write stages = (Stage(...), EVALUATE)")
    known = [*parameter_fields(), *(f"{OPTIONS}.{option}" for option in system.options.model_fields)]
    for stage in system.stages:
        depended = [parameter.removeprefix("-") for parameter in stage.depends_on if parameter != SYSTEM]
        for parameter in (*depended, *stage.observes):
            if parameter not in known:
                wrong = f"stage '{stage.name}' depends on '{parameter}', which is no parameter"
                raise UserError(f"system '{name}': {wrong}; {suggestion(parameter, known)}")
    for parameter in system.fixed:
        if parameter not in parameter_fields():
            raise UserError(f"system '{name}': 'fixed' has '{parameter}', which is no parameter; "
                            f"{suggestion(parameter, parameter_fields())}")  # fmt: skip
    for option in system.options.model_fields:
        if not any(stage.declares(f"{OPTIONS}.{option}") for stage in system.stages):
            remedy = f"add '{OPTIONS}.{option}' to depends_on of the stage that reads it"
            raise UserError(f"system '{name}': no stage depends on its option '{option}'; {remedy}")


SYSTEMS = Systems("system", "Class", "context")
for _name, _class in {
    "orqa": "Orqa",
    "realm": "Realm",
    "warm_start": "WarmStart",
}.items():
    SYSTEMS.declare(_name, f"realm_lab.engine.systems.{_name}:{_class}")
Class = TypeVar("Class", bound=type[System])


def register_system(system: Class) -> Class:
    """Make a system known by its name; a decorator. UserError: the name is taken, or `_check` refuses the class."""
    SYSTEMS.register(getattr(system, "name", system.__qualname__))(system)
    return system


def system_of(name: str) -> type[System]:
    """Return the system of that name, or `package.module:Class`. UserError, with the nearest name: there is none."""
    return SYSTEMS.find("system", name).load()


def options_of(params: Params, system: str) -> Section:
    """Return the parameters that only this system has, from `system_options`. UserError: an unknown option or a wrong
    value, or options of an unknown system."""
    if params._options is not None:
        return params._options
    for name in params.system_options:
        try:
            SYSTEMS.find(OPTIONS, name)
        except UserError as error:
            raise UserError(error.problem, error.remedy, parameter=f"{OPTIONS}.{name}") from None
    choice = Choice(system, params.system_options.get(system, {}))
    return cast(Section, checked_options(f"{OPTIONS}.{system}", choice, system_of(system).options))


def fixed_params(params: Params, system: str) -> Params:
    """Return the parameters of a system's runs: `params` with the system's fixed ones; `params` itself if it has them.
    UserError: `params` contradicts the fixed ones."""
    fixed = system_of(system).fixed
    if not fixed or params._options is not None:  # a view has them
        return params
    for name in (f"pretrain.{name}" for change in params.pretrain.changes.values() for name in change):
        if name in fixed:
            raise UserError(f"system '{system}' has {name} = {fixed[name]} at all steps", parameter=CHANGES)
    changed, is_same = params.model_dump(mode="json"), True
    for name, value in fixed.items():
        *sections, last = name.split(".")
        section: dict[str, Any] = functools.reduce(dict.__getitem__, sections, changed)
        is_same &= section[last] == value
        section[last] = value
    try:
        return params if is_same else type(params)(**changed)
    except ValidationError as error:
        raise UserError(f"system '{system}' has {dict(fixed)}: {validation_line(error)}") from None


def view_of(params: Params, system: str, stage: str, *, key: bool = False) -> Params:
    """Return the parameters of a run that a stage may read: those that it and the stages before it declare, those
    that it observes, and `launch`. With `key`, only those that it declares itself."""
    from realm_lab.engine.params.sections import Streams

    declared, params = (PREPARE, *system_of(system).stages), fixed_params(params, system)
    last = system_of(system).stage(stage)
    if not last.declares(CHANGES) and params._options is None:  # it reads the final values; a view has them
        params = params.at_end()
    stages = declared[: declared.index(last) + 1]

    def keeps(name: str) -> bool:
        if key:
            return last.declares(name)
        read = any(is_inside(name, one) for one in (*ALWAYS_READ, *last.observes))
        return read or any(stage.declares(name) for stage in stages)

    view = params.view(keeps, last.name)
    names = {stage.name for stage in stages}
    order = {stage: number for stage, number in params.streams.order.items() if stage in names}
    streams = Streams(initialisation=params.streams.initialisation, order=order)
    own = options_of(params, system).view(keeps, last.name, f"{OPTIONS}.")
    view.__dict__ |= {"streams": streams, "system_options": {system: own.model_dump(mode="json")}}
    view._options = own
    return view


def with_options(flat: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Add each option in `names` that is missing in flat parameters, with its default; None if it has no default."""
    return {name: _default(name, flat) for name in names if is_option(name)} | dict(flat)


def _default(name: str, flat: Mapping[str, Any]) -> Any:
    """The default of an option, if its system, or the plug-in that is named in `flat`, has it."""
    parameter, _, option = name.rpartition(".")
    if is_system_option(name):
        declared: Any = system_of(parameter.partition(".")[2]).options
    else:
        kind: Kind[Any] = load_object(parameter, PARTS[parameter])
        declared = kind.find(parameter, flat[parameter]).options_model()
    field = declared.model_fields.get(option) if declared else None
    return None if field is None or field.is_required() else field.get_default(call_default_factory=True)
