"""A table of log-likelihoods by a frozen causal language model: each pair of a sentence and a passage's text is read
once, and then looked up by every run of any corpus.

<store>/<key[:12]>/identity.json   model and prompt; written first
                   pairs.bin       records of PAIR, appended whole
                   append.lock     held by the process that appends
                   states/PASSAGE.safetensors  the model's states of a passage, on a CPU (model.py)

If two processes read a pair at the same time, the first result counts for both, so that a resumed run finds
the same numbers. The folder may be deleted, and is filled again when needed.
"""

# Shapes: B sentences, K candidates, M masked positions

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save
from tokenizers import Tokenizer
from torch import Tensor

from realm_lab.contrib.causal import model
from realm_lab.contrib.causal.files import digest_of
from realm_lab.contrib.causal.model import FORMS, Begun, CausalModel, Spans
from realm_lab.engine.core.shards import write_once
from realm_lab.engine.corpus.records import text_hash
from realm_lab.engine.corpus.store import Passages
from realm_lab.engine.corpus.vocabulary import encode_batch_plain
from realm_lab.engine.masking import MaskedSentence
from realm_lab.engine.models.candidate_reader import FrozenReader, Reading
from realm_lab.engine.systems.context import Context
from realm_lab.errors import UserError
from realm_lab.records.code_record import code_reader
from realm_lab.records.files import DiskFull, atomic_write, digest, is_disk_full, read_json
from realm_lab.records.lease import exclusive
from realm_lab.records.run import KEY_LENGTH

FORMAT = 2
PAIR = np.dtype([("sentence", "<u8"), ("passage", "<u8"), ("log_prob", "<f4"), ("is_likeliest", "<u4")])
READ_AT_ONCE = 128  # pairs between two writes to the disk
SPARED = 10 * 2**30  # bytes of the disk that stored states leave free

Pair = tuple[int, int]  # hashes of a masked sentence and of a passage's text, "" for the null document
Asked = tuple[str, Spans]  # a text with its answer, and the characters of the answer


class Found(NamedTuple):
    """The entry of a pair in a table."""

    log_prob: float  # log p(y|z,x), nats
    is_likeliest: bool  # true if each token of the answer is the most likely one after those before it


@dataclass(frozen=True)
class Identity:
    """Inputs that the numbers of a table depend on; the device is left out."""

    checkpoint: str  # digest of its files
    form: str
    precision: str
    code: str  # digest of the code that computes log p
    format: int = FORMAT

    @property
    def key(self) -> str:
        """SHA-256 of everything above."""
        return digest(asdict(self))


class Likelihoods:
    """A table in a folder of the store. Reading takes no lock; an addition holds a lock while it is written."""

    def __init__(self, store: Path, identity: Identity, accepts_other_code: bool = False):
        self._folder = store / identity.key[:KEY_LENGTH]
        if accepts_other_code and not (self._folder / "identity.json").exists():
            self._folder = _of_other_code(store, identity) or self._folder
        write_once(self._folder / "identity.json", asdict(identity))
        self._path, self._known, self._read = self._folder / "pairs.bin", dict[Pair, Found](), 0
        self.states = States(self._folder / "states")

    def __len__(self) -> int:
        return len(self._known)

    def find(self, pairs: Sequence[Pair]) -> dict[Pair, Found]:
        """Return the entries of those `pairs` that any process has read."""
        if any(pair not in self._known for pair in pairs):
            self._look()
        return {pair: self._known[pair] for pair in pairs if pair in self._known}

    def add(self, found: Mapping[Pair, Found]) -> None:
        """Append pairs; existing ones stay as they are."""
        try:
            with exclusive(self._folder / "append.lock"):
                self._look()
                new = [(*pair, *one) for pair, one in found.items() if pair not in self._known]
                with open(self._path, "ab") as file:
                    file.truncate(self._read)  # remove the partial record of a killed writer
                    np.array(new, PAIR).tofile(file)
                    file.flush()
                    os.fsync(file.fileno())
                self._look()
        except OSError as error:
            if is_disk_full(error):
                raise DiskFull(self._path) from None
            raise UserError(error.strerror, "make it writable, and run again", path=self._path) from None

    def _look(self) -> None:
        """Read records that were appended since the last call."""
        size = self._path.stat().st_size if self._path.exists() else 0
        count = (size - self._read) // PAIR.itemsize
        if count > 0:
            for sentence, passage, log_prob, is_likeliest in np.fromfile(self._path, PAIR, count, offset=self._read):
                pair = int(sentence), int(passage)
                self._known.setdefault(pair, Found(float(log_prob), bool(is_likeliest)))
            self._read += count * PAIR.itemsize


def _of_other_code(store: Path, identity: Identity) -> Path | None:
    """Return the folder of a table that only differs in the code that made it; None if there is none."""
    for path in sorted(store.glob("*/identity.json")):
        if replace(Identity(**read_json(path)), code=identity.code) == identity:
            return path.parent
    return None


class States:
    """A model's states of passages, one file per passage; any process may add files, and files may be deleted."""

    def __init__(self, folder: Path):
        self._folder = folder

    def find(self, body: str) -> Begun | None:
        """Return the states of a passage, mapped from the disk; None if they are not there."""
        path = self._path(body)
        return Begun(**load_file(path)) if path.exists() else None

    def add(self, body: str, begun: Begun) -> None:
        """Store the states of a passage."""
        with atomic_write(self._path(body), "wb") as file:
            file.write(save({name: tensor.contiguous() for name, tensor in begun._asdict().items()}))

    def has_room(self) -> bool:
        """True while the disk has more than SPARED bytes free."""
        return shutil.disk_usage(self._folder.parent).free > SPARED

    def _path(self, body: str) -> Path:
        return self._folder / f"{text_hash(body):016x}.safetensors"


class CausalReader(FrozenReader):
    """A causal language model with the passages that it reads, used in place of a Reader and its CandidateReader.

    log p(y|z,x) is looked up in the table. Missing entries are read by the model, which is loaded only then. Sentences
    need their `text`.
    """

    def __init__(
        self,
        passages: Passages,
        tokenizer: Tokenizer,  # that made the wordpieces of the sentences
        form: str,
        table: Likelihoods,
        load: Callable[[], CausalModel],
        device: torch.device,
    ):
        super().__init__()
        self.passages, self._tokenizer, self._form, self._table, self._load = passages, tokenizer, form, table, load
        self._device = device

    @cached_property
    def _model(self) -> CausalModel:
        return self._load()

    def read(self, sentences: Sequence[MaskedSentence], rows_BK: np.ndarray) -> Reading:
        """Return log p(y|z,x) of each sentence under its candidates, one number for all masked words together."""
        found = self.found([self._asked(sentence) for sentence in sentences], rows_BK)
        log_probs_BK = torch.tensor([[one.log_prob for one in row] for row in found]).view(rows_BK.shape)
        is_read_B1 = torch.ones(len(sentences), 1, dtype=torch.bool, device=self._device)
        return Reading(log_probs_BK[:, :, None].to(self._device), is_read_B1)

    def restores(self, sentences: Sequence[MaskedSentence], rows_B: np.ndarray) -> Tensor:
        """True if the most likely words of a sentence, read with its row in `rows_B`, are the masked ones, bool [B]."""
        found = self.found([self._asked(sentence) for sentence in sentences], rows_B[:, None])
        return torch.tensor([one.is_likeliest for (one,) in found], dtype=torch.bool)

    def read_text(self, text: str, span: tuple[int, int], rows_K: Sequence[int]) -> tuple[Tensor, Tensor]:
        [found] = self.found([(text, [span])], np.array([rows_K]))
        return torch.tensor([one.log_prob for one in found]), torch.tensor([one.is_likeliest for one in found])

    def _asked(self, sentence: MaskedSentence) -> Asked:
        return sentence.text, self.spans(sentence)

    def found(self, asked: Sequence[Asked], rows_BK: np.ndarray) -> list[list[Found]]:
        """Return the entries of each text under its candidates; missing ones are read."""
        bodies = {row: self._body(row) for row in np.unique(rows_BK).tolist()}
        passages = {row: text_hash(body) for row, body in bodies.items()}
        sentences = [sentence_key(*one) for one in asked]
        pairs = [[(key, passages[row]) for row in rows] for key, rows in zip(sentences, rows_BK.tolist(), strict=True)]
        known = self._table.find([pair for row in pairs for pair in row])
        missing = {
            pair: (bodies[row], asked[number])
            for number, rows in enumerate(rows_BK.tolist())
            for pair, row in zip(pairs[number], rows, strict=True)
            if pair not in known
        }
        texts = list(missing.items())
        for start in range(0, len(texts), READ_AT_ONCE):
            known |= self._read_new(dict(texts[start : start + READ_AT_ONCE]))
        return [[known[pair] for pair in row] for row in pairs]

    def _read_new(self, some: Mapping[Pair, tuple[str, Asked]]) -> dict[Pair, Found]:
        """Read pairs and add them to the table."""
        make = FORMS[self._form]
        prompts = [make(body, text, spans) for body, (text, spans) in some.values()]
        begun = self._begun(sorted({body for body, _ in some.values()} - {""})) if self._model.continues else {}
        log_probs_N, likeliest_N = self._model.score(prompts, [begun.get(body) for body, _ in some.values()])
        read = zip(some, log_probs_N.tolist(), likeliest_N.tolist(), strict=True)
        self._table.add({pair: Found(*found) for pair, *found in read})
        return self._table.find(list(some))

    def _begun(self, bodies: Sequence[str]) -> dict[str, Begun]:
        """Return the model's stored states of passages. While the disk has room, states of further passages are
        computed and stored too; without room these passages are left out."""
        begun = {body: found for body in bodies if (found := self._table.states.find(body))}
        new = [body for body in bodies if body not in begun] if self._table.states.has_room() else []
        for body, one in zip(new, self._model.begin([f"{body}\n" for body in new]), strict=True):
            self._table.states.add(body, one)
            begun[body] = one
        return begun

    def _body(self, row: int) -> str:
        return "" if row < 0 else str(self.passages.text.row(row)["body"])

    def spans(self, sentence: MaskedSentence) -> list[tuple[int, int]]:
        """Return the spans of masked characters, [first, end); neighbouring masked wordpieces form one span."""
        offsets = encode_batch_plain(self._tokenizer, [sentence.text])[0].offsets
        spans: list[tuple[int, int]] = []
        last = None
        for position in sentence.positions.tolist():
            first, end = offsets[position]
            joined = last is not None and position == last + 1
            spans, last = [*spans[:-1], (spans[-1][0], end)] if joined else [*spans, (first, end)], position
        return spans


def causal_reader(context: Context, passages: Passages) -> CausalReader:
    """Return the causal language model that the parameters name, as a reader of these passages."""
    settings, precision = context.params.pretrain, context.params.model.precision
    checkpoint = Path(str(settings.causal_checkpoint))
    code = digest(code_reader(context.runs).reached([model.__name__]))
    identity = Identity(digest_of(checkpoint), settings.causal_form, precision, code)
    table = Likelihoods(context.runs / "likelihoods", identity, context.params.launch.other_code == "accept")
    load = partial(CausalModel, checkpoint, precision, context.device)
    return CausalReader(passages, context.tokenizer, settings.causal_form, table, load, context.device)


def sentence_key(text: str, spans: Spans) -> int:
    """Return a 64-bit hash of a sentence and its masks."""
    return text_hash(repr((text, [(int(first), int(end)) for first, end in spans])))
