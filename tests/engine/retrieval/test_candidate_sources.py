"""Candidate sources: their rows against a brute-force choice, and training with them."""

# Shapes: B queries, K candidates, N passages, U passages of the batch

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from realm_lab.engine.core.seeding import numpy_generator
from realm_lab.engine.params.parameters import Pretrain
from realm_lab.engine.retrieval.candidate_sources import CandidateSource, PassageSearch, QueryBatch
from realm_lab.engine.retrieval.candidates import CandidatePolicy
from realm_lab.engine.retrieval.retriever import Retriever
from realm_lab.engine.retrieval.rows import ABSENT
from tests import tiny
from tests.engine.retrieval.tiny_index import ranked
from tests.factories.errors import refused

GOLD = 3


def found(
    source: Any, retriever: Retriever, queries: list[np.ndarray], count: int, origin: int = -1, first: int = 0
) -> np.ndarray:
    """Rows that a source finds for queries numbered from `first` on; every other passage is in the batch."""
    batch = QueryBatch(
        np.arange(0, len(retriever.passages), 2),
        np.full(len(queries), GOLD),
        lambda number: numpy_generator(7, "test", first + number),
    )
    settings = Pretrain(candidate_source=source, candidates=count + 1)
    exclude = CandidatePolicy(count).exclusion(retriever, np.full(len(queries), origin))
    with torch.no_grad():
        search = PassageSearch(retriever, queries, retriever.embed_queries(queries), count, exclude)
        return CandidateSource(settings).of(batch)(search)


def test_the_batch_gives_its_best_passages(
    retriever: Retriever, queries: list[np.ndarray], scores_BN: np.ndarray
) -> None:
    own = 2
    scores_BN = scores_BN.copy()
    scores_BN[:, 1::2] = -np.inf
    scores_BN[:, own] = -np.inf
    rows_BK = found("batch", retriever, queries, 3, own)
    np.testing.assert_array_equal(rows_BK, ranked(scores_BN)[:, :3])


def test_random_passages_are_the_same_however_the_batch_is_split(
    retriever: Retriever, queries: list[np.ndarray]
) -> None:
    own, everyone = 1, len(retriever.passages)
    rows_BK = found("random", retriever, queries, everyone - 1, own)
    expected = sorted(set(range(everyone)) - {own})
    assert [sorted(row_K) for row_K in rows_BK.tolist()] == [expected] * len(queries)
    assert len({tuple(row_K) for row_K in rows_BK.tolist()}) == len(queries)
    np.testing.assert_array_equal(found("random", retriever, queries[1:], everyone - 1, own, first=1), rows_BK[1:])
    missing_BK = found("random", retriever, queries, everyone, own)  # more than there are
    assert (missing_BK[:, -1] == ABSENT).all()
    np.testing.assert_array_equal(missing_BK[:, :-1], rows_BK)


def test_an_oracle_finds_the_gold_passage_once_unless_forbidden(
    retriever: Retriever, queries: list[np.ndarray]
) -> None:
    everyone = len(retriever.passages)
    rows_BK = found("oracle", retriever, queries, everyone)
    assert (rows_BK[:, 0] == GOLD).all()
    assert all(sorted(row_K) == list(range(everyone)) for row_K in rows_BK.tolist())
    assert not (found("oracle", retriever, queries, everyone, origin=GOLD) == GOLD).any()


def test_mixed_sources_repeat_none(retriever: Retriever, queries: list[np.ndarray], scores_BN: np.ndarray) -> None:
    of_batch_BN = scores_BN.copy()
    of_batch_BN[:, 1::2] = -np.inf
    rows_BK = found({"name": "mixed", "index": 2, "batch": 2, "random": 1}, retriever, queries, 5)
    for row_K, of_index_N, of_batch_N in zip(rows_BK.tolist(), ranked(scores_BN), ranked(of_batch_BN), strict=True):
        first = of_index_N[:2].tolist()
        assert row_K[:4] == first + [row for row in of_batch_N if row not in first][:2]
        assert len({*row_K}) == 5


def test_mixed_sources_need_no_batch_that_they_do_not_ask(retriever: Retriever, queries: list[np.ndarray]) -> None:
    source = CandidateSource(Pretrain(candidate_source={"name": "mixed", "index": 2, "random": 1}, candidates=4))
    batch = QueryBatch(np.empty(0, np.int64), np.full(len(queries), -1), lambda number: numpy_generator(7, number))
    with torch.no_grad():
        rows_BK = source.of(batch)(PassageSearch(retriever, queries, retriever.embed_queries(queries), 3, None))
    assert (rows_BK >= 0).all()


def forbidden_too(search: PassageSearch, batch: QueryBatch) -> np.ndarray:
    return np.tile(np.arange(3), (len(search.queries), 1))


def repeated(search: PassageSearch, batch: QueryBatch) -> np.ndarray:
    return np.tile([2, ABSENT, ABSENT, 2], (len(search.queries), 1))


def flat(search: PassageSearch, batch: QueryBatch) -> np.ndarray:
    return np.arange(3)


def test_custom_code_cannot_find_a_forbidden_row(retriever: Retriever, queries: list[np.ndarray]) -> None:
    rows_BK = found(f"{__name__}:forbidden_too", retriever, queries, 4, origin=1)
    assert rows_BK.tolist() == [[0, ABSENT, 2, ABSENT]] * len(queries)
    with refused("'pretrain.candidate_source'", "flat' returned int64 [3]", "[4, at most 4]"):
        found(f"{__name__}:flat", retriever, queries[:4], 4)
    with refused("repeated' returned int64 [4, 4], with a row twice", "each once per query"):  # it would count twice
        found(f"{__name__}:repeated", retriever, queries[:4], 4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"candidate_source": "empty", "null_document": "off"}, "leaves only the null document"),
        ({"candidate_source": {"name": "mixed", "index": 3}}, "mixed has 3 passages, and 2 are read"),
        ({"candidate_source": {"name": "mixed", "index": 1, "oracle": 1}}, "no option 'oracle'"),
    ],
)
def test_a_source_that_contradicts_other_parameters_is_refused(changes: dict[str, Any], said: str) -> None:
    with refused(said):
        chosen = tiny.params({"pretrain.candidates": 3} | {f"pretrain.{name}": one for name, one in changes.items()})
        CandidateSource(chosen.pretrain)


def test_training_with_no_passage_is_training_without_retrieval(tmp_path: Path) -> None:
    """p(null|x) is 1, so the retriever has no gradient, and the loss is -log p(y|null,x)."""
    line = tiny.prepare(tiny.params(), tmp_path, "warm_start")
    chosen = {"pretrain.candidate_source": "empty", "pretrain.steps": 3, "pretrain.refresh.policy": "never"}
    rows = [row for row in tiny.metrics(tiny.run("pretrain", tiny.params(chosen), line)) if "loss" in row]
    assert [row["null_probability"] for row in rows] == [1.0] * 3
    assert [row["gradient_norm_retriever"] for row in rows] == [0.0] * 3
    assert all(row["gradient_norm_reader"] > 0 for row in rows)
    assert [row["retrieval_utility_train"] for row in rows] == [0.0] * 3
    assert [row["loss"] for row in rows] == pytest.approx([-row["marginal_log_likelihood"] for row in rows])
