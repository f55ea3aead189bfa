"""Base class of the parameter sections, and the sections for the index, warnings of a collapse, optimisers and noise.

The other sections, and the sources that docstrings cite ("Guu", "code"), are in parameters.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic.fields import FieldInfo

from realm_lab.engine.params.checkpoint import digest_checkpoint
from realm_lab.engine.params.frozen import causal
from realm_lab.errors import UserError
from realm_lab.records.files import digest_path
from realm_lab.records.plugins import Choice, ChoiceField, plain_options
from realm_lab.records.validation import Contradiction

Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Dropout = Annotated[float, Field(ge=0.0, lt=1.0)]
Processes = Annotated[int, Field(ge=0, le=4096)]
Candidates = Annotated[int, Field(ge=1, le=1000)]
Options = Annotated[dict[str, Any], AfterValidator(plain_options)]

# Marks a parameter that changes what is logged or shown and nothing that is computed: it is not part of a run's key.
OBSERVES = Field(json_schema_extra={"observes": True})


NO = ("off", "none", "never", "no", "false")  # words that switch something off


def off(value: str) -> Any:
    """Mark a parameter that names a plug-in: false and the words of NO mean the plug-in `value`."""
    return Field(json_schema_extra={"off": value})


def marks_of(field: FieldInfo) -> dict[str, Any]:
    """Return the marks of a parameter."""
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


def content(kind: str, *names: str) -> Any:
    """Mark a parameter that names files: their content, not their path, is part of a run's key.

    `kind`: `file` (a file, a folder with all that is in it, or a list of these), `weights` (a folder of models, its
    .safetensors and .json files) or `causal` (a causal language model). `names` are values that are no path.
    """
    return Field(json_schema_extra={"content": kind, "names": list(names)})


FILE = content("file")
FOLDER = content("weights")


class Section(BaseModel):
    """A group of parameters: frozen; an unknown name is an error."""

    # allow_inf_nan: JSON has neither infinity nor NaN, and the run_key is a digest of JSON
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    _reader: tuple[str, str] = ("", "")  # of a view: the stage that reads it, and the section's name with a dot

    def __getattr__(self, name: str) -> Any:
        """Refuse to read a parameter that the stage of a view does not declare; Python calls this method only for a
        missing attribute."""
        if name in type(self).model_fields:
            stage, section = self._reader
            raise UserError(
                f"stage '{stage}' reads '{section}{name}', which it does not declare",
                "add the name to depends_on of the stage, so that it is part of the key",
                parameter=f"{section}{name}",
            )
        return super().__getattr__(name)  # type: ignore[misc]  # pydantic hides it from type checkers

    def view(self, keeps: Callable[[str], bool], stage: str, section: str = "") -> Self:
        """Return the parameters that a stage may read: those whose dotted name `keeps` accepts, and those that only
        observe. Reading another parameter raises a UserError."""
        found = self.model_copy()
        found._reader = (stage, section)
        for name, field in type(self).model_fields.items():
            value = self.__dict__.get(name)
            if marks_of(field).get("observes"):
                continue
            if isinstance(value, Section):
                found.__dict__[name] = value.view(keeps, stage, f"{section}{name}.")
            elif not keeps(f"{section}{name}"):
                found.__dict__.pop(name, None)
        return found

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse booleans as numbers; pydantic would take `true` for 1. If one choice is in NO, such as off, then false
        and the other words of NO mean this choice."""
        assert info.field_name
        field = cls.model_fields[info.field_name]
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        no = next((choice for choice in (*choices, marks_of(field).get("off")) if choice in NO), None)
        if no is not None and str(value).lower() in NO and value not in choices:
            return no
        if isinstance(value, bool) and not choices and field.annotation not in (bool, Choice):
            raise ValueError("must not be true or false")
        return value

    def contradictions(self) -> Iterator[Contradiction]:
        """Yield the contradictions between the values of the section."""
        yield from ()

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if found := list(self.contradictions()):
            found[0].others = found[1:]
            raise found[0]
        return self


def identity_values(
    params: BaseModel, name: str = "", described: Callable[[str, Choice], Any] = lambda _, choice: choice.plain()
) -> dict[str, Any]:
    """Return the values that belong to a run's identity, as plain JSON types. Parameters that only observe are left
    out; files and folders count by their content.

    `name`: the dotted name of `params`, for errors; `described(parameter, choice)` returns the identity of a plug-in.
    """
    values: dict[str, Any] = {}
    plain = params.model_dump(mode="json")
    for key, field in type(params).model_fields.items():
        marks, parameter = marks_of(field), f"{name}.{key}" if name else key
        if "observes" in marks or key not in plain:
            continue
        value = getattr(params, key)
        if isinstance(value, BaseModel):
            values[key] = identity_values(value, parameter, described)
        elif isinstance(value, Choice):
            values[key] = described(parameter, value)
        elif "content" in marks and value not in (None, *marks["names"]):
            values[key] = _digest_content(marks["content"], value, parameter, marks["names"])
        else:
            values[key] = plain[key]
    return values


def _digest_content(kind: str, value: Any, parameter: str, names: list[str]) -> Any:
    """Return the digest of the files that a parameter names. UserError: none exist, or they are of another kind."""
    if isinstance(value, list):
        return [_digest_content(kind, one, parameter, names) for one in value]
    if kind == "causal":
        return causal().load().digest(Path(value))
    if kind == "weights":
        return digest_checkpoint(Path(value), parameter, names)
    try:
        return digest_path(Path(value))
    except UserError as error:
        raise UserError(f"parameter '{parameter}': {error}", parameter=parameter) from None


class Watch(Section):
    """Probes and early warnings of a collapse during pre-training; docs/concepts.md lists them."""

    interval_steps: Positive = 100
    """Steps between two measurements by the probes."""
    patience_steps: Positive = 500
    """Steps a quantity must stay out of its bounds before the run is flagged. Retrieval that is out of bounds at the
    last step is flagged at once."""


class IndexSearch(Section):
    """Search of the MIPS index in pre-training. Fine-tuning, evaluation and the measures of staleness always
    search exactly."""

    backend: ChoiceField = Choice("exact")
    """Every passage (`exact`; `faiss_flat`), or approximate search (Guu, section 3.3, names no method) by FAISS:
    inverted lists (`{name: ivf_flat, nlist: 64, nprobe: 4}`), such lists with product quantisation (`ivf_pq`: `nlist`,
    `nprobe`, `M`, `nbits`), a graph (`hnsw`: `M`, `efConstruction`, `efSearch`), or 8-bit numbers (`sq8`). Each FAISS
    index has the option `overfetch`, the number of passages taken from it per requested one. Defaults: nlist 4
    sqrt(passages), at most passages/39; nprobe nlist/16, at least 8. The index is built again whenever a vector has
    changed, and the passages that it finds are scored by the true inner products. Its recall@8 against exact search
    (search_recall_at_8) is measured with 256 vectors of passages, plus noise of half their spread."""


class Refresh(Section):
    """Refresh of the MIPS index while the weights move, and its delay."""

    policy: Annotated[ChoiceField, off("never")] = Choice("interval")
    """Refresh policy: `interval`, `drift`, `map` or `never`. `interval`: every `interval_steps` (Guu, section 4.5).
    `{name: drift, overlap: 0.8}`: a check every `interval_steps`, and a refresh when the index finds a smaller share of
    the fresh top k of fixed queries, by an upper estimate on a sample of passages. `{name: map, sample: 0.02, kind:
    orthogonal, every_steps: 5}`: the index is rebuilt every `interval_steps`; between rebuilds, a map of queries into
    it is fitted on a sample every `every_steps`, which must be below `interval_steps`."""
    interval_steps: Positive = 500
    """Steps between two refreshes (Guu, section 4.5: about 500); for policy drift, between two checks."""
    delay_steps: NonNegative = 0
    """An index of the weights after step s is searched from step s + delay_steps on; 0: the trainer waits for it (Guu
    gives no number)."""


class Optimiser(Section):
    """AdamW with linear warm-up and linear decay (Guu, section 4.3: BERT's default optimiser): weight decay 0.01, not
    on biases and LayerNorm. The warm-up starts at 1/warmup_steps of the peak (code: at 0). The gradient norms of reader
    and retriever are clipped at 1 each (code: the norm of both together)."""

    learning_rate: Annotated[float, Field(ge=0.0, le=1.0)] = 3e-5
    """Peak learning rate (Guu, section 4.3)."""
    warmup_steps: NonNegative = 10_000
    """Steps to reach the peak (code: a tenth of the steps, at least 100, at most 10,000)."""
    final_fraction: Fraction = 0.0
    """Share of the peak that is left at the last step (BERT: 0)."""
    recipe: Literal["bert", "short"] = "bert"
    """`bert`: the decay counts from step 0, Adam's beta2 is 0.999, and its moments are not corrected for their bias
    (BERT, code). `short`, for runs of some hundred steps: decay from the end of the warm-up, beta2 0.98, moments
    corrected."""


class Streams(Section):
    """Noise in runs of one seed: a number other than 0 is another draw of weights or order, in the same world."""

    initialisation: NonNegative = 0
    """Draw of all new weights: encoders from scratch, projections, and heads that a folder lacks."""
    order: dict[str, Annotated[int, Field(strict=True, ge=0)]] = {}
    """Draw of the order of the data, the masks and the dropout of some training stages, by their names:
    `{pretrain: 1}`."""

    @field_validator("order")
    @classmethod
    def _without_zeros(cls, numbers: dict[str, int]) -> dict[str, int]:
        """Leave out stages at 0, which keep the seed's draw."""
        return {stage: number for stage, number in numbers.items() if number}
