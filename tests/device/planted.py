"""Device errors, each a small variant of the package's code, which the checks of on_device.py must catch."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from realm_lab.contrib.faiss import index as faiss_index
from realm_lab.engine.models.candidate_reader import CandidateReader
from realm_lab.engine.models.folders import write_tensors
from realm_lab.engine.models.inputs import Batch
from realm_lab.engine.retrieval import embeddings
from realm_lab.engine.retrieval.candidates import CandidatePolicy
from realm_lab.engine.retrieval.index import embed_rows
from realm_lab.engine.retrieval.retriever import Retriever
from realm_lab.engine.retrieval.rows import ABSENT, NO_SCORE
from realm_lab.engine.training import checkpoint, pretrain
from realm_lab.engine.training.optimiser import ScheduledAdamW

FAISS: dict[str, Any] = {"pretrain.search.backend": "faiss_flat"}
PLANTED: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], dict[str, Any]]] = {}


def planted(**overrides: Any) -> Callable[[Callable[[pytest.MonkeyPatch], None]], Callable[[pytest.MonkeyPatch], None]]:
    def keep(plant: Callable[[pytest.MonkeyPatch], None]) -> Callable[[pytest.MonkeyPatch], None]:
        PLANTED[plant.__name__] = plant, overrides
        return plant

    return keep


def _after(patches: pytest.MonkeyPatch, owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Let `owner.name` return `change(RESULT, ARGUMENTS)`, of its original result and its arguments."""
    original = getattr(owner, name)
    patches.setattr(owner, name, lambda *given, **named: change(original(*given, **named), *given))


@planted()
def mask_made_on_the_host(patches: pytest.MonkeyPatch) -> None:
    def masked(score_BK: Tensor, retriever: Retriever, query_BD: Tensor, rows_BK: np.ndarray) -> Tensor:
        return score_BK.masked_fill(torch.from_numpy(rows_BK) == ABSENT, NO_SCORE)

    _after(patches, Retriever, "score", masked)


@planted()
def positions_left_on_the_host(patches: pytest.MonkeyPatch) -> None:
    patches.setattr(CandidateReader, "_there", lambda reader, tensor: tensor)


@planted()
def batch_left_in_memory_that_is_not_pinned(patches: pytest.MonkeyPatch) -> None:
    patches.setattr(Batch, "to", lambda batch, device: Batch(*(part.to(device, non_blocking=True) for part in batch)))


@planted()
def null_vector_left_on_the_host(patches: pytest.MonkeyPatch) -> None:
    def vectors(retriever: Retriever, rows_U: np.ndarray) -> Tensor:
        null_D = retriever.embedder.null_vector
        assert null_D is not None
        encoded_UD = embed_rows(retriever.embedder, retriever.passages, rows_U[rows_U >= 0], retriever.inputs)
        return torch.cat([null_D.detach().cpu()[None], encoded_UD]) if rows_U[0] < 0 else encoded_UD

    patches.setattr(Retriever, "embed_documents", vectors)


@planted(**FAISS)
def index_on_the_device_for_faiss(patches: pytest.MonkeyPatch) -> None:
    patches.setattr(faiss_index, "_floats", lambda vectors_ND: vectors_ND.detach().float().numpy())


@planted()
def number_read_in_the_step(patches: pytest.MonkeyPatch) -> None:
    def retrieve(found: Any, *given: Any) -> Any:
        found.log_prior_BK.exp().max().item()
        return found

    _after(patches, CandidatePolicy, "retrieve", retrieve)


@planted()
def found_rows_as_numpy(patches: pytest.MonkeyPatch) -> None:
    def find(retriever: Any, query_BD: Tensor, count: int, exclude: Any = None, exactly: bool = False) -> np.ndarray:
        search = retriever._exact if exactly else retriever._search
        return search.search(query_BD, count, exclude).rows_BK.numpy()

    patches.setattr(Retriever, "find", find)


@planted()
def found_rows_read_before_they_are_there(patches: pytest.MonkeyPatch) -> None:
    def find(retriever: Any, query_BD: Tensor, count: int, exclude: Any = None, exactly: bool = False) -> np.ndarray:
        search = retriever._exact if exactly else retriever._search
        return search.search(query_BD, count, exclude).rows_BK.to("cpu", non_blocking=True).numpy().copy()

    patches.setattr(Retriever, "find", find)


@planted()
def moments_loaded_to_the_host(patches: pytest.MonkeyPatch) -> None:
    def load(optimiser: ScheduledAdamW, tensors: dict[str, Tensor]) -> None:
        original(optimiser, tensors)
        moments = optimiser._moments
        for parameter, parts in moments.items():
            moments[parameter] = {part: value.cpu() for part, value in parts.items()}

    original = ScheduledAdamW.load_state
    patches.setattr(ScheduledAdamW, "load_state", load)


@planted()
def checkpoint_written_before_its_copies_are_there(patches: pytest.MonkeyPatch) -> None:
    def write(path: Any, tensors: dict[str, Tensor]) -> None:
        original(path, {name: value.detach().to("cpu", non_blocking=True) for name, value in tensors.items()})

    original = write_tensors
    patches.setattr(checkpoint, "write_tensors", write)


@planted()
def operator_that_only_the_cpu_has(patches: pytest.MonkeyPatch) -> None:
    def health(sums: Tensor, candidates: Any, *given: Any) -> Tensor:
        torch.histogram(candidates.score_BK.detach(), 4)
        return sums

    _after(patches, pretrain, "candidate_health", health)


@planted()
def shard_written_from_the_device(patches: pytest.MonkeyPatch) -> None:
    def build(store: Any, identity: Any, embed: Callable[[np.ndarray], Tensor]) -> Any:
        return original(store, identity, lambda rows_R: embed(rows_R).to("realm"))

    original = embeddings.EmbeddingStore.build
    patches.setattr(embeddings.EmbeddingStore, "build", build)
    patches.setattr(embeddings, "_as_stored", lambda rows_RD, identity, first: rows_RD.detach().contiguous())
