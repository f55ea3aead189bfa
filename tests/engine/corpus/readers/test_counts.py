"""The counts of a file, and of the real data if it is present."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from realm_lab import cli
from realm_lab.engine.corpus.readers import FileCounts, count_inputs

REPOSITORY = Path(__file__).resolve().parents[4]
DATA = Path(os.environ.get("REALM_LAB_DATA") or REPOSITORY.parent / "shared" / "data")


def lines(*records: Any) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def counted(path: Path) -> FileCounts:
    [found] = count_inputs([str(path)])
    assert isinstance(found, FileCounts)
    return found


def test_counts_say_what_is_kept_and_what_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "news.jsonl"
    texts = [("a", "T", "One two."), ("b", "T", " "), ("c", "U", "Three.")]
    path.write_text(lines(*({"id": name, "title": title, "text": text} for name, title, text in texts)))
    found = counted(path)
    assert (found.format, found.dropped) == ("texts", {"document: empty text": 1})
    assert found.counts == {"documents": 2, "articles": 2, "characters": 14, "words": 3}
    assert list(found.lines())[1:] == ["  document: empty text: 1, the first 'b'"]
    path = tmp_path / "trec.jsonl"
    path.write_text(lines({"id": 1, "question": "q", "answer": ["(a", "b"]}, {"id": 2, "question": "q", "answer": []}))
    found = counted(path)
    assert found.counts == {"questions": 1, "answers": 2}
    assert found.first_dropped["question: no answer"] == "2"


def test_a_file_of_which_no_question_is_kept_is_pointed_out(tmp_path: Path) -> None:
    empty, useless, texts = tmp_path / "a.json", tmp_path / "b.jsonl", tmp_path / "c.jsonl"
    empty.write_text("[]")
    useless.write_text(lines({"id": 1, "question": "q", "answer": ["the"]}))
    texts.write_text(lines({"text": "A."}))
    said = [any("no question" in line for line in counted(path).lines()) for path in (empty, useless, texts)]
    assert said == [True, True, False]


def test_prepare_count_prints_and_goes_on_after_a_bad_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.jsonl", tmp_path / "bad.jsonl"
    good.write_text(lines({"text": "A b."}))
    bad.write_text("{\n")
    assert cli.main(["prepare", "--root", str(tmp_path), "--count", str(bad), str(good)]) == 2
    printed = capsys.readouterr()
    assert printed.out.startswith(f"{good}: texts: documents 1, articles 1, ")
    assert printed.err.startswith(f"realm-lab: error: {bad}, line 1")
    assert cli.main(["prepare", "--root", str(tmp_path), "--count", str(good), "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    empty = tmp_path / "psgs_w100.tsv"
    empty.write_text("id\ttext\ttitle\n")
    assert cli.main(["prepare", "--root", str(tmp_path), "--count", str(empty), str(good)]) == 1
    assert "no document is kept" in capsys.readouterr().out
    assert (found["name"], found["format"], found["counts"]["documents"]) == (str(good), "texts", 1)


def test_files_are_counted_with_the_ids_that_they_have_together(tmp_path: Path) -> None:
    names = [str(tmp_path / year / "part.jsonl") for year in ("2020", "2021")]
    for name in names:
        Path(name).parent.mkdir()
        Path(name).write_text(lines({"text": "A."}, {"text": " "}))
    found = list(count_inputs([*names, str(tmp_path / "none.jsonl")]))
    assert [f.first_dropped for f in found[:2] if isinstance(f, FileCounts)] == [
        {"document: empty text": "2020/part.jsonl:2"}, {"document: empty text": "2021/part.jsonl:2"},
    ]  # fmt: skip
    assert str(found[2]).startswith(str(tmp_path / "none.jsonl"))


def test_counting_starts_without_torch(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(lines({"text": "A."}))
    program = (
        "import sys; from realm_lab.cli import main; main(['prepare', '--count', sys.argv[1]]); "
        "print(*{'torch', 'pandas'} & {*sys.modules})"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "a.jsonl")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert done.stdout.splitlines()[-1] == ""


def q(questions: int, **more: int) -> dict[str, int]:
    return {"questions": questions} | more


def d(documents: int, **more: int) -> dict[str, int]:
    return {"documents": documents} | more


# Counts that the description of the data gives.
REAL = {
    "squad/train-v1.1.json.gz": ("squad", d(18_896, articles=442, questions=87_599)),
    "squad/dev-v1.1.json": ("squad", d(1_396, articles=32, questions=7_150)),
    "nq_open/NQ-open.dev.public-third.jsonl": ("open_questions", q(1_206)),
    "nq_open/NQ-open.orqa-dev.jsonl": ("open_questions", q(8_757)),
    "nq_open/ambignq.train_light.asnqopen.jsonl": ("open_questions", q(10_036)),
    "nq_open/NQ-open.efficientqa.dev.1.1.jsonl": ("open_questions", q(1_800)),
    "nq_gold/nq_open_gold_passages.public.jsonl": ("nq_gold_passages", d(888, questions=888)),
    "nq_gold/qed-dev.public.jsonlines": ("qed", d(637, questions=637)),
    "webquestions/WebQuestions-train.jsonl": ("open_questions", q(2_834)),
    "webquestions/WebQuestions-dev.jsonl": ("open_questions", q(944)),
    "webquestions/WebQuestions-test.public-half.jsonl": ("open_questions", q(1_016)),
    "webquestions/main.val.original.json": ("webquestions", q(755)),
    "curatedtrec/CuratedTrec-train.jsonl": ("curated_trec", q(1_479)),
    "curatedtrec/large2180-train.original.tsv": ("curated_trec_table", q(1_479)),
    "curatedtrec/CuratedTrec-test.public-half.jsonl": ("curated_trec", q(348)),
    "wikitext/wiki.valid.raw-tokens.txt": ("wikitext", d(60, articles=60)),
    "wikitext/wiki.test.raw-tokens.txt": ("wikitext", d(62, articles=62)),
    "wiki_articles/timeqa_articles.jsonl.gz": ("texts", d(318)),
    "wiki_articles/timeqa_questions.jsonl": ("timeqa", q(2_342)),
    "wiki_articles/2wikimultihopqa_corpus.json": ("texts", d(6_119)),
    "wiki_articles/psgs_w100.sample.tsv": ("text_table", d(1_276, articles=60)),
    "news/wikipedia_current_events_2025-01_2026-08.jsonl": ("texts", d(10_339)),
    "news/wikinews_prose.jsonl": ("texts", d(91)),
    "knowledge_update/events_Zold_2025.jsonl": ("texts", d(5_402)),
    "knowledge_update/events_Znew_2025-2026.jsonl": ("texts", d(10_339)),
    "knowledge_update/cloze_only_in_Znew.public.jsonl": ("cloze", q(496)),
    "knowledge_update/cloze_in_both.public.jsonl": ("cloze", q(298)),
    # 448 records, each of two versions
    "knowledge_update/squad_dev_swapped.public.jsonl": ("swapped_paragraphs", d(2 * 448)),
    "knowledge_update/new_wiki_v1.0.public-half.json": ("squad", d(786, articles=24, questions=3_892)),
    "trivia/TriviaQA-dev.dpr.tsv": ("question_table", q(8_837)),
    # The description counts 29,519 tokens: it takes the 39 tokens "#" for comments.
}
# Records dropped from these files.
NOTHING, NO_ANSWER = "answer: normalises to nothing", "question: no answer"
DROPPED = {
    "squad/train-v1.1.json.gz": {NOTHING: 2, NO_ANSWER: 2},
    "squad/dev-v1.1.json": {NOTHING: 3},
    "nq_open/NQ-open.dev.public-third.jsonl": {NOTHING: 1, NO_ANSWER: 1},
    "nq_open/NQ-open.orqa-dev.jsonl": {NOTHING: 3, NO_ANSWER: 2},
    "nq_open/ambignq.train_light.asnqopen.jsonl": {NOTHING: 2, NO_ANSWER: 1},
    "nq_open/NQ-open.efficientqa.dev.1.1.jsonl": {NOTHING: 1},
    "nq_gold/nq_open_gold_passages.public.jsonl": {
        "document: copy of an earlier one": 8
    },  # 880 passages of 888 questions
    "nq_gold/qed-dev.public.jsonlines": {"document: copy of an earlier one": 4},
    "curatedtrec/CuratedTrec-train.jsonl": {"answer: not a valid regular expression, kept and matches nothing": 1},
    "wiki_articles/timeqa_questions.jsonl": {NOTHING: 378, NO_ANSWER: 378},
    "trivia/TriviaQA-dev.dpr.tsv": {NOTHING: 29},
}


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="no real data: name its folder in REALM_LAB_DATA")
@pytest.mark.parametrize(("name", "kind", "expected"), [(name, *row) for name, row in REAL.items()], ids=REAL)
def test_real_files(name: str, kind: str, expected: dict[str, int]) -> None:
    found = counted(DATA / name)
    assert found.format == kind
    left_out = {"documents": "document: copy of an earlier one", "questions": NO_ANSWER}
    counts = {what: found.counts[what] + found.dropped.get(left_out.get(what, ""), 0) for what in expected}
    assert counts == expected
    assert found.dropped == DROPPED.get(name, {})
