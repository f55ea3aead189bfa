"""The attempts of the Inverse Cloze Task: a bad start is dropped, and a failure to learn is flagged."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from realm_lab.engine.corpus.store import Ragged, Sentences
from realm_lab.engine.corpus.vocabulary import SpecialIds
from realm_lab.engine.corpus.words import WordStarts
from realm_lab.engine.models.embedder import Embedder
from realm_lab.engine.models.initial import new_embedder
from realm_lab.engine.training import warm_start
from realm_lab.engine.training.pairs import Captions, InverseCloze, Pair, PairSampler, PassagePairs
from realm_lab.records.run import Flag
from tests import tiny
from tests.engine.corpus.preparing import write_part
from tests.factories.errors import refused

SHORT = {"warm_start.reader.steps": 2, "launch.checkpoint_interval_seconds": 1000}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.prepare(tiny.params(), tmp_path_factory.mktemp("attempts"))


@pytest.mark.parametrize(("attempts", "learns"), [(1, False), (2, True)])
def test_a_bad_start_is_left(root: Path, monkeypatch: pytest.MonkeyPatch, attempts: int, learns: bool) -> None:
    def stuck(*arguments: Any) -> Embedder:
        """The first projection is all zeros, so that every score and every gradient is 0."""
        embedder = new_embedder(*arguments)
        for projection in (embedder.query_projection, embedder.document_projection):
            torch.nn.init.zeros_(projection.weight)
        return embedder

    monkeypatch.setattr("realm_lab.engine.systems.stages.warm_start.new_embedder", stuck)
    params = tiny.params(SHORT | {"warm_start.embedder.attempts": attempts})
    run = tiny.run("warm_start", params, root)
    weight = load_file(run.path / "model/embedder/projections.safetensors")["query_projection.weight"]
    assert bool(weight.any()) == learns
    ict = tiny.by_name(tiny.metrics(run))["accuracy_ict"]
    assert list(ict) == list(range(3, 15 if attempts == 1 else 21))  # 12 steps, after two times a quarter of them
    assert (max(ict[step] for step in list(ict)[-12:]) > 1 / 8) == learns


def test_a_task_that_was_not_learned_and_one_of_few_passages_are_flagged(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tiny.run("warm_start", tiny.params(SHORT), root)  # too few steps to be judged
    assert (run.status().flags, run.results()["passages_ict"]) == ((), run.results()["passages"])
    monkeypatch.setattr(warm_start, "JUDGED_STEPS", 12)
    monkeypatch.setattr(warm_start, "FEW_PASSAGES", 1.1)
    run = tiny.run("warm_start", tiny.params(SHORT | {"warm_start.reader.steps": 3}), root)
    last = tiny.by_name(tiny.metrics(run))["accuracy_ict"].values()
    mean = sum(last) / len(last)
    assert mean < warm_start.LOW_ACCURACY
    few, low = run.status().flags
    assert few.name == "few_passages_ict"
    assert low == Flag("low_accuracy_ict", f"accuracy of the Inverse Cloze Task {mean:.2f}, below 0.5")


def test_sentences_without_salient_spans_are_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realm_lab.engine.systems.stages.warm_start.ArticlePairs", lambda articles: [])
    remedy = "check corpus.tagger, or set warm_start.reader.steps to 0"
    with refused("no sentence of the pre-training corpus has a salient span", remedy=remedy):
        tiny.run("warm_start", tiny.params(SHORT | {"warm_start.reader.steps": 5}), root)


SPANS: list[list[int]] = [[], [0, 2], [], [1, 2, 3, 5], []]


class Passages(SimpleNamespace):
    """Five passages, whose bodies are their numbers."""

    bodies = [np.array([row]) for row in range(5)]  # noqa: RUF012

    def __len__(self) -> int:
        return 5


def sentences_of(tmp_path: Path) -> Sentences:
    rows = [
        {"tokens": [100 * row + place for place in range(8)], "spans": pairs, "labels": "", "text": ""}
        | dict.fromkeys(("origins", "gold"), row)
        for row, pairs in enumerate(SPANS)
    ]
    return Sentences(write_part(tmp_path, Sentences.COLUMNS, rows), np.uint16)


@pytest.mark.parametrize(
    ("articles", "expected"),
    [([0, 0, 0, 1, 1], [{0, 2}, {4}]), ([0, 1, 1, 1, 2], [{2}, {2}]), ([0, 1, 2, 3, 4], [{1}, {3}])],
)
def test_a_related_passage_is_beside_the_sentence_s_own(
    tmp_path: Path, articles: list[int], expected: list[set[int]]
) -> None:
    passages: Any = Passages(articles=np.array(articles))
    pairs = PassagePairs(sentences_of(tmp_path), passages)
    generator = np.random.default_rng(0)
    assert len(pairs) == 2, "the sentences with a salient span"
    first, spans, _ = pairs.pair(1, True, generator)
    assert (first.tolist(), spans.reshape(-1).tolist()) == (list(range(300, 308)), SPANS[3])
    found = [{int(pairs.pair(item, True, generator).second[0]) for _ in range(40)} for item in (0, 1)]
    assert found == expected  # of the sentences of passages 1 and 3


WORDS = 50  # of the vocabulary; patches come after them


class Told:
    """Sentences with two names, each paired with a picture or with a text."""

    def __init__(self, is_picture: bool):
        self._second = np.arange(6) + (WORDS if is_picture else 20)

    def __len__(self) -> int:
        return 64

    def pair(self, item: int, related: bool, generator: np.random.Generator) -> Pair:
        return Pair(np.arange(6, 14), np.array([[0, 2], [5, 7]]), self._second)


@pytest.mark.parametrize("is_picture", [True, False])
def test_of_a_picture_nothing_is_masked_and_beside_it_one_name_or_all(is_picture: bool) -> None:
    special = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
    source: Any = Told(is_picture)
    sampler = PairSampler(source, special, WordStarts(["word"] * WORDS), seed=0, max_length=30)
    names = {(1, 2), (6, 7), (1, 2, 6, 7)}
    counts: dict[tuple[int, ...], int] = {}
    for step in range(8):
        drawn = sampler.batch(step, 64, 1.0, np.random.default_rng(step))
        for places, is_masked in zip(drawn.at_BM.tolist(), drawn.is_masked_BM.tolist(), strict=True):
            masked = tuple(place for place, real in zip(places, is_masked, strict=True) if real)
            counts[masked] = counts.get(masked, 0) + 1
    if is_picture:
        assert counts.keys() == names
        assert counts[1, 2, 6, 7] / 512 == pytest.approx(0.5, abs=0.07)
    else:
        assert (1, 2, 6, 7) not in counts
        assert sum(count for masked, count in counts.items() if max(masked) > 8) > 100  # words of the second segment


def ragged(rows: list[list[int]]) -> Ragged:
    return Ragged.of(np.array([0, *np.cumsum([len(row) for row in rows])]), np.concatenate(rows))


CONTINUES = 40  # these wordpieces continue a word


def cut_passages(*bodies: tuple[list[int], list[int]]) -> Any:
    """Passages with their sentence starts; the title is 90 plus the passage's number."""
    starts = ragged([own for _, own in bodies])
    rows = ragged([body for body, _ in bodies])
    titles = ragged([[90 + number] for number in range(len(bodies))])

    class Cut(SimpleNamespace):
        def __len__(self) -> int:
            return len(bodies)

    return Cut(bodies=rows, sentence_starts=starts, titles=titles)


def test_halves_of_any_passage_are_cut_at_a_word_near_the_middle() -> None:
    """Nine words of one or two wordpieces in one sentence: the words from 30 to 70 % of the wordpieces start a part."""
    starts = WordStarts([*["word"] * CONTINUES, *["##piece"] * 20])
    body = [1, 41, 2, 3, 43, 4, 5, 45, 6, 7, 47, 8, 9]  # words start at 0 2 3 5 6 8 9 11 12 of 13
    passages = cut_passages((body, [0]), ([1], [0]), ([7, 47, 48, 49], [0]), ([1, 2, 3, 4], [0, 2]))
    clozes = InverseCloze(passages, "halves", starts)
    assert clozes.rows.tolist() == [0, 2, 3]  # one wordpiece has no half
    generator = np.random.default_rng(0)
    cuts, kept = Counter[int](), 0
    for _ in range(600):
        query, title, left = clozes.pair(0, generator)
        first = query.tolist() == body[: len(query)]
        cuts[len(query) if first else len(body) - len(query)] += 1
        assert query.tolist() == (body[: len(query)] if first else body[-len(query) :])
        kept += len(left) == len(body)
        assert left.tolist() in (body, body[len(query) :] if first else body[: -len(query)])
        assert title.tolist() == [90]
    assert cuts.keys() == {5, 6, 8, 9}
    assert min(cuts.values()) > 100
    assert kept / 600 == pytest.approx(0.1, abs=0.04)
    assert {len(clozes.pair(2, generator)[0]) for _ in range(20)} == {2}  # one long word


def test_sentences_are_those_of_passages_with_several() -> None:
    passages = cut_passages(([1, 2, 3], [0]), ([4, 5, 6, 7, 8], [0, 2, 3]), ([9, 9], [0]))
    clozes = InverseCloze(passages, "sentence", WordStarts(["word"] * 50))
    assert (clozes.rows.tolist(), clozes.total) == ([1], 3)
    generator = np.random.default_rng(0)
    found = {(tuple(query), tuple(left)) for query, _, left in (clozes.pair(1, generator) for _ in range(200))}
    whole = (4, 5, 6, 7, 8)
    assert {query for query, _ in found} == {(4, 5), (6,), (7, 8)}
    assert {left for _, left in found} == {whole, (6, 7, 8), (4, 5, 7, 8), (4, 5, 6)}


def test_a_caption_is_beside_a_picture_never_beside_text() -> None:
    articles: Any = SimpleNamespace(
        sentences=ragged([[1], [2], [3]]),
        other=ragged([[9, 8], [WORDS, 51], [WORDS + 4]]),
        restated=ragged([[7], [WORDS + 5], [WORDS + 6]]),
    )
    captions, generator = Captions(articles, WORDS), np.random.default_rng(0)
    found = Counter(
        (first.tolist()[0], *second.tolist()) for first, second in (captions.pair(generator) for _ in range(400))
    )
    assert found.keys() == {(2, WORDS, 51), (3, WORDS + 4), (2, WORDS + 5), (3, WORDS + 6)}
    assert (found[2, WORDS + 5] + found[3, WORDS + 6]) / 400 == pytest.approx(0.1, abs=0.05)
