"""The sharp world: shared names, masks that no passage fills, masks that need none, and relations nobody asks for."""

from collections import Counter, defaultdict

import pytest

from realm_lab.engine.corpus.answers import holds_answer, normalise_answer
from realm_lab.engine.corpus.records import SPLITS, Sentence, Split
from realm_lab.engine.corpus.store import NO_ROW
from realm_lab.engine.params.load import preset_values, resolve
from realm_lab.engine.worlds.language import RELATIONS
from realm_lab.engine.worlds.settings import WorldOptions as Settings
from realm_lab.engine.worlds.source import ToySource
from realm_lab.engine.worlds.world import ToyWorld
from tests.engine.corpus.preparing import asked_of

WORLD = ToyWorld(Settings(), seed=0)
PASSAGES = [passage for passage, _ in WORLD.passages()]
NEWS = {split: list(WORLD.sentences(split)) for split in SPLITS}


def label(sentence: Sentence) -> str:
    [span] = sentence.spans
    return span.label


def masked(sentence: Sentence) -> str:
    [(start, end, _)] = sentence.spans
    return sentence.text[start:end]


def test_three_entities_of_different_types_bear_a_name_and_are_in_one_split() -> None:
    bearers = defaultdict(list)
    for entity in range(256):
        bearers[WORLD.subject(entity)].append(entity)
    assert Counter(map(len, bearers.values())) == {3: 85, 1: 1}
    for entities in bearers.values():
        assert len({WORLD.type_of(entity) for entity in entities}) == len(entities)
        assert len({WORLD.split_of(entity) for entity in entities}) == 1
    assert Counter(Counter(passage.title for passage in PASSAGES).values()) == {24: 85, 8: 1}
    assert len({passage.id for passage in PASSAGES}) == len(PASSAGES) == 2048
    assert set(Counter(passage.article for passage in PASSAGES).values()) == {8}
    for entity in range(256):
        assert all(WORLD.subject(entity) not in values for values in WORLD.facts(entity))


@pytest.mark.parametrize("split", SPLITS)
def test_masks_are_of_the_declared_kinds_in_the_declared_shares(split: Split) -> None:
    counts = Counter(label(sentence) for sentence, _ in NEWS[split])
    total, answerable = counts.total(), counts["object"] + counts["asked"] + counts["word"]
    assert (counts["unknown"] + counts["unnamed"]) / total == pytest.approx(0.3, abs=0.04)
    assert counts["unknown"] / (counts["unknown"] + counts["unnamed"]) == pytest.approx(0.5, abs=0.08)
    assert counts["asked"] / answerable == pytest.approx(0.1, abs=0.03)
    assert counts["word"] / (answerable - counts["asked"]) == pytest.approx(0.1, abs=0.03)


def test_only_what_a_passage_states_has_a_gold_row() -> None:
    named = {passage.title for passage in PASSAGES}
    words = {word for kind in RELATIONS.values() for one in kind for text in one.news for word in text.split()}
    for sentence, row in (told for split in SPLITS for told in NEWS[split]):
        mask, others = masked(sentence), set(sentence.text.split()) - {masked(sentence)}
        if label(sentence) in ("object", "asked"):
            assert ("?" in others) == (label(sentence) == "asked")
            assert holds_answer(normalise_answer(PASSAGES[row].body), [mask])
            assert PASSAGES[row].title in others
        elif label(sentence) == "word":
            assert mask in words
            assert PASSAGES[row].title in others
        else:
            assert row == NO_ROW
            assert not others & named


def test_a_question_tells_its_wording_and_whether_training_asks_for_its_relation() -> None:
    asked = {q.groups for q, _, _ in WORLD.questions("train")}
    assert asked == {("wording_encyclopedia", "relation_asked"), ("wording_news", "relation_asked")}
    groups = Counter(group for q, _, _ in WORLD.questions("test") for group in q.groups)
    assert len(groups) == 4
    assert len(set(groups.values())) == 1
    for question, _, [row] in WORLD.questions("test"):
        fact = row % WORLD.passages_per_entity
        assert ("relation_held_out" in question.groups) == (fact in (1, 3, 5))
        assert question.document == PASSAGES[row].id


def test_every_word_of_a_question_is_in_some_article() -> None:
    heard = {w for a in WORLD.articles(5_000) for w in f"{a.sentence.text} {a.restated} {a.other}".split()}
    wanted = {w for split in SPLITS for q, _, _ in WORLD.questions(split) for w in q.question.split()}
    assert wanted - heard == {WORLD.subject(entity) for entity in range(256)}
    easy = ToyWorld(Settings(world="easy"), 0)
    heard = {w for a in easy.articles(2_000) for w in f"{a.sentence.text} {a.restated} {a.other}".split()}
    assert "?" not in heard


def test_x_equal_to_z_knows_the_passage_that_states_a_fact_again() -> None:
    params = resolve(preset_values("toy") | {"corpus.pretrain_corpus": "same"})
    source = ToySource(asked_of(params.corpus), Settings(restate_facts=True))
    cuts = list(source.cuts(0))
    sentences = [row for cut in cuts for row in cut.sentences["sentences"].to_pylist()]
    bodies = [body for cut in cuts for body in cut.passages["body"].to_pylist()]
    with_span = [row for row in sentences if row["spans"]]
    assert 0 < len(with_span) < len(sentences)
    first = 0
    for cut in cuts:
        for row in cut.sentences["sentences"].to_pylist():
            if row["spans"]:
                start, end = row["spans"]
                value = source.tokenizer.decode(row["tokens"][start:end])
                assert row["gold"] != first + row["origins"]
                assert holds_answer(normalise_answer(bodies[row["gold"]]), [value])
            else:
                assert row["gold"] == NO_ROW
        first += cut.passages.num_rows
    held_out = [row for cut in source.pretrain_cuts() for row in cut.sentences["cloze_dev"].to_pylist()]
    in_words_of_z = [row for row in held_out if row["labels"] == "encyclopedia"]
    assert len(in_words_of_z) == 6 * sum(source.world.split_of(entity) == "dev" for entity in range(256))
    assert all(row["origins"] != row["gold"] >= 0 for row in in_words_of_z)
