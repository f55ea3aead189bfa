"""The evaluate stage and the store of embeddings: the scores, and how often a corpus is embedded."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from realm_lab.cli import main
from realm_lab.engine.corpus.records import Question
from realm_lab.engine.corpus.regex_answers import Patterns
from realm_lab.engine.corpus.store import PreparedCorpus
from realm_lab.engine.corpus.vocabulary import encode_batch_plain, special_ids, wordpiece_from_vocabulary
from realm_lab.engine.evaluation.answers import Answer, Candidate
from realm_lab.engine.evaluation.open_qa import Scores
from realm_lab.engine.retrieval.embeddings import EmbeddingStore
from realm_lab.engine.retrieval.index import Embedded
from realm_lab.engine.systems.asked import AskedQuestions
from realm_lab.engine.systems.context import Context
from realm_lab.engine.systems.identity import plan_run
from realm_lab.engine.systems.reading import DenseRetriever
from realm_lab.engine.systems.registry import system_of
from realm_lab.engine.systems.stages.pretrain import development_metrics
from realm_lab.errors import UserError
from realm_lab.records.files import read_json, read_json_lines
from tests import tiny

PASSAGES = 320


class Project:
    """The tiny project; counts the passages that each stage embeds for an index."""

    def __init__(self, root: Path):
        self.root, self.params = root, tiny.params()
        tiny.prepare(self.params, root)
        (root / "params.yaml").write_bytes(tiny.PARAMETERS.read_bytes())
        self.embedded: dict[tuple[str, str], int] = {}

    def run(self, system: str) -> dict[str, Any]:
        for stage in system_of(system).stages:
            before = Embedded.passages
            done = tiny.run(stage.name, self.params, self.root, system)
            self.embedded[system, stage.name] = Embedded.passages - before
        self.folder = done.path / "eval"
        results: dict[str, Any] = done.results()
        return results


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp("project"))


def test_a_corpus_is_embedded_once_for_each_document_tower(project: Project) -> None:
    results = project.run("realm")
    # Pre-training starts with the warm start's tower and stores the vectors of its last one. Evaluation needs both, and
    # embeds only what the second version of the corpus changes.
    assert project.embedded["realm", "finetune"] == 0
    assert 0 < project.embedded["realm", "evaluate"] < PASSAGES
    assert len(EmbeddingStore(project.root / "runs" / "embeddings").published()) == 3
    assert {"recall_at_5", "recall_at_5_finetuned", "retrieval_utility_start", "exact_match_dev"} <= results.keys()
    assert results["retrieval_utility_start"] != results["retrieval_utility_end"]
    assert {"follows", "stays", "changed_questions"} <= results["corpus_update"].keys()
    assert "not_measured" not in results
    # The baseline has the warm start's tower, which is there already.
    baseline = project.run("warm_start")
    assert project.embedded["warm_start", "finetune"] == 0
    assert project.embedded["warm_start", "evaluate"] < PASSAGES
    assert baseline["retrieval_utility_start"] == baseline["retrieval_utility_end"]
    # Asking embeds nothing.
    before = Embedded.passages
    for command in (["ask", "who ?"], ["fill", "who is [MASK] ?"], ["ask", "who ?", "--system", "warm_start"]):
        assert main([*command, "--root", str(project.root)]) == 0
    assert Embedded.passages == before


@pytest.mark.parametrize("null", [{"calibrate_null": True}, {"null_document": "learned"}])
def test_the_start_is_step_0_of_the_curve_and_the_end_its_last(
    project: Project, monkeypatch: pytest.MonkeyPatch, null: dict[str, Any]
) -> None:
    sentences = PreparedCorpus.sentences
    monkeypatch.setattr(
        PreparedCorpus, "sentences", lambda self, name="sentences": sentences(self, name.replace("test", "dev"))
    )
    short = {"pretrain.steps": 4} | {f"pretrain.{name}": value for name, value in null.items()}
    params = tiny.params(short)
    tiny.run("warm_start", params, project.root)
    curve = tiny.by_name(tiny.metrics(tiny.run("pretrain", params, project.root)))
    found, _ = system_of("realm")(Context(plan_run(params, "realm", 0), project.root)).measure()
    names = [name.removesuffix("_start") for name in found if name.endswith("_start")]
    assert {"retrieval_utility", "cloze_null_probability", "cloze_gold_rank"} <= set(names)
    for name in names:
        ends = [found[f"{name}_start"], found[f"{name}_end"]]
        assert ends == pytest.approx([curve[name][0], curve[name][4]], rel=1e-4, abs=1e-6), name
    assert found["cloze_null_probability_start"] > 0.01


def test_bm25_with_a_reader_learns_from_what_bm25_finds(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    results = project.run("bm25_reader")
    assert sum(project.embedded[system, stage] for system, stage in project.embedded if system == "bm25_reader") == 0
    assert {name: results[name] for name in results["bm25"]} == results["bm25"]
    assert results["recall_at_5_finetuned"] == results["recall_at_5"], "what it finds is not trained"
    assert not any(name.startswith("retrieval_utility") for name in results)
    assert results["corpus_update"]["changed_questions"] > 0
    rows = read_json_lines(project.folder / "predictions.jsonl")
    assert {len(row["retrieved"]) for row in rows} <= {*range(project.params.finetune.candidates + 1)}
    assert {example["kind"] for example in read_json(project.folder / "explorer.json")} == {"question"}
    project.run("warm_start")
    run = tiny.stage_run("finetune", project.params, project.root, "bm25_reader")
    found = tiny.by_name(tiny.metrics(run))["answerable_fraction"]
    dense = tiny.stage_run("finetune", project.params, project.root, "warm_start")
    assert min(found.values()) > max(tiny.by_name(tiny.metrics(dense))["answerable_fraction"].values())
    capsys.readouterr()
    assert main(["fill", "who is [MASK] ?", "--system", "bm25_reader", "--root", str(project.root)]) == 2
    assert capsys.readouterr().err == "realm-lab: error: system bm25_reader fills no blanks\n"
    # Several systems answer one question; one without a run does not stop the others.
    several = ["ask", "who ?", "--system", "bm25_reader,dpr,warm_start", "--json", "--root", str(project.root)]
    assert main(several) == 2
    printed = capsys.readouterr()
    assert [json.loads(line)["system"] for line in printed.out.splitlines()] == ["bm25_reader", "warm_start"]
    assert [line.split(": ")[2] for line in printed.err.splitlines() if "error" in line] == ["dpr"]


@pytest.mark.slow
def test_a_reader_that_was_never_fine_tuned_answers_nothing(tmp_path: Path) -> None:
    params = tiny.params({"finetune.steps": 0, "pretrain.steps": 2})
    tiny.prepare(params, tmp_path, "warm_start", "pretrain", "finetune")
    run = tiny.run("evaluate", params, tmp_path)
    results, reason = run.results(), "its reader never learned to answer: finetune.steps is 0"
    assert results["not_measured"] == {"answers": reason, "corpus update": reason}
    assert "exact_match" not in results
    assert "retrieval_utility_end" in results
    rows = read_json_lines(run.path / "eval" / "predictions.jsonl")
    for name in ("recall_at_5", "gold_recall_at_5"):  # of each question, for the intervals over questions
        assert results[name] == pytest.approx(sum(row[name] for row in rows) / len(rows)), name
    assert "prediction" not in rows[0]
    with pytest.raises(UserError, match=reason):
        system_of("realm")(Context(plan_run(params, "realm", 0), tmp_path)).answer(["who ?"])


def test_a_text_has_three_scores_an_expression_one_and_an_answer_from_nowhere_two() -> None:
    tokenizer = wordpiece_from_vocabulary(["paris", "texas"])

    def answered(text: str) -> Answer:
        pieces = tuple(encode_batch_plain(tokenizer, [text])[0].ids)
        return Answer(text, 0, [Candidate(3, -1.0, -1.0, (0, 5), text, pieces)])

    found = answered("Paris")

    def scores(kind: Any, references: list[str], answer: Answer = found) -> tuple[Scores, Patterns]:
        encoded = {"wordpieces": lambda t: [tuple(e.ids) for e in encode_batch_plain(tokenizer, t)]}
        context: Any = SimpleNamespace(special=special_ids(tokenizer), **encoded)
        asked = AskedQuestions(context, [Question("q1", "Where?", tuple(references), None, kind)])
        return asked.scores([answer])[0], asked.patterns

    assert scores("text", ["paris"])[0] == Scores(1.0, 1.0, 1.0)
    assert scores("text", ["texas"])[0] == Scores(0.0, 0.0, 0.0)
    assert scores("text", ["paris"], Answer("Paris"))[0] == Scores(1.0, None, 1.0)
    assert scores("text", ["باريس"], answered("東"))[0] == Scores(0.0, 0.0, 0.0)  # [UNK] alike
    assert scores("text", ["Łódź"], answered("łódź"))[0] == Scores(1.0, 1.0, 1.0)
    assert scores("regex", ["ris"])[0] == Scores(0.0, None, None)
    right, patterns = scores("regex", ["(", "pa.?r"])
    assert right == Scores(1.0, None, None)
    assert [(problem.question, problem.pattern) for problem in patterns.problems] == [("q1", "(")]


class Spanless:
    """Held-out sentences without a span, as `pretrain.recurring_spans` may leave them."""

    def __len__(self) -> int:
        return 3

    def rows_with_spans(self) -> np.ndarray:
        return np.empty(0, np.int64)


def test_test_questions_never_stand_in_for_development_questions() -> None:
    splits: list[str] = []

    class NoQuestions:
        ids = texts = answers = answer_kinds = answers_updated = groups = gold = ()

        def __len__(self) -> int:
            return 0

    def questions(split: str) -> NoQuestions:
        splits.append(split)
        return NoQuestions()

    corpus = SimpleNamespace(questions=questions)
    parts: dict[str, Any] = {"corpus": corpus, "sentences": lambda name: Spanless(), "question_tokens": list}
    context: Any = SimpleNamespace(params=tiny.params(), **parts)
    retriever: Any = None
    assert development_metrics(context, retriever)(retriever) == {}  # no curve of recall
    assert splits == ["dev"]
    end: Any = SimpleNamespace(context=context)
    assert DenseRetriever.measure(end) == ({"cloze_sentences": 0}, [])
