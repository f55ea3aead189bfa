"""The rule tagger: dates, names and numbers with exact offsets."""

import shutil
from pathlib import Path

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st

from realm_lab.engine.corpus import dates, salient_spans
from realm_lab.engine.corpus.dates import find_dates
from realm_lab.engine.corpus.expressions import matches_from
from realm_lab.engine.corpus.records import Span
from realm_lab.engine.corpus.salient_spans import merge_spans, rule_tagger, seen_words, tagger_digest
from tests.factories.errors import refused

DATES = [
    "July 1969", "July, 1969", "July of 1969", "12 March 1912", "12th of March, 1912", "March 12, 1912",
    "Sept. 5, 2001", "March 12–14, 1912", "12-14 March 1912", "1969", "1914–1918", "1914-18", "1960s", "1960's",
    "'60s", "19th century", "19th-century", "nineteenth century", "5th century BC", "4th to 6th centuries",
    "1969-07-20", "1969/7/20", "20/07/1969", "7.20.1969", "12 March", "March 12", "March 12th", "44 BC", "44 B.C.",
    "800–700 BCE", "AD 70", "70 AD", "476 CE", "summer of 1969", "Spring 2010", "May–June 1940",
]  # fmt: skip


@pytest.mark.parametrize("date", DATES)
@pytest.mark.parametrize("frame", ["({}), 😀 {}, and", "Éa in {}."])
def test_dates(date: str, frame: str) -> None:
    text = frame.format(*[date] * frame.count("{}"))
    assert [text[start:end] for start, end in find_dates(text)] == [date] * frame.count("{}")


@pytest.mark.parametrize(
    "text",
    [
        "10,000 men", "$1500", "1500 km", "2000 people", "31969", "X1969", "1969X", "19690", "3.1969", "1969.5", "999",
        "marching 5",
    ],
)  # fmt: skip
def test_not_dates(text: str) -> None:
    assert find_dates(text) == []


def spans_of(text: str, context: str = "") -> list[tuple[str, str]]:
    return [(text[start:end], label) for start, end, label in rule_tagger(text, context)]


SENTENCES = {
    "The Statue of Liberty and Vincent van Gogh met.": ["Statue of Liberty", "Vincent van Gogh"],
    "It was J. R. R. Tolkien, Dr. Dre and Martin Luther King, Jr. in St. Louis.": [
        "J. R. R. Tolkien", "Dr. Dre", "Martin Luther King, Jr.", "St. Louis",
    ],
    "In the U.S. no Alps are seen by Alexander the Great.": ["U.S.", "Alps", "Alexander the Great"],
    "Super Bowl 50 pits AT&T against O'Brien's iPhone.": ["Super Bowl 50", "AT&T", "O'Brien", "iPhone"],
    "However, the Franco-Prussian War made Adolphe Thiers.": ["Franco-Prussian War", "Adolphe Thiers"],
    "I think I'm in Paris.": ["Paris"],
    "She heard The Who and One Nation.": ["The Who", "One Nation"],
    "Élan Vital met Иван Грозный and Ångström.": ["Élan Vital", "Иван Грозный", "Ångström"],
    "Because of the Danube it stopped.": ["Danube"],
    "Who was he?": [],
}  # fmt: skip


@pytest.mark.parametrize(("text", "names"), SENTENCES.items())
def test_names(text: str, names: list[str]) -> None:
    assert [name for name, label in spans_of(text) if label == "name"] == names


@pytest.mark.parametrize(
    ("text", "context", "names"),
    [
        ("Warsaw is large.", "Warsaw is large. They left Warsaw.", ["Warsaw"]),
        ("Cats sleep.", "Cats sleep. Most cats do.", []),
        ("Physicist Marie Curie won.", "", ["Physicist Marie Curie"]),
        ("Physicist Marie Curie won.", "She was a physicist.", ["Marie Curie"]),
        ('He said: "Warsaw is large."', "", []),
    ],
)
def test_first_words_need_the_context(text: str, context: str, names: list[str]) -> None:
    assert [name for name, _ in spans_of(text, context)] == names


def test_numbers_and_the_order_of_kinds() -> None:
    text = "On 7 May 1945 it paid $1.5 million (71%) to Apollo 11 for 1,200 parts and the 3rd of 24–10."
    assert spans_of(text) == [
        ("7 May 1945", "date"),
        ("$1.5 million", "number"),
        ("71%", "number"),
        ("Apollo 11", "name"),
        ("1,200", "number"),
        ("3rd", "number"),
        ("24", "number"),
        ("10", "number"),
    ]


MERGES = {
    "apart": ([(0, 4)], [(5, 9)], [(0, 4, "d"), (5, 9, "e")]),
    "touching": ([(4, 8)], [(0, 4)], [(0, 4, "e"), (4, 8, "d")]),
    "the longer stays, whichever it is": ([(0, 13)], [(0, 4)], [(0, 13, "d")]),
    "of equals the first group's": ([(0, 4)], [(0, 4)], [(0, 4, "d")]),
    "a long one takes several": ([(0, 3), (5, 8)], [(2, 7)], [(2, 7, "e")]),
    "what a dropped one covered is free": ([(0, 9)], [(8, 13), (12, 14)], [(0, 9, "d"), (12, 14, "e")]),
}


@pytest.mark.parametrize("name", MERGES)
def test_overlaps_are_resolved(name: str) -> None:
    dates, entities, kept = MERGES[name]
    found = merge_spans([Span(*span, "d") for span in dates], [Span(*span, "e") for span in entities])
    assert list(found) == kept


def test_the_digest_of_a_tagger_is_its_content(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    for name in ("config.json", "model.safetensors", "vocab.txt", "README.md"):
        (folder / name).write_text("x")
    before = tagger_digest(folder)
    shutil.copytree(folder, tmp_path / "b")
    (tmp_path / "b" / "README.md").write_text("y")
    assert tagger_digest(tmp_path / "b") == before
    for name in ("config.json", "model.safetensors", "vocab.txt"):
        (tmp_path / "b" / name).write_text("y")
        assert tagger_digest(tmp_path / "b") != before
        (tmp_path / "b" / name).write_text("x")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with refused(str(folder), parameter="corpus.tagger"):
        tagger_digest(folder)


WORDS = (
    "March 12 1969 1960s '60s of the The Jr. U.S. J. $ 1,000 1.5 % BC A.D. 44 - / McDonald iPhone and 19th century x"
)
BEFORE = {"date": r"(?<![\p{L}\p{N}$€£¥#])(?<!\d[.,])", "number": r"(?<![\p{L}\p{M}\p{N}_])(?<!\d[.,:/])"}
PLACES = {
    "date": (None, dates._DATE, BEFORE["date"]),
    "name": (salient_spans._CAPITAL, salient_spans._NAME, salient_spans._NO_WORD),
    "number": (salient_spans._BEGINNING_OF_NUMBER, salient_spans._NUMBER, BEFORE["number"]),
}
MORE = "aB abC x5 iP É éA ab\u0301C ’60s US$5 U5 x$5 #12 1.50 spring Fall 1950 twelfth centuries Jan. May A.D. 7 AD"
MONTHS = "Jan Feb. Mar April May Jun. July Aug. Sept Oct. Nov. Dec.".split()


@pytest.mark.parametrize("kind", PLACES)
@given(st.lists(st.sampled_from([*WORDS.split(), *MORE.split(), *" \u00a0.,;:-–/_$\"'\n"]) | st.just(" ")).map("".join))
@example(text="3.1969 1,1969 1:50 5/7 '60s spring 1950 Summer of 1950 " + " ".join(f"{month} 12," for month in MONTHS))
@example(text="iPhone aBc abCd abcD $5 x$5 US$5 the Nineteenth century, nineteenth century, 12th of March 1912")
def test_matches_begin_nowhere_but_where_they_are_tried(kind: str, text: str) -> None:
    beginning, whole, before = PLACES[kind]
    found = [m.span() for m in matches_from(beginning, whole, text)] if beginning else find_dates(text)
    assert found == [m.span() for m in regex.finditer(before + whole.of("\u00e9").pattern, text)]


@given(st.lists(st.sampled_from([*WORDS.split(), *MORE.split(), ". ", ", ", "\n", "don't", "Nô", "nô"]) | st.just(" ")))
def test_words_of_a_text_in_parts_are_those_of_the_whole(parts: list[str]) -> None:
    text = "".join(parts)
    both = salient_spans._MID_SENTENCE, salient_spans._LOWER
    assert seen_words(text) == tuple(frozenset(each.of("\u00e9").findall(text)) for each in both)
