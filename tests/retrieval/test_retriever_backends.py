"""A retriever with an approximate backend: of which index it is, what is searched exactly all the same."""

# Shapes: B queries, K candidates

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from realm_lab.retrieval.faiss_backends import FaissSearch, FaissSettings
from realm_lab.retrieval.retriever import ABSENT

if TYPE_CHECKING:
    from tests.tiny_system import TinySystem


def test_an_approximate_backend_is_of_the_index_in_use_and_can_be_passed_by(
    system: TinySystem,
) -> None:
    questions = system.corpus.questions("dev")
    queries = [questions.tokens[number] for number in range(0, 40, 5)]
    settings = FaissSettings({"nlist": 40, "nprobe": 1})
    retriever = system.retriever(copy.deepcopy(system.embedder), backend="ivf_flat", settings=settings)
    exact = system.retriever(retriever.embedder)
    recalls = []
    for step in range(3):
        scramble = torch.Generator().manual_seed(step)
        with torch.no_grad():
            for parameter in retriever.embedder.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=scramble))
        retriever.refresh(step)
        exact.refresh(step)
        assert retriever.index is not None
        query_BD = retriever.search_queries(queries)
        own = FaissSearch("ivf_flat", retriever.index.embeddings_ND, settings)  # of this generation
        found_BK = retriever.find(query_BD, 7)
        own_BK = own.search(query_BD, 7).rows_BK.numpy()
        np.testing.assert_array_equal(found_BK, np.where(own_BK < 0, ABSENT, own_BK))
        exactly_BK = exact.find(query_BD, 7)
        assert (found_BK != exactly_BK).any()
        np.testing.assert_array_equal(retriever.find(query_BD, 7, exactly=True), exactly_BK)
        recalls.append(retriever.search_recall_at_8)
    assert exact.search_recall_at_8 is None
    assert all(value is not None and 0 < value < 1 for value in recalls)
    assert len(set(recalls)) == 3

    backend = retriever._search
    assert retriever.index is not None
    retriever.adopt(retriever.index._replace(step=9))  # the same vectors: nothing to build
    assert retriever._search is backend
    other = retriever.searching_exactly()
    with pytest.raises(AssertionError, match="before the index was built"):
        other.find(query_BD, 7)
    other.refresh(9)
    np.testing.assert_array_equal(other.find(query_BD, 7), exactly_BK)
    assert retriever._search is backend
