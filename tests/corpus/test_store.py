"""The store: what was written is read, row by row; what is cut off or missing is refused with the remedy."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from realm_lab.corpus.records import Passage
from realm_lab.corpus.store import (
    NO_ROW,
    Passages,
    PreparedCorpus,
    Questions,
    Ragged,
    RaggedWriter,
    Sentences,
    TextTable,
    TextTableWriter,
    token_dtype,
)
from realm_lab.errors import UserError

TEXT = pa.schema([field for field in Questions.COLUMNS if field.name not in ("tokens", "gold")])


def write_ragged(folder: Path, batches: list[list[list[int]]], dtype: Any = np.uint16) -> Path:
    writer = RaggedWriter(folder, "rows", dtype)
    for batch in batches:
        writer.append(batch)
    writer.close()
    return folder


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.lists(st.integers(0, 65535), max_size=5), max_size=4), max_size=4))
def test_ragged_round_trip(batches: list[list[list[int]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = Ragged(write_ragged(Path(folder), batches), "rows", np.uint16)
        expected = [row for batch in batches for row in batch]
        assert len(rows) == len(expected)
        assert [rows[number].tolist() for number in range(len(rows))] == expected
        assert rows.lengths.tolist() == [len(row) for row in expected]


def test_rows_are_views_into_the_memory_map(tmp_path: Path) -> None:
    rows = Ragged(write_ragged(tmp_path, [[[1, 2], [3]]]), "rows", np.uint16)
    assert isinstance(rows.values, np.memmap)
    assert np.shares_memory(rows[1], rows.values)
    with pytest.raises(ValueError, match="read-only"):
        rows[1][0] = 9


def test_append_takes_generators(tmp_path: Path) -> None:
    writer = RaggedWriter(tmp_path, "rows", np.int32)
    writer.append([n] * n for n in range(4))
    writer.append(iter([]))
    writer.close()
    rows = Ragged(tmp_path, "rows", np.int32)
    assert [rows[n].tolist() for n in range(4)] == [[], [1], [2, 2], [3, 3, 3]]


@pytest.mark.parametrize("lost_bytes", [2, 4, 10])
def test_truncated_values_are_refused_with_the_remedy(tmp_path: Path, lost_bytes: int) -> None:
    write_ragged(tmp_path, [[[1, 2, 3], [4, 5]]])
    path = tmp_path / "rows.bin"
    path.write_bytes(path.read_bytes()[:-lost_bytes])
    with pytest.raises(UserError, match="prepare again") as caught:
        Ragged(tmp_path, "rows", np.uint16)
    assert str(path) in str(caught.value)
    assert "5 were written" in str(caught.value)


def test_too_many_values_are_refused(tmp_path: Path) -> None:
    write_ragged(tmp_path, [[[1, 2, 3]]])
    with open(tmp_path / "rows.bin", "ab") as file:
        file.write(b"\0\0")
    with pytest.raises(UserError, match="prepare again"):
        Ragged(tmp_path, "rows", np.uint16)


def test_text_table_round_trip(tmp_path: Path) -> None:
    writer = TextTableWriter(tmp_path / "deep" / "text.arrow", TEXT)
    first = {"id": "1", "question": "Wer? \u00e9\u4e2d\U0001f600", "answers": ["a", "b"], "answers_updated": ["a"]}
    second = {"id": "2", "question": "what", "answers": ["c"], "answers_updated": []}
    writer.append([first])
    writer.append([])
    writer.append([second])
    writer.close()
    table = TextTable(tmp_path / "deep" / "text.arrow")
    assert len(table) == 2
    assert [table.row(0), table.row(1)] == [first, second]
    assert table.column("id") == ["1", "2"]


def write_passages(folder: Path, passages: list[Passage]) -> Path:
    for name in ("titles", "bodies", "sentence_starts"):
        dtype = np.int32 if name == "sentence_starts" else np.uint16
        writer = RaggedWriter(folder, name, dtype)
        writer.append([[number, number + 1] for number in range(len(passages))])
        writer.close()
    np.arange(len(passages), dtype=np.int32).tofile(folder / "articles.bin")
    text = TextTableWriter(folder / "text.arrow", Passages.SCHEMA)
    text.append([passage._asdict() for passage in passages])
    text.close()
    return folder


def test_passages_round_trip(tmp_path: Path) -> None:
    written = [Passage(f"d/{n}", "T", f"body {n}", "d", "a") for n in range(3)]
    passages = Passages(write_passages(tmp_path, written), np.uint16)
    assert len(passages) == 3
    assert [Passage(**passages.text.row(row)) for row in range(3)] == written
    assert passages.bodies[2].tolist() == [2, 3]
    assert passages.articles.tolist() == [0, 1, 2]


@pytest.mark.parametrize(("size", "dtype"), [(100, np.uint16), (65536, np.uint16), (65537, np.uint32)])
def test_tokens_take_the_smallest_type_that_holds_them(size: int, dtype: type) -> None:
    assert token_dtype(size) is dtype
    assert np.iinfo(dtype).max >= size - 1


def test_rows_with_spans_and_the_rows_of_spans(tmp_path: Path) -> None:
    spans: list[list[int]] = [[], [0, 1, 2, 4], [], [], [1, 2], [3, 5, 0, 1, 6, 7], []]
    for name, dtype, rows in (("tokens", np.uint16, [[7] * 9] * len(spans)), ("spans", np.int32, spans)):
        writer = RaggedWriter(tmp_path, name, dtype)
        writer.append(rows)
        writer.close()
    for name in ("origins", "gold"):
        np.full(len(spans), NO_ROW, np.int32).tofile(tmp_path / f"{name}.bin")
    sentences = Sentences(tmp_path, np.uint16)
    assert len(sentences) == 7
    assert sentences.rows_with_spans().tolist() == [1, 4, 5]
    assert sentences.span_count() == 6
    assert sentences.rows_of_spans(np.arange(6)).tolist() == [1, 1, 4, 5, 5, 5]
    assert sentences.salient_spans(0).shape == (0, 2)
    assert sentences.salient_spans(1).tolist() == [[0, 1], [2, 4]]


def manifest(folder: Path, **changes: Any) -> Path:
    described: dict[str, Any] = {name: name for name in ("key", "digest", "tokenizer_digest")}
    described |= {"vocabulary_size": 100, "counts": {}, "dropped": {}}
    (folder / "manifest.json").write_text(json.dumps(described | changes))
    return folder


def test_a_folder_that_is_not_there_or_not_finished_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(UserError, match="run `realm-lab prepare` first") as caught:
            PreparedCorpus(folder)
        assert str(folder) in str(caught.value)


def test_a_broken_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"key": ')
    with pytest.raises(UserError, match=r"manifest\.json, line 1: not valid JSON"):
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
        with pytest.raises(UserError, match="run `realm-lab prepare` again") as caught:
            ask()
        assert str(tmp_path / part) in str(caught.value)


def test_the_vocabulary_size_decides_how_tokens_are_read(tmp_path: Path) -> None:
    (tmp_path / "questions_dev").mkdir()
    for size, dtype in ((100, np.uint16), (70_000, np.uint32)):
        writer = RaggedWriter(tmp_path / "questions_dev", "tokens", dtype)
        writer.append([[7, 99]])
        writer.close()
        gold = RaggedWriter(tmp_path / "questions_dev", "gold", np.int32)
        gold.append([[3]])
        gold.close()
        text = TextTableWriter(tmp_path / "questions_dev" / "text.arrow", TEXT)
        text.append([{"id": "1", "question": "q", "answers": ["a"], "answers_updated": ["a"]}])
        text.close()
        questions = PreparedCorpus(manifest(tmp_path, vocabulary_size=size)).questions("dev")
        assert questions.tokens[0].tolist() == [7, 99]
        assert (questions.ids, questions.answers, questions.gold[0].tolist()) == (["1"], [["a"]], [3])


DAMAGE = {
    "half a value": ("bodies.bin", -1),
    "half an offset": ("bodies.offsets.bin", -3),
    "empty offsets": ("bodies.offsets.bin", 0),
    "articles cut off": ("articles.bin", -4),
    "text cut off": ("text.arrow", -40),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_every_damaged_file_is_refused(tmp_path: Path, damage: str) -> None:
    name, end = DAMAGE[damage]
    write_passages(tmp_path, [Passage(f"d/{n}", "T", f"body {n}", "d", "a") for n in range(3)])
    (tmp_path / name).write_bytes((tmp_path / name).read_bytes()[:end])
    with pytest.raises(UserError, match="prepare again") as caught:
        Passages(tmp_path, np.uint16)
    assert name in str(caught.value)


def test_a_lost_file_is_refused(tmp_path: Path) -> None:
    write_passages(tmp_path, [Passage("d/0", "T", "body", "d", "a")])
    (tmp_path / "titles.bin").unlink()
    with pytest.raises(UserError, match="prepare again"):
        Passages(tmp_path, np.uint16)
