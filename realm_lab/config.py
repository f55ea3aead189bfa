"""Typed parameters: params.yaml -> Params.

Every default below is the paper's value (Guu et al. 2020) or, where the paper is silent, the released
code's; a preset (realm_lab/presets/NAME.yaml) says what it changes, and a line of params.yaml that is
not empty changes it once more. No other room reads YAML parameters.
"""

from __future__ import annotations

import difflib
import math
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from realm_lab.errors import UserError

PRESETS = ("toy", "smoke", "real", "paper")
PRESET_FOLDER = Path(__file__).parent / "presets"

Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Rate = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """A group of parameters: frozen, and a name it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_accident(cls, value: Any, info: ValidationInfo) -> Any:
        """Pydantic would take `true` for the number 1, and an infinity has no JSON and so no run_key."""
        if isinstance(value, bool) and info.field_name and cls.model_fields[info.field_name].annotation is not bool:
            raise ValueError("input should not be true or false")
        if isinstance(value, float) and math.isinf(value):
            raise ValueError("input should be a finite number")
        return value


class ToyWorld(Section):
    """The embedded world of entities and facts that needs no download."""

    entities: Annotated[int, Field(ge=40, le=4_000_000)] = 256
    fillers_per_entity: NonNegative = 2
    articles: Positive = 70_000
    changed_fraction: Fraction = 0.5
    world_seed: NonNegative | None = None

    @model_validator(mode="after")
    def _divisible(self) -> ToyWorld:
        if self.entities % 4:
            raise ValueError("must be divisible by the 4 entity types")
        return self


class Files(Section):
    """Text files to read; formats are told apart by name and content."""

    knowledge: list[str] = []
    knowledge_updated: list[str] = []
    pretrain: list[str] = []
    questions_train: list[str] = []
    questions_dev: list[str] = []
    questions_test: list[str] = []
    max_articles: Positive | None = None
    max_train_questions: Positive | None = None
    max_test_questions: Positive | None = None


class Corpus(Section):
    """Where text comes from and how it is cut (paper section 4.3)."""

    source: Literal["toy", "files"] = "files"
    pretrain_corpus: Literal["separate", "same"] = "same"
    passage_length: Annotated[int, Field(ge=8, le=512)] = 288
    sentence_length: Annotated[int, Field(ge=8, le=512)] = 64
    tagger: Literal["exact", "rule"] = "rule"
    toy: ToyWorld = ToyWorld()
    files: Files = Files()

    @model_validator(mode="after")
    def _tagger_fits(self) -> Corpus:
        if self.tagger == "exact" and self.source == "files":
            raise ValueError("tagger: exact spans exist only in the toy world; use tagger: rule")
        return self


class Tokenizer(Section):
    """WordPiece: of a checkpoint folder, or learned from the corpus (the toy world brings its own)."""

    checkpoint: str | None = None
    vocabulary_size: Annotated[int, Field(ge=100, le=200_000)] = 30_522


class Model(Section):
    """BERT-style towers and reader (paper section 3.2; the paper's encoder is BERT-base)."""

    checkpoint: str | None = None
    hidden_size: Positive = 768
    layers: Positive = 12
    heads: Positive = 12
    intermediate_size: Positive = 3072
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    projection_size: Positive = 128
    share_towers: bool = True
    train_word_embeddings: bool = True
    precision: Literal["float32", "bfloat16"] = "float32"

    @model_validator(mode="after")
    def _heads_divide(self) -> Model:
        if self.hidden_size % self.heads:
            raise ValueError(f"hidden_size {self.hidden_size} is not a multiple of heads {self.heads}")
        return self


class Optimiser(Section):
    """AdamW with linear warm-up and linear decay (BERT's default optimiser)."""

    learning_rate: Rate = 3e-5
    warmup_steps: NonNegative = 10_000
    final_fraction: Fraction = 0.0
    weight_decay: Fraction = 0.01
    clip_norm: Annotated[float, Field(gt=0.0)] = 1.0
    beta1: Fraction = 0.9
    beta2: Fraction = 0.999


class MaskedLanguageModel(Section):
    """Warm start of the reader: BERT training on pairs of segments (section 3.4)."""

    steps: NonNegative = 0
    batch_size: Positive = 256
    optimiser: Optimiser = Optimiser(learning_rate=1e-4)
    mask_rate: Fraction = 0.15
    salient_fraction: Fraction = 0.5
    related_fraction: Fraction = 0.5
    related_only_fraction: Fraction = 0.0


class InverseCloze(Section):
    """Warm start of the embedder: the Inverse Cloze Task (Lee et al. 2019)."""

    steps: NonNegative = 100_000
    batch_size: Positive = 4096
    optimiser: Optimiser = Optimiser(learning_rate=1e-4)
    removal_rate: Fraction = 0.9
    initial_encoder: Literal["reader", "checkpoint", "scratch"] = "checkpoint"
    query_scale: Annotated[float, Field(gt=0.0)] = 1.0


class WarmStart(Section):
    """What exists before REALM pre-training (section 3.4, Initialization)."""

    reader: MaskedLanguageModel = MaskedLanguageModel()
    embedder: InverseCloze = InverseCloze()


class Pretrain(Section):
    """REALM pre-training (sections 3.3 and 3.4)."""

    masking: str = "salient_span"
    mask_rate: Fraction = 0.15
    candidates: Annotated[int, Field(ge=1, le=1000)] = 8
    null_document: Literal["off", "encoded"] = "encoded"
    calibrate_null: bool = False
    exclude_trivial: Literal["off", "passage", "article"] = "passage"
    marginal: Literal["example", "token"] = "example"
    train_embedder: bool = True
    train_reader: bool = True
    steps: NonNegative = 200_000
    batch_size: Positive = 512
    refresh_interval_steps: NonNegative = 500
    search_query: Literal["stale", "fresh"] = "stale"
    reader: Optimiser = Optimiser()
    retriever: Optimiser = Optimiser()


class Finetune(Section):
    """Open-QA fine-tuning (section 3.2): marginal over the top passages, index frozen."""

    steps: NonNegative = 300_000
    batch_size: Positive = 1
    candidates: Annotated[int, Field(ge=1, le=1000)] = 5
    max_span_wordpieces: Annotated[int, Field(ge=1, le=50)] = 10
    span_hidden_size: Positive = 256
    reader: Optimiser = Optimiser(learning_rate=1e-5)
    retriever: Optimiser = Optimiser(learning_rate=1e-5)


class Evaluate(Section):
    """What is measured, and how often during pre-training."""

    interval_steps: Positive = 1000
    cloze_sentences: Positive = 400
    questions: Positive | None = None
    explorer_examples: NonNegative = 12


class Launch(Section):
    """How work is spread over this machine. Never part of a run's identity."""

    device: Literal["auto", "cpu", "cuda"] = "auto"
    processes: NonNegative = 0
    threads: NonNegative = 0
    checkpoint_interval_seconds: Positive = 60
    log_interval_steps: Positive = 10
    token_budget: Positive = 8192
    tracking_uri: str | None = None


class Params(Section):
    """All parameters, resolved."""

    preset: str = "paper"
    seeds: Annotated[list[NonNegative], Field(min_length=1)] = [0]
    corpus: Corpus = Corpus()
    tokenizer: Tokenizer = Tokenizer()
    model: Model = Model()
    warm_start: WarmStart = WarmStart()
    pretrain: Pretrain = Pretrain()
    finetune: Finetune = Finetune()
    evaluate: Evaluate = Evaluate()
    launch: Launch = Launch()

    @model_validator(mode="after")
    def _consistent(self) -> Params:
        if self.pretrain.null_document != "off" and self.pretrain.candidates < 2:
            raise ValueError("pretrain.candidates must be at least 2 when the null document takes one place")
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError("seeds: a seed is named twice")
        if self.corpus.source == "files" and not self.corpus.files.knowledge and self.preset != "paper":
            raise ValueError("corpus.files.knowledge is empty: name at least one file of passages")
        return self


def load(path: Path | str = "params.yaml", overrides: dict[str, Any] | None = None) -> Params:
    """Read `path`, lay it over its preset, then `overrides` (dotted key -> value); validate.

    Raises:
        UserError: one line naming the key, the nearest valid one, and the line of the file.
    """
    path = Path(path)
    document = _read_yaml(path)
    given = _without_empty(document)
    for key, value in (overrides or {}).items():
        _set_dotted(given, key, value)
    preset = given.get("preset", "toy")
    values = _merge(preset_values(preset, path), given)
    values["preset"] = preset
    return _validate(values, path, document)


def preset_values(name: Any, source: Path | str = "params.yaml") -> dict[str, Any]:
    """What preset `name` changes relative to the paper's defaults."""
    if name not in PRESETS:
        near = difflib.get_close_matches(str(name), PRESETS, n=1)
        hint = f"; did you mean '{near[0]}'?" if near else ""
        raise UserError(f"{source}: preset '{name}' is not one of {', '.join(PRESETS)}{hint}")
    return _without_empty(_read_yaml(PRESET_FOLDER / f"{name}.yaml"))


def flatten(params: BaseModel | dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Parameters as one flat dictionary with dotted keys."""
    values = params.model_dump(mode="json") if isinstance(params, BaseModel) else params
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat.update(flatten(value, f"{prefix}{key}."))
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def parse_override(text: str) -> tuple[str, Any]:
    """`pretrain.steps=100` -> ("pretrain.steps", 100), the value read as YAML."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise UserError(f"--set {text}: write it as KEY=VALUE, for example pretrain.steps=100")
    try:
        return key.strip(), YAML(typ="safe").load(value)
    except YAMLError as error:
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"--set {text}: the value is not valid YAML ({problem})") from None


def render_params_yaml(preset: str = "toy") -> str:
    """The text of params.yaml: every parameter, empty (= the preset decides), with each preset's value beside it."""
    resolved = {name: flatten(Params(**preset_values(name) | {"preset": name})) for name in PRESETS}
    lines = [
        "# The parameters of realm_lab. Choose a preset in the next line; an empty value means: as the preset says.",
        "# The comment shows each preset's value. docs: README.md, section 'Parameters'. (This file is generated",
        "# by `make params` and checked by a test; the values that you fill in are kept.)",
        f"preset: {preset}  # {' · '.join(PRESETS)}",
    ]
    _render(Params, "", 0, resolved, lines)
    return "\n".join(lines) + "\n"


def _render(section: type[BaseModel], prefix: str, depth: int, resolved: dict[str, dict], lines: list[str]) -> None:
    for name, field in section.model_fields.items():
        key = f"{prefix}{name}"
        inner = field.annotation
        if key == "preset":
            continue
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            doc = (inner.__doc__ or "").strip().splitlines()[0]
            lines.extend([""] if depth == 0 else [])
            lines.append(f"{'  ' * depth}{name}:  # {doc}")
            _render(inner, f"{key}.", depth + 1, resolved, lines)
            continue
        values = {preset: _show(flat[key]) for preset, flat in resolved.items()}
        if len(set(values.values())) == 1:
            comment = next(iter(values.values()))
        else:
            comment = " · ".join(f"{preset} {value}" for preset, value in values.items())
        if depth == 0:
            lines.append("")
        lines.append(f"{'  ' * depth}{name}:  # {comment}")


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "none"
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return "[" + ", ".join(_show(item) for item in value) + "]"
    return str(value)


def _read_yaml(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; run from the project's folder or give --params FILE") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); give another with --params FILE") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}; save the file as UTF-8") from None
    try:
        document = YAML(typ="rt").load(text)
    except YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{path}{line}: not valid YAML ({problem})") from None
    if document is None:
        return {}
    if isinstance(document, dict) and (strange := [key for key in document if not isinstance(key, str)]):
        raise UserError(f"{path}: unknown parameter '{strange[0]}'; names are words")
    if not isinstance(document, dict):
        raise UserError(f"{path}: expected 'key: value' lines, found a {type(document).__name__}")
    return document


def _without_empty(values: dict[str, Any]) -> dict[str, Any]:
    """Plain copy without empty (null) values: those are left to the preset."""
    kept: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            kept[key] = _without_empty(value)
        elif value is not None:
            kept[key] = list(value) if isinstance(value, list) else value
    return kept


def _merge(base: dict[str, Any], top: dict[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in top.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(value, dict) and isinstance(below, dict) else value
    return merged


def _set_dotted(values: dict[str, Any], key: str, value: Any) -> None:
    *parents, last = key.split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise UserError(f"parameter {key}: '{parent}' is a value, not a section")
    values[last] = value


def _validate(values: dict[str, Any], path: Path, document: Any) -> Params:
    try:
        return Params(**values)
    except ValidationError as error:
        raise UserError(_explain(error.errors()[0], path, document)) from None


def _explain(problem: Any, path: Path, document: Any) -> str:
    location = [str(part) for part in problem["loc"]]
    key = ".".join(location)
    line = _line_of(document, location)
    where = f"{path}, line {line}" if line else str(path)
    if problem["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, parameter_names(), n=1, cutoff=0.0)
        return f"{where}: unknown parameter '{key}'; the nearest valid one is '{near[0]}'"
    message = problem["msg"].removeprefix("Value error, ")
    subject = f"parameter '{key}': " if key else ""
    given = problem.get("input")
    shown = f" (given: {given!r})" if key and not isinstance(given, dict | BaseModel) else ""
    return f"{where}: {subject}{message[0].lower()}{message[1:]}{shown}"


def parameter_names(section: type[BaseModel] = Params, prefix: str = "") -> list[str]:
    """Every valid dotted key, sections included."""
    names: list[str] = []
    for name, field in section.model_fields.items():
        names.append(f"{prefix}{name}")
        for part in _sections_in(field.annotation):
            names.extend(parameter_names(part, f"{prefix}{name}."))
    return names


def _sections_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        return [part for option in typing.get_args(annotation) for part in _sections_in(option)]
    return []


def _line_of(document: Any, location: list[str]) -> int | None:
    """The 1-based line of a key in the YAML document, or of its nearest section."""
    line = None
    for part in location:
        if not isinstance(document, dict) or part not in document:
            break
        marks = getattr(document, "lc", None)
        if marks is not None and part in marks.data:
            line = marks.data[part][0] + 1
        document = document[part]
    return line
