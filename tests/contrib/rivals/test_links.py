"""Links against a search by words, and the relations that they make."""

from pathlib import Path

import numpy as np
import pytest

from realm_lab.contrib.rivals import links as links_module
from realm_lab.contrib.rivals.links import Links
from realm_lab.contrib.rivals.path_retriever import JoinedPassages
from realm_lab.engine.corpus.prepare import prepare
from realm_lab.engine.corpus.store import Passages, PreparedCorpus, Ragged
from realm_lab.engine.corpus.vocabulary import load_tokenizer, wordpieces_by_id
from tests.tiny_system import tiny_params

TEXTS = {
    "New York": "A city. It is twinned with york and with Old Yorkshire.",
    "York": "An old city that new york is named after.",
    "Newt": "A newt is no news to New Yorkers, in New. York is no word away.",
    "Empty": "Nothing is named in here.",
}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> PreparedCorpus:
    folder: Path = tmp_path_factory.mktemp("links")
    lines = [f'{{"id": "{n}", "title": "{t}", "text": "{x}"}}\n' for n, (t, x) in enumerate(TEXTS.items())]
    (folder / "texts.jsonl").write_text("".join(lines))
    sizes = {"passage_length": 40, "sentence_length": 30, "tagger": "rule", "pretrain_corpus": "same"}
    files = {"knowledge": [str(folder / "texts.jsonl")]}
    params = tiny_params(corpus={"source": "files", "files": files} | sizes, tokenizer={"vocabulary_size": 200})
    prepare(params, folder / "corpus", 0)
    return PreparedCorpus(folder / "corpus")


def links_of(corpus: PreparedCorpus) -> Links:
    words = wordpieces_by_id(load_tokenizer(corpus.tokenizer_folder))
    return Links(corpus.passages(), np.array([piece.startswith("##") for piece in words]), words.index("[UNK]"))


def named(corpus: PreparedCorpus, links: Links) -> dict[str, list[str]]:
    titles = corpus.passages().text.column("title")
    return {title: sorted({titles[other] for other in links.of(row)}) for row, title in enumerate(titles)}


def test_a_title_is_named_by_its_whole_words_alone(corpus: PreparedCorpus) -> None:
    expected = {"New York": ["York"], "York": ["New York"], "Newt": ["York"], "Empty": []}
    links = links_of(corpus)
    assert named(corpus, links) == expected
    assert links.passages_without == 1


def test_an_unknown_word_names_no_title(corpus: PreparedCorpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """A title with an unknown wordpiece, whichever this is, is named nowhere, and equals no other title."""
    words = wordpieces_by_id(load_tokenizer(corpus.tokenizer_folder))
    passages = corpus.passages()
    york = int(passages.titles[1][0])
    links = Links(passages, np.array([piece.startswith("##") for piece in words]), york)
    assert not any(named(corpus, links).values())
    passages.titles = Ragged.of(np.array([0, 1, 2, 3, 4]), np.array([york] * 4))
    assert len(set(Links(passages, np.zeros(len(words), bool), york).title_of)) == 4


def test_passages_without_titles_are_unrelated(corpus: PreparedCorpus) -> None:
    passages = corpus.passages()
    passages.titles = Ragged.of(np.zeros(len(passages) + 1, np.int64), np.empty(0, np.int64))
    words = wordpieces_by_id(load_tokenizer(corpus.tokenizer_folder))
    links = Links(passages, np.zeros(len(words), bool), words.index("[UNK]"))
    assert not links.relations(np.arange(len(passages))).any()


@pytest.mark.parametrize("at_once", [1, 7, 1000])
def test_links_of_the_toy_world_are_those_of_a_search_by_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(links_module, "AT_ONCE", at_once)
    prepare(tiny_params(), tmp_path / "corpus", 0)
    corpus = PreparedCorpus(tmp_path / "corpus")
    links, passages = links_of(corpus), corpus.passages()
    rows = [passages.text.row(row) for row in range(len(passages))]
    for row in range(0, len(rows), 5):
        words = set(rows[row]["body"].split()) - {rows[row]["title"]}
        assert sorted(links.of(row)) == [other for other, found in enumerate(rows) if found["title"] in words]
    chosen = np.array([3, 0, 8, *links.of(0)[:3], *links.of(3)[:2]])
    to_NN, from_NN, same_NN = links.relations(chosen)
    for i, one in enumerate(chosen):
        for j, other in enumerate(chosen):
            assert to_NN[i, j] == (other in links.of(one)) == from_NN[j, i]
            assert same_NN[i, j] == (i != j and rows[one]["title"] == rows[other]["title"])
    assert to_NN.any()


def joined(passages: Passages) -> JoinedPassages:
    return JoinedPassages(passages, [(2, 0), (1,)])


def test_joined_passages_are_one_text_and_tell_where_a_span_is(corpus: PreparedCorpus) -> None:
    passages, tokenizer = corpus.passages(), load_tokenizer(corpus.tokenizer_folder)
    found = joined(passages)
    assert len(found) == 2
    for number in range(2):
        text = found.text.row(number)["body"]
        assert tokenizer.encode(text, add_special_tokens=False).ids == found.bodies[number].tolist()
        for start in range(len(text)):
            row, (first, end) = found.locate(number, (start, min(start + 3, len(text))))
            body = passages.text.row(row)["body"]
            assert text[start : start + 3].startswith(body[first:end])
    first, second = passages.text.row(2)["body"], passages.text.row(0)["body"]
    assert found.locate(0, (len(first) + 1, len(first) + 4)) == (0, (0, 3))
    assert found.text.row(0)["body"] == f"{first} {second}"
