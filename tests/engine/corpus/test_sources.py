"""A custom corpus source and tagger: their rows, their options, their part of the key, their errors."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from realm_lab.engine.corpus.prepare import corpus_inputs
from realm_lab.engine.corpus.readers import registry
from realm_lab.records.files import digest
from realm_lab.records.plugins import import_plugins
from tests import tiny
from tests.engine.corpus.preparing import Prepared, made

SOURCE = """
from realm_lab import Document, Question, Section, Span, TextSource, register_source

class Towns(Section):
    towns: int = 40
    mayors: list[str] = ["Ada", "Bob"]

@register_source("towns")
class Legends(TextSource):
    uses_seed = True

    def __init__(self, request, options: Towns):
        super().__init__(request)
        self.options, self.versions = options, 2

    def documents(self, version=0):
        for town in range(self.options.towns):
            mayor = self.options.mayors[(town + version + self.request.seed) % len(self.options.mayors)]
            text = f"The mayor of Town{town} has been {mayor} for years ."
            start = text.index(mayor)
            spans = (Span(start, start + len(mayor), "name"),)
            yield Document(f"town{town}", f"Town{town}", text, f"Town{town}", spans=spans)

    def questions(self, split):
        mayor = self.options.mayors[self.request.seed % len(self.options.mayors)]
        yield Question(split, "who is the mayor of Town0 ?", (mayor,), "town0")

class Capitals:
    def tag_batch(self, texts, contexts):
        return [(Span(0, 3, "name"),) for text in texts]
"""
OWN = {
    "corpus.source": "legends:Legends",
    "corpus.tagger": "exact",
    "corpus.pretrain_corpus": "same",
    "tokenizer.vocabulary_size": 200,
}
Make = Callable[..., Prepared]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "legends.py"
    path.write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    yield path
    from realm_lab.engine.corpus.sources import CORPUS_SOURCES

    CORPUS_SOURCES.pop("towns", None)
    sys.modules.pop("legends", None)


def key(changes: dict[str, Any], seed: int = 0) -> str:
    return digest(corpus_inputs(tiny.params(OWN | changes), seed))


def test_documents_spans_questions_and_an_update_are_prepared(module: Path, tmp_path: Path) -> None:
    prepared = made(tiny.params(OWN | {"corpus.source.towns": 30}), tmp_path / "out", 1)
    corpus = prepared.corpus
    passages, sentences = corpus.passages(), corpus.sentences()
    assert len(passages) == len(corpus.passages(1)) == 30
    assert passages.text.row(0)["body"] == "The mayor of Town0 has been Bob for years ."
    start, end = sentences.spans[0]
    assert prepared.text(sentences.tokens[0][start:end]) in ("ada", "bob")
    questions = corpus.questions("test")
    assert (list(questions.answers[0]), questions.gold[0].tolist()) == (["Bob"], [0])


def test_options_seed_and_code_are_in_the_key(module: Path) -> None:
    plain = key({})
    assert key({"corpus.source": {"name": "legends:Legends", "towns": 40}}) == plain
    others = [key({"corpus.source.towns": 41}), key({}, seed=1), key({"corpus.tagger": "rule"})]
    others.append(key({"corpus.tagger": "legends:Capitals"}))
    module.write_text(SOURCE + "more = 1\n")
    others.append(key({}))
    assert len({plain, *others}) == 6


POEMS = """
from realm_lab import Document, register_reader

def read(file, dropped):
    yield Document("poem", "", file.path.read_text(), "poem")

register_reader("poem", lambda path, head: path.suffix == ".poem", read_documents=read)
"""


def test_the_code_of_a_format_is_in_the_key_of_what_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import_plugins()  # once a process: their formats would be gone after this test
    monkeypatch.setattr(registry, "READERS", dict(registry.READERS))
    monkeypatch.syspath_prepend(tmp_path)
    poem, text = tmp_path / "a.poem", tmp_path / "a.txt"
    poem.write_text("One line.")
    text.write_text("One line.")
    files = {"corpus.source": "files", "corpus.tagger": "rule", "corpus.pretrain_corpus": "same"}
    keys = []
    for more in ("", "more = 1\n"):
        (tmp_path / "own_poems.py").write_text(POEMS + more)
        found = (
            tiny.params(files | {"plugins": ["own_poems"], "corpus.files.knowledge": [str(p)]}) for p in (poem, text)
        )
        keys.append([digest(corpus_inputs(params, 0)) for params in found])
    (one, plain), (other, same) = keys
    assert one != other
    assert plain == same
