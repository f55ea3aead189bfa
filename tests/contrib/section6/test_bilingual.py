"""The toy world in two languages: word-by-word translation, and sharing as configured."""

import re
from pathlib import Path
from typing import Any

import pytest

from realm_lab.contrib.section6.bilingual import BilingualWorld
from realm_lab.contrib.section6.settings import BilingualOptions
from realm_lab.engine.corpus.prepare import corpus_inputs
from realm_lab.engine.corpus.records import SPLITS
from realm_lab.engine.corpus.vocabulary import wordpiece_from_vocabulary
from realm_lab.engine.worlds.settings import WorldOptions as Settings
from realm_lab.engine.worlds.world import ToyWorld
from tests.engine.corpus.preparing import made
from tests.factories.errors import refused
from tests.tiny_system import tiny_params

SECOND = "а-яъ٠-٩۔؟"
KINDS = ("names_shared", "transliterated")


def world(kind: str = "transliterated", knowledge: str = "both", **settings: Any) -> ToyWorld:
    options = {"second_language": kind, "knowledge_language": knowledge, **settings}
    return BilingualWorld(BilingualOptions(**{"entities": 80, **options}), 3)


PLAIN = ToyWorld(Settings(entities=80), 3)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sentence_is_told_backwards_word_by_word_with_its_spans(kind: str) -> None:
    words: dict[str, str] = {}
    for split in SPLITS:
        for (told, row), (plain, same_row) in zip(
            world(kind, "first").sentences(split), PLAIN.sentences(split), strict=True
        ):
            assert row == same_row
            [span], [plain_span] = told.spans, plain.spans
            assert span.label == plain_span.label
            pairs = [*zip(re.split(" ?[؟۔] ?", told.text), re.split(" ?[?.] ?", plain.text), strict=True)]
            for theirs, ours in pairs:
                for other, word in zip(theirs.split()[::-1], ours.split(), strict=True):
                    assert words.setdefault(word, other) == other
            masked = plain.text[plain_span.start : plain_span.end]
            assert told.text[span.start : span.end] == words[masked]
    assert len(set(words.values())) == len(words)
    names = {PLAIN.subject(entity) for entity in range(80)}
    assert {word == words[word] for word in names & words.keys()} == {kind == "names_shared"}


def test_transliterated_the_languages_share_no_wordpiece() -> None:
    made_world = world()
    tokenizer = wordpiece_from_vocabulary(made_world.vocabulary)
    second = [sentence.text for split in SPLITS for sentence, _ in made_world.sentences(split)]
    second += [question.question for split in SPLITS for question, _, _ in made_world.questions(split)]
    first = [f"{passage.title} {passage.body}" for passage, _ in made_world.passages() if passage.form == "text"]
    translated = [
        f"{passage.title} {passage.body}" for passage, _ in made_world.passages() if passage.form == "translated"
    ]
    assert len(first) == len(translated) == 640
    pieces = [{piece for text in texts for piece in tokenizer.encode(text, add_special_tokens=False).tokens}
              for texts in (first, second, translated)]  # fmt: skip
    assert not pieces[0] & (pieces[1] | pieces[2])
    assert "[UNK]" not in set().union(*pieces)
    assert all(re.fullmatch(f"[{SECOND} ]+", text) for text in [*second, *translated])
    for number in range(500):
        name = made_world.written(made_world.name(number))[1]
        assert len(tokenizer.encode(name, add_special_tokens=False).ids) == 2


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("knowledge", ["first", "second", "both"])
def test_gold_passages_hold_an_answer_in_their_language(kind: str, knowledge: str) -> None:
    made_world = world(kind, knowledge)
    passages = [passage for passage, _ in made_world.passages()]
    later = [passage for passage, _ in made_world.passages(version=1)]
    for split in SPLITS:
        for question, new, gold in made_world.questions(split):
            assert len(gold) == (2 if knowledge == "both" else 1)
            for row in gold:
                assert set(question.answers) & set(passages[row].body.split())
                assert set(made_world.written(new)) & set(later[row].body.split())
                assert passages[row].title in passages[row].body.split()
            assert question.answers[0] in passages[gold[0]].body.split()  # the one that systems learn to write


def test_articles_are_in_either_language_and_never_in_both() -> None:
    languages = []
    for (sentence, restated, other), plain in zip(world().articles(200), PLAIN.articles(200), strict=True):
        is_second = re.fullmatch(f"[{SECOND} ]+", sentence.text + restated + other) is not None
        assert is_second or (sentence, restated, other) == plain
        assert len(sentence.spans) == 2
        languages.append(is_second)
    assert 70 < sum(languages) < 130


def test_a_tenth_of_the_sentences_and_all_that_are_held_out(tmp_path: Path) -> None:
    counts = []
    for share in (1.0, 0.1):
        toy = {"name": "bilingual", "entities": 80, "articles": 20, "sentence_fraction": share}
        counts.append(made(tiny_params(corpus={"source": toy}), tmp_path / str(share)).manifest.counts)
    assert 0.06 < counts[1]["sentences"] / counts[0]["sentences"] < 0.14
    assert counts[0]["cloze_test"] == counts[1]["cloze_test"]


@pytest.mark.parametrize(
    ("source", "changes", "parameter"),
    [
        ("bilingual", {"pretrain_corpus": "same"}, "corpus.pretrain_corpus"),
        ("drawn", {"pretrain_corpus": "same"}, "corpus.pretrain_corpus"),
        ({"name": "drawn", "hops": 2}, {}, "corpus.source.hops"),
    ],
)
def test_what_does_not_go_together_is_refused(source: Any, changes: dict[str, Any], parameter: str) -> None:
    with refused(parameter=parameter):
        corpus_inputs(tiny_params(corpus={"source": source, **changes}), 0)
