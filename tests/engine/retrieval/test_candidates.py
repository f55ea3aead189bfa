"""The candidate policy against transformers in float64: the null document, trivial candidates, ranking again."""

# Shapes: B queries, K candidates, N passages

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from realm_lab.engine.models.realm import marginal_log_likelihood
from realm_lab.engine.retrieval.candidates import CandidatePolicy, Candidates, calibrate_null, initialise_null
from realm_lab.engine.retrieval.retriever import Retriever
from realm_lab.engine.retrieval.rows import ABSENT, NO_SCORE, NULL
from tests.engine.retrieval.tiny_index import ranked
from tests.factories.errors import refused
from tests.tiny_system import Reference, TinySystem

NULLS = [pytest.param(True, id="null"), pytest.param(False, id="no null")]


@torch.no_grad()
def retrieve(
    policy: CandidatePolicy, retriever: Retriever, queries: list[np.ndarray], origins: Any = None, **options: Any
) -> Candidates:
    exclude = None if origins is None else policy.exclusion(retriever, np.asarray(origins))
    return policy.retrieve(retriever, queries, exclude, **options)


def few(system: TinySystem, count: int) -> Retriever:
    """A retriever of the first passages."""

    class Few:
        titles = [system.passages.titles[row] for row in range(count)]  # noqa: RUF012
        bodies = [system.passages.bodies[row] for row in range(count)]  # noqa: RUF012
        articles = np.asarray(system.passages.articles[:count])

        def __len__(self) -> int:
            return count

    retriever = system._replace(passages=Few()).retriever()  # type: ignore[arg-type]
    retriever.refresh(0)
    return retriever


def test_more_candidates_than_passages_are_refused() -> None:
    for fits, over in (
        (CandidatePolicy(10), CandidatePolicy(11)),
        (CandidatePolicy(10, null=False, exclude_trivial="off"), CandidatePolicy(10, null=False)),
    ):
        fits.check(10)
        with refused("'pretrain.candidates' is 1", "10 passages"):
            over.check(10)


@pytest.mark.parametrize("null", NULLS)
def test_candidates_are_the_best_passages_and_the_null_document(
    retriever: Retriever, queries: list[np.ndarray], scores_BN: np.ndarray, reference: Reference, null: bool
) -> None:
    found = retrieve(CandidatePolicy(6, null), retriever, queries)
    assert found.rows_BK.shape == (len(queries), 6)
    assert (found.rows_BK[:, 0] == NULL).all() == null
    np.testing.assert_array_equal(found.rows_BK[:, int(null) :], ranked(scores_BN)[:, : 6 - null])
    score_B0 = [(reference.query(query) @ reference.document(NULL)).item() for query in queries]
    score_BK = np.take_along_axis(scores_BN, ranked(scores_BN)[:, : 6 - null], axis=1)
    expected = np.concatenate([np.array(score_B0)[:, None], score_BK], axis=1) if null else score_BK
    np.testing.assert_allclose(found.score_BK.numpy(), expected, atol=1e-4)
    torch.testing.assert_close(found.log_prior_BK, found.score_BK.log_softmax(1))


def test_a_null_document_that_is_no_candidate_is_read_without_a_share(
    retriever: Retriever, queries: list[np.ndarray]
) -> None:
    """The fault of `fill`, once: with `null_document: off` an untrained null document had a share of p(z|x)."""
    without = retrieve(CandidatePolicy(4, null=False), retriever, queries)
    compared = retrieve(CandidatePolicy(4, null=False), retriever, queries, compare_null=True)
    assert (compared.rows_BK[:, 0] == NULL).all()
    np.testing.assert_array_equal(compared.rows_BK[:, 1:], without.rows_BK)
    assert not compared.log_prior_BK[:, 0].exp().any()
    torch.testing.assert_close(compared.log_prior_BK[:, 1:], without.log_prior_BK)
    again = retrieve(CandidatePolicy(4), retriever, queries, compare_null=True)  # a candidate keeps its share
    assert again.log_prior_BK[:, 0].exp().all()


@pytest.mark.parametrize("exclude", ["off", "passage", "article"])
@pytest.mark.parametrize("null", NULLS)
def test_the_trivial_candidate_is_never_returned(
    retriever: Retriever, queries: list[np.ndarray], scores_BN: np.ndarray, exclude: str, null: bool
) -> None:
    trivial = ranked(scores_BN)[:, 0]  # the first passage of each query
    trivial[2] = -1  # a query from another corpus: nothing is forbidden
    articles = np.asarray(retriever.passages.articles)
    allowed_BN = np.arange(len(articles))[None] != trivial[:, None]
    if exclude == "article":
        allowed_BN = (articles[None] != articles[trivial][:, None]) | (trivial[:, None] < 0)
    policy = CandidatePolicy(9, null, exclude)
    rows_BK = retrieve(policy, retriever, queries, trivial).rows_BK[:, int(null) :]
    expected = ranked(scores_BN, None if exclude == "off" else allowed_BN)[:, : 9 - null]
    np.testing.assert_array_equal(rows_BK, expected)
    # Measurements leave the origin out even if training does not.
    kept_out = policy.exclusion(retriever, trivial, always=True)
    with torch.no_grad():
        rows_BK = policy.retrieve(retriever, queries, kept_out).rows_BK[:, int(null) :]
    np.testing.assert_array_equal(rows_BK, ranked(scores_BN, allowed_BN)[:, : 9 - null])


def test_further_rows_can_be_forbidden(retriever: Retriever, queries: list[np.ndarray], scores_BN: np.ndarray) -> None:
    order_BN = ranked(scores_BN)
    forbidden = [order_BN[number, :number].tolist() for number in range(len(queries))]
    rows_BK = retrieve(CandidatePolicy(5), retriever, queries, forbidden=forbidden).rows_BK
    for number, rows in enumerate(rows_BK):
        assert rows.tolist() == [NULL, *order_BN[number, number : number + 4]]


@pytest.mark.parametrize(("count", "exclude", "left"), [(5, "passage", [0, 1, 2, 4]), (10, "article", [8, 9])])
def test_where_too_few_passages_are_left_places_are_absent_and_get_no_mass(
    system: TinySystem, queries: list[np.ndarray], count: int, exclude: str, left: list[int]
) -> None:
    retriever = few(system, count)
    retriever.null_offset = -40.0  # however small the null document's own score is
    policy = CandidatePolicy(12, True, exclude)
    found = retrieve(policy, retriever, queries, np.full(len(queries), 3))
    for rows in found.rows_BK.tolist():
        assert rows[0] == NULL
        assert sorted(rows[1 : 1 + len(left)]) == left
        assert rows[1 + len(left) :] == [ABSENT] * (11 - len(left))
    absent_BK = torch.from_numpy(found.rows_BK == ABSENT)
    assert (found.score_BK[absent_BK] == NO_SCORE).all()
    assert not found.log_prior_BK.exp()[absent_BK].any()
    log_reader_BK = torch.full_like(found.log_prior_BK, -3.0).masked_fill(absent_BK, 0.0)  # p(y|z,x) = 1
    torch.testing.assert_close(marginal_log_likelihood(found.log_prior_BK, log_reader_BK), torch.full((8,), -3.0))


@pytest.mark.parametrize("by_trivial", [False, True])
@pytest.mark.parametrize("learned", [False, True])
def test_calibration_gives_the_null_document_its_share(
    system: TinySystem, queries: list[np.ndarray], scores_BN: np.ndarray, by_trivial: bool, learned: bool
) -> None:
    embedder = copy.deepcopy(system.embedder)
    if learned:
        vector_D = torch.randn(embedder.document_projection.out_features, generator=torch.Generator().manual_seed(5))
        embedder.null_vector = nn.Parameter(20 * vector_D)  # far from the passages
    retriever = system.retriever(embedder)
    retriever.refresh(0)
    retriever.null_offset = 99.0  # of an earlier calibration
    policy = CandidatePolicy(6)
    exclude = policy.exclusion(retriever, ranked(scores_BN)[:, 0]) if by_trivial else None
    assert calibrate_null(retriever, policy, queries, exclude) == retriever.null_offset
    with torch.no_grad():
        prior_BK = policy.retrieve(retriever, queries, exclude).log_prior_BK.exp()
    assert prior_BK[:, 0].mean().item() == pytest.approx(1 / 6, abs=1e-4)
    alone = replace(policy, count=2)  # one passage: the null document gets half
    calibrate_null(retriever, alone, queries, exclude)
    with torch.no_grad():
        assert alone.retrieve(retriever, queries, exclude).log_prior_BK.exp()[:, 0].mean().item() == pytest.approx(0.5)


def test_a_learned_null_document_starts_at_the_mean_score_of_the_top(
    system: TinySystem, queries: list[np.ndarray], scores_BN: np.ndarray
) -> None:
    embedder = copy.deepcopy(system.embedder)
    embedder.set_learned_null(True)
    retriever, policy = system.retriever(embedder), CandidatePolicy(6)
    retriever.refresh(0)
    initialise_null(retriever, policy, queries, None)
    with torch.no_grad():
        found = policy.retrieve(retriever, queries)
    top = np.take_along_axis(scores_BN, ranked(scores_BN)[:, :5], axis=1).mean()
    assert found.score_BK[:, 0].mean().item() == pytest.approx(top, abs=1e-4)
    assert found.log_prior_BK[:, 0].exp().mean().item() > 0.01
    assert embedder.null_vector is not None
    assert embedder.null_vector.requires_grad
