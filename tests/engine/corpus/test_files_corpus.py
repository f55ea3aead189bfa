"""The corpus of text files: kept, cut and tagged texts, questions, and counts."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from realm_lab.engine.corpus.files_corpus import FilesCorpus, is_orqa_dev
from realm_lab.engine.corpus.fingerprint import fingerprint64
from realm_lab.engine.corpus.records import SPLITS, Question, Split
from realm_lab.engine.corpus.vocabulary import train_wordpiece
from realm_lab.engine.params.corpus import Corpus, Files
from tests.engine.corpus.preparing import asked_of


def write_squad(path: Path, articles: dict[str, list[str]]) -> str:
    """A SQuAD file; each paragraph is asked two questions, whose answer is its first word."""

    def paragraph(title: str, number: int, text: str) -> dict[str, Any]:
        answers = [{"text": text.split()[0]}]
        asked = [{"id": f"{title}-{number}-{q}", "question": f"q{q}", "answers": answers} for q in range(2)]
        return {"context": text, "qas": asked}

    data = [
        {"title": title, "paragraphs": [paragraph(title, number, text) for number, text in enumerate(texts)]}
        for title, texts in articles.items()
    ]
    path.write_text(json.dumps({"version": "1.1", "data": data}))
    return str(path)


@pytest.fixture
def train(tmp_path: Path) -> str:
    articles = {
        f"Train_{n}": [f"Kraków{n} lies there. People like it in 1969. [MASK] it.", f"Paris{n} too."] for n in range(5)
    }
    return write_squad(tmp_path / "train.json", articles)


@pytest.fixture
def dev(tmp_path: Path) -> str:
    return write_squad(tmp_path / "dev.json", {f"Dev_{n}": [f"Oslo{n} is a city."] for n in range(4)})


def corpus_of(**files: Any) -> FilesCorpus:
    named = Files(**files)
    corpus = Corpus(files=named, pretrain_corpus="separate" if named.pretrain else "same")
    return FilesCorpus(asked_of(corpus, Path(named.knowledge[0]).with_name("kept")))


def asked(corpus: FilesCorpus, split: Split) -> list[Question]:
    return list(corpus.known_questions(split, {document.id for document in corpus.documents()}))


def articles_of(corpus: FilesCorpus, version: int = 0) -> list[str]:
    return list(dict.fromkeys(document.article for document in corpus.documents(version)))


def test_the_later_version_keeps_articles_of_the_first_and_all_new_files(train: str, dev: str, tmp_path: Path) -> None:
    new = write_squad(tmp_path / "new.json", {f"New_{n}": ["New text."] for n in range(3)})
    named: dict[str, Any] = {"knowledge": [train, dev], "knowledge_updated": [train, new], "questions_test": [dev]}
    assert articles_of(corpus_of(max_articles=1, **named), version=1) == ["Train_0", "New_0", "New_1", "New_2"]


def test_the_context_of_a_sentence_is_its_article(tmp_path: Path) -> None:
    path = write_squad(
        tmp_path / "a.json",
        {"A": ["Warsaw is large.", "They left Warsaw.", "Kraków lies there in 1969."], "B": ["Kielce is not."]},
    )
    corpus = corpus_of(knowledge=[path])
    corpus.tokenizer = train_wordpiece(["kraków kielce warsaw they left is large not lies there in 1969 ."], 58)
    [cut] = corpus.cuts(0)
    rows = [row for batch in cut.sentences.values() for row in batch.to_pylist()]
    spans = {row["origins"]: len(row["spans"]) // 2 for row in rows}
    assert spans == {0: 1, 1: 1, 2: 1, 3: 0}


TITLES = (
    "List of towns", "Lists", "A list of", "Index of things", "Outline of Oslo", "Mercury (disambiguation)", "Oslo"
)  # fmt: skip


@pytest.mark.parametrize(
    ("kinds", "kept"),
    [
        (["list", "index", "outline", "disambiguation"], {"Lists", "A list of", "Oslo"}),
        (["list"], set(TITLES) - {"List of towns"}),
        ([], set(TITLES)),
    ],
)
def test_pages_that_are_no_articles_are_dropped_and_counted(tmp_path: Path, kinds: list[str], kept: set[str]) -> None:
    path = tmp_path / "wiki.jsonl"
    path.write_text("".join(json.dumps({"title": title, "text": "Some text."}) + "\n" for title in TITLES))
    read: list[dict[str, Any]] = [{"knowledge": [str(path)]}, {"knowledge": ["unread"], "pretrain": [str(path)]}]
    for files in read:
        corpus = corpus_of(drop_pages=kinds, **files)
        documents = corpus.pretrain_documents() if "pretrain" in files else corpus.documents()
        assert {document.title for document in documents} == kept
        assert corpus.dropped == {f"document: {kind} page": 1 for kind in kinds}


def test_questions_of_articles_left_out_are_left_out_before_sampling(train: str, dev: str) -> None:
    named: dict[str, Any] = {"knowledge": [train, dev], "questions_train": [train], "questions_test": [dev]}
    corpus = corpus_of(**named, max_articles=2, max_train_questions=4, max_test_questions=3, dev_split="none")
    train_questions = asked(corpus, "train")
    assert [question.id for question in train_questions] == ["Train_0-0-0", "Train_0-1-0", "Train_1-0-0", "Train_1-1-0"]
    assert [question.id for question in asked(corpus, "test")] == ["Dev_0-0-0", "Dev_1-0-0", "Dev_2-0-1"]
    assert asked(corpus, "dev") == []
    assert asked(corpus, "train") == train_questions
    assert corpus.dropped == {
        "question: its document is not in the corpus": 12,
        "question: not in the sample": 4 + 5,
        "document: beyond corpus.files.max_articles": 6,
    }


def test_questions_from_elsewhere_stay_with_their_document_unknown(train: str, dev: str) -> None:
    corpus = corpus_of(knowledge=[train], questions_test=[dev])
    assert {question.document for question in asked(corpus, "test")} == {None}
    assert len(asked(corpus, "test")) == 8


DATA = Path(os.environ.get("REALM_LAB_DATA", Path(__file__).parents[4] / "shared" / "data"))


def test_buckets_are_those_of_tensorflow() -> None:
    # the example in the documentation of tf.strings.to_hash_bucket_fast with 3 buckets
    assert [fingerprint64(text.encode()) % 3 for text in ("Hello", "TensorFlow", "2.x")] == [0, 2, 2]


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
    assert split["dev"] == [str(n) for n in range(80) if fingerprint64(f"what is {n}".encode()) % 100_000 % 10 == 0]
    assert 0 < len(split["dev"]) < 40
    assert split["test"] == []
    assert sum(corpus.dropped.values()) == 1  # the question without an answer, once


def test_without_the_split_or_with_named_development_questions_nothing_is_held_out(files: Files) -> None:
    for update, dev in (({"dev_split": "none"}, 0), ({"questions_dev": files.questions_train}, 80)):
        corpus = FilesCorpus(asked_of(Corpus(files=files.model_copy(update=update))))
        assert [len(list(corpus.known_questions(name, set()))) for name in SPLITS] == [80, dev, 0]


def test_a_corpus_says_whether_it_has_development_questions(files: Files) -> None:
    assert Corpus(source="toy", tagger="exact").has_dev_questions
    assert Corpus(files=files).has_dev_questions
    updates: list[dict[str, Any]] = [{"dev_split": "none"}, {"questions_train": []}]
    for update in updates:
        assert not Corpus(files=files.model_copy(update=update)).has_dev_questions
        assert Corpus(files=files.model_copy(update=update | {"questions_dev": ["d"]})).has_dev_questions
