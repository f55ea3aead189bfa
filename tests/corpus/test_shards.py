"""Preparation in shards: the same bytes however they were made, nothing done twice, nothing torn is trusted."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from realm_lab.corpus import chunking, prepare_files, salient_spans, shard_pool, shards
from realm_lab.corpus.cutting import CutSettings, Cutter
from realm_lab.corpus.prepare import prepare
from realm_lab.corpus.records import Document
from realm_lab.corpus.salient_spans import RuleTagger
from realm_lab.corpus.shards import grouped, identity, make_shard, read_shard, shard_key, write_shard
from realm_lab.corpus.store import NO_ROW, PreparedCorpus
from realm_lab.corpus.vocabulary import save_tokenizer, train_wordpiece
from realm_lab.errors import UserError
from realm_lab.params.parameters import Params

NAMES = "Ada Bela Cora Dora Edna Fritz Gerda Hanna Ida Jonas".split()
Folder = dict[str, bytes]
Make = Callable[..., Counter[str]]


def tree(folder: Path) -> Folder:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def text_of(number: int) -> str:
    who = NAMES[number % 10]
    return (
        f"{who} Miller lived in Oslo until {1500 + number}. It was quite a while ago, people say. "
        f"Then {who} met {NAMES[number * 7 % 10]} Smith of Köln in {1600 + number}."
    )


def write_articles(path: Path, numbers: Iterator[int] | range, title: str = "Article") -> str:
    lines = ({"id": f"{title}{n}", "title": f"{title} {n}", "text": text_of(n)} for n in numbers)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 1500)


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Any]:
    """Two knowledge files with a duplicate between them, a list page, and a separate corpus."""
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    write_articles(first, range(60))
    write_articles(second, range(60, 90))
    with second.open("a") as file:
        file.write(json.dumps({"id": "again", "title": "Article 7", "text": text_of(7)}) + "\n")
        file.write(json.dumps({"id": "list", "title": "List of articles", "text": text_of(7)}) + "\n")
    return {
        "corpus.source": "files",
        "corpus.tagger": "rule",
        "corpus.pretrain_corpus": "separate",
        "corpus.passage_length": 48,
        "corpus.files.knowledge": [str(first), str(second)],
        "corpus.files.pretrain": [write_articles(tmp_path / "news.jsonl", range(200, 280), "News")],
        "tokenizer.vocabulary_size": 300,
    }


@pytest.fixture
def make(tiny: ModuleType, tmp_path: Path) -> Make:
    def prepare_into(name: str, values: dict[str, Any], **arguments: Any) -> Counter[str]:
        params: Params = tiny.params(values)
        counts: Counter[str] = Counter()
        prepare(params, tmp_path / name, 0, shard_counts=counts, **arguments)
        return counts

    return prepare_into


SAME = {"corpus.pretrain_corpus": "same", "corpus.files.pretrain": []}


def test_one_worker_and_four_give_the_same_bytes(files: dict[str, Any], make: Make, tmp_path: Path) -> None:
    one = make("one", files, workers=1)
    four = make("four", files, workers=4)
    assert one == four == {"made": one["made"]}
    assert one["made"] > 8
    assert tree(tmp_path / "one") == tree(tmp_path / "four")
    assert not list(tmp_path.rglob("*.shard"))  # none are kept where no place is given


@pytest.mark.parametrize("same", [True, False])
def test_an_interrupted_preparation_goes_on(
    files: dict[str, Any], make: Make, tmp_path: Path, tiny: ModuleType, same: bool
) -> None:
    values = files | (SAME if same else {})
    whole = make("whole", values)
    kept = tmp_path / "shards"

    def stop(part: str, count: int) -> None:
        if (count > 0) if same and count > 40 else part == "sentences":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(tiny.params(values), tmp_path / "out", 0, stop, shards=kept)
    assert not (tmp_path / "out").exists()
    finished = len(list(kept.glob("*.shard")))
    assert 0 < finished < whole["made"]
    times = {path: path.stat().st_mtime_ns for path in kept.glob("*.shard")}
    counts = make("out", values, shards=kept)
    assert counts == {"made": whole["made"] - finished, "reused": finished}
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


@pytest.mark.parametrize(
    "damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: data[:-40] + bytes(40)]
)
def test_a_torn_shard_is_made_again(
    files: dict[str, Any], make: Make, tmp_path: Path, damage: Callable[[bytes], bytes]
) -> None:
    made = make("whole", files, shards=tmp_path / "shards")["made"]
    torn = sorted((tmp_path / "shards").glob("*.shard"))[2]
    torn.write_bytes(damage(torn.read_bytes()))
    assert make("out", files, shards=tmp_path / "shards") == {"made": 1, "damaged": 1, "reused": made - 1}
    assert tree(tmp_path / "out") == tree(tmp_path / "whole")


def test_an_edition_makes_only_what_changed(files: dict[str, Any], make: Make, tmp_path: Path) -> None:
    texts = [text_of(number) for number in range(300)]
    save_tokenizer(train_wordpiece(texts, 300), tmp_path / "tokenizer")
    values = files | SAME | {"tokenizer.checkpoint": str(tmp_path / "tokenizer")}
    made = make("before", values, shards=tmp_path / "shards")["made"]
    first = tmp_path / "first.jsonl"
    lines = first.read_text().splitlines(keepends=True)
    lines[20] = lines[20].replace("quite a while", "a short while")
    first.write_text(
        "".join([*lines[:40], *lines[41:], json.dumps({"id": "new", "title": "N", "text": text_of(99)}), "\n"])
    )
    counts = make("after", values, shards=tmp_path / "shards")
    assert counts["reused"] >= made - 5
    assert 0 < counts["made"] <= 6
    make("anew", values)
    assert tree(tmp_path / "after") == tree(tmp_path / "anew")
    assert tree(tmp_path / "after") != tree(tmp_path / "before")
    second = values | {"corpus.files.knowledge_updated": values["corpus.files.knowledge"]}
    counts = make("two", second, shards=tmp_path / "shards")
    assert counts["made"] == 0
    folder = tree(tmp_path / "two")
    assert folder["passages/bodies.bin"] == folder["passages_updated/bodies.bin"]


@pytest.mark.parametrize(
    "change",
    [
        {"corpus.passage_length": 40},
        {"corpus.sentence_length": 24},
        {"tokenizer.vocabulary_size": 280},
        {"code": "chunking"},
        {"code": "tagger"},
    ],
)
def test_other_parameters_or_code_take_no_old_shard(
    files: dict[str, Any], make: Make, tmp_path: Path, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    make("before", files | SAME, shards=tmp_path / "shards")
    change = dict(change)
    code = change.pop("code", None)
    edited = tmp_path / "edited.py"
    edited.write_text("# another version")
    if code == "chunking":
        monkeypatch.setattr(chunking, "__file__", str(edited))
    if code == "tagger":
        monkeypatch.setattr(salient_spans, "__file__", str(edited))
    counts = make("after", files | SAME | change, shards=tmp_path / "shards")
    assert counts["reused"] == 0
    assert counts["made"] > 3


@pytest.mark.parametrize("workers", [1, 3])
def test_duplicates_go_and_their_questions_are_given_the_first(
    files: dict[str, Any], make: Make, tmp_path: Path, workers: int
) -> None:
    asked = tmp_path / "asked.jsonl"
    questions = [
        {"id": "q1", "question": "who ?", "answer": ["Hanna Miller"], "document": "again"},
        {"id": "q2", "question": "who ?", "answer": ["Hanna Miller"], "document": "Article7"},
        {"id": "q3", "question": "who ?", "answer": ["Hanna Miller"], "document": "list"},
    ]
    asked.write_text("".join(json.dumps(question) + "\n" for question in questions))
    values = files | SAME | {"corpus.files.questions_test": [str(asked)]}
    make("out", values, workers=workers)
    corpus = PreparedCorpus(tmp_path / "out")
    passages, gold = corpus.passages(), corpus.questions("test").gold
    assert gold[0].tolist() == gold[1].tolist() != []
    assert gold[2].tolist() == []
    assert {passages.text.row(row)["document"] for row in gold[0]} == {"Article7"}
    ids = [passages.text.row(row)["id"] for row in range(len(passages))]
    assert len(set(ids)) == len(ids)
    assert not any(identity.startswith(("again/", "list/")) for identity in ids)
    dropped = corpus.manifest.dropped
    assert dropped[prepare_files.DUPLICATE_PASSAGE] == len([name for name in ids if name.startswith("Article7/")])
    assert dropped[prepare_files.DUPLICATE_SENTENCE] > 0
    assert dropped["document: list page"] == 1
    sentences = corpus.sentences()
    for row in range(len(sentences)):  # origins are rows of this corpus, after what was dropped
        body, starts = passages.bodies[sentences.origins[row]], passages.sentence_starts[sentences.origins[row]]
        assert any(
            np.array_equal(body[start : start + len(sentences.tokens[row])], sentences.tokens[row]) for start in starts
        )
    kept = values | {"corpus.files.drop_duplicate_passages": False, "corpus.files.drop_pages": []}
    make("all", kept)
    everything = PreparedCorpus(tmp_path / "all")
    assert len(everything.passages()) == len(passages) + 2 * dropped[prepare_files.DUPLICATE_PASSAGE]
    assert everything.questions("test").gold[0].tolist() != everything.questions("test").gold[1].tolist()


def test_articles_are_numbered_over_all_shards(files: dict[str, Any], make: Make, tmp_path: Path) -> None:
    make("out", files)
    passages = PreparedCorpus(tmp_path / "out").passages()
    numbers: dict[str, int] = {}
    for row, number in enumerate(passages.articles.tolist()):
        assert number == numbers.setdefault(passages.text.row(row)["article"], len(numbers))
    sentences = PreparedCorpus(tmp_path / "out").sentences()
    assert set(np.asarray(sentences.origins).tolist()) == {NO_ROW}


def test_a_killed_worker_is_one_clear_error(
    files: dict[str, Any], make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(salient_spans.TAGGERS, "rule", partial(os._exit, 9))
    with pytest.raises(UserError, match=r"was killed, most likely for want of memory; lower launch\.threads and run"):
        make("out", files | SAME, workers=2)
    assert not (tmp_path / "out").exists()


def test_what_a_worker_meets_is_told(files: dict[str, Any], make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(salient_spans.TAGGERS, "rule", partial(int, "no number"))
    with pytest.raises(ValueError, match="no number"):
        make("out", files | SAME, workers=2)


def test_few_shards_are_held_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = 0

    def articles() -> Iterator[list[Document]]:
        nonlocal read
        for number in range(400):
            read += 1
            yield [Document(str(number), "T", text_of(number), str(number))]

    settings = CutSettings(train_wordpiece([text_of(1)], 200).to_str(), 64, 64, RuleTagger)
    with shard_pool.ShardPool(settings, "x", tmp_path, 1) as pool:
        stream = pool.shards(articles(), "passages")
        next(stream)
        assert read * len(text_of(1)) < (1 + shard_pool.AHEAD) * shards.MOST * shards.SHARD_CHARACTERS
        assert sum(1 for _ in stream) > 20
    assert read == 400


def test_shards_are_cut_by_content(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards, "SHARD_CHARACTERS", 3000)
    articles = [[Document(str(n), f"T{n}", text_of(n) * (1 + n % 4), f"T{n}")] for n in range(800)]
    runs = [tuple(article[0].id for article in run) for run in grouped(articles)]
    assert [name for run in runs for name in run] == [str(n) for n in range(800)]
    sizes = [sum(len(articles[int(name)][0].text) for name in run) for run in runs]
    assert max(sizes) < 3000 * shards.MOST + 1000
    assert 1500 < sum(sizes) / len(sizes) < 5000
    without = [tuple(article[0].id for article in run) for run in grouped(articles[:300] + articles[301:])]
    assert len(set(runs) - set(without)) <= 3


def test_a_shard_is_read_as_it_was_written(tmp_path: Path) -> None:
    settings = CutSettings(train_wordpiece([text_of(n) for n in range(50)], 300).to_str(), 48, 64, RuleTagger)
    articles = [[Document(str(n), "Title", text_of(n), str(n))] for n in range(5)]
    shard = make_shard(Cutter(settings), "passages and sentences", articles)
    write_shard(tmp_path / "a.shard", shard)
    again = read_shard(tmp_path / "a.shard")
    assert again is not None
    assert again.dropped == shard.dropped
    assert again.arrays.keys() == shard.arrays.keys()
    assert all(np.array_equal(again.arrays[name], shard.arrays[name]) for name in shard.arrays)
    assert again.text().equals(shard.text())
    assert read_shard(tmp_path / "b.shard") is None
    made_by = identity(settings, "rule")
    assert made_by != identity(settings, "other") != identity(settings._replace(passage_length=49), "other")
    keys = {
        shard_key(made_by, "passages", articles),
        shard_key(made_by, "sentences", articles),
        shard_key("other", "passages", articles),
        shard_key(made_by, "passages", articles[1:]),
        shard_key(made_by, "passages", [articles[0] + articles[1], *articles[2:]]),
        *(
            shard_key(made_by, "passages", [[changed], *articles[1:]])
            for changed in (
                articles[0][0]._replace(id="changed"),
                articles[0][0]._replace(title="changed"),
                articles[0][0]._replace(text="changed"),
                articles[0][0]._replace(article="changed"),
            )
        ),
    }
    assert len(keys) == 9
