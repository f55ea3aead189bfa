"""Questions of two hops: their answers and gold paths by an independent walk over what the passages say."""

import re
from functools import cache
from pathlib import Path

import pytest

from realm_lab.engine.corpus.prepare import prepare
from realm_lab.engine.corpus.records import SPLITS, Split
from realm_lab.engine.corpus.store import PreparedCorpus
from realm_lab.engine.corpus.vocabulary import wordpiece_from_vocabulary
from realm_lab.engine.worlds.language import RELATIONS, template_words
from realm_lab.engine.worlds.settings import WorldOptions as Settings
from realm_lab.engine.worlds.world import ToyWorld
from tests.tiny_system import tiny_params

ONE, WORLD = (ToyWorld(Settings(world="easy", entities=80, hops=hops), 0) for hops in (1, 2))
QUESTIONS = {split: list(WORLD.questions(split)) for split in SPLITS}
ALL = [asked for found in QUESTIONS.values() for asked in found]


@cache
def bodies(version: int) -> list[str]:
    return [passage.body for passage, _ in WORLD.passages(version)]


def walk(question: str, version: int) -> tuple[str, list[int]]:
    """Find the answer and the rows that lead to it by reading: the question against every description and question
    of the language, the passages against every statement."""

    def stated(relation_name: str, subject: str) -> tuple[str, int]:
        relation = next(r for found in RELATIONS.values() for r in found if r.name == relation_name)
        for row, body in enumerate(bodies(version)):
            for wording in relation.encyclopedia:
                pattern = re.escape(wording).replace(r"\{s\}", subject).replace(r"\{o\}", r"(\w+)")
                if subject in body and (match := re.search(rf"(?<!\w){pattern}", body)):
                    return match[1], row
        raise AssertionError(f"nothing states {relation_name} of {subject}")

    relations = [relation for found in RELATIONS.values() for relation in found]
    for first in (relation for relation in relations if relation.described):
        for second in RELATIONS[first.value]:
            for style, asked in enumerate((second.question_encyclopedia, second.question_news)):
                wording = asked.format(s=first.described[style])
                if match := re.fullmatch(re.escape(wording).replace(r"\{s\}", r"(\w+)"), question):
                    between, one = stated(first.name, match[1])
                    answer, two = stated(second.name, between)
                    return answer, [one, two]
    raise AssertionError(f"no such question: {question}")


@pytest.mark.parametrize("split", SPLITS)
def test_an_independent_walk_finds_the_answer_and_the_gold_path(split: Split) -> None:
    for question, later, gold in QUESTIONS[split][:: len(QUESTIONS[split]) // 12]:
        answer, rows = walk(question.question, 0)
        assert (question.answers, list(question.path), gold) == ((answer,), rows, rows[1:])
        assert walk(question.question, 1)[0] == later


def test_the_second_passage_is_about_an_entity_that_only_the_first_names() -> None:
    passages = [passage for passage, _ in WORLD.passages()]
    for question, _, _ in ALL:
        first, second = (passages[row] for row in question.path)
        assert first.title in question.question
        assert second.title not in question.question
        assert second.title in first.body
        assert question.document == second.id
    assert len({question.id for question, _, _ in ALL}) == len(ALL) == 20 * 14 * 2 * 2  # 14 relations have such values


def test_nothing_else_of_the_world_and_no_word_is_new() -> None:
    assert list(WORLD.passages()) == list(ONE.passages())
    assert list(WORLD.sentences("train")) == list(ONE.sentences("train"))
    assert list(WORLD.articles(50)) == list(ONE.articles(50))
    described = {w for found in RELATIONS.values() for r in found for text in r.described for w in text.split()}
    assert described - {"{s}"} <= set(template_words())


def test_every_question_fits_the_query_of_the_toy_preset() -> None:
    tokenizer = wordpiece_from_vocabulary(WORLD.vocabulary)
    longest = max(len(tokenizer.encode(question.question, add_special_tokens=False)) for question, _, _ in ALL)
    assert longest <= 26 - 2


def test_a_prepared_corpus_has_the_paths_and_one_of_one_hop_is_as_before(tmp_path: Path) -> None:
    toy = {"world": "easy", "entities": 40, "articles": 20}
    corpus = {"corpus": {"source": {"name": "toy", "hops": 2, **toy}, "tagger": "exact", "passage_length": 32}}
    prepare(tiny_params(**corpus), tmp_path / "two", 0)
    world = ToyWorld(Settings(**toy, hops=2), 0)
    stored = PreparedCorpus(tmp_path / "two").questions("dev")
    written = [question.path for question, _, _ in world.questions("dev")]
    assert [tuple(stored.paths[number].tolist()) for number in range(len(stored))] == written
    assert [stored.gold[number].tolist() for number in range(len(stored))] == [[path[1]] for path in written]
    plain = {"corpus": {"source": {"name": "toy", **toy}}}
    prepare(tiny_params(**plain), tmp_path / "one", 0)
    assert not list((tmp_path / "one").rglob("path.*"))
    assert not PreparedCorpus(tmp_path / "one").questions("dev").paths.lengths.any()
