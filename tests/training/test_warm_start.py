"""The attempts of the Inverse Cloze Task: a bad start is dropped, and a failure to learn is flagged."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from realm_lab.corpus.store import RaggedWriter, Sentences
from realm_lab.corpus.vocabulary import SpecialIds
from realm_lab.corpus.words import WordStarts
from realm_lab.models.embedder import Embedder
from realm_lab.models.initial import new_embedder
from realm_lab.tracking.run_dir import Flag
from realm_lab.training import warm_start
from realm_lab.training.pairs import Captions, Pair, PairSampler, PassagePairs
from tests import tiny

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

    monkeypatch.setattr("realm_lab.systems.stages.warm_start.new_embedder", stuck)
    params = tiny.params(SHORT | {"warm_start.embedder.attempts": attempts})
    run = tiny.run("warm_start", params, root)
    weight = load_file(run.path / "model/embedder/projections.safetensors")["query_projection.weight"]
    assert bool(weight.any()) == learns
    ict = tiny.by_name(tiny.metrics(run))["accuracy_ict"]
    assert list(ict) == list(range(3, 15 if attempts == 1 else 21))  # 12 steps, after two times a quarter of them
    assert (max(ict[step] for step in list(ict)[-12:]) > 1 / 8) == learns


def test_a_task_that_was_not_learned_is_flagged(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not tiny.run("warm_start", tiny.params(SHORT), root).status().flags  # too few steps to be judged
    monkeypatch.setattr(warm_start, "JUDGED_STEPS", 12)
    run = tiny.run("warm_start", tiny.params(SHORT | {"warm_start.reader.steps": 3}), root)
    last = tiny.by_name(tiny.metrics(run))["accuracy_ict"].values()
    mean = sum(last) / len(last)
    assert mean < warm_start.LOW_ACCURACY
    text = f"accuracy of the Inverse Cloze Task {mean:.2f}, below 0.5"
    assert run.status().flags == (Flag("low_accuracy_ict", text),)
    monkeypatch.setattr(warm_start, "LOW_ACCURACY", 0.0)
    assert not tiny.run("warm_start", tiny.params(SHORT | {"warm_start.reader.steps": 4}), root).status().flags


SPANS: list[list[int]] = [[], [0, 2], [], [1, 2, 3, 5], []]


class Passages(SimpleNamespace):
    """Five passages, whose bodies are their numbers."""

    bodies = [np.array([row]) for row in range(5)]  # noqa: RUF012

    def __len__(self) -> int:
        return 5


def sentences_of(tmp_path: Path) -> Sentences:
    """One of each passage."""
    tokens = [[100 * row + place for place in range(8)] for row in range(len(SPANS))]
    for name, dtype, rows in (("tokens", np.uint16, tokens), ("spans", np.int32, SPANS)):
        writer = RaggedWriter(tmp_path, name, dtype)
        writer.append(rows)
        writer.close()
    for name in ("origins", "gold"):
        np.arange(5, dtype=np.int32).tofile(tmp_path / f"{name}.bin")
    return Sentences(tmp_path, np.uint16)


def test_pairs_of_passages_are_made_of_the_sentences_with_a_salient_span(tmp_path: Path) -> None:
    passages: Any = Passages(articles=np.arange(5))
    pairs = PassagePairs(sentences_of(tmp_path), passages)
    assert len(pairs) == 2
    for item, row in enumerate((1, 3)):
        pair = pairs.pair(item, True, np.random.default_rng(0))
        assert pair.first.tolist() == [100 * row + place for place in range(8)]
        assert pair.spans.reshape(-1).tolist() == SPANS[row]
        assert pair.second.tolist() == [row]  # each article here has one passage, so the related one is the origin


@pytest.mark.parametrize(("articles", "expected"), [([0, 0, 0, 1, 1], [{0, 2}, {4}]), ([0, 1, 1, 1, 2], [{2}, {2}])])
def test_a_related_passage_is_beside_the_sentence_s_own(
    tmp_path: Path, articles: list[int], expected: list[set[int]]
) -> None:
    passages: Any = Passages(articles=np.array(articles))
    pairs = PassagePairs(sentences_of(tmp_path), passages)
    generator = np.random.default_rng(0)
    found = [{int(pairs.pair(item, True, generator).second[0]) for _ in range(40)} for item in (0, 1)]
    assert found == expected  # of the sentences of passages 1 and 3


WORDS = 50  # of the vocabulary; patches come behind them


class Told:
    """Sentences with two names, each with a picture, or with text."""

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


def test_a_caption_is_beside_a_picture_never_beside_text() -> None:
    from realm_lab.corpus.store import Ragged

    def ragged(rows: list[list[int]]) -> Ragged:
        return Ragged.of(np.array([0, *np.cumsum([len(row) for row in rows])]), np.concatenate(rows))

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
