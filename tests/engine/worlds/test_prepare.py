"""The toy world prepared: the output decodes back to the text, drops are counted, nothing is left half done."""

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from realm_lab.engine.corpus.answers import holds_answer, normalise_answer
from realm_lab.engine.corpus.prepare import corpus_inputs, prepare
from realm_lab.engine.corpus.records import SPLITS
from realm_lab.engine.corpus.sources import source_options
from realm_lab.engine.corpus.store import NO_ROW, Sentences
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.worlds.world import ToyWorld
from realm_lab.records.files import digest
from tests import tiny
from tests.engine.corpus.preparing import Prepared, made


def world_of(params: Params, seed: int = 0) -> ToyWorld:
    return ToyWorld(source_options(params.corpus), seed)


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return made(tiny.params(), tmp_path_factory.mktemp("toy") / "corpus")


@pytest.fixture(scope="module")
def same(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    return made(tiny.params({"corpus.pretrain_corpus": "same"}), tmp_path_factory.mktemp("same") / "corpus")


def test_toy_passages_decode_to_their_text(toy: Prepared) -> None:
    for version in (0, 1):
        passages = toy.corpus.passages(version)
        written = [passage for passage, _ in world_of(toy.params).passages(version)]
        assert len(passages) == len(written) == 320
        for row, passage in enumerate(written):
            assert passages.text.row(row) == passage._asdict()
            assert toy.text(passages.titles[row]) == passage.title
            assert toy.text(passages.bodies[row]) == passage.body
        assert passages.articles.tolist() == [row // 8 for row in range(320)]


def test_sentence_starts_cut_a_body_into_its_sentences(toy: Prepared) -> None:
    passages = toy.corpus.passages()
    for row, (_, sentences) in enumerate(world_of(toy.params).passages()):
        body = passages.bodies[row]
        bounds = [*passages.sentence_starts[row].tolist(), len(body)]
        cut = [toy.text(body[start:end]) for start, end in itertools.pairwise(bounds)]
        assert cut == [sentence.text for sentence in sentences]


def assert_same_sentences(prepared: Prepared, stored: Sentences, split: str, labels: set[str]) -> None:
    written = list(world_of(prepared.params).sentences(split))
    assert len(stored) == len(written)
    for number, (sentence, row) in enumerate(written):
        tokens = stored.tokens[number]
        assert prepared.text(tokens) == sentence.text
        spans = [sentence.text[span.start : span.end] for span in sentence.spans if span.label in labels]
        assert stored.labels(number) == tuple(span.label for span in sentence.spans if span.label in labels)
        assert [prepared.text(tokens[first:end]) for first, end in stored.salient_spans(number)] == spans
        assert stored.gold[number] == row
        assert stored.origins[number] == NO_ROW


def test_news_sentences_and_spans_decode_to_their_text(toy: Prepared) -> None:
    assert_same_sentences(toy, toy.corpus.sentences(), "train", {"subject", "object"})


@pytest.mark.parametrize("split", ["dev", "test"])
def test_held_out_sentences_ask_for_the_value(toy: Prepared, split: str) -> None:
    assert_same_sentences(toy, toy.corpus.sentences(f"cloze_{split}"), split, {"object"})


def test_toy_questions_hold_answers_of_both_versions_and_the_gold_row(toy: Prepared) -> None:
    bodies = [toy.corpus.passages(version).text.column("body") for version in (0, 1)]
    changed = 0
    for split in SPLITS:
        questions = toy.corpus.questions(split)
        written = list(world_of(toy.params).questions(split))
        assert len(questions) == len(written)
        for number, (question, new, rows) in enumerate(written):
            assert questions.texts[number] == question.question == toy.text(questions.tokens[number])
            assert questions.ids[number] == question.id
            assert questions.gold[number].tolist() == rows
            assert (questions.answers[number], questions.answers_updated[number]) == (list(question.answers), [new])
            for version, answers in enumerate((questions.answers[number], questions.answers_updated[number])):
                assert holds_answer(normalise_answer(bodies[version][rows[0]]), answers)
            changed += questions.answers[number] != questions.answers_updated[number]
    assert 0 < changed < sum(len(toy.corpus.questions(split)) for split in SPLITS)


def test_toy_articles_decode_to_their_text(toy: Prepared) -> None:
    articles = toy.corpus.articles()
    assert articles is not None
    for number, article in enumerate(world_of(toy.params).articles(len(articles))):
        tokens = articles.sentences[number]
        assert toy.text(tokens) == article.sentence.text
        assert toy.text(articles.restated[number]) == article.restated
        assert toy.text(articles.other[number]) == article.other
        spans = articles.spans[number].reshape(-1, 2)
        assert [toy.text(tokens[first:end]) for first, end in spans] == [
            article.sentence.text[span.start : span.end] for span in article.sentence.spans
        ]


def test_the_manifest_counts_what_is_there(toy: Prepared) -> None:
    corpus, counts = toy.corpus, toy.manifest.counts
    assert corpus.manifest == toy.manifest
    assert toy.manifest.dropped == {}
    assert toy.manifest.vocabulary_size == toy.tokenizer.get_vocab_size()
    assert toy.manifest.key == digest(corpus_inputs(toy.params, 0))
    assert counts["articles"] == source_options(toy.params.corpus).articles
    assert counts["passages"] == counts["passages_updated"] == len(corpus.passages())
    several = int((corpus.passages().sentence_starts.lengths > 1).sum())
    assert counts["passages of two sentences or more"] == several
    assert counts["sentences with a salient span"] == counts["sentences"]  # every sentence of the world has one
    for name in ("sentences", "cloze_dev", "cloze_test"):
        assert counts[name] == len(corpus.sentences(name))
    for split in SPLITS:
        assert counts[f"questions_{split}"] == len(corpus.questions(split))


def test_x_equals_z_takes_sentences_of_training_entities_with_their_origin(same: Prepared) -> None:
    world, passages, sentences = world_of(same.params), same.corpus.passages(), same.corpus.sentences()
    train, test = ([e for e in range(world.entities) if world.split_of(e) == split] for split in ("train", "test"))
    assert len(sentences) == len(train) * world.passages_per_entity * 2
    assert (np.asarray(sentences.gold) == NO_ROW).all()  # facts are stated once
    seen: dict[int, list[str]] = {}
    for number, origin in enumerate(sentences.origins.tolist()):
        assert origin // world.passages_per_entity in train
        text = same.text(sentences.tokens[number])
        passage = passages.text.row(origin)
        assert text in passage["body"]
        spans = [same.text(sentences.tokens[number][a:b]) for a, b in sentences.salient_spans(number)]
        assert (passage["title"] in spans, len(spans)) in ((True, 2), (False, 0))  # a fact, or a filler
        seen.setdefault(origin, []).append(text)
    assert all(" ".join(texts) == passages.text.row(origin)["body"] for origin, texts in seen.items())
    in_both_wordings = same.corpus.sentences("cloze_test")
    labels = [label for number in range(len(in_both_wordings)) for label in in_both_wordings.labels(number)]
    assert Counter(labels) == {"object": len(list(world.sentences("test"))), "encyclopedia": 6 * len(test)}


def test_long_sentences_are_dropped_and_counted(toy: Prepared, tmp_path: Path) -> None:
    short = made(tiny.params({"corpus.sentence_length": 16}), tmp_path / "corpus")
    names = ("sentences", "cloze_dev", "cloze_test")
    lost = 0
    for name in names:
        lengths = toy.corpus.sentences(name).tokens.lengths
        lost += int((lengths > 14).sum())  # 16 with [CLS] and [SEP]
        assert len(short.corpus.sentences(name)) == (lengths <= 14).sum() == short.manifest.counts[name]
    assert lost > 0
    assert short.manifest.dropped == {"sentence longer than corpus.sentence_length": lost}


def test_the_same_inputs_give_the_same_bytes(toy: Prepared, tmp_path: Path) -> None:
    made(tiny.params(), tmp_path / "again")
    assert tiny.files(tmp_path / "again") == tiny.files(toy.corpus.folder)


def test_the_key_depends_on_the_seed_unless_the_world_has_its_own(tmp_path: Path) -> None:
    params, fixed = tiny.params(), tiny.params({"corpus.source.world_seed": 5})
    assert digest(corpus_inputs(params, 0)) != digest(corpus_inputs(params, 1))
    assert digest(corpus_inputs(fixed, 0)) == digest(corpus_inputs(fixed, 1))
    assert corpus_inputs(fixed, 0)["seed"] == 5
    prepared = made(fixed, tmp_path / "corpus", seed=0)
    first, _ = next(world_of(fixed, seed=5).passages())
    assert prepared.corpus.passages().text.row(0) == first._asdict()


@pytest.mark.parametrize("when", ["passages", "articles"])
def test_an_interrupted_preparation_leaves_nothing(tmp_path: Path, when: str) -> None:
    def stop(part: str, count: int) -> None:
        if part == when:
            raise KeyboardInterrupt

    folder = tmp_path / "prepared" / "corpus"
    with pytest.raises(KeyboardInterrupt):
        prepare(tiny.params(), folder, 0, stop)
    assert list((tmp_path / "prepared").iterdir()) == []
    prepare(tiny.params(), folder, 0)
    assert [path.name for path in (tmp_path / "prepared").iterdir()] == ["corpus"]
