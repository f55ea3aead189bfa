"""A tagger of salient spans: BERT and a linear layer over its last hidden states (paper section 3.4).

Its folder is one of Hugging Face's BertForTokenClassification: config.json with id2label, model.safetensors, tokenizer.
Any other such folder can tag as well: BERT's family by the encoder here, other architectures by transformers, as long
as their weights are safetensors.

From wordpieces to words: words are what the tokenizer's own pre-tokeniser separates (of BERT: blanks and each mark of
punctuation). The first wordpiece of a word decides; its later ones are not asked. Texts longer than the model are cut
into windows that overlap; each wordpiece is decided in the window in which it has more text on its poorer side.
Literal "[MASK]" and "[SEP]" in a text are read as the text that they are.
"""

# Shapes: B sequences, L positions, W words, D hidden size, C labels

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import regex
import torch
from tokenizers import Encoding, Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from realm_lab.core.files import write_json
from realm_lab.core.seeding import derive_seed
from realm_lab.corpus.dates import find_dates
from realm_lab.corpus.entity_scores import Entity, entities_of
from realm_lab.corpus.records import Span
from realm_lab.corpus.salient_spans import merge_spans
from realm_lab.corpus.vocabulary import encode_batch_plain, load_tokenizer, save_tokenizer, special_ids
from realm_lab.errors import UserError
from realm_lab.models.encoder import Encoder, EncoderShape, initialise
from realm_lab.models.folders import (
    bert_config,
    from_bert,
    read_checkpoint,
    read_config,
    read_tensors,
    to_bert,
    write_tensors,
)
from realm_lab.models.inputs import length_groups

OVERLAP = 64  # wordpieces that neighbouring windows share
TOKEN_BUDGET = 4096  # wordpieces, padding included, that go through the model at once
LONGEST_WINDOW = 512  # wordpieces, where a model knows no bound
DATE = "date"
_DATE_LABELS = ("DATE", "TIME")  # of taggers with more labels than CoNLL-2003

Logits = Callable[[Tensor, Tensor], Tensor]  # (tokens_BL int64, mask_BL bool) -> logits_BLC


class TokenClassifier(nn.Module):
    """An encoder and a linear layer, as BertForTokenClassification."""

    def __init__(self, shape: EncoderShape, labels: Sequence[str]):
        super().__init__()
        self.labels = tuple(labels)
        self.encoder = Encoder(shape)
        self.classifier = nn.Linear(shape.hidden_size, len(labels))

    def forward(self, tokens_BL: Tensor, mask_BL: Tensor) -> Tensor:
        """Logits of the labels at every position, [B, L, C]."""
        hidden_BLD = self.encoder(tokens_BL, torch.zeros_like(tokens_BL), mask_BL)
        return self.classifier(functional.dropout(hidden_BLD, self.encoder.shape.dropout, self.training))


class Marked(NamedTuple):
    """A text as the model reads it."""

    ids: np.ndarray  # wordpieces without specials
    first: np.ndarray  # the first wordpiece of each word
    bounds: list[tuple[int, int]]  # characters of each word


class ModelTagger:
    """A tagger of texts by a token classifier and the date expressions (salient_spans.Tagger)."""

    def __init__(
        self, logits: Logits, tokenizer: Tokenizer, labels: Sequence[str], ends: tuple[int, int, int], longest: int
    ):
        """`ends`: ids of the tokens before and after a text and of padding; `longest`: wordpieces with them."""
        self.labels = tuple(_in_prefixes(labels))
        self._logits, self._tokenizer, self._ends, self._longest = logits, tokenizer, ends, longest

    def tag_batch(self, texts: Sequence[str], contexts: Sequence[str]) -> list[tuple[Span, ...]]:
        """Entities, and the date expressions that no longer entity covers; `contexts` are not asked."""
        spans = []
        for text, entities in zip(texts, self.entities(texts), strict=True):
            dates = [Span(start, end, DATE) for start, end in find_dates(text)]
            spans.append(merge_spans(dates, entities))
        return spans

    def entities(self, texts: Sequence[str]) -> list[list[Span]]:
        """The entities of each text, without dates; offsets are characters of the text as given."""
        marked = [_marked(encoding) for encoding in encode_batch_plain(self._tokenizer, texts)]
        found = []
        for text, item, tags in zip(texts, marked, self.tags(marked), strict=True):
            spans = []
            for start, end, label in entities_of(tags):
                bounds = _trimmed(text, item.bounds[start][0], item.bounds[end - 1][1])
                if any(character.isalnum() for character in text[slice(*bounds)]):
                    spans.append(Span(*bounds, DATE if label in _DATE_LABELS else label))
            found.append(spans)
        return found

    def token_entities(self, sentences: Sequence[Sequence[str]]) -> list[list[Entity]]:
        """The entities of sentences that are cut into tokens already: the first word in a token decides for it."""
        encoded = encode_tokens(self._tokenizer, sentences)
        tags = self.tags([marked for marked, _ in encoded])
        found = []
        for sentence, (_, word_of_token), row in zip(sentences, encoded, tags, strict=True):
            assert len(word_of_token) == len(sentence), "a place for each token"
            found.append(entities_of(["O" if word < 0 else row[word] for word in word_of_token]))
        return found

    def tags(self, marked: Sequence[Marked]) -> list[list[str]]:
        """The tag of each word of each text. No gradient, no dropout."""
        rows = zip(marked, self._best(marked), strict=True)
        return [[self.labels[number] for number in row[item.first]] for item, row in rows]

    def _best(self, marked: Sequence[Marked]) -> list[np.ndarray]:
        """The best label of each wordpiece of each text."""
        best = [np.zeros(len(item.ids), np.int64) for item in marked]
        cuts = [
            (number, *window)
            for number, item in enumerate(marked)
            if len(item.first)
            for window in windows(len(item.ids), self._longest - 2)
        ]
        lengths = [end - start for _, start, end, _, _ in cuts]
        for group in length_groups(lengths, TOKEN_BUDGET):
            rows = [cuts[int(place)] for place in group]
            label_BL = self._classify([marked[number].ids[start:end] for number, start, end, _, _ in rows])
            for (number, start, _, first, last), labels in zip(rows, label_BL, strict=True):
                best[number][first:last] = labels[first - start : last - start]
        return best

    def _classify(self, rows: list[np.ndarray]) -> np.ndarray:
        before, after, pad = self._ends
        tokens_BL = np.full((len(rows), max(len(row) for row in rows) + 2), pad, np.int64)
        mask_BL = np.zeros(tokens_BL.shape, bool)
        for number, row in enumerate(rows):
            tokens_BL[number, : len(row) + 2] = [before, *row, after]
            mask_BL[number, : len(row) + 2] = True
        with torch.inference_mode():
            logits_BLC = self._logits(torch.from_numpy(tokens_BL), torch.from_numpy(mask_BL))
        return logits_BLC[:, 1:-1].argmax(-1).cpu().numpy()


def windows(count: int, longest: int) -> list[tuple[int, int, int, int]]:
    """Windows over `count` wordpieces: (start, end, first decided here, end of those decided here)."""
    if count <= longest:
        return [(0, count, 0, count)]
    overlap = min(OVERLAP, longest // 2)
    starts = list(range(0, count - overlap, longest - overlap))
    bounds = [0, *(start + overlap // 2 for start in starts[1:]), count]
    return [
        (start, min(start + longest, count), bounds[number], bounds[number + 1]) for number, start in enumerate(starts)
    ]


def encode_tokens(tokenizer: Tokenizer, sentences: Sequence[Sequence[str]]) -> list[tuple[Marked, list[int]]]:
    """Sentences of tokens as the model reads them, joined by blanks, and the first word in each token.

    A token has several words ("U.S." of BERT: four), or none where the tokenizer drops all its characters: -1.
    """
    result = []
    encodings = encode_batch_plain(tokenizer, [" ".join(sentence) for sentence in sentences])
    for sentence, encoding in zip(sentences, encodings, strict=True):
        marked = _marked(encoding)
        starts = np.cumsum([0, *(len(token) + 1 for token in sentence)])
        owner = np.searchsorted(starts, [start for start, _ in marked.bounds], side="right") - 1
        words = [-1] * len(sentence)
        for word in range(len(owner) - 1, -1, -1):
            words[int(owner[word])] = word
        result.append((marked, words))
    return result


def read_tagger(folder: Path | str, device: str = "cpu") -> ModelTagger:
    """The tagger of a Hugging Face token-classification folder. Ready for `functools.partial` and other processes.

    Raises:
        UserError: no such folder, no safetensors (a pickle is never loaded), no label O, or an unfit tokenizer.
    """
    folder = Path(folder)
    config = read_config(folder)
    labels = read_labels(folder, config)
    target = torch.device(device)
    if config.get("model_type") == "bert":
        return tagger_of(read_classifier(folder).to(target), load_tokenizer(folder))
    return _read_other(folder, labels, target)


def tagger_of(model: TokenClassifier, tokenizer: Tokenizer) -> ModelTagger:
    """The tagger of a classifier that is here, in evaluation mode."""
    device = next(model.parameters()).device
    special = special_ids(tokenizer)

    def logits(tokens_BL: Tensor, mask_BL: Tensor) -> Tensor:
        logits_BLC: Tensor = model(tokens_BL.to(device), mask_BL.to(device))
        return logits_BLC

    ends = (special.cls, special.sep, special.pad)
    return ModelTagger(logits, tokenizer, model.labels, ends, model.encoder.shape.positions)


def read_classifier(folder: Path) -> TokenClassifier:
    """The token classifier of a BERT folder, in evaluation mode."""
    shape, weights = read_checkpoint(folder)
    labels = read_labels(folder, read_config(folder))
    model = TokenClassifier(shape, labels)
    from_bert(model.encoder, weights, folder)
    for name in ("weight", "bias"):
        value, parameter = weights.get(f"classifier.{name}"), model.classifier.get_parameter(name)
        if value is None or value.shape != parameter.shape:
            found = "missing" if value is None else f"of shape {tuple(value.shape)}"
            raise UserError(
                f"{folder}: 'classifier.{name}' is {found}, and must be {tuple(parameter.shape)}; name a "
                "token-classification folder, as `realm-lab train-tagger` writes it"
            )
        parameter.data.copy_(value)
    return model.eval()


def new_classifier(
    shape: EncoderShape, labels: Sequence[str], seed: int, checkpoint: Path | None = None
) -> TokenClassifier:
    """A classifier to train: its encoder from a BERT folder (whose shape is `shape`), or from scratch."""
    model = TokenClassifier(shape, labels)
    generator = torch.Generator().manual_seed(derive_seed(seed, "initial-tagger"))
    initialise(model.encoder, generator)
    nn.init.normal_(model.classifier.weight, 0.0, 0.02, generator=generator)  # BERT's
    nn.init.zeros_(model.classifier.bias)
    if checkpoint is not None:
        from_bert(model.encoder, read_checkpoint(checkpoint)[1], checkpoint)
    return model


def write_classifier(model: TokenClassifier, tokenizer: Tokenizer, folder: Path) -> None:
    """Write what `AutoModelForTokenClassification` and `AutoTokenizer` read into a folder that is there."""
    weights = {f"bert.{name}": value for name, value in to_bert(model.encoder).items()}
    head = {f"classifier.{name}": model.classifier.get_parameter(name) for name in ("weight", "bias")}
    write_tensors(folder / "model.safetensors", weights | head)
    shape = model.encoder.shape
    labels = {
        "id2label": {str(number): label for number, label in enumerate(model.labels)},
        "label2id": {label: number for number, label in enumerate(model.labels)},
    }
    write_json(folder / "config.json", bert_config(shape, "BertForTokenClassification") | labels)
    save_tokenizer(tokenizer, folder, shape.positions)


def read_labels(folder: Path, config: dict[str, Any]) -> tuple[str, ...]:
    """The labels of config.json in the order of their ids."""
    named = config.get("id2label")
    path = Path(folder) / "config.json"
    if not isinstance(named, dict) or sorted(named) != sorted(str(number) for number in range(len(named))):
        raise UserError(f"{path}: no id2label; name a token-classification folder")
    labels = tuple(str(named[str(number)]) for number in range(len(named)))
    if "O" not in labels:
        raise UserError(f"{path}: id2label has no label 'O' ({', '.join(labels)[:80]}); name a tagger of entities")
    return labels


def _read_other(folder: Path, labels: Sequence[str], device: torch.device) -> ModelTagger:
    """An architecture that is not BERT, by transformers: safetensors and a fast tokenizer or nothing."""
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    if not any(folder.glob("*.safetensors")):
        read_tensors(folder / "model.safetensors")  # says how to convert a pickle
    options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        model = AutoModelForTokenClassification.from_pretrained(folder, use_safetensors=True, **options)
        tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True, **options)
        backend: Tokenizer = tokenizer.backend_tokenizer
    except (OSError, ValueError, KeyError, AttributeError, ImportError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{folder}: transformers cannot read this tagger ({reason}); use a BERT one") from None
    ends = (tokenizer.cls_token_id, tokenizer.sep_token_id, tokenizer.pad_token_id)
    if None in ends:
        raise UserError(f"{folder}: its tokenizer has no tokens of begin, end and padding; use a BERT tagger")
    backend.no_truncation()
    backend.no_padding()
    model = model.eval().to(device)
    positions = int(getattr(model.config, "max_position_embeddings", LONGEST_WINDOW))
    longest = min(LONGEST_WINDOW, positions - 2 if positions > LONGEST_WINDOW else positions)  # RoBERTa: 514 for 512

    def logits(tokens_BL: Tensor, mask_BL: Tensor) -> Tensor:
        found: Tensor = model(input_ids=tokens_BL.to(device), attention_mask=mask_BL.to(device).long()).logits
        return found

    return ModelTagger(logits, backend, labels, ends, longest)


def _in_prefixes(labels: Sequence[str]) -> list[str]:
    """Labels in the prefixes of BIOES; those without any are as of an IO encoding."""
    if all(label == "O" or regex.match(r"[BIESLU]-.", label) for label in labels):
        return [{"L": "E", "U": "S"}.get(label[0], label[0]) + label[1:] for label in labels]
    return [label if label == "O" else f"I-{label}" for label in labels]


def _marked(encoding: Encoding) -> Marked:
    """Words of an encoding: the first wordpiece and the characters of each."""
    words = np.array([-1 if word is None else word for word in encoding.word_ids], np.int64)
    first = np.flatnonzero(np.diff(words, prepend=-2))
    ends = [*first[1:], len(words)][: len(first)]
    offsets = encoding.offsets
    bounds = [(offsets[start][0], offsets[end - 1][1]) for start, end in zip(first, ends, strict=True)]
    return Marked(np.array(encoding.ids, np.int64), first, bounds)


_MARKS = regex.compile(r"[\p{M}\u200c\u200d\ufe0e\ufe0f]*")  # what belongs to the character before it
_OUTER = r"[\s\p{Cf}\p{Zs}]"
_BLANKS_BEFORE = regex.compile(rf"{_OUTER}*")
_BLANKS_AFTER = regex.compile(rf"(?:{_OUTER}|[,;:])*$")


def _trimmed(text: str, start: int, end: int) -> tuple[int, int]:
    """Without outer blanks and marks of punctuation at the end, and with the whole of the last character.

    A tokenizer that strips accents gives no wordpiece to a combining mark, which then stays outside of its offsets.
    """
    before = _BLANKS_BEFORE.match(text, start, end)
    after = _BLANKS_AFTER.search(text, start, end)
    start, end = before.end() if before else start, after.start() if after else end
    marks = _MARKS.match(text, end)
    return start, max(start, marks.end() if marks else end)
