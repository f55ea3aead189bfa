"""What `realm-lab bench` measured: a JSON file bound to a device and a model, from which `realm-lab plan` reckons."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic import ConfigDict, TypeAdapter

from realm_lab.core.files import read_json, write_json
from realm_lab.core.records import validated
from realm_lab.errors import UserError
from realm_lab.models.initial import embedder_shape, encoder_shape
from realm_lab.params.parameters import Params
from realm_lab.planner.workload import without_checkpoint

FORMAT = 1
REMEDY = "run `realm-lab bench`"


@dataclass(frozen=True)
class Calibration:
    """Speeds of one device with one model. `model` is all that the speeds depend on besides the device."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    format: int
    device: str
    device_type: str
    host: str
    torch: str
    date: str
    model: dict[str, Any]
    lengths: str  # where the lengths of the measured text are from
    memory_bytes: int
    matrix_gflops_per_second: dict[str, float]
    read_bytes_per_second: float
    embed_passages: int
    embed_passages_per_second: float
    embed_operations_per_second: float
    step_sentences: list[int]  # the batches that were timed
    step_seconds: list[float]
    step_fixed_seconds: float  # of every step, whatever its batch
    step_operations_per_second: float  # of the rest
    step_passages: int  # in whose index those steps searched
    search_rows: int
    search_queries: list[int]
    search_seconds: list[float]
    search_row_seconds: float  # of reading a row, whatever the queries
    search_row_query_seconds: float  # of scoring it for one more query
    prepare_row_seconds: float  # of making a row ready for the search when an index is taken into use
    store_bytes_per_second: float  # written, digested, verified and published


CALIBRATION: TypeAdapter[Calibration] = TypeAdapter(Calibration)


def default_path(root: Path) -> Path:
    """Where `bench` writes and `plan` reads unless told otherwise."""
    return root / "runs" / "bench.json"


def model_identity(params: Params, vocabulary_size: int) -> dict[str, Any]:
    """The model and how it is run: what must be the same for a measurement to count."""
    params = without_checkpoint(params)
    settings = params.pretrain
    return {
        **encoder_shape(params, vocabulary_size)._asdict(),
        **embedder_shape(params)._asdict(),
        "precision": params.model.precision,
        "passage_length": params.corpus.passage_length,
        "sentence_length": params.corpus.sentence_length,
        "candidates": settings.candidates,
        "null_document": settings.null_document,
        "search_query": settings.search_query,
        "train_reader": settings.train_reader,
        "train_query_tower": settings.train_query_tower,
        "train_document_tower": settings.train_document_tower,
        "token_budget": params.launch.token_budget,
        "recompute": params.launch.recompute,
    }


def write_calibration(path: Path, calibration: Calibration) -> None:
    """Write the file, atomically."""
    write_json(path, asdict(calibration))


def read_calibration(path: Path) -> Calibration:
    """Read a file; a missing or a foreign one is a UserError with the remedy."""
    if not path.exists():
        raise UserError(
            f"{path}: this machine has not been measured; {REMEDY}, or plan for a device of the table: --device H100"
        )
    values = read_json(path)
    version = values.get("format") if isinstance(values, dict) else None
    if version != FORMAT:
        raise UserError(f"{path}: format {version}, this engine reads {FORMAT}; {REMEDY}")
    return validated(CALIBRATION, values, path, REMEDY)


def check_model(path: Path, calibration: Calibration, model: dict[str, Any]) -> None:
    """Refuse a measurement of another model, with the first difference."""
    for name, wanted in model.items():
        found = calibration.model.get(name)
        if found != wanted:
            raise UserError(
                f"{path}: measured with {name} {found}, the parameters say {wanted}; {REMEDY} with the same parameters"
            )


def check_device(path: Path, calibration: Calibration, device: str) -> None:
    """Refuse a measurement of another device."""
    if calibration.device != device:
        raise UserError(
            f"{path}: measured on {calibration.device} (host {calibration.host}), this machine is {device}; {REMEDY} "
            f'here, or plan for that one: --device "{calibration.device}"'
        )


def version_note(calibration: Calibration) -> str | None:
    """A word where the measurement was made with another torch."""
    if calibration.torch == torch.__version__:
        return None
    return f"measured with torch {calibration.torch}, this is {torch.__version__}; {REMEDY} again"
