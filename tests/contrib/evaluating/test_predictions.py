"""Prediction files of every format: how they are read, matched with their questions, and scored."""

import gzip
import importlib
import json
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from realm_lab.cli import main
from realm_lab.contrib.evaluating.predictions import read_references, score_predictions
from realm_lab.engine.corpus.records import Question
from tests.factories.errors import refused

QUESTIONS = [
    Question("a", "who wrote hamlet", ("William Shakespeare", "Shakespeare"), "Hamlet#0"),
    Question("b", "where is paris", ("France",), None),
    Question("c", "when was 1969", (r"19\d9",), None, "regex"),
    Question("d", "where is london", ("Ontario",), None),
]
ANSWERS = {"a": "shakespeare!", "b": "Texas", "c": "1979 or so", "d": "the Ontario"}
BY_TEXT = [{"question": q.question, "prediction": ANSWERS[q.id]} for q in QUESTIONS]


def lines(rows: Sequence[Any]) -> str:
    return "\n".join(map(json.dumps, rows)) + "\n"


def put(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


DATA = Path(os.environ.get("REALM_LAB_DATA", Path(__file__).parents[4] / "shared" / "data"))


def data_file(name: str) -> Path:
    if not (DATA / name).exists():
        pytest.skip(f"{DATA / name}: not there; set REALM_LAB_DATA to the folder of the data")
    return DATA / name


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("map.json", json.dumps(ANSWERS, indent=1)),
        ("ids.jsonl", lines([{"id": key, "prediction": value} for key, value in ANSWERS.items()])),
        ("other_ids.jsonl", lines([{"query_id": key, "prediction": value} for key, value in ANSWERS.items()])),
        ("texts.jsonl", lines(BY_TEXT)),
        ("blank_lines.jsonl", "\n\n" + lines(BY_TEXT).replace("\n", "\r\n\r\n")),
        ("lines_in.json", lines(BY_TEXT)),
        ("array.json", json.dumps(BY_TEXT)),
        ("table.csv", "id,prediction\n" + "".join(f"{key},{value}\n" for key, value in ANSWERS.items())),
        ("table.tsv", "Prediction\tquestion\n" + "".join(f"{ANSWERS[q.id]}\t{q.question}\n" for q in QUESTIONS)),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_every_format_says_the_same(tmp_path: Path, name: str, text: str, compressed: bool) -> None:
    path = tmp_path / (name + ".gz" if compressed else name)
    path.write_bytes(gzip.compress(text.encode()) if compressed else text.encode())
    assert score_predictions(path, QUESTIONS) == {
        "file": str(path), "questions": 4, "exact_match": 0.75, "f1": pytest.approx(2 / 3),
        "missing": [], "without_answer": [], "without_passages": [], "contradictory": [], "unscorable": [],
        "surplus": [], "itself": [], "pattern_problems": [],
    }  # fmt: skip


def test_a_number_in_a_question_does_not_make_its_line_a_trec_run(tmp_path: Path) -> None:
    row = {"question": "in what 1990 movie did she star", "prediction": "Ghost"}
    question = Question("a", row["question"], ("Ghost",), None)
    assert score_predictions(put(tmp_path / "p.jsonl", lines([row])), [question])["exact_match"] == 1.0


def test_judgements_of_nothing_are_refused(tmp_path: Path) -> None:
    with refused("no questions", path=tmp_path / "qrels.tsv"):
        read_references(put(tmp_path / "qrels.tsv", "query-id\tcorpus-id\tscore\n"))


def test_what_does_not_match_is_named_and_wrong(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "prediction": "Shakespeare"},
        {"id": "a", "prediction": "Bacon"},  # contradicts
        {"id": "c", "prediction": "1969"},
        {"id": "c", "prediction": "1969"},  # the same again
        {"id": "d", "prediction": None},  # without an answer
        {"id": "zz", "prediction": "x"},
        {"question": "who?", "prediction": "x"},
    ]
    result = score_predictions(put(tmp_path / "p.jsonl", lines(rows)), QUESTIONS)
    assert (result["missing"], result["contradictory"], result["surplus"]) == (["b", "d"], ["a"], ["zz", "who?"])
    assert (result["exact_match"], result["f1"]) == (0.25, 0.0)


def test_one_answer_to_a_text_that_is_asked_twice_counts_for_both(tmp_path: Path) -> None:
    asked = [*QUESTIONS, QUESTIONS[1]._replace(id="e", answers=("Texas",))]
    path = put(tmp_path / "p.jsonl", lines([{"question": " where is paris ", "prediction": "Texas"}]))
    result = score_predictions(path, asked)
    assert (result["exact_match"], result["missing"]) == (0.2, ["a", "c", "d"])


def test_a_prediction_for_an_id_that_two_questions_share_is_scored_for_neither(tmp_path: Path) -> None:
    records = [{"id": "x", "question": "who", "answer": "Ann"}, {"id": "x", "question": "when", "answer": "1969"}]
    records += [records[0], {"id": "y", "question": "where", "answer": "Oslo"}]
    asked = read_references(put(tmp_path / "q.jsonl", lines(records)))
    assert [q.id for q in asked] == ["x~1", "x~2", "y"]
    result = score_predictions(put(tmp_path / "ids.json", json.dumps({"x": "Ann", "y": "Bergen"})), asked)
    assert (result["exact_match"], result["missing"], result["surplus"]) == (0.0, ["x~1", "x~2"], ["x"])
    told = [{"id": "x", "question": q.question, "prediction": q.answers[0]} for q in asked]
    assert score_predictions(put(tmp_path / "texts.jsonl", lines(told)), asked)["exact_match"] == 1.0


def test_retrieved_passages_are_scored_by_the_first_that_holds_an_answer(tmp_path: Path) -> None:
    passages = [{"title": "Hamlet", "text": "A play by Shakespeares."}, {"text": "By SHAKESPEARE, in 1599."}]
    rows = [{"question": q.question, "ctxs": passages} for q in (QUESTIONS[0], QUESTIONS[2])]
    asked = [QUESTIONS[0], QUESTIONS[2]._replace(answers=(r"15\d9", "(")), QUESTIONS[1]]
    result = score_predictions(put(tmp_path / "r.json", json.dumps(rows)), asked)
    recalls = {name: value for name, value in result.items() if "recall" in name}
    assert recalls == {"recall_at_1": 0.0, "recall_at_5": 2 / 3, "recall_at_20": 2 / 3}
    assert result["missing"] == ["b"]
    assert [(p["question"], p["pattern"], p["kind"]) for p in result["pattern_problems"]] == [("c", "(", "invalid")]


def test_retrieved_passages_are_scored_by_the_evidence_that_a_question_names(tmp_path: Path) -> None:
    named = {"q1": ("a", "c"), "q2": ("b/1",), "q3": ("e",), "q4": ()}
    questions = [Question(q, f"text {q}", ("some",), None, evidence=ids) for q, ids in named.items()]
    found = {"q1": ["c/3", "b", "c/4"], "q2": ["b/0", "x", "y", "z", "w", "b/1"], "q3": ["f"], "q4": ["a"]}
    texts = {"c/3": "Without the answer."}
    rows = [
        {"id": q, "ctxs": [{"id": name, "text": texts.get(name, "Some.")} for name in names]}
        for q, names in found.items()
    ]
    scores = score_predictions(put(tmp_path / "p.jsonl", lines(rows)), questions)
    assert [scores[f"evidence_at_{k}"] for k in (1, 5, 20)] == pytest.approx([0, 1 / 3, 2 / 3])
    assert scores["recall_at_1"] == 3 / 4
    run = "".join(f"{q} Q0 {name} 1 {-rank} t\n" for q, names in found.items() for rank, name in enumerate(names))
    ids_alone = score_predictions(put(tmp_path / "ids.run", run), questions)
    assert [ids_alone[f"evidence_at_{k}"] for k in (1, 5, 20)] == pytest.approx([1 / 3, 1 / 3, 2 / 3])
    without = score_predictions(tmp_path / "p.jsonl", [question._replace(evidence=()) for question in questions])
    assert "evidence_at_1" not in without


def test_retrieved_passages_are_scored_by_judged_documents_as_ir_measures_does(tmp_path: Path) -> None:
    ir_measures: Any = importlib.import_module("ir_measures")  # which has no types
    qrels = {"q1": {"a": 3, "b": 0, "c": 1}, "q2": {"b": 1, "e": 2}, "q3": {"a": 1}, "q4": {"a": 0}}
    qrels["q5"] = {"a": 2, "b": -2, "c": -1, "e": 1}
    found = {"q1": ["b/1", "c", "a/0", "a/7"], "q2": ["a", "b"], "q4": ["a"], "q5": ["b", "a", "e"], "q9": ["a"]}
    questions = [Question(q, f"text {q}", (), None, judged=tuple(own.items())) for q, own in qrels.items()]
    rows = [{"id": q, "ctxs": [{"id": name, "text": "Some."} for name in names]} for q, names in found.items()]
    scores = score_predictions(put(tmp_path / "p.jsonl", lines(rows)), questions)
    run = {"q1": {"b": 3.0, "c": 2.0, "a": 1.0}, "q2": {"a": 2.0, "b": 1.0}, "q4": {"a": 1.0}}
    run["q5"] = {"b": 3.0, "a": 2.0, "e": 1.0}
    measures = ir_measures.nDCG @ 10, ir_measures.R @ 100
    theirs = ir_measures.calc_aggregate(measures, qrels, run)
    assert (scores["ndcg_at_10"], scores["judged_recall_at_100"]) == pytest.approx([theirs[name] for name in measures])
    assert (scores["questions"], scores["missing"], scores["unscorable"], scores["surplus"]) == (5, ["q3"], [], ["q9"])
    assert "recall_at_5" not in scores
    answers = put(tmp_path / "a.json", json.dumps({"q1": "x"}))
    with_answers = [questions[0]._replace(answers=("x",))]
    assert "ndcg_at_10" not in score_predictions(answers, with_answers), "no passages, nothing to judge"


def test_a_trec_run_is_scored_as_ir_measures_does(tmp_path: Path) -> None:
    ir_measures: Any = importlib.import_module("ir_measures")
    qrels = {"q 1": {"a": 3, "b": 1}, "q2": {"d 1": 1, "%20": 2}}
    questions = [Question(q, f"text {q}", ("Oslo",), None, judged=tuple(own.items())) for q, own in qrels.items()]
    text = "q2 Q0 x 1 9.5 t\nq2 Q0 d%201 2 9.5 t\nq%201 Q0 a 2 -3.25 t\nq%201 Q0 b 1 4 t\n\nq2 Q0 %2520/3 9 1e-3 t\n"
    scores = score_predictions(put(tmp_path / "bm25.run", text), questions)
    run = {"q 1": {"a": 1.0, "b": 4.0}, "q2": {"x": 9.5, "d 1": 9.5, "%20": 0.001}}  # of equal scores the last name
    measures = ir_measures.nDCG @ 10, ir_measures.R @ 100
    theirs = ir_measures.calc_aggregate(measures, qrels, run)
    assert (scores["ndcg_at_10"], scores["judged_recall_at_100"]) == pytest.approx([theirs[name] for name in measures])
    assert not {"recall_at_5", "exact_match"} & scores.keys(), "a run has no texts"
    with refused("neither texts", path=tmp_path / "bm25.run"):
        score_predictions(tmp_path / "bm25.run", [question._replace(judged=()) for question in questions])
    with refused("TREC run", path=tmp_path / "cut.run", line=2):
        score_predictions(put(tmp_path / "cut.run", text[:25]), questions)


def test_a_run_and_judgements_without_queries_are_enough_for_the_measures_of_trec_eval(tmp_path: Path) -> None:
    qrels = put(tmp_path / "qrels.txt", "1 0 a 1\n1 0 b 0\n1 0 c 2\n1 0 d 1\n2 0 a 1\n3 0 x 0\n4 0 e -1\n4 0 f 1\n")
    # of equal scores the last name is first, and scores are equal as float32
    run = "1 Q0 b 0 0.50000000001 t more\n1 Q0 c 0 0.5 t junk\n1 Q0 a 9 0.1 t\n3\tQ0\tx\t1\t1\tt\n"
    run += "4 Q0 e 0 2 t\n4 Q0 f 0 1 t\n"
    questions = read_references(qrels)
    scores = score_predictions(put(tmp_path / "run.txt", run), questions)
    assert (len(questions), scores["questions"], scores["missing"]) == (4, 4, ["2"])
    assert scores["map"] == pytest.approx(((1 + 2 / 3) / 3 + 1 / 2) / 4)
    log = math.log2
    ndcg = (2 + 1 / log(4)) / (2 + 1 / log(3) + 1 / log(4)), 1 / log(3)
    assert scores["ndcg_at_5"] == scores["ndcg_at_1000"] == pytest.approx(sum(ndcg) / 4)
    assert [scores[f"precision_at_{k}"] for k in (5, 30)] == pytest.approx([(2 / 5 + 1 / 5) / 4, (2 / 30 + 1 / 30) / 4])
    assert scores["judged_recall_at_5"] == pytest.approx((2 / 3 + 1) / 4)
    assert [scores[f"success_at_{k}"] for k in (1, 5)] == [1 / 4, 2 / 4]


@pytest.mark.parametrize(("run", "printed"), [("results.test", "out.test.aq"), ("results.trunc", "out.test.aqc")])
def test_every_digit_is_that_of_trec_eval(run: str, printed: str) -> None:
    """trec_eval's test files: each topic, and the mean over the judged topics (its -c); one run lacks a topic."""
    questions = read_references(data_file("trec_eval/qrels.test"))
    rows = map(str.split, data_file(f"trec_eval/{printed}").read_text().splitlines())
    theirs = {(topic, name): value for name, topic, value in (row for row in rows if len(row) == 3)}
    names = {"ndcg_at": "ndcg_cut", "judged_recall_at": "recall", "precision_at": "P", "success_at": "success"}
    compared = 0
    for topic, some in [("all", questions), *((question.id, [question]) for question in questions)]:
        if f"\n{topic}\t" in "\nall\t" + data_file(f"trec_eval/{run}").read_text():
            for measure, value in score_predictions(data_file(f"trec_eval/{run}"), some).items():
                if isinstance(value, float):
                    name, _, depth = measure.rpartition("_")
                    assert f"{value:.4f}" == theirs[topic, f"{names[name]}_{depth}" if name else measure]
                    compared += 1
    assert compared == 22 * (4 if run == "results.test" else 3)


def test_an_answer_of_which_nothing_is_left_is_only_itself(tmp_path: Path) -> None:
    references = enumerate(["A", "~.~", "the", "A", "!", "."])
    asked = [Question(str(n), f"q{n}", (one, "a letter"), None) for n, one in references]
    given = dict(zip("012345", ["a ", "~.~", "an", "", "...", "."], strict=True))
    scores = score_predictions(put(tmp_path / "p.json", json.dumps(given)), asked)
    assert (scores["exact_match"], scores["f1"], scores["unscorable"]) == (3 / 6, 3 / 6, [])


def test_a_document_that_is_the_question_is_left_out(tmp_path: Path) -> None:
    """As in BEIR's evaluation. If the document is judged relevant, the ids come from unrelated lists, and it stays."""
    judged = {"arg0": (("con0", 1),), "arg1": (("con1", 1),), "7": (("7", 1),)}
    questions = [Question(q, f"text {q}", (), None, judged=own) for q, own in judged.items()]
    found = {"arg0": ["arg0/0", "arg0/1", "con0"], "arg1": ["con1"], "7": ["7"]}
    rows = [{"id": q, "ctxs": [{"id": name, "text": ""} for name in names]} for q, names in found.items()]
    scores = score_predictions(put(tmp_path / "p.jsonl", lines(rows)), questions)
    assert (scores["ndcg_at_10"], scores["judged_recall_at_100"], scores["itself"]) == (1.0, 1.0, ["arg0"])


def test_predictions_for_other_questions_alone_are_refused(tmp_path: Path) -> None:
    rows = [{"question": q.question.upper(), "ctxs": [{"text": "Shakespeare"}]} for q in QUESTIONS]
    with refused("no prediction for any of the 4 questions", path=tmp_path / "p.jsonl"):
        score_predictions(put(tmp_path / "p.jsonl", lines(rows)), QUESTIONS)


def test_answers_and_passages_of_one_file_are_each_scored_as_what_they_are(tmp_path: Path) -> None:
    passages = [{"text": "In France."}]
    asked = [*QUESTIONS, QUESTIONS[1]._replace(id="e", question="which one is missing")]
    rows = [
        {"id": "a", "prediction": "Shakespeare"},
        {"id": "b", "prediction": "France", "ctxs": passages},
        {"id": "c", "prediction": None, "ctxs": passages},
        {"id": "d", "ctxs": passages},
        {"id": "d", "ctxs": [{"text": "In Ontario."}]},
    ]
    result = score_predictions(put(tmp_path / "p.jsonl", lines(rows)), asked)
    scores = {name: value for name, value in result.items() if isinstance(value, float)}
    recalls = dict.fromkeys(("recall_at_1", "recall_at_5", "recall_at_20"), 1 / 5)
    assert scores == pytest.approx({"exact_match": 2 / 5, "f1": 2 / 4, **recalls})
    assert result["questions"] == 5
    assert (result["missing"], result["contradictory"]) == (["e"], ["d"])
    assert (result["without_answer"], result["without_passages"]) == (["c", "d"], ["a"])


def test_references_that_normalise_to_nothing_are_named_and_left_out(tmp_path: Path) -> None:
    asked = [
        Question("the", "which article", ("the",), None),
        Question("sign", "which sign", ("!!!", "The The"), None),
        Question("both", "which letter", ("A", "B"), None),
        Question("blank", "which pattern", (" ",), None, "regex"),
        Question("none", "which one", (), None),
        Question("right", "which word", ("word",), None),
    ]
    rows = [{"id": q.id, "prediction": "word" if q.id == "right" else ""} for q in asked]
    result = score_predictions(put(tmp_path / "p.jsonl", lines(rows)), asked)
    assert (result["questions"], result["exact_match"], result["f1"]) == (2, 0.5, 0.5)
    assert result["unscorable"] == ["the", "sign", "blank", "none"]
    assert not result["missing"]
    assert not result["surplus"]
    with refused("none of the 2 questions", path=tmp_path / "p.jsonl"):
        score_predictions(tmp_path / "p.jsonl", asked[:2])


@pytest.mark.parametrize(
    ("name", "text", "line", "part", "word"),
    [
        ("number.json", '{"a": 3}', None, "'a'", "'prediction' must be"),
        ("nothing.jsonl", '{"id": "a", "answer": "x"}', 1, "", "'prediction' is missing"),
        ("anonymous.jsonl", '{"prediction": "x"}\n{"prediction": "y"}', 1, "", "neither"),
        ("contexts.json", '[{"question": "q", "ctxs": [{"title": "t"}]}]', 1, "record 1, ctxs 1", "'text' is missing"),
        ("deep.json", '{"a": ' + "[" * 100_000, 1, "", "JSON"),
        ("plain.txt", "x\n", 1, "", "no such header"),
    ],
)
def test_bad_files_are_refused_with_place_and_remedy(
    tmp_path: Path, name: str, text: str, line: int | None, part: str, word: str
) -> None:
    with refused(word, path=tmp_path / name, line=line, part=part) as caught:
        score_predictions(put(tmp_path / name, text), QUESTIONS)
    assert caught.value.remedy


def test_questions_that_no_reader_would_train_on_are_still_scored(tmp_path: Path) -> None:
    path = put(tmp_path / "q.jsonl", lines([{"question": " q1", "answer": ["the"]}, {"question": "q1", "answer": "x"}]))
    assert [(q.question, q.answers) for q in read_references(path)] == [("q1", ("the",)), ("q1", ("x",))]


def test_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"id": str(n), "question": f"q{n}", "answer": [f"x{n}"]} for n in range(5)]
    questions = str(put(tmp_path / "q.jsonl", lines(rows)))
    predictions = str(put(tmp_path / "p.json", json.dumps({"0": "x0", "1": "X1.", "2": "no", "3": "x3"})))
    command = ["evaluate", "--root", str(tmp_path), "--predictions", predictions]
    assert main([*command, "--questions", questions]) == 0
    printed = capsys.readouterr()
    assert "exact_match       60.00 %" in printed.out
    assert "1 missing: 4" in printed.err
    assert main([*command, "--questions", questions, "--json"]) == 0
    scores = json.loads(capsys.readouterr().out)
    assert (scores["exact_match"], scores["missing"]) == (0.6, ["4"])
    assert main(command) == 2
    assert "params.yaml" in capsys.readouterr().err
