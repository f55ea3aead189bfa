"""The store: rows are read back as written; truncated or missing files are refused with the remedy."""

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realm_lab.engine.corpus.records import Passage
from realm_lab.engine.corpus.store import NO_ROW, Passages, PreparedCorpus, Questions, Ragged, RaggedWriter, Sentences
from realm_lab.records.digests import write_last
from tests.engine.corpus.preparing import write_part
from tests.factories.errors import refused


@settings(max_examples=50)
@given(st.lists(st.lists(st.lists(st.integers(0, 65535), max_size=5), max_size=4), max_size=4))
def test_ragged_round_trip(batches: list[list[list[int]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        writer = RaggedWriter(Path(folder), "rows", np.uint16)
        for batch in batches:
            writer.append(row for row in batch)
        writer.close()
        rows = Ragged(Path(folder), "rows", np.uint16)
        expected = [row for batch in batches for row in batch]
        assert [rows[number].tolist() for number in range(len(rows))] == expected
        assert rows.lengths.tolist() == [len(row) for row in expected]


def written(folder: Path) -> Path:
    """Three passages."""
    rows: list[dict[str, Any]] = [
        {"titles": [n], "bodies": [n, 65535], "sentence_starts": [0], "articles": n}
        | Passage(f"d/{n}", "T", f"body {n} \u00e9\U0001f600", "d", "a")._asdict()
        for n in range(3)
    ]
    return write_part(folder, Passages.COLUMNS, rows)


def test_passages_are_read_row_by_row_as_views_into_the_memory_map(tmp_path: Path) -> None:
    passages = Passages(written(tmp_path), np.uint16)
    assert len(passages) == 3
    assert passages.text.row(2) == Passage("d/2", "T", "body 2 \u00e9\U0001f600", "d", "a")._asdict()
    assert passages.text.column("id") == ["d/0", "d/1", "d/2"]
    assert (passages.bodies[2].tolist(), passages.articles.tolist()) == ([2, 65535], [0, 1, 2])
    assert isinstance(passages.bodies.values.base, np.memmap)
    assert np.shares_memory(passages.bodies[1], passages.bodies.values)
    with pytest.raises(ValueError, match="read-only"):
        passages.bodies[1][0] = 9


def test_a_document_that_is_one_passage_lends_it_its_id(tmp_path: Path) -> None:
    ids = [("a", 0), ("b", 0), ("b", 1), ("b", 2), ("c", 1), ("d", 0)]
    rows: list[dict[str, Any]] = [
        {"titles": [1], "bodies": [2], "sentence_starts": [0], "articles": 0}
        | Passage(f"{document}/{number}", "T", "body", document, "a")._asdict()
        for document, number in ids
    ]
    passages = Passages(write_part(tmp_path, Passages.COLUMNS, rows), np.uint16)
    assert [passages.id_of(row) for row in range(6)] == ["a", "b/0", "b/1", "b/2", "c", "d"]


def test_rows_with_spans_and_their_labels(tmp_path: Path) -> None:
    spans: list[list[int]] = [[], [0, 1, 2, 4], [], [], [1, 2], [3, 5, 0, 1, 6, 7], []]
    rows = [{"tokens": [7] * 9, "spans": pairs, "origins": NO_ROW, "gold": NO_ROW, "labels": ""} for pairs in spans]
    rows[1]["labels"], rows[5]["labels"] = "name\tdate", "\tname\tdate"
    sentences = Sentences(write_part(tmp_path, Sentences.COLUMNS, rows), np.uint16)
    masks = ([3], [0], [2, 3], [0, 3], [1], [4])
    assert [sentences.kind(1, np.array(mask)) for mask in masks] == ["date", "name", "date", "name", "none", "none"]
    assert sentences.kind(0, np.array([0])) == "none"
    assert sentences.labels(0) == ()
    assert [sentences.kind(5, np.array([place])) for place in (3, 0, 6)] == ["none", "name", "date"]
    assert len(sentences) == 7
    assert sentences.rows_with_spans().tolist() == [1, 4, 5]
    assert sentences.salient_spans(0).shape == (0, 2)
    assert sentences.salient_spans(1).tolist() == [[0, 1], [2, 4]]


def manifest(folder: Path, **changes: Any) -> Path:
    described: dict[str, Any] = {name: name for name in ("key", "digest", "tokenizer_digest")}
    described |= {"vocabulary_size": 100, "counts": {}, "dropped": {}}
    write_last(folder / "manifest.json", described | changes)
    return folder


@pytest.mark.parametrize(("size", "dtype"), [(65_536, np.uint16), (65_537, np.uint32)])
def test_the_vocabulary_size_decides_how_tokens_are_read(tmp_path: Path, size: int, dtype: type) -> None:
    row = {"tokens": [7, 99], "gold": [3], "id": "1", "question": "q", "answers": ["a"], "answers_updated": []}
    write_part(tmp_path / "questions_dev", Questions.COLUMNS, [row], dtype)
    questions = PreparedCorpus(manifest(tmp_path, vocabulary_size=size)).questions("dev")
    assert questions.tokens[0].tolist() == [7, 99]
    assert (questions.ids, questions.answers, questions.gold[0].tolist()) == (["1"], [["a"]], [3])
    assert (questions.answers_updated, questions.answer_kinds) == ([[]], ["text"])


def test_a_folder_that_is_not_there_not_finished_or_broken_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path / "none", tmp_path):
        with refused(path=folder, remedy="run `realm-lab prepare`"):
            PreparedCorpus(folder)
    (tmp_path / "manifest.json").write_text('{"key": ')
    with refused(path=tmp_path / "manifest.json", line=1):
        PreparedCorpus(tmp_path)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    corpus = PreparedCorpus(manifest(tmp_path))
    assert corpus.articles() is None
    assert not corpus.has_second_version()
    for ask, part in (
        (corpus.passages, "passages"),
        (corpus.sentences, "sentences"),
        (lambda: corpus.passages(version=1), "passages_updated"),
        (lambda: corpus.questions("dev"), "questions_dev"),
    ):
        with refused("`realm-lab prepare` again", path=tmp_path / part):
            ask()


def test_a_file_of_another_length_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path) / "bodies.bin"
    whole = path.read_bytes()
    for content, values in ((whole[:-2], "5 values"), (whole + b"\0\0", "7 values")):
        path.write_bytes(content)
        with refused(values, path=path, remedy="prepare again"):
            Passages(tmp_path, np.uint16)
