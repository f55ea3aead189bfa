"""The tagger: wordpieces to words to spans with exact offsets, windows, and Hugging Face folders in both directions."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from realm_lab.core.files import read_json, write_json
from realm_lab.corpus.entity_scores import Entity
from realm_lab.corpus.records import Span
from realm_lab.corpus.salient_spans import Tagger
from realm_lab.corpus.vocabulary import save_tokenizer, wordpiece_from_vocabulary
from realm_lab.errors import UserError
from realm_lab.models.encoder import EncoderShape
from realm_lab.models.tagger import (
    OVERLAP,
    ModelTagger,
    encode_tokens,
    new_classifier,
    read_tagger,
    windows,
    write_classifier,
)

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
WORDS = (
    "ann,##a,bob,new,york,is,in,.,',s,-,jose,[,],mask,sep,went,1969,july,to,st,u,東,京,に,דני,שלום,nato,met,##x,,:,!"
)
VOCABULARY = [*[word for word in WORDS.split(",") if word], ",", *"0123456789"]
LABEL_OF = {
    "ann": "B-PER", "##a": "I-LOC", "bob": "I-PER", "jose": "B-PER", "new": "B-LOC", "york": "I-LOC", "東": "B-LOC",
    "京": "I-LOC", "דני": "B-PER", "שלום": "I-PER", "nato": "B-LOC", "july": "B-LOC", "mask": "B-PER", ":": "I-PER",
}  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return wordpiece_from_vocabulary(VOCABULARY)


def lookup(tokenizer: Tokenizer, longest: int = 512, seen: list[int] | None = None) -> ModelTagger:
    """A tagger that knows the label of each wordpiece by heart."""
    table = torch.zeros(tokenizer.get_vocab_size(), len(LABELS))
    for word, label in LABEL_OF.items():
        table[tokenizer.token_to_id(word), LABELS.index(label)] = 1.0

    def logits(tokens_BL: Tensor, mask_BL: Tensor) -> Tensor:
        if seen is not None:
            seen.append(tokens_BL.shape[1])
        return table[tokens_BL]

    return ModelTagger(logits, tokenizer, LABELS, (2, 3, 0), longest)


TEXTS: dict[str, list[tuple[str, str]]] = {
    "Ann is in New York.": [("Ann", "PER"), ("New York", "LOC")],
    "": [],
    " \u200b ": [],
    "Ann's": [("Ann", "PER")],
    "Anna met Bob": [("Anna", "PER"), ("Bob", "PER")],  # the second wordpiece of Anna is not asked
    "Jos\u00e9 is": [("Jos\u00e9", "PER")],
    "Jose\u0301 is": [("Jose\u0301", "PER")],  # the accent is a character of its own, at the end of the word
    "😀 Ann 👩\u200d👩\u200d👧 New\u00a0York": [("Ann", "PER"), ("New\u00a0York", "LOC")],
    "\u200bAnn\u200b is": [("Ann", "PER")],
    "שלום דני שָׁלוֹם is": [("שלום", "PER"), ("דני שָׁלוֹם", "PER")],
    "東京に Ann": [("東京", "LOC"), ("Ann", "PER")],
    "[MASK] Ann [SEP] York": [("MASK", "PER"), ("Ann", "PER"), ("York", "LOC")],  # text, not special tokens
    "Ann:": [("Ann", "PER")],  # a mark at the end of an entity is not of it
    ": is": [],  # nor is one alone
    "NEW  \n\tYORK": [("NEW  \n\tYORK", "LOC")],
    "Ann went to New York in July 1969": [("Ann", "PER"), ("New York", "LOC"), ("July 1969", "date")],
    "1969 Ann": [("1969", "date"), ("Ann", "PER")],
}


@pytest.mark.parametrize("text", TEXTS)
def test_spans_have_exact_offsets(tokenizer: Tokenizer, text: str) -> None:
    [spans] = lookup(tokenizer).tag_batch([text], [""])
    assert [(text[start:end], label) for start, end, label in spans] == TEXTS[text]


def test_many_texts_come_back_in_their_order(tokenizer: Tokenizer) -> None:
    texts = list(TEXTS) * 3
    tagger: Tagger = lookup(tokenizer)
    assert tagger.tag_batch(texts, texts) == [lookup(tokenizer).tag_batch([text], [""])[0] for text in texts]
    assert tagger.tag_batch([], []) == []


@given(
    st.lists(
        st.sampled_from(["Ann", " ", "New York", "e\u0301", "\u200d", "東", "ש", "\u05b8", "[MASK]", ".", "1969", "\0"])
    )
)
def test_spans_are_sorted_apart_and_inside(parts: list[str]) -> None:
    text = "".join(parts)
    place = 0
    [spans] = lookup(wordpiece_from_vocabulary(VOCABULARY)).tag_batch([text], [""])
    for start, end, _ in spans:
        assert place <= start < end <= len(text)
        assert text[start:end] == text[start:end].strip()
        place = end


@given(st.integers(0, 2000), st.integers(2, 300))
def test_windows_decide_each_wordpiece_once_and_with_text_on_both_sides(count: int, longest: int) -> None:
    found = windows(count, longest)
    assert [place for _, _, first, last in found for place in range(first, last)] == list(range(count))
    for start, end, first, last in found:
        assert 0 <= start <= first <= last <= end <= count
        assert end - start <= longest
        half = min(OVERLAP, longest // 2) // 2
        assert start == 0 or first - start >= half
        assert end == count or end - last >= half


def test_a_long_text_is_read_in_windows(tokenizer: Tokenizer) -> None:
    text = "Ann is in New York . " * 200
    seen: list[int] = []
    long_spans = lookup(tokenizer, 64, seen).tag_batch([text], [""])
    assert long_spans == lookup(tokenizer, 10_000).tag_batch([text], [""])
    assert len(long_spans[0]) == 400
    assert max(seen) == 64


def test_tokens_are_decided_by_their_first_word(tokenizer: Tokenizer) -> None:
    sentences = [["Ann", "is", "in", "New-York", "."], ["\u200b", "Bob-Ann"], []]
    assert [words for _, words in encode_tokens(tokenizer, sentences)] == [[0, 1, 2, 3, 6], [-1, 0], []]
    found = lookup(tokenizer).token_entities(sentences)
    assert found == [[Entity(0, 1, "PER"), Entity(3, 4, "LOC")], [Entity(1, 2, "PER")], []]


SHAPE = EncoderShape(len(VOCABULARY) + 5, 32, 2, 4, 64, 48, 0.1)


@pytest.fixture
def folder(tokenizer: Tokenizer, tmp_path: Path) -> Path:
    """A classifier with random weights, large enough that its labels vary."""
    model = new_classifier(SHAPE, LABELS, seed=1)
    model.classifier.weight.data.mul_(50)
    (tmp_path / "tagger").mkdir()
    write_classifier(model, tokenizer, tmp_path / "tagger")
    return tmp_path / "tagger"


def labels_by_transformers(folder: Path, texts: Sequence[str]) -> tuple[list[list[str]], list[Tensor]]:
    """Label and logits of each wordpiece, by transformers alone."""
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    model = AutoModelForTokenClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        logits = [model(**tokenizer(text, return_tensors="pt")).logits[0] for text in texts]
    return [[model.config.id2label[int(best)] for best in row.argmax(-1)] for row in logits], logits


PLAIN = ["Ann went to New York in July", "Bob is in York.", "New York met Ann and Jos\u00e9"]


def test_transformers_reads_what_is_written_to_the_same_logits(folder: Path, tokenizer: Tokenizer) -> None:
    from realm_lab.models.tagger import read_classifier

    model = read_classifier(folder)
    _, expected = labels_by_transformers(folder, PLAIN)
    for text, logits in zip(PLAIN, expected, strict=True):
        tokens_BL = torch.tensor([tokenizer.encode(text).ids])
        with torch.no_grad():
            found_BLC = model(tokens_BL, torch.ones_like(tokens_BL, dtype=torch.bool))
        torch.testing.assert_close(found_BLC[0], logits, atol=1e-5, rtol=1e-5)
    assert read_json(folder / "config.json")["id2label"] == {str(n): label for n, label in enumerate(LABELS)}


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_folders_of_others_tag_as_transformers_says(kind: str, tokenizer: Tokenizer, tmp_path: Path) -> None:
    import transformers

    torch.manual_seed(0)
    names: Any = {"id2label": dict(enumerate(LABELS)), "label2id": {label: n for n, label in enumerate(LABELS)}}
    config: Any
    model: Any
    if kind == "bert":
        config = transformers.BertConfig(
            vocab_size=SHAPE.vocabulary_size, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
            intermediate_size=64, max_position_embeddings=48, initializer_range=1.0, **names,
        )  # fmt: skip
        model = transformers.BertForTokenClassification(config)
    else:
        config = transformers.DistilBertConfig(
            vocab_size=SHAPE.vocabulary_size, dim=32, n_layers=2, n_heads=4, hidden_dim=64,
            max_position_embeddings=48, initializer_range=1.0, **names,
        )  # fmt: skip
        model = transformers.DistilBertForTokenClassification(config)
    model.save_pretrained(tmp_path)
    save_tokenizer(tokenizer, tmp_path, 48)
    rows, _ = labels_by_transformers(tmp_path, PLAIN)
    tagger = read_tagger(tmp_path)
    marked = [item for item, _ in encode_tokens(tokenizer, [[text] for text in PLAIN])]
    expected = [[row[1:-1][place] for place in item.first] for row, item in zip(rows, marked, strict=True)]
    assert tagger.tags(marked) == expected
    assert len({label for row in expected for label in row}) > 1


def test_a_tagger_is_made_in_another_process_from_what_names_it(folder: Path) -> None:
    make = pickle.loads(pickle.dumps(partial(read_tagger, folder)))  # noqa: S301
    assert make().tag_batch(PLAIN, PLAIN) == read_tagger(folder).tag_batch(PLAIN, PLAIN)


def test_bare_labels_are_an_io_encoding(tokenizer: Tokenizer) -> None:
    ids = [tokenizer.token_to_id(word) for word in ("ann", "bob", "york")]
    table = torch.nn.functional.one_hot(torch.zeros(tokenizer.get_vocab_size(), dtype=torch.long), 3).float()
    table[ids] = torch.tensor([[0.0, 1, 0], [0, 1, 0], [0, 0, 1]])
    tagger = ModelTagger(lambda tokens, mask: table[tokens], tokenizer, ("O", "person", "DATE"), (2, 3, 0), 64)
    assert tagger.entities(["Ann Bob is York"]) == [[Span(0, 7, "person"), Span(11, 15, "date")]]


def test_a_pickle_is_never_read(folder: Path) -> None:
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match="pickles are never loaded"):
        read_tagger(folder)
    write_json(folder / "config.json", read_json(folder / "config.json") | {"model_type": "distilbert"})
    with pytest.raises(UserError, match="pickles are never loaded"):
        read_tagger(folder)


def test_folders_that_are_no_taggers_are_refused(folder: Path, tmp_path: Path) -> None:
    config = read_json(folder / "config.json")
    with pytest.raises(UserError, match=r"no config.json"):
        read_tagger(tmp_path / "nowhere")
    for labels, said in (
        (None, "no id2label"),
        ({"0": "O", "2": "B-PER"}, "no id2label"),
        ({"0": "LABEL_0", "1": "LABEL_1"}, "id2label has no label 'O'"),
        ({"0": "O", "1": "B-PER"}, r"'classifier.weight' is of shape \(5, 32\), and must be \(2, 32\)"),
    ):
        write_json(folder / "config.json", config | {"id2label": labels})
        with pytest.raises(UserError, match=said):
            read_tagger(folder)
    write_json(folder / "config.json", config)
    tensors = load_file(folder / "model.safetensors")
    del tensors["classifier.bias"]
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(UserError, match=r"'classifier.bias' is missing"):
        read_tagger(folder)
