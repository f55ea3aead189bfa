"""The prepared corpus on disk: tokens memory-mapped, text in Arrow files, counts and digests in a manifest.

<folder>/manifest.json            counts, drops by reason, digests of the content
<folder>/digests.json             digests of the files, compared when a part is opened
<folder>/tokenizer/               Hugging Face tokenizer folder
<folder>/passages/                knowledge corpus Z        (passages_updated/: its second version)
<folder>/sentences/               pre-training corpus X, also sentences without a salient span
<folder>/cloze_dev/, cloze_test/  held-out sentences, each with one salient span
<folder>/articles/                pairs for the reader's warm start (toy world only)
<folder>/questions_train/, _dev/, _test/
<folder>/patches.bin              pixels of pictures, if there are any (pictures.py)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from realm_lab.engine.corpus.pictures import PATCH_VALUES, data_uri
from realm_lab.engine.corpus.records import PICTURE, AnswerKind, Passage
from realm_lab.errors import UserError
from realm_lab.records.digests import check_file, check_folder
from realm_lab.records.files import read_json

NO_ROW = -1
LABEL_SEPARATOR = "\t"
NO_KIND = "none"
PATCHES_FILE = "patches.bin"


class RaggedWriter:
    """Appends integer lists to NAME.bin, with their boundaries in NAME.offsets.bin; constant memory."""

    def __init__(self, folder: Path, name: str, dtype: Any):
        folder.mkdir(parents=True, exist_ok=True)
        self._dtype = np.dtype(dtype)
        self._values = open(folder / f"{name}.bin", "wb")
        self._offsets = open(folder / f"{name}.offsets.bin", "wb")
        self._end = 0
        np.zeros(1, np.int64).tofile(self._offsets)

    def append(self, rows: pa.Array | Iterable[Sequence[int]]) -> None:
        """Append several rows."""
        lists = rows if isinstance(rows, pa.Array) else pa.array(map(list, rows), pa.list_(pa.int64()))
        lengths = np.asarray(lists.value_lengths().to_numpy(zero_copy_only=False), np.int64)
        lists.flatten().to_numpy(zero_copy_only=False).astype(self._dtype).tofile(self._values)
        (self._end + lengths.cumsum()).tofile(self._offsets)
        self._end += int(lengths.sum())

    def close(self) -> None:
        """Close both files."""
        self._values.close()
        self._offsets.close()


class Ragged:
    """The lists that a RaggedWriter wrote: `rows[i]` is a view into the memory map."""

    def __init__(self, folder: Path, name: str, dtype: Any):
        values, offsets = folder / f"{name}.bin", folder / f"{name}.offsets.bin"
        # Plain arrays over the maps: slicing an np.memmap takes ten times as long as slicing an array.
        self.offsets = np.asarray(np.memmap(offsets, np.int64, "r"))
        empty = values.stat().st_size == 0
        self.values = np.zeros(0, dtype) if empty else np.asarray(np.memmap(values, dtype, "r"))
        if self.offsets[-1] != len(self.values):
            raise UserError(
                f"{len(self.values)} values where {self.offsets[-1]} were written", "prepare again", path=values
            )

    @classmethod
    def of(cls, offsets: np.ndarray, values: np.ndarray) -> Ragged:
        """Make a Ragged of arrays in memory."""
        made = cls.__new__(cls)
        made.offsets, made.values = offsets, values
        return made

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, row: int) -> np.ndarray:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """Length of each row, int64 [rows]."""
        return np.diff(self.offsets)


class TextTable:
    """Rows of text in an Arrow file, memory-mapped, or of a table in memory; `row(i)` is a dictionary."""

    def __init__(self, source: Any):
        stored = isinstance(source, Path)
        self._table = pa.ipc.open_file(pa.memory_map(str(source))).read_all() if stored else source

    def row(self, index: int) -> dict[str, Any]:
        """One row as {column: value}."""
        [row] = self._table.slice(int(index), 1).to_pylist()
        return dict(row)

    def rows(self, first: int, count: int | None = None) -> TextTable:
        """Return `count` rows from row `first` on; None: all from there."""
        return TextTable(self._table.slice(first, count))

    def column(self, name: str, default: Any = None) -> list[Any]:
        """Return a whole column; if it is missing, the default in every row."""
        known = name in self._table.column_names or default is None
        return self._table.column(name).to_pylist() if known else [default] * self._table.num_rows

    def taken(self, name: str, rows: np.ndarray) -> list[Any]:
        """Return the values of a column in some rows."""
        return list(self._table.column(name).take(pa.array(rows, pa.int64())).to_pylist())

    def replaced(self, name: str, values: Sequence[str]) -> TextTable:
        """Return the same rows with other values in a column."""
        other = self._table.drop_columns([name]) if name in self._table.column_names else self._table
        return TextTable(other.append_column(name, pa.array(values, pa.string())))

    def codes(self, name: str, default: str) -> tuple[list[str], np.ndarray]:
        """Return the sorted distinct values of a column, and the index of each row's value among them; a missing column
        has the default in every row."""
        if name not in self._table.column_names:
            return [default], np.zeros(self._table.num_rows, np.int32)
        found = self._table.column(name).combine_chunks().dictionary_encode()
        names = found.dictionary.to_pylist()
        order = sorted(range(len(names)), key=names.__getitem__)
        return [names[position] for position in order], np.argsort(order).astype(np.int32)[found.indices.to_numpy()]


INT = pa.int32()
TOKENS, PLACES = pa.list_(pa.uint32()), pa.list_(pa.int32())  # lists of wordpieces, and of any other numbers


class PartWriter:
    """Writes one part of a corpus from batches of a schema.

    A list of numbers goes to a ragged file of the column's name, a number to NAME.bin, all text to text.arrow.
    """

    def __init__(self, folder: Path, schema: pa.Schema, token_dtype: Any):
        folder.mkdir(parents=True, exist_ok=True)
        self._ragged, self._numbers, text = {}, {}, []
        for field in schema:
            if field.type in (TOKENS, PLACES):
                dtype = token_dtype if field.type == TOKENS else np.int32
                self._ragged[field.name] = RaggedWriter(folder, field.name, dtype)
            elif field.type == INT:
                self._numbers[field.name] = open(folder / f"{field.name}.bin", "wb")
            else:
                text.append(field)
        self._text = pa.ipc.new_file(str(folder / "text.arrow"), pa.schema(text)) if text else None
        self._text_names = [field.name for field in text]
        self.rows = 0

    def append(self, batch: pa.RecordBatch) -> None:
        """Append the rows of a batch, which may have further columns."""
        for name, ragged in self._ragged.items():
            ragged.append(batch.column(name))
        for name, file in self._numbers.items():
            batch.column(name).to_numpy().astype(np.int32).tofile(file)
        if self._text is not None and batch.num_rows:
            self._text.write_batch(batch.select(self._text_names))
        self.rows += batch.num_rows

    def close(self) -> None:
        """Finish the files."""
        for part in (*self._ragged.values(), *self._numbers.values(), *filter(None, [self._text])):
            part.close()


class Pictures(NamedTuple):
    """Patches of the passages that are pictures."""

    patches: np.ndarray  # uint8 [patches, PATCH_VALUES], memory-mapped
    first_id: int  # of the first patch: the size of the vocabulary


class Passages:
    """The knowledge corpus Z. Row i has `titles[i]`, `bodies[i]` (wordpieces) and `text.row(i)`."""

    COLUMNS = pa.schema(
        [("titles", TOKENS), ("bodies", TOKENS), ("sentence_starts", PLACES), ("articles", INT)]
        + [(name, pa.string()) for name in Passage._fields]
    )

    def __init__(self, folder: Path, token_dtype: Any, pictures: Pictures | None = None):
        self._pictures = pictures
        self.titles = Ragged(folder, "titles", token_dtype)
        self.bodies = Ragged(folder, "bodies", token_dtype)
        self.sentence_starts = Ragged(folder, "sentence_starts", np.int32)
        self.articles = np.fromfile(folder / "articles.bin", np.int32)
        self.text = TextTable(folder / "text.arrow")

    @cached_property
    def forms(self) -> tuple[list[str], np.ndarray]:
        """The sorted forms of the passages, and the index of each passage's form among them, int32 [rows]."""
        return self.text.codes("form", "text")

    def picture(self, row: int) -> str | None:
        """Return a passage that is a picture as a data URI; None for a passage of text."""
        if self._pictures is None or self.text.row(row)["form"] != PICTURE:
            return None
        patches, first_id = self._pictures
        starts = self.sentence_starts[row]
        columns = int(starts[1]) if len(starts) > 1 else len(self.bodies[row])
        return data_uri(patches[np.asarray(self.bodies[row], np.int64) - first_id], columns)

    def id_of(self, row: int) -> str:
        """Return the id of a passage for use outside this corpus: the document's id, or, if the document has several
        passages, the passage's id."""
        row = int(row)
        near = self.text.rows(max(0, row - 1), 3 if row else 2).column("document")  # a document's rows are neighbours
        text = self.text.row(row)
        return str(text["document"] if near.count(text["document"]) == 1 else text["id"])

    def __len__(self) -> int:
        return len(self.bodies)


class Sentences:
    """Sentences and their salient spans, which may be none.

    `spans[i]` is a flat list of (first wordpiece, end wordpiece) pairs. `origins` and `gold` are rows of the knowledge
    corpus, or NO_ROW. text.arrow has the tagger's label of each span, and the sentence as it is written.
    """

    COLUMNS = pa.schema(
        [("tokens", TOKENS), ("spans", PLACES), ("origins", INT), ("gold", INT)]
        + [(name, pa.string()) for name in ("labels", "text")]
    )

    def __init__(self, folder: Path, token_dtype: Any):
        self.tokens = Ragged(folder, "tokens", token_dtype)
        self.spans = Ragged(folder, "spans", np.int32)
        self.origins = np.fromfile(folder / "origins.bin", np.int32)  # the passage it was taken from (X = Z)
        self.gold = np.fromfile(folder / "gold.bin", np.int32)  # a passage, not the origin, known to hold the answer
        self._text = TextTable(folder / "text.arrow")

    def __len__(self) -> int:
        return len(self.tokens)

    def set_labels(self, labels: Sequence[str]) -> None:
        """Set the labels of each sentence, joined by LABEL_SEPARATOR, after the spans of a view have changed."""
        self._text = self._text.replaced("labels", labels)

    def text(self, row: int) -> str:
        """A sentence as it is written."""
        return str(self._text.row(row)["text"])

    def salient_spans(self, row: int) -> np.ndarray:
        """Wordpiece spans [first, end) of one sentence, int32 [spans, 2]."""
        return np.asarray(self.spans[row]).reshape(-1, 2)

    def labels(self, row: int) -> tuple[str, ...]:
        """The tagger's label of each salient span."""
        return tuple(self._text.row(row)["labels"].split(LABEL_SEPARATOR)) if len(self.spans[row]) else ()

    def kind(self, row: int, positions: np.ndarray) -> str:
        """Return the kind of a query: the label of the first salient span with a wordpiece among the masked
        `positions`, or NO_KIND."""
        labels = self.labels(row)
        inside = ((first <= positions) & (positions < end) for first, end in self.salient_spans(row))
        return next((label for label, masked in zip(labels, inside, strict=False) if masked.any()), "") or NO_KIND

    def kinds(self) -> np.ndarray:
        """The label of the first salient span of each sentence, or NO_KIND, [sentences]; reads all labels."""
        return np.array([text.split(LABEL_SEPARATOR)[0] or NO_KIND for text in self._text.column("labels")])

    def rows_with_spans(self) -> np.ndarray:
        """Return rows with a salient span, ascending, int64; reads only the offsets."""
        return np.flatnonzero(self.spans.offsets[1:] > self.spans.offsets[:-1])


class Articles:
    """Filler pairs for the reader's warm start: `restated` helps to predict words of `sentences`, `other` does not."""

    COLUMNS = pa.schema([("sentences", TOKENS), ("spans", PLACES), ("restated", TOKENS), ("other", TOKENS)])

    def __init__(self, folder: Path, token_dtype: Any):
        self.sentences = Ragged(folder, "sentences", token_dtype)
        self.spans = Ragged(folder, "spans", np.int32)
        self.restated = Ragged(folder, "restated", token_dtype)
        self.other = Ragged(folder, "other", token_dtype)

    def __len__(self) -> int:
        return len(self.sentences)


class Questions:
    """Open-QA questions with answers and, if known, the gold passages."""

    COLUMNS = pa.schema(
        [
            ("tokens", TOKENS),
            ("gold", PLACES),
            ("id", pa.string()),
            ("question", pa.string()),
            ("answers", pa.list_(pa.string())),
            ("answers_updated", pa.list_(pa.string())),
        ]
    )
    # Further columns, written only if needed: kinds of answers that are not all plain text, groups of questions,
    # passages of a path, judged passages (rows, or NO_ROW), their relevance, and passages that support the answer.
    KIND, GROUPS = pa.field("answer_kind", pa.string()), pa.field("groups", pa.list_(pa.string()))
    PATH, JUDGED, RELEVANCE, SUPPORTING = (
        pa.field(name, PLACES) for name in ("path", "judged", "relevance", "supporting")
    )

    def __init__(self, folder: Path, token_dtype: Any):
        self.tokens = Ragged(folder, "tokens", token_dtype)
        self.gold = Ragged(folder, "gold", np.int32)
        text = TextTable(folder / "text.arrow")
        self.ids: list[str] = text.column("id")
        self.texts: list[str] = text.column("question")
        self.answers: list[list[str]] = text.column("answers")
        self.answers_updated: list[list[str]] = text.column("answers_updated")
        self.answer_kinds: list[AnswerKind] = text.column("answer_kind", "text")
        self.groups: list[list[str]] = text.column("groups", [])
        none = Ragged.of(np.zeros(len(self) + 1, np.int64), np.empty(0, np.int32))
        self.paths, self.judged, self.relevance, self.supporting = (
            Ragged(folder, name, np.int32) if (folder / f"{name}.bin").exists() else none
            for name in ("path", "judged", "relevance", "supporting")
        )

    def __len__(self) -> int:
        return len(self.tokens)


class Manifest(NamedTuple):
    """Counts and digests of a prepared corpus."""

    key: str
    digest: str
    tokenizer_digest: str
    vocabulary_size: int
    counts: dict[str, int]
    dropped: dict[str, int]


class PreparedCorpus:
    """A prepared folder, opened lazily. A missing, unfinished or damaged one is a UserError."""

    def __init__(self, folder: Path):
        self.folder = Path(folder)
        if not (self.folder / "manifest.json").exists():
            raise UserError("not a prepared corpus", "run `realm-lab prepare`", path=self.folder)
        check_file(self.folder / "manifest.json")
        self.manifest = Manifest(**read_json(self.folder / "manifest.json"))
        self._token_dtype = token_dtype(self.manifest.vocabulary_size, self.pictures is not None)

    @cached_property
    def pictures(self) -> Pictures | None:
        """The patches of pictures; None if no passage is a picture."""
        path, first_id = self.folder / PATCHES_FILE, self.manifest.vocabulary_size
        check_file(path)
        return Pictures(np.memmap(path, np.uint8, "c").reshape(-1, PATCH_VALUES), first_id) if path.exists() else None

    @property
    def tokenizer_folder(self) -> Path:
        """The Hugging Face tokenizer folder."""
        return self._existing("tokenizer")

    def passages(self, version: int = 0) -> Passages:
        """The knowledge corpus, or its second version (version=1)."""
        folder = self._existing("passages_updated" if version else "passages")
        return Passages(folder, self._token_dtype, self.pictures)

    def has_second_version(self) -> bool:
        """True if a changed version of the knowledge corpus was prepared."""
        return (self.folder / "passages_updated").exists()

    def sentences(self, name: str = "sentences") -> Sentences:
        """Open `sentences` (X), `cloze_dev` or `cloze_test`."""
        return Sentences(self._existing(name), self._token_dtype)

    def articles(self) -> Articles | None:
        """Return filler pairs for the reader's warm start; None: the warm start reads the passages."""
        is_there = (self.folder / "articles").exists()
        return Articles(self._existing("articles"), self._token_dtype) if is_there else None

    def questions(self, split: str) -> Questions:
        """Questions of `train`, `dev` or `test`."""
        return Questions(self._existing(f"questions_{split}"), self._token_dtype)

    def _existing(self, name: str) -> Path:
        folder = self.folder / name
        if not folder.exists():
            raise UserError("not in this prepared corpus", "run `realm-lab prepare` again", path=folder)
        check_folder(self.folder, f"{name}/")
        return folder


def token_dtype(vocabulary_size: int, has_pictures: bool) -> type:
    """Return uint16 if it holds every wordpiece id and no passage is a picture, else uint32."""
    return np.uint16 if vocabulary_size <= 1 << 16 and not has_pictures else np.uint32
