"""The counts of a file, and of the real data if it is present."""

import json
import os
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


def q(questions: int, **more: int) -> dict[str, int]:
    return {"questions": questions} | more


def d(documents: int, **more: int) -> dict[str, int]:
    return {"documents": documents} | more


# Counts that the description of the data gives.
REAL = {
    "squad/train-v1.1.json.gz": ("squad", d(18_896, articles=442, questions=87_599)),
    "nq_open/NQ-open.dev.public-third.jsonl": ("open_questions", q(1_206)),
    "nq_gold/nq_open_gold_passages.public.jsonl": ("nq_gold_passages", d(888, questions=888)),
    "nq_gold/qed-dev.public.jsonlines": ("qed", d(637, questions=637)),
    "webquestions/main.val.original.json": ("webquestions", q(755)),
    "curatedtrec/CuratedTrec-train.jsonl": ("curated_trec", q(1_479)),
    "curatedtrec/large2180-train.original.tsv": ("curated_trec_table", q(1_479)),
    "wikitext/wiki.valid.raw-tokens.txt": ("wikitext", d(60, articles=60)),
    "wiki_articles/timeqa_articles.jsonl.gz": ("texts", d(318)),
    "wiki_articles/timeqa_questions.jsonl": ("timeqa", q(2_342)),
    "wiki_articles/2wikimultihopqa_corpus.json": ("texts", d(6_119)),
    "wiki_articles/psgs_w100.sample.tsv": ("text_table", d(1_276, articles=60)),
    "news/wikipedia_current_events_2025-01_2026-08.jsonl": ("texts", d(10_339)),
    "knowledge_update/cloze_only_in_Znew.public.jsonl": ("cloze", q(496)),
    # 448 records, each of two versions
    "knowledge_update/squad_dev_swapped.public.jsonl": ("swapped_paragraphs", d(2 * 448)),
    "trivia/TriviaQA-dev.dpr.tsv": ("question_table", q(8_837)),
}
# Records dropped from these files.
NOTHING, NO_ANSWER = "answer: normalises to nothing", "question: no answer"
DROPPED = {
    "squad/train-v1.1.json.gz": {NOTHING: 2, NO_ANSWER: 2},
    "nq_open/NQ-open.dev.public-third.jsonl": {NOTHING: 1, NO_ANSWER: 1},
    "nq_gold/nq_open_gold_passages.public.jsonl": {"document: copy of an earlier one": 8},
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
