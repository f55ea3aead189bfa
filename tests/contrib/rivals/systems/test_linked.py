"""Retrievers that follow links: their training, their results, the whole pipeline, and that two hops need them."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from realm_lab.contrib.rivals.graph_retriever import GraphRetriever
from realm_lab.contrib.rivals.path_retriever import PathRetriever
from realm_lab.contrib.rivals.training import linked
from realm_lab.engine.params.load import preset_values, resolve
from realm_lab.engine.systems.asked import AskedQuestions
from realm_lab.engine.systems.context import Context
from realm_lab.engine.systems.identity import plan_run
from realm_lab.errors import UserError
from tests import tiny

SYSTEMS = ("path_retriever", "graph_retriever")
SHORT = {"steps": 8, "batch_size": 4, "negatives": 5}
TWO_HOPS = {
    "corpus.source.hops": 2,
    "system_options": {"path_retriever": SHORT | {"first": 3}, "graph_retriever": SHORT | {"passages": 30}},
}
QUICK = TWO_HOPS | {"warm_start.reader.steps": 2, "warm_start.embedder.steps": 2, "finetune.steps": 3}


def context_of(root: Path, system: str, changes: dict[str, Any]) -> Context:
    chosen = tiny.params(changes)
    return Context(plan_run(chosen, system, 0), root)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A world of two hops with a warm start, and both retrievers trained a little."""
    params = tiny.params(QUICK)
    folder = tiny.prepare(params, tmp_path_factory.mktemp("linked"), "warm_start", label=SYSTEMS[0])
    for system in SYSTEMS:
        tiny.run("retriever", params, folder, system)
    return folder


def system_of(root: Path, name: str) -> Any:
    return context_of(root, name, QUICK).system


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_it_goes_the_whole_way(root: Path, name: str) -> None:
    params = tiny.params(QUICK)
    tiny.run("finetune", params, root, name)
    run = tiny.run("evaluate", params, root, name)
    results = run.results()
    assert results["not_measured"].keys() == {"own measurements"}
    assert {"path_recall_at_5", "gold_recall_at_5", "exact_match"} <= results.keys()
    assert results["corpus_update"]["changed_questions"] > 0
    assert tiny.stage_run("retriever", params, root, name).results()["questions_trained"] > 0
    rows = [json.loads(text) for text in (run.path / "eval" / "predictions.jsonl").read_text().splitlines()]
    assert all(1 <= len(row["retrieved"]) <= params.finetune.candidates for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_a_question_that_shares_no_word_with_a_passage_finds_none(root: Path, name: str) -> None:
    tiny.run("finetune", tiny.params(QUICK), root, name)
    system = system_of(root, name)
    assert (system.retrieve(["zzyzx"], 3).rows_QK == -1).all()
    [answer] = system.answer(["zzyzx"])
    assert (answer.text, answer.candidates) == ("", [])


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_an_answer_is_a_span_of_the_passage_that_it_names(root: Path, name: str) -> None:
    system = system_of(root, name)
    asked = AskedQuestions.of_split(system.context, "test").texts[:6]
    for given in (None, system.retrieve(asked, 3)):
        answers = system.answer(asked, given)
        assert any(answer.candidates for answer in answers)
        for answer in answers:
            for candidate in answer.candidates:
                body = system.context.passages.text.row(candidate.row)["body"]
                assert candidate.text.startswith(body[slice(*candidate.span)])
                assert candidate.text


@pytest.mark.slow
def test_paths_are_found_along_links_and_read_as_one_text(root: Path) -> None:
    system: PathRetriever = system_of(root, "path_retriever")
    asked = AskedQuestions.of_split(system.context, "test").texts[:8]
    first_QK = system.context.bm25.search(asked, system.own.first).rows_QK
    rows_QK, scores_QK = system.retrieve(asked, 20)
    passages, (numbers_QK, _) = system.readable(asked, 4)
    for place, paths in enumerate(system.found(asked)):
        assert len(paths) == len({path.rows for path in paths}) <= system.own.beam
        assert [path.log_prob for path in paths] == sorted((path.log_prob for path in paths), reverse=True)
        for path in paths:
            assert path.rows[0] in first_QK[place]
            assert len(path.rows) <= system.own.longest
        expected = list(dict.fromkeys(row for path in paths for row in path.rows[::-1]))
        assert rows_QK[place][rows_QK[place] >= 0].tolist() == expected
        assert scores_QK[place, 0] == pytest.approx(paths[0].log_prob)
        for number, path in zip(numbers_QK[place], paths, strict=False):
            bodies = [system.passages.text.row(row)["body"] for row in path.rows[::-1]]
            assert passages.text.row(number)["body"] == " ".join(bodies)
    assert any(len(path.rows) == 2 for paths in system.found(asked) for path in paths)


@pytest.mark.slow
def test_a_graph_is_its_seeds_and_what_they_link_to(root: Path) -> None:
    system: GraphRetriever = system_of(root, "graph_retriever")
    for question in AskedQuestions.of_split(system.context, "test").texts[:5]:
        bm25 = system.context.bm25.search([question], 100).rows_QK[0]
        graph = system.graph(bm25).tolist()
        assert len(graph) == len(set(graph)) == 30
        assert graph[:10] == bm25[:10].tolist()
        links = {other for row in graph[:10] for other in system.links.of(row).tolist()} - set(graph[:10])
        assert set(graph[10:]) <= links
        ranks = [bm25.tolist().index(row) for row in graph[10:] if row in bm25]
        assert ranks == sorted(ranks)
        rows, scores = system.search(system.context.question_tokens([question])[0], bm25)
        assert sorted(rows) == sorted(graph)
        assert scores == sorted(scores, reverse=True)


@pytest.mark.slow
def test_gold_paths_are_learned_and_what_holds_the_answer_is_no_negative(root: Path) -> None:
    context = system_of(root, "path_retriever").context
    questions = context.corpus.questions("train")
    bodies = [f" {body} " for body in context.passages.text.column("body")]
    for name in SYSTEMS:
        examples = system_of(root, name).examples(questions)
        assert examples
        for example in examples:
            answers, path = questions.answers[example.number], questions.paths[example.number].tolist()
            assert not any(f" {answer} " in bodies[row] for row in example.others for answer in answers)
            assert not set(example.others.tolist()) & {*example.kept.tolist(), *path}
            assert example.positives.tolist() == questions.gold[example.number].tolist()
            if name == "path_retriever":
                assert example.kept.tolist() == path
                linked_to = system_of(root, name).links.of(path[0]) if example.number < 3 else path[1:]
                assert path[1] in linked_to


@pytest.mark.slow
def test_no_negative_at_the_end_of_two_links_holds_the_answer(root: Path) -> None:
    options = {"system_options": {"graph_retriever": SHORT | {"passages": 100, "hops": 2}}}
    system = context_of(root, "graph_retriever", QUICK | options).system
    assert isinstance(system, GraphRetriever)
    questions, bodies = system.context.corpus.questions("train"), system.passages.text.column("body")
    examples = system.examples(questions)
    assert examples
    for example in examples:
        held = [
            f" {answer} " in f" {bodies[row]} "
            for row in example.others
            for answer in questions.answers[example.number]
        ]
        assert not any(held)


@pytest.mark.slow
def test_without_gold_a_path_is_the_best_passage_with_the_answer(root: Path) -> None:
    for name in SYSTEMS:
        system = system_of(root, name)
        stored = system.context.corpus.questions("train")
        some = range(0, len(stored), 9)
        empty = [np.empty(0, np.int32)] * len(some)
        texts, answers = [stored.texts[n] for n in some], [stored.answers[n] for n in some]
        questions: Any = SimpleNamespace(texts=texts, answers=answers, gold=empty, paths=empty)
        system.context.corpus.questions = lambda split, questions=questions: questions
        bodies = [f" {body} " for body in system.passages.text.column("body")]
        found = {example.number: example for example in system.examples(questions)}
        for number, rows in enumerate(system.context.bm25.search(texts, 100).rows_QK.tolist()):
            holding = [row for row in rows if f" {answers[number][0]} " in bodies[row]]
            if name == "path_retriever":
                assert (number in found) == bool(holding)
            if holding and number in found:
                assert holding[0] in found[number].kept or name == "graph_retriever"
        questions.answers = [["no such answer"]] * len(some)
        assert system.examples(questions) == []
        with pytest.raises(UserError, match="no passage answers training questions"):
            linked.train_retriever(system.context, system.context.stage("retriever"))


@pytest.mark.slow
def test_the_graph_finds_the_second_passage_that_a_single_hop_does_not(tmp_path: Path) -> None:
    """One seed of the study's world, smaller, after a short warm start of the toy preset."""
    name = "graph_retriever"
    changes = {
        "corpus.source.hops": 2,
        "corpus.source.entities_per_name": 1,
        "corpus.source.asked_relations": "all",
        "corpus.source.entities": 128,
        "corpus.source.articles": 20_000,
        "warm_start.reader.steps": 400,
        "warm_start.reader.batch_size": 64,
        "warm_start.embedder.steps": 0,
        "system_options": {"graph_retriever": {"negatives": 24, "steps": 120, "batch_size": 16}},
    }
    params = resolve(preset_values("toy") | changes)
    folder = tiny.prepare(params, tmp_path, "warm_start", "retriever", label=name)
    context = Context(plan_run(params, name, 0), folder)
    asked = AskedQuestions.of_split(context, "test")
    found, single = (
        asked.recalls(rows_QK)[0]
        for rows_QK in (context.system.retrieve(asked.texts, 20).rows_QK, context.bm25.search(asked.texts, 20).rows_QK)
    )
    assert found["gold_recall_at_5"] > single["gold_recall_at_5"] + 0.1, (found, single)
