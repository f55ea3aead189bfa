"""Exact search against float64 enumeration, on vectors made to break it."""

import os
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from realm_lab.engine.retrieval import exact, reduced, search
from realm_lab.engine.retrieval.embeddings import EmbeddingStore, Identity
from realm_lab.engine.retrieval.exact import ExactSearch, PlainReading, Reading
from realm_lab.engine.retrieval.search import Exclusion, true_scores
from tests.factories.errors import refused

# Shapes: N passages, B queries, K results, n rows of a chunk, M pairs, D embedding size

ROWS, QUERIES, SIZE = 700, 6, 24
NEEDS_BYTES = pytest.mark.skipif(not reduced._sums_bytes_exactly(), reason="this processor cuts sums of bytes off")
BYTES = pytest.param(torch.int8, marks=NEEDS_BYTES, id="bytes")
REDUCED = pytest.mark.parametrize("kind", [BYTES, pytest.param(torch.bfloat16, id="bfloat16")])
KINDS = pytest.mark.parametrize(
    "kind", [BYTES, *(pytest.param(kind, id=str(kind)[6:]) for kind in (torch.bfloat16, torch.float32))]
)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def enumerated(
    embeddings_ND: Tensor, query_BD: Tensor, count: int, allowed_BN: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the best rows and scores by scoring all pairs in extended precision; -1 if none is left."""
    wide_ND, wide_BD = (part.double().numpy().astype(np.longdouble) for part in (embeddings_ND, query_BD))
    scores_BN = (wide_BD[:, None] * wide_ND[None]).sum(-1).astype(np.float32)
    if allowed_BN is not None:
        scores_BN[~allowed_BN] = -np.inf
    scores_BN = np.pad(scores_BN, ((0, 0), (0, max(0, count - scores_BN.shape[1]))), constant_values=-np.inf)
    rows_BK = np.stack([np.lexsort((np.arange(len(scores)), -scores)) for scores in scores_BN])[:, :count]
    scores_BK = np.take_along_axis(scores_BN, rows_BK, axis=1)
    return np.where(np.isneginf(scores_BK), -1, rows_BK), scores_BK


def ordinary() -> tuple[Tensor, Tensor]:
    return normal(ROWS, SIZE), normal(QUERIES, SIZE, seed=1)


def tied() -> tuple[Tensor, Tensor]:
    """Small whole numbers: very many equal scores."""
    return normal(ROWS, SIZE).round().clamp(-1, 1)[:, :3], normal(QUERIES, 3, seed=1).round().clamp(-1, 1)


def duplicates() -> tuple[Tensor, Tensor]:
    return normal(7, SIZE).repeat(ROWS // 7, 1), normal(QUERIES, SIZE, seed=1)


def near_ties() -> tuple[Tensor, Tensor]:
    """Return rows that bfloat16 cannot distinguish (nor, often, a float32 sum)."""
    return normal(1, SIZE) * (1 + 1e-6 * normal(ROWS, SIZE, seed=2)), normal(QUERIES, SIZE, seed=1)


def far_from_the_origin() -> tuple[Tensor, Tensor]:
    """Collapsing towers: a large common part, small differences."""
    return 50 * normal(1, SIZE) + 0.01 * normal(ROWS, SIZE, seed=2), normal(QUERIES, SIZE, seed=1) + 20


def mixed_norms() -> tuple[Tensor, Tensor]:
    powers = torch.arange(ROWS).remainder(40).sub(20).float()
    factors = torch.logspace(-12, 12, QUERIES)
    return normal(ROWS, SIZE) * 10 ** powers[:, None], normal(QUERIES, SIZE, seed=1) * factors[:, None]


def below_the_normal_range() -> tuple[Tensor, Tensor]:
    return normal(ROWS, SIZE) * 1e-39, normal(QUERIES, SIZE, seed=1)


def zeros() -> tuple[Tensor, Tensor]:
    return torch.zeros(ROWS, SIZE), torch.cat([torch.zeros(1, SIZE), normal(QUERIES - 1, SIZE)])


def cancelling() -> tuple[Tensor, Tensor]:
    """Large products that cancel: float32 sums are wrong in every digit."""
    half_ND, half_BD = normal(ROWS, SIZE) * 1e4, normal(QUERIES, SIZE, seed=1)
    small = 1e-3 * normal(ROWS, SIZE, seed=3)
    return torch.cat([half_ND, half_ND + small], 1), torch.cat([half_BD, -half_BD], 1)


CASES = [
    ordinary, tied, duplicates, near_ties, far_from_the_origin, mixed_norms,
    below_the_normal_range, zeros, cancelling,
]  # fmt: skip


@pytest.fixture(params=[(1, 16), (5, 128), (1 << 10, 4)], ids=str)
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read about this many rows at once, in blocks of this size."""
    rows, block = request.param
    monkeypatch.setattr(exact, "CHUNK_SCORES", {"cpu": rows * QUERIES})
    monkeypatch.setattr(exact, "SMALL_BLOCK_ROWS", block)
    monkeypatch.setattr(reduced, "GROUP_ROWS", 6 * block)


def assert_same(found: search.SearchResult, expected: tuple[np.ndarray, np.ndarray]) -> None:
    np.testing.assert_array_equal(found.rows_BK.numpy(), expected[0])
    np.testing.assert_array_equal(found.scores_BK.numpy(), expected[1])


@pytest.mark.usefixtures("pieces")
@KINDS
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_the_result_is_that_of_scoring_every_row(case: Callable[[], tuple[Tensor, Tensor]], kind: torch.dtype) -> None:
    embeddings_ND, query_BD = case()
    backend = ExactSearch(embeddings_ND, kind)
    for count in (1, 8, 33):
        assert_same(backend.search(query_BD, count), enumerated(embeddings_ND, query_BD, count))


def watch_kinds(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """Record the number type of each chunk that is read from now on."""
    read: list[torch.dtype] = []
    plain, other = PlainReading.scores, reduced.ReducedReading.scores

    def watched_plain(self: PlainReading, *chunk: Any) -> search.Approximate:
        read.append(torch.float32)
        return plain(self, *chunk)

    def watched(self: reduced.ReducedReading, *chunk: Any) -> search.Approximate:
        read.append(self._copy.rows_ND.dtype)
        return other(self, *chunk)

    monkeypatch.setattr(PlainReading, "scores", watched_plain)
    monkeypatch.setattr(reduced.ReducedReading, "scores", watched)
    return read


def test_a_copy_is_made_of_large_matrices_where_that_is_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "SMALL_INDEX", ROWS)
    for kind in (torch.int8, torch.float32):
        monkeypatch.setattr(reduced, "fast_kind", lambda device, kind=kind: kind)
        assert (ExactSearch(normal(ROWS, SIZE))._copy is not None) == (kind == torch.int8)
    monkeypatch.setattr(reduced, "fast_kind", lambda device: torch.int8)
    assert ExactSearch(normal(ROWS - 1, SIZE))._copy is None


@pytest.mark.slow
def test_bytes_are_read_only_where_their_sums_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    command = (
        "import torch; from realm_lab.engine.retrieval.reduced import fast_kind; print(fast_kind(torch.device('cpu')))"
    )
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"}  # sums of two products are cut off at 16 bits there
    old = subprocess.run([sys.executable, "-c", command], env=environment, capture_output=True, text=True, check=True)
    assert old.stdout.strip() == "torch.float32"
    monkeypatch.delattr(torch, "_int_mm")
    assert reduced.fast_kind(torch.device("cpu")) == torch.float32


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_embeddings_on_the_disk_are_searched_in_place_in_pieces(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embeddings_ND, query_BD = ordinary()
    identity = Identity("c", "t", 9, "float32", dtype, *embeddings_ND.shape)
    stored = EmbeddingStore(tmp_path).build(identity, lambda rows_R: embeddings_ND[torch.from_numpy(rows_R)])
    monkeypatch.setattr(exact, "CHUNK_ROWS", {"cpu": 64})
    read: list[int] = []
    original = np.fromfile

    def recorded(*arguments: Any, **named: Any) -> Any:
        found = original(*arguments, **named)
        read.append(len(found) // SIZE)
        return found

    monkeypatch.setattr(np, "fromfile", recorded)
    wanted = enumerated(stored.as_tensor(), query_BD, 8)
    assert_same(ExactSearch(stored).search(query_BD, 8), wanted)
    assert read == [64] * 10 + [60]


@REDUCED
def test_a_chunk_of_near_ties_is_read_again_in_float32(kind: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    embeddings_ND, query_BD = near_ties()
    backend = ExactSearch(embeddings_ND, kind)
    read = watch_kinds(monkeypatch)
    expected = enumerated(embeddings_ND, query_BD, 5)
    assert_same(backend.search(query_BD, 5), expected)
    assert read == [kind]
    monkeypatch.setattr(exact, "MOST_PAIRS", 7)
    assert_same(backend.search(query_BD, 5), expected)
    assert read[1:] == [kind, torch.float32]


def signs(seed: int, rows: int) -> Tensor:
    return torch.randint(0, 2, (rows, 128), generator=torch.Generator().manual_seed(seed)) * 2.0 - 1


BLOCK = 16
MIDDLE = 1 + 2**-8  # between two bfloat16 neighbours: numbers next to it round as badly as can be


def rounded_rows(seed: int) -> tuple[Tensor, Tensor]:
    up_ND = signs(seed + 100, 64) * 2**-20
    return signs(seed, 64) * (MIDDLE + up_ND), signs(seed, 1)


def rounded_query(seed: int) -> tuple[Tensor, Tensor]:
    """Return rows that are stored exactly, with the centre at zero; rounding losses of the query add up in one."""
    sign_BD, up_BD = signs(seed, 1), signs(seed + 100, 1)
    row_ND = torch.cat([signs(seed + 200, 63), sign_BD * up_BD])
    return torch.cat([row_ND, -row_ND]), sign_BD * (MIDDLE + up_BD * 2**-20)


def rounded_score(seed: int) -> tuple[Tensor, Tensor]:
    """Rows and query that are stored exactly; their scores are not."""
    sign_ND = signs(seed, 64)
    return torch.cat([sign_ND, -sign_ND]), sign_ND[:1] + torch.arange(-64, 64) / 128


def error_and_bound(reading: Reading, embeddings_ND: Tensor, query_BD: Tensor) -> tuple[Tensor, Tensor]:
    """Return the errors of approximate scores, and the bounds of these errors."""
    found = reading.scores(0, embeddings_ND)
    coarse_NB, true_NB = found.score_nB.double(), embeddings_ND.double() @ query_BD.double().T
    if found.unit_gB is not None:
        coarse_NB *= found.unit_gB.repeat_interleave(BLOCK, 0)[: len(coarse_NB)]
    wrong_NB = (coarse_NB + found.shift_B - true_NB).abs()
    return wrong_NB, found.error_B + coarse_NB.abs() * found.relative


def rounded_bytes(seed: int) -> tuple[Tensor, Tensor]:
    """Return rows half a unit from a byte in nearly every number, all on the side of the query's sign."""
    sign_ND = signs(seed, 64)
    row_ND = sign_ND * (torch.arange(128) % 100 + 0.49)
    row_ND[:, :2] = sign_ND[:, :2] * 127
    return torch.cat([row_ND, -row_ND]), sign_ND[:1]


@pytest.mark.parametrize(
    ("case", "kind", "near"),
    [
        (rounded_rows, torch.bfloat16, 0.05),
        (rounded_query, torch.bfloat16, 0.05),
        (rounded_score, torch.bfloat16, 0.05),
        pytest.param(rounded_bytes, torch.int8, 0.2, marks=NEEDS_BYTES),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_the_bound_holds_where_rounding_is_worst(
    case: Callable[[int], tuple[Tensor, Tensor]], kind: torch.dtype, near: float, seed: int
) -> None:
    embeddings_ND, query_BD = case(seed)
    reading = reduced.ReducedReading(reduced.ReducedCopy(embeddings_ND, kind, BLOCK), query_BD)
    wrong_NB, bound_NB = error_and_bound(reading, embeddings_ND, query_BD)
    assert (wrong_NB <= bound_NB).all()
    assert float(wrong_NB.max()) > near * float(bound_NB.max())
    wrong_NB, tighter_NB = error_and_bound(PlainReading(query_BD), embeddings_ND, query_BD)
    assert (wrong_NB <= tighter_NB).all()
    assert float(tighter_NB.max()) < 0.05 * float(bound_NB.max())  # float32 is tighter by far


@REDUCED
def test_most_rows_are_never_scored(kind: torch.dtype) -> None:
    queries = 6
    embeddings_ND, query_BD = normal(20_000, 64), normal(queries, 64, seed=1)
    scored = []
    original = search.true_scores

    def watched(*parts: Tensor) -> Tensor:
        scored.append(len(parts[3]))
        return original(*parts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exact, "true_scores", watched)
        ExactSearch(embeddings_ND, kind).search(query_BD, 8)
    assert queries * 8 <= sum(scored) < queries * 8 * 4


def test_no_more_scores_are_held_than_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "CHUNK_SCORES", {"cpu": 64 * QUERIES})
    monkeypatch.setattr(exact, "MOST_QUERIES", 4)
    held: list[tuple[int, ...]] = []
    original = exact.multiply

    def watched(rows_nD: Tensor, query_DB: Tensor, score_nB: Tensor | None) -> Tensor:
        found_nB = original(rows_nD, query_DB, score_nB)
        held.append(tuple(found_nB.shape))
        return found_nB

    monkeypatch.setattr(exact, "multiply", watched)
    embeddings_ND, query_BD = ordinary()
    found = ExactSearch(embeddings_ND, torch.float32).search(query_BD, 3)
    assert_same(found, enumerated(embeddings_ND, query_BD, 3))
    assert held == [(96, 4)] * 7 + [(28, 4)] + [(192, 2)] * 3 + [(124, 2)]


@pytest.mark.parametrize("by_group", [False, True], ids=["passage", "article"])
@KINDS
@pytest.mark.parametrize("count", [1, 8, 40])
@pytest.mark.usefixtures("pieces")
def test_what_is_forbidden_is_never_returned(kind: torch.dtype, by_group: bool, count: int) -> None:
    embeddings_ND, query_BD = normal(37, SIZE), normal(QUERIES, SIZE, seed=1)
    groups = np.random.default_rng(0).permutation(np.arange(37) // 9)  # articles need not lie together
    best = enumerated(embeddings_ND, query_BD, 1)[0][:, 0]
    forbidden = np.where(np.arange(QUERIES) == 3, -1, groups[best] if by_group else best)
    exclude = Exclusion(torch.from_numpy(forbidden), torch.from_numpy(groups) if by_group else None)
    allowed_BN = (groups if by_group else np.arange(37))[None] != forbidden[:, None]
    backend = ExactSearch(embeddings_ND, kind)
    for _ in range(2):  # the second search uses the remembered articles
        assert_same(backend.search(query_BD, count, exclude), enumerated(embeddings_ND, query_BD, count, allowed_BN))
    found = backend.search(query_BD, count, exclude)
    assert found.rows_BK[3, 0] == best[3]
    if count == 40:
        assert (found.rows_BK[0] == -1).sum() == 3 + (~allowed_BN[0]).sum()


@KINDS
def test_more_results_than_passages_and_nothing_at_all(kind: torch.dtype) -> None:
    embeddings_ND, query_BD = normal(5, SIZE), normal(2, SIZE, seed=1)
    backend = ExactSearch(embeddings_ND, kind)
    assert_same(backend.search(query_BD, 9), enumerated(embeddings_ND, query_BD, 9))
    assert ExactSearch(embeddings_ND[:0], kind).search(query_BD, 3).rows_BK.tolist() == [[-1] * 3] * 2
    nothing = backend.search(query_BD[:0], 3), backend.search(query_BD, 0)
    assert [found.rows_BK.shape for found in nothing] == [(0, 3), (2, 0)]


def test_a_score_has_the_same_bits_in_every_shape() -> None:
    embeddings_ND, query_BD = normal(300, 33), normal(50, 33, seed=1)
    query_M, row_M = torch.arange(50).repeat_interleave(300), torch.arange(300).repeat(50)
    together = true_scores(query_BD, embeddings_ND, query_M, row_M)
    shuffled = torch.randperm(len(row_M), generator=torch.Generator().manual_seed(0))
    assert torch.equal(true_scores(query_BD, embeddings_ND, query_M[shuffled], row_M[shuffled]), together[shuffled])
    for pair in (0, 777, 14_999):
        own = slice(pair, pair + 1)
        assert torch.equal(true_scores(query_BD, embeddings_ND, query_M[own], row_M[own]), together[own])
        vectors = zip(query_BD[query_M[pair]].tolist(), embeddings_ND[row_M[pair]].tolist(), strict=True)
        exactly = sum(Fraction(a) * Fraction(b) for a, b in vectors)
        assert float(np.float32(float(exactly))) == float(together[pair])


def test_what_is_not_finite_or_does_not_fit_is_refused() -> None:
    embeddings_ND, query_BD = ordinary()
    backend = ExactSearch(embeddings_ND, torch.bfloat16)
    for number in (torch.nan, torch.inf):
        query_BD[1, 2] = number
        with refused("not finite", "learning rates"):
            backend.search(query_BD, 3)
        embeddings_ND[650, 0] = number
        with refused("not finite", "build it again"):
            ExactSearch(embeddings_ND, torch.bfloat16)
        with refused("not finite", "build it again"):
            ExactSearch(embeddings_ND, torch.float32).search(normal(1, SIZE), 3)
        embeddings_ND[650, 0] = 0
    with refused("float32"):
        ExactSearch(embeddings_ND * 1e30).search(normal(2, SIZE) * 1e10, 3)
    with refused("float32"):
        ExactSearch(embeddings_ND * 1e30, torch.bfloat16).search(normal(2, SIZE) * 1e10, 3)


def test_reduced_float32_products_are_in_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user may let torch take float32 products in bfloat16."""
    embeddings_ND, query_BD = rounded_query(0)
    monkeypatch.setattr(exact, "multiply", lambda rows, query, room: (rows.bfloat16() @ query.bfloat16()).float())
    wrong_NB, bound_NB = error_and_bound(PlainReading(query_BD), embeddings_ND, query_BD)
    assert (wrong_NB > bound_NB).any()
    monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: "medium")
    wrong_NB, bound_NB = error_and_bound(PlainReading(query_BD), embeddings_ND, query_BD)
    assert (wrong_NB <= bound_NB).all()


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_gpu_finds_the_same_bits(case: Callable[[], tuple[Tensor, Tensor]]) -> None:
    embeddings_ND, query_BD = case()
    backend = ExactSearch(embeddings_ND.cuda())
    exclude = Exclusion(torch.arange(QUERIES), torch.arange(len(embeddings_ND)) // 5)
    allowed_BN = (np.arange(len(embeddings_ND)) // 5)[None] != np.arange(QUERIES)[:, None]
    on_gpu = Exclusion(exclude.forbidden_B.cuda(), exclude.group_N.cuda() if exclude.group_N is not None else None)
    for banned, allowed in ((None, None), (on_gpu, allowed_BN)):
        found = backend.search(query_BD.cuda(), 9, banned)
        cpu = search.SearchResult(found.rows_BK.cpu(), found.scores_BK.cpu())
        assert_same(cpu, enumerated(embeddings_ND, query_BD, 9, allowed))
