"""ORQA's development split: the hash against values of the C++ library, and the corpus that uses it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from farmhash import Fingerprint64

from realm_lab.corpus.files_corpus import FilesCorpus, is_orqa_dev
from realm_lab.corpus.records import SPLITS
from realm_lab.params.corpus import Corpus, Files
from tests.corpus.preparing import asked_of

DATA = Path(os.environ.get("REALM_LAB_DATA", Path(__file__).parents[3] / "shared" / "data"))


def test_buckets_are_those_of_tensorflow() -> None:
    # the example in the documentation of tf.strings.to_hash_bucket_fast with 3 buckets
    assert [Fingerprint64(text.encode()) % 3 for text in ("Hello", "TensorFlow", "2.x")] == [0, 2, 2]


def test_the_development_questions_of_web_questions_are_as_many_as_orqa_says() -> None:
    files = [DATA / "webquestions" / f"WebQuestions-{name}.jsonl" for name in ("train", "dev")]
    if not all(path.exists() for path in files):
        pytest.skip(f"{files[0]}: not there; set REALM_LAB_DATA to the folder of the data")
    questions = [json.loads(line)["question"] for path in files for line in path.open(encoding="utf-8")]
    dev = sum(map(is_orqa_dev, questions))
    assert (len(questions) - dev, dev) == (3417, 361)


@pytest.fixture
def files(tmp_path: Path) -> Files:
    """80 training questions over one document."""
    (tmp_path / "z.jsonl").write_text('{"id": "d", "title": "T", "text": "A text."}\n', encoding="utf-8")
    lines = [json.dumps({"id": str(n), "question": f"what is {n}", "answer": ["x"]}) for n in range(80)]
    (tmp_path / "q.jsonl").write_text("\n".join([*lines, '{"question": "none", "answer": []}']), encoding="utf-8")
    return Files(knowledge=[str(tmp_path / "z.jsonl")], questions_train=[str(tmp_path / "q.jsonl")])


def test_the_split_takes_dev_out_of_train(files: Files) -> None:
    corpus = FilesCorpus(asked_of(Corpus(files=files)))
    split = {name: [q.id for q in corpus.known_questions(name, set())] for name in SPLITS}
    assert sorted(split["train"] + split["dev"], key=int) == [str(n) for n in range(80)]
    assert split["dev"] == [str(n) for n in range(80) if Fingerprint64(f"what is {n}".encode()) % 100_000 % 10 == 0]
    assert 0 < len(split["dev"]) < 40
    assert split["test"] == []
    assert sum(corpus.dropped.values()) == 1  # the question without an answer, once


def test_without_the_split_train_is_whole(files: Files) -> None:
    plain = files.model_copy(update={"dev_split": "none"})
    corpus = FilesCorpus(asked_of(Corpus(files=plain)))
    assert len(list(corpus.known_questions("train", set()))) == 80
    assert list(corpus.known_questions("dev", set())) == []


def test_named_development_questions_are_taken_and_nothing_is_held_out(files: Files) -> None:
    named = files.model_copy(update={"questions_dev": files.questions_train})
    corpus = FilesCorpus(asked_of(Corpus(files=named)))
    assert [len(corpus.known_questions(name, set())) for name in SPLITS] == [80, 80, 0]


def test_a_corpus_says_whether_it_has_development_questions(files: Files) -> None:
    assert Corpus(source="toy", tagger="exact").has_dev_questions
    assert Corpus(files=files).has_dev_questions
    for update, there in (
        ({"dev_split": "none"}, False),
        ({"questions_train": []}, False),
        ({"questions_train": [], "questions_dev": ["d"]}, True),
        ({"dev_split": "none", "questions_dev": ["d"]}, True),
    ):
        assert Corpus(files=files.model_copy(update=update)).has_dev_questions is there
