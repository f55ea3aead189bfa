"""Candidates: the null document, the trivial candidate, stale search and fresh scores."""

from __future__ import annotations

import copy
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from realm_lab.errors import UserError
from realm_lab.models.embedder import Embedder
from realm_lab.models.inputs import Batch
from realm_lab.models.realm import candidate_log_probs, marginal_log_likelihood
from realm_lab.retrieval.retriever import ABSENT, NULL, Retriever

if TYPE_CHECKING:
    from tests.tiny_system import Reference, TinySystem

# Shapes: B queries, K candidates, L candidates before the ranking, N passages, D embedding size


@pytest.fixture(scope="module")
def retriever(system: TinySystem) -> Retriever:
    """A retriever with a fresh index; tests leave it as it is."""
    return system.built_retriever()


@pytest.fixture(scope="module")
def queries(system: TinySystem) -> list[np.ndarray]:
    """Questions of the toy world."""
    questions = system.corpus.questions("dev")
    return [questions.tokens[number] for number in range(0, 40, 5)]


@pytest.fixture(scope="module")
def scores_BN(reference: Reference, queries: list[np.ndarray]) -> np.ndarray:
    """f(x, z) of every passage, by transformers, float64."""
    document_ND = torch.stack([reference.document(row) for row in range(len(reference.passages))])
    return np.stack([(document_ND @ reference.query(query)).numpy() for query in queries])


def ranked(scores_BN: np.ndarray, allowed_BN: np.ndarray | None = None) -> np.ndarray:
    allowed = scores_BN if allowed_BN is None else np.where(allowed_BN, scores_BN, -np.inf)
    return np.argsort(-allowed, axis=1, kind="stable")


def find(retriever: Retriever, queries: list[np.ndarray], count: int, **options: bool | np.ndarray) -> np.ndarray:
    with torch.no_grad():
        query_BD = retriever.search_queries(queries)
    return retriever.find(query_BD, count, **{"null": False, **options})  # type: ignore[arg-type]


def test_candidates_are_the_passages_of_largest_inner_product(
    retriever: Retriever, queries: list[np.ndarray], scores_BN: np.ndarray
) -> None:
    np.testing.assert_array_equal(find(retriever, queries, 6), ranked(scores_BN)[:, :6])


def test_the_null_document_comes_first_and_takes_one_place(
    retriever: Retriever, queries: list[np.ndarray], scores_BN: np.ndarray
) -> None:
    rows_BK = find(retriever, queries, 6, null=True)
    assert rows_BK.shape == (len(queries), 6)
    assert (rows_BK[:, 0] == NULL).all()
    np.testing.assert_array_equal(rows_BK[:, 1:], ranked(scores_BN)[:, :5])


@pytest.mark.parametrize("by_article", [False, True])
@pytest.mark.parametrize("null", [False, True])
def test_the_trivial_candidate_is_never_returned(
    retriever: Retriever, queries: list[np.ndarray], scores_BN: np.ndarray, by_article: bool, null: bool
) -> None:
    trivial = ranked(scores_BN)[:, 0]  # what each query would find first
    trivial[2] = -1  # a query from another corpus: nothing is forbidden
    articles = np.asarray(retriever.passages.articles)
    everything = np.arange(len(articles))
    allowed_BN = everything[None] != trivial[:, None]
    if by_article:
        allowed_BN = (articles[None] != articles[trivial][:, None]) | (trivial[:, None] < 0)
    rows_BK = find(retriever, queries, 9, null=null, trivial=trivial, by_article=by_article)
    np.testing.assert_array_equal(rows_BK[:, int(null) :], ranked(scores_BN, allowed_BN)[:, : 9 - int(null)])
    assert rows_BK[2, int(null)] == ranked(scores_BN)[2, 0]
    assert not (rows_BK == trivial[:, None])[np.arange(len(queries)) != 2].any()


class FewPassages:
    """The first passages of a corpus."""

    def __init__(self, passages, count: int):  # type: ignore[no-untyped-def]
        self.titles = [passages.titles[row] for row in range(count)]
        self.bodies = [passages.bodies[row] for row in range(count)]
        self.articles = np.asarray(passages.articles[:count])

    def __len__(self) -> int:
        return len(self.bodies)


def few(system: TinySystem, count: int) -> Retriever:
    passages = FewPassages(system.passages, count)
    retriever = system._replace(passages=passages).retriever()  # type: ignore[arg-type]
    retriever.refresh(0)
    return retriever


@pytest.mark.parametrize(("count", "by_article", "left"), [(5, False, [0, 1, 2, 4]), (10, True, [8, 9]), (8, True, [])])
def test_where_too_few_passages_are_left_places_are_absent_and_get_no_mass(
    system: TinySystem, queries: list[np.ndarray], count: int, by_article: bool, left: list[int]
) -> None:
    retriever = few(system, count)
    assert retriever.passages.articles.tolist() == [row // 8 for row in range(count)]
    trivial = np.full(len(queries), 3)
    rows_BK = find(retriever, queries, 12, null=True, trivial=trivial, by_article=by_article)
    for rows in rows_BK.tolist():
        assert rows[0] == NULL
        assert sorted(rows[1 : 1 + len(left)]) == left
        assert rows[1 + len(left) :] == [ABSENT] * (11 - len(left))
    retriever.null_offset = -40.0  # however small the null document's own score is
    with torch.no_grad():
        score_BK = retriever.score(retriever.embed_queries(queries), rows_BK)
        log_prior_BK = candidate_log_probs(score_BK)
    absent_BK = torch.from_numpy(rows_BK == ABSENT)
    assert (score_BK[absent_BK] == -1e4).all()
    assert not log_prior_BK.exp()[absent_BK].any()
    log_reader_BK = torch.full_like(log_prior_BK, -3.0).masked_fill(absent_BK, 0.0)  # absent ones would know it all
    torch.testing.assert_close(marginal_log_likelihood(log_prior_BK, log_reader_BK), torch.full((8,), -3.0))


def test_absent_places_get_no_gradient(system: TinySystem, queries: list[np.ndarray]) -> None:
    retriever = few(system, 3)
    query_BD = retriever.embed_queries(queries[:2]).detach().requires_grad_()
    rows_BK = retriever.find(query_BD, 5, null=False)
    assert (rows_BK == ABSENT).sum(1).tolist() == [2, 2]
    score_BK = retriever.score(query_BD, rows_BK)
    (gradient_BD,) = torch.autograd.grad(score_BK[:, 3:].sum(), query_BD)
    assert not gradient_BD.any()


def test_scores_use_the_current_weights_of_both_towers(
    retriever: Retriever, queries: list[np.ndarray], reference: Reference
) -> None:
    rows_BK = np.array([[NULL, 4, 200], [4, 4, 17]])
    score_BK = retriever.score(retriever.embed_queries(queries[:2]), rows_BK)
    for (b, k), row in np.ndenumerate(rows_BK):
        expected = (reference.query(queries[b]) @ reference.document(int(row))).item()
        assert score_BK[b, k].item() == pytest.approx(expected, abs=1e-4)
    embedder = retriever.embedder
    towers = (embedder.query_encoder, embedder.document_encoder)
    reached = [tower.word_embeddings.weight for tower in towers]
    reached += [embedder.query_projection.weight, embedder.document_projection.weight]
    for gradient in torch.autograd.grad(score_BK[0, 2], reached):
        assert gradient.abs().max() > 0


def test_each_distinct_document_is_embedded_once(
    retriever: Retriever, queries: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded: list[tuple[int, ...]] = []
    original = Embedder.embed_documents

    def watched(self: Embedder, batch: Batch) -> Tensor:
        embedded.extend(
            tuple(tokens[mask].tolist()) for tokens, mask in zip(batch.tokens_BL, batch.mask_BL, strict=True)
        )
        return original(self, batch)

    monkeypatch.setattr(Embedder, "embed_documents", watched)
    rows_BK = np.array([[NULL, 4, 7], [NULL, 7, 9], [NULL, 7, ABSENT]])
    with torch.no_grad():
        retriever.score(retriever.embed_queries(queries[:3]), rows_BK)
    assert len(embedded) == len(set(embedded)) == 4  # the null document, 4, 7, 9


def test_the_null_offset_shifts_the_null_document_alone(system: TinySystem, queries: list[np.ndarray]) -> None:
    retriever = system.built_retriever()
    rows_BK = find(retriever, queries, 4, null=True)
    rows_BK[:, 2] = 0
    with torch.no_grad():
        query_BD = retriever.embed_queries(queries)
        before_BK = retriever.score(query_BD, rows_BK)
        retriever.null_offset = 2.5
        shift_BK = retriever.score(query_BD, rows_BK) - before_BK
    torch.testing.assert_close(shift_BK[:, 0], torch.full((len(queries),), 2.5), atol=1e-5, rtol=0)
    assert not shift_BK[:, 1:].any()


@pytest.mark.parametrize("by_trivial", [False, True])
def test_calibration_puts_the_null_document_at_the_mean_of_the_top(
    system: TinySystem, queries: list[np.ndarray], scores_BN: np.ndarray, by_trivial: bool
) -> None:
    retriever = system.built_retriever()
    retriever.null_offset = 99.0  # of an earlier calibration
    trivial = ranked(scores_BN)[:, 0] if by_trivial else None
    offset = retriever.calibrate_null(queries, 6, trivial)
    assert offset == retriever.null_offset
    rows_BK = find(retriever, queries, 6, null=True, **({} if trivial is None else {"trivial": trivial}))
    with torch.no_grad():
        score_BK = retriever.score(retriever.embed_queries(queries), rows_BK)
    assert score_BK[:, 0].mean().item() == pytest.approx(score_BK[:, 1:].mean().item(), abs=1e-4)
    first = int(by_trivial)
    top = np.take_along_axis(scores_BN, ranked(scores_BN)[:, first : 5 + first], axis=1).mean()
    assert score_BK[:, 1:].mean().item() == pytest.approx(top, abs=1e-4)


def test_calibration_takes_no_notice_of_absent_places(system: TinySystem, queries: list[np.ndarray]) -> None:
    exact, short = few(system, 5), few(system, 5)
    assert short.calibrate_null(queries, 9, None) == pytest.approx(exact.calibrate_null(queries, 6, None), abs=1e-4)


def learned(system: TinySystem) -> tuple[Retriever, Embedder, nn.Parameter]:
    """A retriever whose null document is a learned vector."""
    embedder = copy.deepcopy(system.embedder)
    size = embedder.document_projection.out_features
    vector_D = nn.Parameter(torch.randn(size, generator=torch.Generator().manual_seed(5)))
    embedder.null_vector = vector_D
    retriever = system.retriever(embedder=embedder)
    retriever.refresh(0)
    return retriever, embedder, vector_D


def test_a_learned_null_document_is_its_vector_and_the_others_stay(
    system: TinySystem, retriever: Retriever, queries: list[np.ndarray]
) -> None:
    learning, _, vector_D = learned(system)
    rows_BK = np.array([[NULL, 4, ABSENT], [NULL, 200, 17]])
    with torch.no_grad():
        query_BD = learning.embed_queries(queries[:2])
        score_BK, encoded_BK = learning.score(query_BD, rows_BK), retriever.score(query_BD, rows_BK)
        learning.null_offset = 2.5
        shifted_BK = learning.score(query_BD, rows_BK)
        only_BK = learning.score(query_BD, rows_BK[:, :1])
    torch.testing.assert_close(score_BK[:, 0], query_BD @ vector_D)
    torch.testing.assert_close(shifted_BK[:, 0], score_BK[:, 0] + 2.5)
    torch.testing.assert_close(only_BK[:, 0], shifted_BK[:, 0])  # a batch without a passage
    assert (score_BK[:, 0] - encoded_BK[:, 0]).abs().min() > 1e-2
    torch.testing.assert_close(score_BK[:, 1:], encoded_BK[:, 1:], atol=1e-5, rtol=0)


def test_a_learned_null_document_gets_the_gradient_of_its_column(system: TinySystem, queries: list[np.ndarray]) -> None:
    retriever, embedder, vector_D = learned(system)
    query_BD = retriever.embed_queries(queries[:3]).detach()
    score_BK = retriever.score(query_BD, np.array([[NULL, 4], [NULL, 9], [NULL, ABSENT]]))
    (gradient_D,) = torch.autograd.grad(score_BK[:, 0].sum(), vector_D, retain_graph=True)
    torch.testing.assert_close(gradient_D, query_BD.sum(0))
    matrix = embedder.document_projection.weight  # the document tower has no part in it
    from_null, from_passages = (
        torch.autograd.grad(score_BK[:, column].sum(), [matrix, vector_D], retain_graph=True) for column in (0, 1)
    )
    assert not from_null[0].any()
    assert from_passages[0].any()
    assert not from_passages[1].any()


def test_no_empty_text_is_embedded_where_the_null_document_is_learned(
    system: TinySystem, queries: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[int] = []
    original = Embedder.embed_documents

    def watched(self: Embedder, batch: Batch) -> Tensor:
        lengths.extend(batch.mask_BL.sum(1).tolist())
        return original(self, batch)

    monkeypatch.setattr(Embedder, "embed_documents", watched)
    rows_BK = np.array([[NULL, 4, ABSENT]])
    for (retriever, *_), expected in ((learned(system), 1), ((system.built_retriever(),), 2)):
        lengths.clear()
        with torch.no_grad():
            retriever.score(retriever.embed_queries(queries[:1]), rows_BK)
        assert len(lengths) == expected
        assert (min(lengths) == 3) == (expected == 2)  # [CLS][SEP][SEP]


def test_a_learned_null_document_can_be_calibrated(system: TinySystem, queries: list[np.ndarray]) -> None:
    retriever, _, vector_D = learned(system)
    retriever.calibrate_null(queries, 6, None)
    rows_BK = find(retriever, queries, 6, null=True)
    with torch.no_grad():
        query_BD = retriever.embed_queries(queries)
        top = retriever.score(query_BD, rows_BK[:, 1:]).mean().item()
        assert (query_BD @ vector_D).mean().item() + retriever.null_offset == pytest.approx(top, abs=1e-4)


def changed(system: TinySystem, tiny: ModuleType, search_query: str) -> tuple[Retriever, Embedder]:
    """A retriever whose weights moved on after the index was built, and the weights behind the index."""
    embedder = copy.deepcopy(system.embedder)
    retriever = system.retriever(search_query, embedder)
    retriever.refresh(3)
    tiny.scramble(embedder, seed=8)
    return retriever, system.embedder


def test_stale_search_asks_with_the_weights_behind_the_index(
    system: TinySystem, tiny: ModuleType, queries: list[np.ndarray], scores_BN: np.ndarray
) -> None:
    retriever, old = changed(system, tiny, "stale")
    with torch.no_grad():
        assert torch.equal(retriever.search_queries(queries), retriever.embed_queries(queries, old))
    np.testing.assert_array_equal(find(retriever, queries, 5), ranked(scores_BN)[:, :5])
    assert retriever.snapshot is not None
    assert not retriever.snapshot.training
    assert not any(parameter.requires_grad for parameter in retriever.snapshot.parameters())
    assert all(parameter.requires_grad for parameter in retriever.embedder.parameters())


def test_fresh_search_asks_an_old_index_with_the_current_weights(
    system: TinySystem, tiny: ModuleType, queries: list[np.ndarray]
) -> None:
    retriever, old = changed(system, tiny, "fresh")
    with torch.no_grad():
        search_BD = retriever.search_queries(queries)
        assert torch.equal(search_BD, retriever.embed_queries(queries))
        assert not torch.allclose(search_BD, retriever.embed_queries(queries, old))
        assert retriever.index is not None
        expected_BK = (search_BD @ retriever.index.embeddings_ND.T).argsort(dim=1, descending=True)[:, :5]
    np.testing.assert_array_equal(find(retriever, queries, 5), expected_BK.numpy())


def test_a_refresh_ends_the_staleness(system: TinySystem, tiny: ModuleType, queries: list[np.ndarray]) -> None:
    retriever, _ = changed(system, tiny, "stale")
    assert retriever.index is not None
    before_ND = retriever.index.embeddings_ND
    assert retriever.index.step == 3
    retriever.refresh(9)
    assert retriever.index.step == 9
    assert not torch.allclose(retriever.index.embeddings_ND, before_ND)
    with torch.no_grad():
        assert torch.equal(retriever.search_queries(queries), retriever.embed_queries(queries))


def current_scores(system: TinySystem, embedder: Embedder, queries: list[np.ndarray]) -> np.ndarray:
    """f(x, z) of every passage of the corpus with these weights, float32 [B, N]."""
    retriever = system.retriever(embedder=embedder)
    retriever.refresh(0)
    assert retriever.index is not None
    with torch.no_grad():
        return (retriever.embed_queries(queries) @ retriever.index.embeddings_ND.T).numpy()


@pytest.mark.parametrize("search_query", ["stale", "fresh"])
@pytest.mark.parametrize("null", [False, True])
@pytest.mark.parametrize("found", [5, 30, 320])
def test_what_an_old_index_found_is_ranked_by_the_current_weights(
    system: TinySystem, tiny: ModuleType, queries: list[np.ndarray], search_query: str, null: bool, found: int
) -> None:
    retriever, _ = changed(system, tiny, search_query)
    places = 5 + int(null)
    rows_BL = find(retriever, queries, found + int(null), null=null)
    with torch.no_grad():
        rows_BK = retriever.rerank(retriever.embed_queries(queries), rows_BL, places)
    assert rows_BK.shape == (len(queries), places)
    scores_BN = current_scores(system, retriever.embedder, queries)
    for rows, among, scores in zip(rows_BK, rows_BL, scores_BN, strict=True):
        assert rows[: int(null)].tolist() == [NULL] * int(null)
        best = sorted(among[int(null) :].tolist(), key=lambda row: -scores[row])[:5]
        assert rows[int(null) :].tolist() == best
    first = slice(int(null), places)
    assert (rows_BK[:, first] != rows_BL[:, first]).any()  # the old order is another
    if found == len(system.passages):  # no passage was left out: as if the index were fresh
        np.testing.assert_array_equal(rows_BK[:, first], ranked(scores_BN)[:, :5])


@pytest.mark.parametrize(("count", "by_article", "left"), [(5, False, [0, 1, 2, 4]), (10, True, [8, 9]), (8, True, [])])
def test_ranking_again_brings_no_trivial_candidate_back_and_keeps_absent_places_last(
    system: TinySystem, queries: list[np.ndarray], count: int, by_article: bool, left: list[int]
) -> None:
    retriever = few(system, count)
    trivial = np.full(len(queries), 3)
    rows_BL = find(retriever, queries, 12, null=True, trivial=trivial, by_article=by_article)
    with torch.no_grad():
        query_BD = 1e6 * retriever.embed_queries(queries)  # some passages score less than absent places do
        assert not left or retriever.score(query_BD, rows_BL).min() < -1e4
        rows_BK = retriever.rerank(query_BD, rows_BL, 7)
    for rows in rows_BK.tolist():
        assert rows[0] == NULL
        assert sorted(rows[1 : 1 + len(left)]) == left
        assert rows[1 + len(left) :] == [ABSENT] * (6 - len(left))


def test_equal_scores_are_ranked_by_row(system: TinySystem, queries: list[np.ndarray]) -> None:
    embedder = copy.deepcopy(system.embedder)
    torch.nn.init.zeros_(embedder.document_projection.weight)
    retriever = system.retriever(embedder=embedder)
    with torch.no_grad():
        query_BD = retriever.embed_queries(queries[:2])
    rows_BL = np.array([[NULL, 30, 7, 200, 4], [NULL, 9, 8, ABSENT, ABSENT]])
    assert retriever.rerank(query_BD, rows_BL, 4).tolist() == [[NULL, 4, 7, 30], [NULL, 8, 9, ABSENT]]


def test_ranking_again_takes_no_gradient_and_no_dropout(
    system: TinySystem, tiny: ModuleType, queries: list[np.ndarray]
) -> None:
    dropping = tiny.build_system(system.corpus, model={"dropout": 0.5})
    retriever = dropping.built_retriever()
    with torch.no_grad():
        query_BD = retriever.embed_queries(queries)
    expected = retriever.rerank(query_BD, find(retriever, queries, 40), 20)
    retriever.embedder.train()
    before = torch.get_rng_state()
    rows_BL = retriever.find(query_BD, 40, null=False)
    assert retriever.rerank(query_BD.requires_grad_(), rows_BL, 20).tolist() == expected.tolist()
    assert torch.equal(torch.get_rng_state(), before)
    assert retriever.embedder.training
    assert all(parameter.grad is None for parameter in retriever.embedder.parameters())


def test_indexed_scores_are_the_scores_while_the_index_is_fresh(
    system: TinySystem, tiny: ModuleType, queries: list[np.ndarray]
) -> None:
    retriever = system.retriever(embedder=copy.deepcopy(system.embedder))
    retriever.refresh(0)
    rows_BK = find(retriever, queries, 5)
    rows_BK[1, 4] = ABSENT
    with torch.no_grad():
        query_BD = retriever.embed_queries(queries)
        indexed_BK = retriever.indexed_score(query_BD, rows_BK)
        torch.testing.assert_close(indexed_BK, retriever.score(query_BD, rows_BK), atol=1e-4, rtol=0)
        assert indexed_BK[1, 4] == -1e4
        tiny.scramble(retriever.embedder.document_encoder, seed=8)
        assert torch.equal(retriever.indexed_score(query_BD, rows_BK), indexed_BK)  # frozen documents
        assert (retriever.score(query_BD, rows_BK) - indexed_BK).abs().max() > 1e-2


def test_indexed_scores_train_the_query_tower_alone(retriever: Retriever, queries: list[np.ndarray]) -> None:
    rows_BK = find(retriever, queries, 3)
    score_BK = retriever.indexed_score(retriever.embed_queries(queries), rows_BK)
    named = dict(retriever.embedder.named_parameters())
    gradients = torch.autograd.grad(score_BK.sum(), list(named.values()), allow_unused=True)
    reached = {name for name, gradient in zip(named, gradients, strict=True) if gradient is not None}
    assert {name.split(".")[0] for name in reached} == {"query_encoder", "query_projection"}


def test_indexed_scores_refuse_the_null_document(retriever: Retriever, queries: list[np.ndarray]) -> None:
    rows_BK = find(retriever, queries, 3, null=True)
    with torch.no_grad(), pytest.raises(AssertionError, match="the null document is not in the index"):
        retriever.indexed_score(retriever.embed_queries(queries), rows_BK)


def test_an_index_of_another_corpus_is_refused(system: TinySystem, retriever: Retriever) -> None:
    assert retriever.index is not None
    other = system.retriever()
    with pytest.raises(UserError, match="build the index again"):
        other.adopt(retriever.index._replace(corpus_digest="another"), None)
    with pytest.raises(UserError, match="build the index again"):
        other.adopt(retriever.index._replace(embeddings_ND=retriever.index.embeddings_ND[:-1]), None)
    assert other.index is None
    other.adopt(retriever.index, None)
    assert other.index is retriever.index


def test_an_index_is_never_searched_before_it_is_built(system: TinySystem, queries: list[np.ndarray]) -> None:
    with pytest.raises(AssertionError, match="before the index was built"):
        find(system.retriever(), queries, 3)


def test_long_queries_are_cut(system: TinySystem, retriever: Retriever, reference: Reference) -> None:
    query = np.asarray(system.passages.bodies[0][:10]).repeat(5)
    with torch.no_grad():
        (vector_D,) = retriever.embed_queries([query])
    torch.testing.assert_close(vector_D.double(), reference.query(query[: 26 - 2]), atol=1e-5, rtol=0)
