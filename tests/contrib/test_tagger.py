"""The tagger of a Hugging Face folder: exact offsets, windows, other encodings of labels, and refusals."""

import pickle
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from realm_lab.contrib.tagger import read_tagger
from realm_lab.engine.corpus.sources import TaggerFolder
from realm_lab.engine.corpus.vocabulary import save_tokenizer, wordpiece_from_vocabulary
from tests.factories.errors import refused

LABELS = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")
WORDS = "ann ##a bob new york is in . , ' s jose [ ] mask went 1969 july 東 京 に".split()
LABEL_OF = {
    "ann": "B-PER", "##a": "I-LOC", "bob": "I-PER", "jose": "B-PER", "new": "B-LOC", "york": "I-LOC", "東": "B-LOC",
    "京": "I-LOC", "july": "B-LOC", "mask": "B-PER",
}  # fmt: skip
POSITIONS = 24

MakeFolder = Callable[..., Path]


@pytest.fixture
def make_folder(tmp_path: Path) -> MakeFolder:
    """Folders of a BERT without layers that knows the label of each wordpiece by heart."""
    from transformers import BertConfig, BertForTokenClassification

    def make(labels: Sequence[str] = LABELS, label_of: dict[str, str] = LABEL_OF) -> Path:
        tokenizer = wordpiece_from_vocabulary(WORDS)
        size = tokenizer.get_vocab_size()
        named: Any = {"id2label": dict(enumerate(labels)), "label2id": {label: n for n, label in enumerate(labels)}}
        config = BertConfig(
            vocab_size=size, hidden_size=size, num_hidden_layers=0, num_attention_heads=1, intermediate_size=4,
            max_position_embeddings=POSITIONS, **named,
        )  # fmt: skip
        model = BertForTokenClassification(config)
        for parameter in model.parameters():
            parameter.data.zero_()
        model.bert.embeddings.word_embeddings.weight.data.copy_(torch.eye(size))
        model.bert.embeddings.LayerNorm.weight.data.fill_(1.0)
        model.classifier.weight.data[0] = 0.1
        for word, label in label_of.items():
            model.classifier.weight.data[list(labels).index(label), tokenizer.token_to_id(word)] = 1.0
        folder = tmp_path / "tagger"
        model.save_pretrained(folder)
        save_tokenizer(tokenizer, folder, POSITIONS)
        return folder

    return make


TEXTS: dict[str, list[tuple[str, str]]] = {
    "Ann is in New York.": [("Ann", "PER"), ("New York", "LOC")],
    "": [],
    " \u200b ": [],
    "Ann's": [("Ann", "PER")],
    "Anna is in York": [("Anna", "PER"), ("York", "LOC")],  # the second wordpiece of Anna is not asked
    "Jos\u00e9 is": [("Jos\u00e9", "PER")],
    "東京に Ann": [("東京", "LOC"), ("Ann", "PER")],
    "[MASK] is Ann": [("MASK", "PER"), ("Ann", "PER")],  # text, not a special token
    "Ann went in July 1969": [("Ann", "PER"), ("July 1969", "date")],
    "1969 Ann": [("1969", "date"), ("Ann", "PER")],
    "Ann is in New York . " * 20: [("Ann", "PER"), ("New York", "LOC")] * 20,  # longer than the model: in windows
}


def test_spans_have_exact_offsets_and_texts_come_back_in_their_order(make_folder: MakeFolder) -> None:
    make = pickle.loads(pickle.dumps(partial(read_tagger, TaggerFolder(folder=str(make_folder())))))  # noqa: S301
    spans = make().tag_batch(list(TEXTS), list(TEXTS))
    for text, found in zip(TEXTS, spans, strict=True):
        assert [(text[start:end], label) for start, end, label in found] == TEXTS[text]
    assert make().tag_batch([], []) == []


def test_labels_without_a_prefix_and_dates_of_the_model(make_folder: MakeFolder) -> None:
    labels = ("O", "person", "DATE")
    text, label_of = "Ann Bob is York", {"ann": "person", "bob": "person", "york": "DATE"}
    [spans] = read_tagger(TaggerFolder(folder=str(make_folder(labels, label_of)))).tag_batch([text], [""])
    assert [f"{text[start:end]}/{label}" for start, end, label in spans] == ["Ann Bob/person", "York/date"]


def test_folders_that_are_no_taggers_are_refused(make_folder: MakeFolder, tmp_path: Path) -> None:
    with refused(path=str(tmp_path / "nowhere"), remedy="name another folder"):
        read_tagger(TaggerFolder(folder=str(tmp_path / "nowhere")))
    folder = make_folder()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")  # a pickle is never read
    with refused(path=str(folder), remedy="name another folder"):
        read_tagger(TaggerFolder(folder=str(folder)))
