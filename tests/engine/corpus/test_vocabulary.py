"""The WordPiece vocabulary: deterministic, readable by transformers, blind to special tokens in text."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models

from realm_lab.engine.corpus.vocabulary import (
    MAX_CHARACTERS,
    SPECIAL_TOKENS,
    SpecialIds,
    encode_batch_plain,
    load_tokenizer,
    save_tokenizer,
    special_ids,
    tokenizer_digest,
    train_wordpiece,
    wordpiece_from_vocabulary,
    wordpieces_by_id,
)
from tests.factories.errors import refused

# Few words and many ties, which the library's own trainer orders by chance.
TEXTS = [f"Word{number} and Élan {number % 7} the other{number % 5}." for number in range(40)]


@pytest.fixture
def learned() -> Tokenizer:
    return train_wordpiece(TEXTS, 100)


def test_learned_vocabulary_has_special_tokens_first_and_the_size_asked_for(learned: Tokenizer) -> None:
    assert special_ids(learned) == SpecialIds(0, 1, 2, 3, 4)
    assert learned.get_vocab_size() == 100
    assert sorted(learned.get_vocab().values()) == list(range(100))
    assert learned.encode("the Élan", add_special_tokens=False).tokens == ["the", "elan"]


def test_learning_is_the_same_in_every_process() -> None:
    many = "".join(chr(0x4E00 + number) + "x " for number in range(MAX_CHARACTERS + 50))  # ties at the cut-off
    program = (
        "import sys, json; from realm_lab.engine.corpus.vocabulary import *; "
        "print(tokenizer_digest(train_wordpiece(json.load(sys.stdin), 1200)))"
    )
    other = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONHASHSEED": "7"},
        input=json.dumps([*TEXTS, many]),
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert other == tokenizer_digest(train_wordpiece([*TEXTS, many], 1200)) + "\n"


def test_nothing_is_learned_from_a_word_that_would_be_unknown() -> None:
    endless = "ab" * 200_000  # once took time that grew with the square of its length
    assert train_wordpiece(["aa bb", endless], 1000).get_vocab() == train_wordpiece(["aa bb"], 1000).get_vocab()


def test_learning_needs_text_and_room_for_its_characters() -> None:
    with refused("no text"):
        train_wordpiece([" ", ""], 1000)
    with refused(parameter="tokenizer.vocabulary_size", remedy="give at least 9"):
        train_wordpiece(["aa bb"], 8)


def test_saved_tokenizer_loads_here_and_in_transformers(learned: Tokenizer, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    learned.enable_truncation(4)
    learned.enable_padding(length=4)
    save_tokenizer(learned, tmp_path, max_length=99)
    learned = load_tokenizer(tmp_path)
    assert [len(each.ids) for each in encode_batch_plain(learned, ["the", "the the the the the the"])] == [1, 6]
    assert tokenizer_digest(load_tokenizer(tmp_path)) == tokenizer_digest(learned)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    text = "The Élan, [MASK] word3!"
    assert theirs(text)["input_ids"] == learned.encode(text).ids
    assert theirs("the", "other")["token_type_ids"] == learned.encode("the", "other").type_ids == [0, 0, 0, 1, 1]
    assert (theirs.pad_token_id, theirs.mask_token_id, theirs.model_max_length) == (0, 4, 99)
    assert len(theirs) == 100


@pytest.mark.parametrize("lowercase", [True, False])
def test_folder_with_only_a_word_list(tmp_path: Path, lowercase: bool) -> None:
    tokenizer = wordpiece_from_vocabulary(["a", "A", "\u2028b"], lowercase)
    save_tokenizer(tokenizer, tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    assert tokenizer_digest(load_tokenizer(tmp_path)) == tokenizer_digest(tokenizer)


SETTINGS: list[dict[str, Any]] = [
    {},
    {"do_lower_case": False},
    {"do_lower_case": True, "strip_accents": False},
    {"do_lower_case": True, "strip_accents": None},
    {"do_lower_case": False, "strip_accents": True},
    {"do_lower_case": False, "tokenize_chinese_chars": False},
    {"strip_accents": False, "tokenize_chinese_chars": False},
]


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("has_json", [False, True])
def test_texts_are_normalised_as_the_folder_says(tmp_path: Path, settings: dict[str, Any], has_json: bool) -> None:
    """Wordpieces agree with transformers, for the folder itself and for its saved copy."""
    from transformers import AutoTokenizer

    pieces = ["münchen", "München", "Munchen", "munchen", "élan", "Elan", "elan", "中国", "中", "国", "##国"]
    save_tokenizer(wordpiece_from_vocabulary(pieces), tmp_path)
    if not has_json:
        (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer"} | settings))
    text = "München munchen Munchen élan Elan 中国 x"
    ours = load_tokenizer(tmp_path)
    found = encode_batch_plain(ours, [text])[0].tokens
    assert found == AutoTokenizer.from_pretrained(tmp_path).tokenize(text)
    save_tokenizer(ours, tmp_path / "saved")
    assert tokenizer_digest(load_tokenizer(tmp_path / "saved")) == tokenizer_digest(ours)
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").tokenize(text) == found


@pytest.mark.parametrize("has_json", [False, True])
def test_of_a_word_that_is_there_twice_the_last_line_counts(tmp_path: Path, has_json: bool) -> None:
    from transformers import AutoTokenizer

    words = [*SPECIAL_TOKENS, "a", "b", "a", "c", "##c", "", "", "d"]
    tmp_path.joinpath("vocab.txt").write_text("\n".join(words) + "\n\n\n" * (not has_json))
    theirs = AutoTokenizer.from_pretrained(tmp_path, tokenizer_type="bert")
    if has_json:
        theirs.save_pretrained(tmp_path)
    ours, text = load_tokenizer(tmp_path), "a b ac c x d"
    assert ours.encode(text).ids == theirs(text)["input_ids"] == [2, 7, 6, 7, 9, 8, 1, 12, 3]
    assert ours.get_vocab_size() == len(wordpieces_by_id(ours)) == len(words)
    save_tokenizer(ours, tmp_path / "saved")
    assert tokenizer_digest(load_tokenizer(tmp_path / "saved")) == tokenizer_digest(ours)
    assert AutoTokenizer.from_pretrained(tmp_path / "saved")(text)["input_ids"] == theirs(text)["input_ids"]


def test_a_byte_order_mark_is_no_part_of_a_vocabulary(tmp_path: Path, learned: Tokenizer) -> None:
    save_tokenizer(learned, tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    path = tmp_path / "vocab.txt"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert tokenizer_digest(load_tokenizer(tmp_path)) == tokenizer_digest(learned)


def test_an_added_special_token_which_no_text_has_needs_no_row_of_the_model(tmp_path: Path) -> None:
    tokenizer = wordpiece_from_vocabulary(["a", "[ent]"])
    size = tokenizer.get_vocab_size()
    tokenizer.add_special_tokens(["[ENT]"])
    save_tokenizer(tokenizer, tmp_path)
    ours = load_tokenizer(tmp_path)
    assert ours.get_vocab_size() == size
    assert encode_batch_plain(ours, ["a [ENT]"])[0].tokens == ["a", "[UNK]", "[UNK]", "[UNK]"]


def test_special_tokens_in_text_are_text(learned: Tokenizer) -> None:
    text = "😀 é the [MASK] [SEP]"
    (encoding,) = encode_batch_plain(learned, [text])
    assert not {0, 2, 3, 4} & set(encoding.ids)
    assert [text[start:end] for start, end in encoding.offsets][:3] == ["😀", "é", "the"]
    assert learned.encode("[MASK]", add_special_tokens=False).ids == [4], "the tokenizer itself is left as it was"


def test_digest_is_of_what_decides_the_encoding(learned: Tokenizer) -> None:
    before = tokenizer_digest(learned)
    learned.enable_truncation(4)
    assert tokenizer_digest(learned) == before
    words = sorted(learned.get_vocab(), key=learned.get_vocab().__getitem__)[5:]
    assert tokenizer_digest(wordpiece_from_vocabulary(words)) == before
    assert tokenizer_digest(wordpiece_from_vocabulary(words, lowercase=False)) != before
    assert tokenizer_digest(wordpiece_from_vocabulary([*words[:-2], words[-1], words[-2]])) != before


def test_folders_that_hold_no_tokenizer(tmp_path: Path) -> None:
    vocabulary, config, tokenizer = (tmp_path / f for f in ("vocab.txt", "tokenizer_config.json", "tokenizer.json"))
    with refused(path=tmp_path):
        load_tokenizer(tmp_path)
    vocabulary.write_text("a\nb\n")
    config.write_text('{"strip_accents": "no"}')
    with refused("strip_accents is 'no'", path=config):
        load_tokenizer(tmp_path)
    config.unlink()
    vocabulary.write_bytes("münchen\n".encode("latin-1"))
    with refused("not UTF-8", path=vocabulary):
        load_tokenizer(tmp_path)
    vocabulary.write_text("a\nb\n")
    with refused("lacks [PAD]", path=vocabulary):
        load_tokenizer(tmp_path)
    Tokenizer(models.BPE()).save(str(tokenizer))
    with refused("BPE, None, None", path=tokenizer):
        load_tokenizer(tmp_path)
    added = wordpiece_from_vocabulary(["a"])
    added.add_tokens(["covid"])
    added.save(str(tokenizer))
    with refused("'covid'", path=tokenizer):
        load_tokenizer(tmp_path)
    for text, line in (("[]", None), ("{", 1)):
        tokenizer.write_text(text)
        with refused(path=tokenizer, line=line):
            load_tokenizer(tmp_path)
