"""examples/two_sources.py: the spans of a sentence that are also in the passage whose title it names."""

from typing import Any

import pytest

from realm_lab.engine.corpus.records import Document
from realm_lab.engine.corpus.salient_spans import RuleTagger
from tests.factories.modules import load_module

PASSAGES = {
    "Ankara": "Ankara is the capital of Turkey. In 1923 Mustafa Kemal chose it.",
    "Mustafa Kemal (officer)": "Mustafa Kemal was born in Salonica in 1881.",
    "Peace": "Peace is the absence of war.",
}


@pytest.fixture(scope="module")
def example() -> Any:
    return load_module("examples/two_sources.py")


@pytest.mark.parametrize(
    ("sentence", "asked"),
    [
        ("The parliament met in Ankara for the first time in 1923.", ["1923"]),
        ("The officer known as Mustafa Kemal saw Ankara and then Salonica in 1881.", ["Salonica", "1881"]),
        ("The parliament met in Ankara for the first time in 1920.", []),  # no passage has it
        ("They prayed for peace in the streets in 1923.", []),  # a title only with a capital letter
    ],
)
def test_a_span_is_asked_if_the_passage_of_a_title_has_it(example: Any, sentence: str, asked: list[str]) -> None:
    documents = [Document(str(number), title, text, title) for number, (title, text) in enumerate(PASSAGES.items())]
    spans = example.spans_asked(sentence, sentence, example.Knowledge(documents), RuleTagger())
    assert [sentence[start:end] for start, end in spans] == asked
