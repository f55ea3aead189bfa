"""Offsets in characters are right in every script, and no text becomes a special token."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from realm_lab.engine.corpus.cutting import Cutter
from realm_lab.engine.corpus.readers import input_files, read_documents
from realm_lab.engine.corpus.salient_spans import RuleTagger
from realm_lab.engine.corpus.vocabulary import encode_batch_plain, train_wordpiece

TEXTS = {
    "plain": "Warsaw is large. It was founded in 1300. People of Warsaw like it.",
    "accents": "Kraków är störst. Es wurde 1257 gegründet. Die Größe von Kraków zählt.",
    "combining": "Krako\u0301w is old. It began in 1257. The people of Krako\u0301w a\u0308\u0301re proud.",
    "right_to_left": "\u202eשלום עולם\u202c. Jerusalem is old. مرحبا بالعالم. In 1948 it changed.",
    "chinese": "北京是中国的首都。它很大。Beijing grew in 1949. 人口很多。",
    "japanese_thai": "東京は大きい。 ประเทศไทย is Thailand. It is warm in 2020.",
    "emoji": "👩‍👩‍👧‍👦 went to Oslo. 🏳️‍🌈 was seen in 2019! 😀😀 The end.",
    "astral": "𝒳 is in 𝕆slo. \U00020000 was there in 1999. 𐍈 ends it.",
    "zero_width": "Oslo\u200b is\u200d a\ufeff city. In\u00ad 1969\u2060 it grew. \u200b Oslo.",
    "unicode_line_ends": "Oslo is a city.\u2028It grew in 1969.\u2029It\x85is\x0blarge.\x0cBergen is not.\x1cSo.",
    "controls": "Oslo\0 is a city. It \x07grew in\x1f 1969. \x7fThe\ufffd end.",
    "special_tokens": "[CLS] Oslo is [MASK]. [SEP] It was [UNK] in 1969. [PAD] of [MASK] Oslo.",
    "dotted_i": "İstanbul is large. İİİ grew in 1453. ǅ and ﬁ and ß in İstanbul.",
    "line_feeds": "Oslo.\n\n\tIt grew in 1969.\r\nThe  end of  Oslo .",
    "long_word": "Oslo is " + "x" * 300 + " in 1969. " + "é" * 300 + " of Oslo.",
    "no_word_at_all": "\u200b\u200b \ufeff.",
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return train_wordpiece([*TEXTS.values(), "abcdefghijklmnopqrstuvwxyz [ ] . mask sep cls unk pad"], 600)


@pytest.fixture(params=TEXTS)
def text(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A text that was read from a file, unchanged."""
    expected = TEXTS[request.param]
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": expected}, ensure_ascii=request.param == "controls") + "\n", newline="")
    [document] = read_documents(input_files(path))
    assert document.text == expected
    return document.text


def test_passages_and_spans_are_slices_of_the_text(text: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    [document] = read_documents(input_files(path))
    place = 0
    cut = Cutter(tokenizer.to_str(), 16, 64, RuleTagger).cut([[document]], "passages")
    for row in cut.passages.to_pylist():
        place = text.index(row["body"], place) + len(row["body"])
        [encoding] = encode_batch_plain(tokenizer, [row["body"]])
        assert row["bodies"] == encoding.ids
    assert place or cut.dropped == {"passage: no wordpieces (invisible characters only)": 1}


def test_the_year_and_the_city_are_found_where_they_stand() -> None:
    tagger = RuleTagger()
    for text in TEXTS.values():
        years = [year for year in ("1300", "1257", "1948", "1949", "2020", "2019", "1999", "1453") if year in text]
        [spans] = tagger.tag_batch([text], [text])
        assert {*years} <= {text[start:end] for start, end, label in spans if label == "date"}
