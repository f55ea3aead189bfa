"""The toy world keeps its promises: exact, deterministic, nothing of a held-out fact outside Z, and it streams."""

import tracemalloc
from collections import Counter
from itertools import islice
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from realm_lab.engine.corpus.answers import holds_answer, normalise_answer
from realm_lab.engine.corpus.records import SPLITS, Passage, Question, Sentence
from realm_lab.engine.corpus.vocabulary import wordpiece_from_vocabulary
from realm_lab.engine.worlds.language import POOL_SIZE, POOLS, RELATIONS, SYLLABLES, TAILS, TYPES, Permutation
from realm_lab.engine.worlds.sentences import Article
from realm_lab.engine.worlds.settings import WorldOptions as Settings
from realm_lab.engine.worlds.world import ToyWorld

# Words that say nothing about a relation: the only ones that news and encyclopedia may share.
STOP_WORDS = frozenset("the of in is was a an at by from with as to who what when where ? .".split())
NAMED = 256 + POOL_SIZE * len(POOLS)  # names of entities and of pools


def easy(entities: int, fillers: int, changed: float, seed: int, **knobs: Any) -> ToyWorld:
    """A world in which names find their passages."""
    parts = {"entities": entities, "fillers_per_entity": fillers, "changed_fraction": changed, "world": "easy"}
    return ToyWorld(Settings(**(parts | knobs)), seed)


class Told(NamedTuple):
    """A world and all of its texts."""

    world: ToyWorld
    passages: list[tuple[Passage, list[Sentence]]]
    later: list[Passage]
    sentences: dict[str, list[tuple[Sentence, int]]]
    questions: dict[str, list[tuple[Question, str, list[int]]]]
    articles: list[Article]
    tokenizer: Tokenizer


@pytest.fixture(scope="module")
def told() -> Told:
    world = easy(256, 2, 0.5, seed=0)
    return Told(
        world,
        list(world.passages()),
        [passage for passage, _ in world.passages(version=1)],
        {split: list(world.sentences(split)) for split in SPLITS},
        {split: list(world.questions(split)) for split in SPLITS},
        list(world.articles(3000)),
        wordpiece_from_vocabulary(world.vocabulary),
    )


def texts_of(article: Article) -> str:
    return f"{article.sentence.text} {article.restated} {article.other}"


def named(sentence: Sentence) -> dict[str, str]:
    return {label: sentence.text[start:end] for start, end, label in sentence.spans}


def pieces(tokenizer: Tokenizer, texts: list[str]) -> list[list[str]]:
    return [encoding.tokens for encoding in tokenizer.encode_batch(texts, add_special_tokens=False)]


def test_a_world_is_a_function_of_its_seed() -> None:
    def everything(world: ToyWorld) -> list[object]:
        parts: list[object] = [*world.passages(), *world.passages(version=1), *world.articles(50), *world.vocabulary]
        return [*parts, *(item for s in SPLITS for made in (world.sentences(s), world.questions(s)) for item in made)]

    assert everything(easy(40, 1, 0.5, seed=3)) == everything(easy(40, 1, 0.5, seed=3))
    one, other = easy(40, 1, 0.5, seed=3), easy(40, 1, 0.5, seed=4)
    assert one.vocabulary == other.vocabulary
    assert len({one.name(entity) for entity in range(40)} & {other.name(entity) for entity in range(40)}) < 5
    assert [one.split_of(entity) for entity in range(40)] != [other.split_of(entity) for entity in range(40)]
    assert not {passage.body for passage, _ in one.passages()} & {passage.body for passage, _ in other.passages()}
    assert not {a.restated for a in one.articles(100)} & {a.restated for a in other.articles(100)}


def test_counts_of_the_default_world_and_splits_by_subject(told: Told) -> None:
    assert len({passage.id for passage, _ in told.passages}) == len(told.passages) == 2048
    assert set(Counter(passage.title for passage, _ in told.passages).values()) == {8}
    assert {split: len(found) for split, found in told.sentences.items()} == {"train": 2754, "dev": 918, "test": 936}
    assert {split: len(found) for split, found in told.questions.items()} == {"train": 1836, "dev": 612, "test": 624}
    ids = [question.id for found in told.questions.values() for question, _, _ in found]
    assert len(set(ids)) == len(ids)
    assert Counter(told.world.split_of(entity) for entity in range(256)) == {"train": 153, "dev": 51, "test": 52}
    subjects = {split: {q.id.split("/")[0] for q, _, _ in found} for split, found in told.questions.items()}
    assert {split: len(found) for split, found in subjects.items()} == {"train": 153, "dev": 51, "test": 52}
    assert len(set().union(*subjects.values())) == 256
    for kind in range(len(TYPES)):
        held_out = sum(told.world.split_of(entity) != "train" for entity in range(kind, 256, len(TYPES)))
        assert 10 <= held_out <= 42  # of 64: no type is all but absent from a split


def test_every_name_is_two_wordpieces_and_no_word_is_unknown(told: Told) -> None:
    names = [told.world.name(number) for number in range(SYLLABLES**2)]
    assert len(set(names)) == SYLLABLES**2
    found = pieces(told.tokenizer, names)
    assert [first + second.removeprefix("##") for first, second in found] == names
    assert all(not first.startswith("##") and second.startswith("##") for first, second in found)
    years = [str(year) for year in range(1700, 2000)]
    assert pieces(told.tokenizer, years) == [[year[:2], f"##{year[2:]}"] for year in years]
    texts = [f"{passage.title} {passage.body}" for passage in [*(p for p, _ in told.passages), *told.later]]
    for split in SPLITS:
        texts += [sentence.text for sentence, _ in told.sentences[split]]
        texts += [f"{question.question} {question.answers[0]} {new}" for question, new, _ in told.questions[split]]
    texts += map(texts_of, told.articles)
    assert [text for text, tokens in zip(texts, pieces(told.tokenizer, texts), strict=True) if "[UNK]" in tokens] == []


def assert_exact(sentence: Sentence, subject: str, value: str | None) -> None:
    assert named(sentence) == {"subject": subject, "object": value}
    places = [(span.start, span.end) for span in sentence.spans]
    assert places == sorted(places)
    assert len(places) == 2
    assert set(named(sentence).values()) <= set(sentence.text.split(" "))  # whole words, not parts of one


def test_spans_are_exact(told: Told) -> None:
    world = told.world
    for row, (passage, parts) in enumerate(told.passages):
        assert " ".join(sentence.text for sentence in parts) == passage.body
        entity, number = divmod(row, world.passages_per_entity)
        facts = world.facts(entity)
        value = facts[number][1] if number < len(facts) else None
        stated = [sentence for sentence in parts if len(sentence.spans) == 2]
        assert len(stated) == (value is not None)
        for sentence in stated:
            assert_exact(sentence, passage.title, value)
        assert all(not sentence.spans for sentence in parts if sentence not in stated)  # no passage could tell it
    for split in SPLITS:
        for sentence, row in told.sentences[split]:
            entity, number = divmod(row, world.passages_per_entity)
            assert_exact(sentence, world.name(entity), world.facts(entity)[number][1])


def test_facts_of_held_out_entities_are_stated_in_passages_alone(told: Told) -> None:
    world = told.world
    corpus = {sentence.text for sentence, _ in told.sentences["train"]}
    without_tails = {text.removesuffix(f" {tail}") for text in corpus for tail in TAILS if text.endswith(tail)}
    # The check can find something: facts of training entities are there.
    train = next(entity for entity in range(256) if world.split_of(entity) == "train")
    relation, value, _ = world.facts(train)[0]
    assert without_tails.issuperset(wording.format(s=world.name(train), o=value) for wording in relation.news)

    written = " ".join(map(texts_of, told.articles))
    held_out = [entity for entity in range(256) if world.split_of(entity) != "train"]
    for entity in held_out:
        for relation, old, new in world.facts(entity):
            for wording in (*relation.news, *relation.encyclopedia):
                for text in (wording.format(s=world.name(entity), o=value) for value in (old, new)):
                    assert text not in without_tails
                    assert text not in corpus
                    assert text not in written
    spoken_of = {named(sentence)["subject"] for sentence, _ in told.sentences["train"]}
    assert spoken_of.isdisjoint(world.name(entity) for entity in held_out)


def test_articles_name_nobody_of_the_world_restate_a_fact_and_state_another(told: Told) -> None:
    names = {told.world.name(number) for number in range(NAMED)}
    assert len(names) == NAMED
    helped = 0
    for article in told.articles:
        assert names.isdisjoint(texts_of(article).split())
        spans = named(article.sentence)
        assert len(article.sentence.spans) == 2
        assert article.sentence.text not in article.restated
        assert set(spans.values()) <= set(article.restated.split())
        assert spans["subject"] in article.other.split()
        helped += spans["object"] in article.other.split()
    assert helped < 0.02 * len(told.articles)  # a year may be the same by chance


def test_the_gold_passage_holds_the_answer(told: Told) -> None:
    for split in SPLITS:
        for question, new, [row] in told.questions[split]:
            passage = told.passages[row][0]
            assert passage.id == question.document
            assert passage.title in question.question.split()
            assert holds_answer(normalise_answer(passage.body), question.answers)
            assert holds_answer(normalise_answer(told.later[row].body), [new])
            assert not set(question.answers) & set(question.question.split())
        for sentence, row in told.sentences[split]:
            assert set(named(sentence).values()) <= set(told.passages[row][0].body.split())


@pytest.mark.parametrize("changed_fraction", [0.0, 0.25, 1.0])
def test_the_corpus_update_changes_values_and_nothing_else(changed_fraction: float) -> None:
    world = easy(200, 1, changed_fraction, seed=1)
    changed = 0
    for row, ((old, _), (new, _)) in enumerate(zip(world.passages(), world.passages(version=1), strict=True)):
        assert old._replace(body="") == new._replace(body="")
        different = [pair for pair in zip(old.body.split(), new.body.split(), strict=True) if pair[0] != pair[1]]
        entity, number = divmod(row, world.passages_per_entity)
        facts = world.facts(entity)
        is_changed = number < len(facts) and facts[number][1] != facts[number][2]
        assert different == ([facts[number][1:]] if is_changed else [])
        changed += is_changed
    assert changed / (200 * 6) == pytest.approx(changed_fraction, abs=0.05)


@pytest.mark.parametrize("kind", TYPES)
def test_news_and_encyclopedia_share_no_content_word_and_name_subject_and_object_once(kind: str) -> None:
    assert len(RELATIONS[kind]) == 6
    for relation in RELATIONS[kind]:
        encyclopedia = " ".join([*relation.encyclopedia, relation.question_encyclopedia]).split()
        news = " ".join([*relation.news, relation.question_news, *TAILS]).split()
        assert {word for word in {*encyclopedia} & {*news} if not word.startswith("{")} <= STOP_WORDS, relation.name
        for text in (*relation.encyclopedia, *relation.news):
            assert (text.split().count("{s}"), text.split().count("{o}")) == (1, 1), text
        for text in (relation.question_encyclopedia, relation.question_news):
            assert (text.split().count("{s}"), "{o}" in text) == (1, False), text


def test_values_are_of_the_kind_the_relation_says(told: Told) -> None:
    world = told.world
    kinds = {world.name(entity): world.type_of(entity) for entity in range(256)}
    for number, pool in enumerate(POOLS):
        kinds |= {world.name(256 + number * POOL_SIZE + place): f"pool:{pool}" for place in range(POOL_SIZE)}
    kinds |= {str(year): "year" for year in range(1700, 2000)}
    for entity in range(256):
        for relation, old, new in world.facts(entity):
            assert kinds[old] == kinds[new] == relation.value
            assert world.name(entity) not in (old, new)


def test_a_million_entities_stream_in_bounded_memory() -> None:
    tracemalloc.start()
    try:
        world = easy(1_000_000, 2, 0.5, seed=0)
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        assert sum(1 for _ in islice(world.passages(), 2000)) == 2000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before < 5_000_000  # one entity's passages at a time; a million names take fifty megabytes


def test_the_last_entities_of_a_million_need_none_of_the_others() -> None:
    world = easy(1_000_000, 2, 0.5, seed=0)
    tokenizer = wordpiece_from_vocabulary(world.vocabulary)
    for entity in (0, 1, 2, 3, *range(999_996, 1_000_000)):
        facts = world.facts(entity)
        assert len(facts) == 6
        texts = [world.name(entity), *(value for _, old, new in facts for value in (old, new) if not value.isdigit())]
        assert {len(tokens) for tokens in pieces(tokenizer, texts)} == {4}  # a world this large needs longer names
    sample = [*range(0, 1_000_000, 211), *range(999_000, 1_000_240)]
    names = {world.name(number) for number in sample}
    assert len(names) == len(set(sample))
    assert names.isdisjoint(word for article in world.articles(200) for word in texts_of(article).split())
    splits = Counter(world.split_of(entity) for entity in range(0, 1_000_000, 211))
    assert splits["train"] / splits.total() == pytest.approx(0.6, abs=0.03)
    assert splits["dev"] / splits.total() == pytest.approx(0.2, abs=0.03)


@settings(max_examples=40)
@given(size=st.integers(1, 700), seed=st.integers(0, 2**40))
def test_permutation_is_a_bijection(size: int, seed: int) -> None:
    permutation = Permutation(size, seed)
    assert sorted(permutation(index) for index in range(size)) == list(range(size))


def test_a_restated_fact_is_in_a_second_passage_in_other_words_and_the_rest_is_as_before() -> None:
    plain, restated = easy(40, 1, 0.5, seed=3), easy(40, 1, 0.5, seed=3, restate_facts=True)
    facts = 6
    for version in (0, 1):
        before, after = list(plain.passages(version)), list(restated.passages(version))
        for entity in range(40):
            first, own = entity * plain.passages_per_entity, entity * restated.passages_per_entity
            assert after[own : own + facts + 1] == before[first : first + facts + 1]
    after = list(restated.passages())
    for split in SPLITS:
        assert list(restated.articles(20)) == list(plain.articles(20))
        assert [text for text, _ in restated.sentences(split)] == [text for text, _ in plain.sentences(split)]
        for question, _, rows in restated.questions(split):
            one, other = (after[row] for row in rows)
            assert question.document == one[0].id != other[0].id
            assert all(holds_answer(normalise_answer(side.body), question.answers) for side, _ in (one, other))
            stated = [next(s.text for s in side if len(s.spans) == 2) for _, side in (one, other)]
            assert stated[0] != stated[1]
