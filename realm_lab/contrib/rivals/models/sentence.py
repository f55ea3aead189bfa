"""A frozen sentence-embedding folder (Sentence-BERT, E5, BGE, Contriever): an encoder with its tokenizer."""

# Shapes: B texts, L positions, D hidden size

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from realm_lab.engine.corpus.vocabulary import encode_batch_plain, load_tokenizer, special_ids, tokenizer_digest
from realm_lab.engine.models.folders import load_encoder, read_checkpoint
from realm_lab.engine.models.hub import new_encoder
from realm_lab.engine.models.inputs import join, length_groups
from realm_lab.errors import UserError


def passage_text(prefix: str, text: Mapping[str, Any]) -> str:
    """Return the text of a passage as it is embedded."""
    return f"{prefix}{text['title']} {text['body']}".strip()


class SentenceEncoder:
    """Embeds texts: the mean of the last hidden states of all wordpieces with [CLS] and [SEP] (`mean`), or the state of
    [CLS] (`cls`), scaled to length 1 if normalised. A text is cut to the folder's positions."""

    def __init__(self, folder: Path, pooling: str, normalise: bool, device: torch.device):
        shape, weights = read_checkpoint(folder)
        self.encoder = new_encoder(shape)
        load_encoder(self.encoder, weights, folder)
        self.encoder.to(device).eval()
        self._tokenizer = load_tokenizer(folder)
        if (words := self._tokenizer.get_vocab_size()) > shape.vocabulary_size:
            problem = f"the tokenizer has {words} words, but the model embeds only {shape.vocabulary_size}"
            raise UserError(problem, "use the model's own tokenizer", path=folder)
        self._pooling, self._normalise, self._device = pooling, normalise, device

    @property
    def size(self) -> int:
        """Size of a vector."""
        return self.encoder.shape.hidden_size

    @property
    def tokenizer_digest(self) -> str:
        """Return the digest of the files and settings that determine how texts are cut into wordpieces."""
        return tokenizer_digest(self._tokenizer)

    @torch.no_grad()
    def encode(self, texts: Sequence[str], token_budget: int) -> Tensor:
        """Return the vectors of texts, float32 [B, D], at most `token_budget` padded wordpieces at once."""
        positions, special = self.encoder.shape.positions, special_ids(self._tokenizer)
        ids = [np.array(found.ids, np.int64) for found in encode_batch_plain(self._tokenizer, texts)]
        vectors_BD = torch.empty(len(texts), self.size, device=self._device)
        for group in length_groups([min(positions, len(one) + 2) for one in ids], token_budget):
            batch = join([ids[number] for number in group], None, special, positions).to(self._device)
            hidden_BLD = self.encoder(*batch)
            pooled_BD = hidden_BLD[:, 0]
            if self._pooling == "mean":
                pooled_BD = (hidden_BLD * batch.mask_BL[:, :, None]).sum(1) / batch.mask_BL.sum(1, keepdim=True)
            vectors_BD[torch.from_numpy(group).to(self._device)] = pooled_BD
        return functional.normalize(vectors_BD) if self._normalise else vectors_BD
