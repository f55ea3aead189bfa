"""The corpus of text files: what is kept, cut, tagged, asked and counted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Literal

import pytest
from tokenizers import Tokenizer

from realm_lab.corpus import files_corpus, readers
from realm_lab.corpus.files_corpus import FilesCorpus
from realm_lab.corpus.vocabulary import token_counter, train_wordpiece
from realm_lab.errors import UserError
from realm_lab.parameters import Corpus, Files


def write_squad(path: Path, articles: dict[str, list[str]], questions: int = 2) -> str:
    """A SQuAD file; each paragraph is asked `questions` questions, whose answer is its first word."""
    data = [
        {
            "title": title,
            "paragraphs": [
                {
                    "context": text,
                    "qas": [
                        {"id": f"{title}-{number}-{q}", "question": f"q{q}", "answers": [{"text": text.split()[0]}]}
                        for q in range(questions)
                    ],
                }
                for number, text in enumerate(texts)
            ],
        }
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


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_wordpiece(
        ["train dev kraków paris oslo is a city lies there people like it in 1969 too mask . [ ] 0 1 2 3 4"], 200
    )


def corpus_of(
    tokenizer: Tokenizer | None, passage_length: int = 64, updated: bool = False, **files: Any
) -> FilesCorpus:
    named = Files(**files)
    source: Literal["separate", "same"] = "separate" if named.pretrain else "same"
    settings = Corpus(files=named, pretrain_corpus=source, passage_length=passage_length)
    return FilesCorpus(named, settings, tokenizer, updated)


def articles_of(corpus: FilesCorpus) -> list[str]:
    return list(dict.fromkeys(document.article for document in corpus.documents()))


def test_max_articles_spares_the_files_that_are_tested(tokenizer: Tokenizer, train: str, dev: str) -> None:
    corpus = corpus_of(tokenizer, knowledge=[train, dev], questions_test=[dev], max_articles=2)
    assert articles_of(corpus) == ["Train_0", "Train_1", "Dev_0", "Dev_1", "Dev_2", "Dev_3"]


def test_max_articles_counts_over_all_other_files(tokenizer: Tokenizer, train: str, dev: str) -> None:
    assert articles_of(corpus_of(tokenizer, knowledge=[dev, train], max_articles=5)) == [
        "Dev_0", "Dev_1", "Dev_2", "Dev_3", "Train_0",
    ]  # fmt: skip


def test_the_later_edition_keeps_the_articles_of_the_first_and_all_new_files(
    tokenizer: Tokenizer, train: str, dev: str, tmp_path: Path
) -> None:
    new = write_squad(tmp_path / "new.json", {f"New_{n}": ["New text."] for n in range(3)})
    files: dict[str, Any] = {
        "knowledge": [train, dev],
        "knowledge_updated": [train, new],
        "questions_test": [dev],
        "max_articles": 1,
    }
    assert articles_of(corpus_of(tokenizer, updated=True, **files)) == ["Train_0", "New_0", "New_1", "New_2"]


def test_passages_hold_their_sentences_tagged(tokenizer: Tokenizer, train: str) -> None:
    corpus = corpus_of(tokenizer, knowledge=[train])
    passage, sentences = next(corpus.passages())
    assert (passage.id, passage.title, passage.document, passage.article) == (
        "Train_0#0/0",
        "Train 0",
        "Train_0#0",
        "Train_0",
    )
    assert [sentence.text for sentence in sentences] == ["Kraków0 lies there.", "People like it in 1969.", "[MASK] it."]
    assert {(sentence.passage, sentence.article) for sentence in sentences} == {("Train_0#0/0", "Train_0")}
    tagged = [[sentence.text[start:end] for start, end, _ in sentence.spans] for sentence in sentences]
    assert tagged == [["Kraków0"], ["1969"], ["MASK"]]


def test_the_context_of_a_sentence_is_its_article(tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = write_squad(tmp_path / "a.json", {"A": ["Warsaw is large.", "They left Warsaw."], "B": ["Kielce is not."]})
    spans = [
        len(sentence.spans)
        for _, sentences in corpus_of(tokenizer, knowledge=[path]).passages()
        for sentence in sentences
    ]
    assert spans == [1, 1, 0]


def test_passages_keep_to_the_length(tokenizer: Tokenizer, train: str) -> None:
    corpus = corpus_of(tokenizer, knowledge=[train], passage_length=15)
    passages = [passage for passage, _ in corpus.passages()]
    assert len(passages) > 10
    titles, bodies = zip(*((passage.title, passage.body) for passage in passages), strict=True)
    count = token_counter(tokenizer)
    assert all(3 + title + body <= 15 for title, body in zip(count(list(titles)), count(list(bodies)), strict=True))
    assert len({passage.id for passage in passages}) == len(passages)


def test_reading_again_gives_the_same_and_counts_nothing_twice(
    tokenizer: Tokenizer, train: str, tmp_path: Path
) -> None:
    lines = tmp_path / "more.jsonl"
    lines.write_text('{"id": "Train_0#0", "text": "Same id."}\n{"text": " "}\n')
    corpus = corpus_of(tokenizer, knowledge=[train, str(lines)])
    first = list(corpus.passages())
    assert corpus.dropped == {readers.DROPPED_DUPLICATE_DOCUMENT: 1, readers.DROPPED_EMPTY_TEXT: 1}
    assert list(corpus.passages()) == first
    assert corpus.dropped == {readers.DROPPED_DUPLICATE_DOCUMENT: 1, readers.DROPPED_EMPTY_TEXT: 1}


def test_questions_of_articles_left_out_are_left_out_before_sampling(
    tokenizer: Tokenizer, train: str, dev: str
) -> None:
    files: dict[str, Any] = {
        "knowledge": [train, dev],
        "questions_train": [train],
        "questions_test": [dev],
        "max_articles": 2,
    }
    corpus = corpus_of(tokenizer, **files, max_train_questions=4, max_test_questions=3)
    asked = list(corpus.questions("train"))
    assert [question.id for question in asked] == ["Train_0-0-0", "Train_0-1-0", "Train_1-0-0", "Train_1-1-0"]
    assert [question.id for question in corpus.questions("test")] == ["Dev_0-0-0", "Dev_1-0-0", "Dev_2-0-1"]
    assert list(corpus.questions("dev")) == []
    assert list(corpus.questions("train")) == asked
    assert corpus.dropped == {files_corpus.DROPPED_NOT_IN_CORPUS: 12, files_corpus.DROPPED_SAMPLED: 4 + 5}


def test_questions_from_elsewhere_stay_with_their_document_unknown(tokenizer: Tokenizer, train: str, dev: str) -> None:
    corpus = corpus_of(tokenizer, knowledge=[train], questions_test=[dev])
    assert {question.document for question in corpus.questions("test")} == {None}
    assert len(list(corpus.questions("test"))) == 8


def test_separate_pretraining_corpus(tokenizer: Tokenizer, train: str, dev: str) -> None:
    assert corpus_of(tokenizer, knowledge=[train]).pretrain_sentences() is None
    sentences = corpus_of(tokenizer, knowledge=[train], pretrain=[dev]).pretrain_sentences()
    assert sentences is not None
    assert next((s.text, s.passage, s.article) for s in sentences) == ("Oslo0 is a city.", None, "Dev_0")


def test_digest_follows_bytes_and_parameters_not_paths(
    tokenizer: Tokenizer, train: str, dev: str, tmp_path: Path
) -> None:
    base = corpus_of(tokenizer, knowledge=[train]).digest()
    copy = tmp_path / "copy.json"
    copy.write_bytes(Path(train).read_bytes())
    assert corpus_of(tokenizer, knowledge=[str(copy)]).digest() == base
    others = [
        corpus_of(tokenizer, knowledge=[dev]),
        corpus_of(tokenizer, knowledge=[train], passage_length=32),
        corpus_of(tokenizer, knowledge=[train], questions_test=[train]),
        corpus_of(tokenizer, knowledge=[train], max_articles=3),
        corpus_of(train_wordpiece(["other words"], 100), knowledge=[train]),
    ]
    assert len({base, *(other.digest() for other in others)}) == 6


def test_no_files_and_missing_files(tokenizer: Tokenizer, train: str) -> None:
    with pytest.raises(UserError, match=r"corpus.files.knowledge is empty"):
        corpus_of(tokenizer)
    with pytest.raises(UserError, match=r"corpus.files.knowledge_updated is empty"):
        corpus_of(tokenizer, knowledge=[train], updated=True)
    with pytest.raises(UserError, match=r"nowhere.json: no such file"):
        list(corpus_of(tokenizer, knowledge=["nowhere.json"]).documents())


def test_documents_are_read_without_a_tokenizer(train: str) -> None:
    assert len(list(corpus_of(None, knowledge=[train]).documents())) == 10


@pytest.mark.skipif("REALM_LAB_DATA" not in os.environ, reason="REALM_LAB_DATA names no folder with squad/*-v1.1.json*")
def test_real_squad_is_cut_within_the_length() -> None:
    folder = Path(os.environ["REALM_LAB_DATA"]) / "squad"
    train, dev = str(folder / "train-v1.1.json.gz"), str(folder / "dev-v1.1.json")
    files: dict[str, Any] = {"knowledge": [train, dev], "questions_test": [dev], "max_articles": 30}
    texts = (document.text for document in corpus_of(None, **files).documents())
    tokenizer = train_wordpiece(texts, 8000)
    corpus = corpus_of(tokenizer, passage_length=96, **files)
    bodies = {document.id: document.text for document in corpus.documents()}
    assert len({name.split("#")[0] for name in bodies}) == 62
    count = token_counter(tokenizer)
    long = 0
    for passage, sentences in corpus.passages():
        assert passage.body in bodies[passage.document]
        title, body = count([passage.title, passage.body])
        long += 3 + title + body > 96
        assert len(sentences) == 1 or 3 + title + body <= 96
    assert long == corpus.dropped["passage: longer than the limit, cut when encoded"]
    assert len(list(corpus.questions("test"))) == 7150
