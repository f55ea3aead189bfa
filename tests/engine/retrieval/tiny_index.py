"""The index of the tiny system, and its expected results."""

# Shapes: B queries, N passages

import numpy as np
import pytest
import torch

from realm_lab.engine.retrieval.retriever import Retriever
from tests.tiny_system import Reference, TinySystem


@pytest.fixture(scope="module")
def retriever(system: TinySystem) -> Retriever:
    """A retriever with a fresh index; tests leave it as it is."""
    return system.built_retriever()


@pytest.fixture(scope="module")
def queries(system: TinySystem) -> list[np.ndarray]:
    questions = system.corpus.questions("dev")
    return [questions.tokens[number] for number in range(0, 40, 5)]


@pytest.fixture(scope="module")
def scores_BN(reference: Reference, queries: list[np.ndarray]) -> np.ndarray:
    """f(x, z) of every passage, by transformers, float64."""
    document_ND = torch.stack([reference.document(row) for row in range(len(reference.passages))])
    return np.stack([(document_ND @ reference.query(query)).numpy() for query in queries])


def ranked(scores_BN: np.ndarray, allowed_BN: np.ndarray | None = None) -> np.ndarray:
    """Rows by score, best first; those that are not allowed at the end."""
    allowed = scores_BN if allowed_BN is None else np.where(allowed_BN, scores_BN, -np.inf)
    return np.argsort(-allowed, axis=1, kind="stable")
