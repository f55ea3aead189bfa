"""Byte-level BPE and Unigram: each word by itself, offsets of every character, words in BERT's notation."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from realm_lab.engine.corpus.cutting import Cutter, encode_bodies
from realm_lab.engine.corpus.records import Document, Span
from realm_lab.engine.corpus.vocabulary import (
    WordEncoder,
    encode_around_blanks,
    encode_batch_plain,
    encode_inside,
    load_tokenizer,
    save_tokenizer,
    special_ids,
    tokenizer_digest,
    wordpieces_by_id,
)
from realm_lab.engine.corpus.words import WordStarts
from tests.engine.models.families import write_tokenizer
from tests.factories.errors import refused

TEXT = "Marie Curie (Paris)  was\nwell-known, in the café “Élan” of 1990s 日本語. It's [MASK] <mask> </s>!"
TEXTS = [TEXT, "Curie left Paris in 1990.", "The café is in Paris, and well known."] * 20
OTHERS = ("roberta", "modernbert", "xlm-roberta")


@pytest.fixture(params=OTHERS)
def tokenizer(request: pytest.FixtureRequest, tmp_path: Path) -> Tokenizer:
    write_tokenizer(tmp_path, request.param, TEXTS)
    return load_tokenizer(tmp_path)


def test_a_text_has_the_pieces_of_its_words(tokenizer: Tokenizer) -> None:
    whole = encode_batch_plain(tokenizer, [TEXT])[0].ids
    words = [ids for encoding in encode_batch_plain(tokenizer, TEXT.split()) for ids in encoding.ids]
    assert whole == words == WordEncoder(tokenizer).encode([TEXT])[0]
    assert not set(special_ids(tokenizer)) - {special_ids(tokenizer).unk} & set(whole)  # a text never has special ones
    assert tokenizer.decode(whole).split() == TEXT.split()


def test_every_span_of_words_is_placed_by_its_characters(tokenizer: Tokenizer) -> None:
    encoder = WordEncoder(tokenizer)
    (ids,) = encoder.encode([TEXT])
    for part in ("Marie Curie", "Paris", "well-known", "known", "café", "Élan", "日本語", "本"):
        start = TEXT.index(part)
        (placed,) = encoder.place_spans(TEXT, [(start, start + len(part))])
        assert placed is not None
        shown = tokenizer.decode(ids[slice(*placed)])
        assert part in shown, (part, shown)
        assert len(shown.strip()) - len(part) <= 2, (part, shown)  # a piece may reach over the edge


def test_an_answer_is_found_after_a_bracket_too(tokenizer: Tokenizer) -> None:
    body = encode_batch_plain(tokenizer, ["He met her (Paris School) in Paris School"])[0].ids
    found = [
        start
        for form in encode_inside(tokenizer, ["Paris School"])[0]
        for start in range(len(body))
        if body[start : start + len(form)] == form
    ]
    assert len(found) == 2
    assert len(encode_inside(tokenizer, ["", "a"])) == 2


def test_what_follows_a_blank_directly_has_no_blank(tokenizer: Tokenizer) -> None:
    whole = encode_batch_plain(tokenizer, ["It is Paris, and well"])[0].ids
    before, after = encode_around_blanks(tokenizer, ["It is ", ", and well"])
    assert before == whole[: len(before)]
    assert after == whole[len(whole) - len(after) :]
    assert encode_around_blanks(tokenizer, ["", " and well"]) == [
        [],
        encode_batch_plain(tokenizer, ["and well"])[0].ids,
    ]


def test_words_are_in_berts_notation(tokenizer: Tokenizer) -> None:
    ids = np.array(encode_batch_plain(tokenizer, ["Paris (well-known)"])[0].ids)
    pieces = wordpieces_by_id(tokenizer)
    starts = np.flatnonzero(WordStarts(pieces)(ids))
    bounds = [*starts.tolist(), len(ids)]
    joined = ["".join(pieces[i].removeprefix("##") for i in ids[a:b]) for a, b in pairwise(bounds)]
    assert [word for word in joined if word] == ["Paris", "(", "well", "-", "known", ")"]


def test_it_is_saved_and_read_the_same(tokenizer: Tokenizer, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    save_tokenizer(tokenizer, tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    assert tokenizer_digest(again) == tokenizer_digest(tokenizer)
    assert special_ids(again) == special_ids(tokenizer)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")
    special = special_ids(tokenizer)
    first, second = (encoding.ids for encoding in encode_batch_plain(tokenizer, ["Curie left", "Paris (1990)"]))
    joined = [special.cls, *first, special.sep, *second, special.sep]
    assert theirs("Curie left", "Paris (1990)")["input_ids"] == joined
    assert theirs.mask_token_id == special.mask


def test_passages_and_their_text_have_the_same_pieces(tokenizer: Tokenizer) -> None:
    class Names:
        def tag_batch(self, texts: Sequence[str], contexts: Sequence[str]) -> list[tuple[Span, ...]]:
            return [
                tuple(Span(t.index("Curie"), t.index("Curie") + 5, "name") for _ in "x" if "Curie" in t) for t in texts
            ]

    text = "Marie Curie left in 1990.  She was (then) known.\nPierre Curie stayed there, in Paris."
    document = Document("1", "Curie", text, "Curie")
    cutter = Cutter(tokenizer.to_str(), 100, 100, Names)
    cut = cutter.cut([[document]], "passages and sentences")
    body = cut.passages.to_pylist()[0]
    ids, _ = encode_bodies(tokenizer, [body["body"]])[0]
    assert body["bodies"] == ids == encode_batch_plain(tokenizer, [body["body"]])[0].ids
    rows = [row for part in cut.sentences.values() for row in part.to_pylist()]
    assert len(rows) == 3
    for row in rows:
        for start, end in zip(row["spans"][::2], row["spans"][1::2], strict=True):
            assert tokenizer.decode(row["tokens"][start:end]).strip() == "Curie"
    assert Counter(len(row["spans"]) for row in rows) == {2: 2, 0: 1}


@pytest.mark.parametrize("family", ["bert", *OTHERS])
def test_files_of_old_libraries_do_not_name_the_type_of_their_model(family: str, tmp_path: Path) -> None:
    write_tokenizer(tmp_path, family, TEXTS)
    named = tokenizer_digest(load_tokenizer(tmp_path))
    path = tmp_path / "tokenizer.json"
    state = json.loads(path.read_text())
    del state["model"]["type"]
    path.write_text(json.dumps(state))
    assert tokenizer_digest(load_tokenizer(tmp_path)) == named


def test_tokenizers_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "roberta", TEXTS)
    path = tmp_path / "tokenizer.json"
    path.write_text(path.read_text().replace("<mask>", "<blank>"))
    with refused("lacks <mask>", path=path):
        load_tokenizer(tmp_path)
    Tokenizer(models.BPE()).save(str(path))
    with refused("byte-level BPE", path=path):
        load_tokenizer(tmp_path)
    path.unlink()
    with refused("AutoTokenizer", path=tmp_path):
        load_tokenizer(tmp_path)
