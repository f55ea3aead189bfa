"""Preparation by several processes: the same bytes for any number of them, bounded memory, clear errors."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from realm_lab.engine.corpus import assembly, pool
from realm_lab.engine.corpus.cutting import Cutter
from realm_lab.engine.corpus.prepare import prepare
from realm_lab.engine.corpus.records import Document
from realm_lab.engine.corpus.salient_spans import RuleTagger
from realm_lab.engine.corpus.store import NO_ROW, PreparedCorpus
from realm_lab.engine.corpus.vocabulary import train_wordpiece
from tests import tiny
from tests.factories.errors import refused

NAMES = "Ada Bela Cora Dora Edna Fritz Gerda Hanna Ida Jonas".split()
Make = Callable[..., PreparedCorpus]


def text_of(number: int) -> str:
    who = NAMES[number % 10]
    return (
        f"{who} Miller lived in Oslo until {1500 + number}. It was quite a while ago, people say. "
        f"Then {who} met {NAMES[number * 7 % 10]} Smith of Köln in {1600 + number}."
    )


def write_articles(path: Path, numbers: Iterable[int], title: str = "Article") -> str:
    lines = ({"id": f"{title}{n}", "title": f"{title} {n}", "text": text_of(n)} for n in numbers)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return str(path)


@pytest.fixture(autouse=True)
def small_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "RUN_CHARACTERS", 1500)


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
        "corpus.files.knowledge_updated": [str(first)],
        "corpus.files.pretrain": [write_articles(tmp_path / "news.jsonl", range(200, 280), "News")],
        "tokenizer.vocabulary_size": 300,
    }


@pytest.fixture
def make(tmp_path: Path) -> Make:
    def prepare_into(name: str, values: dict[str, Any], workers: int = 1) -> PreparedCorpus:
        prepare(tiny.params(values), tmp_path / name, 0, workers=workers)
        return PreparedCorpus(tmp_path / name)

    return prepare_into


SAME = {"corpus.pretrain_corpus": "same", "corpus.files.pretrain": []}


@pytest.mark.slow
def test_one_process_and_three_give_the_same_bytes(files: dict[str, Any], make: Make, tmp_path: Path) -> None:
    one = make("one", files, workers=1)
    make("three", files, workers=3)
    assert tiny.files(tmp_path / "one") == tiny.files(tmp_path / "three")
    passages = one.passages()
    numbers: dict[str, int] = {}
    for row, number in enumerate(passages.articles.tolist()):  # numbered over all runs
        assert number == numbers.setdefault(passages.text.row(row)["article"], len(numbers))
    assert set(np.asarray(one.sentences().origins).tolist()) == {NO_ROW}


def test_duplicates_go_and_their_questions_get_the_first(files: dict[str, Any], make: Make, tmp_path: Path) -> None:
    asked = tmp_path / "asked.jsonl"
    questions = [
        {"id": "q1", "question": "who ?", "answer": ["Hanna Miller"], "document": "again"},
        {"id": "q2", "question": "who ?", "answer": ["Hanna Miller"], "document": "Article7"},
        {"id": "q3", "question": "who ?", "answer": ["Hanna Miller"], "document": "list"},
    ]
    asked.write_text("".join(json.dumps(question) + "\n" for question in questions))
    corpus = make("out", files | SAME | {"corpus.files.questions_test": [str(asked)]})
    passages, gold = corpus.passages(), corpus.questions("test").gold
    assert gold[0].tolist() == gold[1].tolist() != []
    assert gold[2].tolist() == []
    assert {passages.text.row(row)["document"] for row in gold[0]} == {"Article7"}
    ids = [passages.text.row(row)["id"] for row in range(len(passages))]
    assert len(set(ids)) == len(ids)
    assert not any(identity.startswith(("again/", "list/")) for identity in ids)
    dropped = corpus.manifest.dropped
    assert dropped[assembly.DUPLICATE_PASSAGE] == len([name for name in ids if name.startswith("Article7/")])
    assert dropped[assembly.DUPLICATE_SENTENCE] > 0
    assert dropped["document: list page"] == 1
    sentences = corpus.sentences()
    for row in range(len(sentences)):  # origins are rows of this corpus, without dropped texts
        body, starts = passages.bodies[sentences.origins[row]], passages.sentence_starts[sentences.origins[row]]
        assert any(
            np.array_equal(body[start : start + len(sentences.tokens[row])], sentences.tokens[row]) for start in starts
        )


@pytest.fixture
def flagged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The path of a file whose code a rule tagger, `flagged:Flagged`, executes when it is made."""
    (tmp_path / "flagged.py").write_text(FLAGGED)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "flag"
    sys.modules.pop("flagged", None)


FLAGGED = """
import os
from pathlib import Path
from realm_lab.engine.corpus.salient_spans import RuleTagger

class Flagged(RuleTagger):
    def __init__(self):
        flag = Path(__file__).with_name("flag")
        exec(flag.read_text() if flag.exists() else "")
"""
OWN = {"corpus.tagger": "flagged:Flagged"}


def test_a_killed_process_and_an_error_are_told(
    files: dict[str, Any], make: Make, flagged: Path, tmp_path: Path
) -> None:
    flagged.write_text("os._exit(9)")
    with refused("memory ran out", "lower launch.threads"):
        make("out", files | SAME | OWN, workers=2)
    flagged.write_text("int('no number')")
    with refused(parameter="corpus.tagger"):
        make("out", files | SAME | OWN, workers=2)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_stop_leaves_what_was_cut(
    files: dict[str, Any], make: Make, flagged: Path, tmp_path: Path, workers: int
) -> None:
    """A preparation stopped in the last of three passes over texts goes on without tagging, with 1 or 2 workers."""
    files |= OWN
    make("undisturbed", files)

    def stop(part: str, count: int) -> None:
        if part == "passages_updated":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(tiny.params(files), tmp_path / "out", 0, stop, workers=3 - workers)
    assert len([path for path in tmp_path.glob(".out.*.cuts/*/*") if path.name.isdigit()]) > 10
    flagged.write_text("int('no number')")
    make("out", files, workers=workers)
    assert tiny.files(tmp_path / "out") == tiny.files(tmp_path / "undisturbed")
    assert not [*tmp_path.glob(".*")], "what was kept is gone"


@pytest.mark.slow
def test_few_runs_are_held_at_a_time(tmp_path: Path) -> None:
    read = 0

    def articles() -> Iterator[list[Document]]:
        nonlocal read
        for number in range(100):
            read += 1
            yield [Document(str(number), "T", text_of(number), str(number))]

    make_cutter = partial(Cutter, train_wordpiece([text_of(1)], 200).to_str(), 64, 64, RuleTagger)
    stream = pool.cut_all(make_cutter, articles(), "passages", 2, tmp_path / "kept")
    next(stream)
    assert read * len(text_of(1)) < (3 + pool.AHEAD) * 2 * pool.RUN_CHARACTERS
    assert sum(1 for _ in stream) > 5
    assert read == 100
