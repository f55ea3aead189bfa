"""Read every candidate of a query: p(y|z,x) of masked words, in groups of pairs of similar length."""

# Shapes: B queries, K candidates, M masked positions, N pairs (query, candidate), P masked positions of all pairs,
# D hidden size, V words

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from realm_lab.engine.core.flop import computed
from realm_lab.engine.core.process import autocast, to_device
from realm_lab.engine.corpus.store import Passages
from realm_lab.engine.corpus.vocabulary import SpecialIds
from realm_lab.engine.masking import MaskedSentence
from realm_lab.engine.models.inputs import Batch, join, length_groups, pad_positions
from realm_lab.engine.models.reader import Reader
from realm_lab.engine.models.realm import reader_log_probs
from realm_lab.engine.models.rewards import Reward, RewardRequest
from realm_lab.engine.params.parameters import Params

HEAD_ROWS = 2048  # masked positions that are scored at once: 240 MiB of float32 logits for 30,522 words
NO_TOKENS = np.empty(0, np.int64)
ABSENT_NATS = -20.0  # log p(y|z,x) of a passage without a reward


class Reading(NamedTuple):
    """Log-probabilities of the masked words of some queries under every candidate."""

    token_log_probs_BKM: Tensor  # log p(y_j|z,x), float32; 0 at positions without a mask
    is_masked_BM: Tensor

    @property
    def log_probs_BK(self) -> Tensor:
        """log p(y|z,x), nats."""
        return reader_log_probs(self.token_log_probs_BKM, self.is_masked_BM)


class FrozenReader(nn.Module):
    """A reader with the passages that it reads, and without weights to train."""

    passages: Passages

    def read(self, sentences: Sequence[MaskedSentence], rows_BK: np.ndarray) -> Reading:
        """Return log p(y|z,x), one number for all masked words together."""
        raise NotImplementedError

    def restores(self, sentences: Sequence[MaskedSentence], rows_B: np.ndarray) -> Tensor:
        """True for sentences whose masked words are the most likely ones, given their passages `rows_B`, bool [B]."""
        raise NotImplementedError

    def read_text(self, text: str, span: tuple[int, int], rows_K: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return for each passage log p of the characters `span` of a text, nats [K], and true if they are the most
        likely text there, bool [K]."""
        raise NotImplementedError


class RewardReader(FrozenReader):
    """A control without a language model: log p(y|z,x) is 0 for a passage that the reward function rewards, and
    ABSENT_NATS for other passages and the null document."""

    def __init__(self, reward: Reward, passages: Passages, special: SpecialIds, device: torch.device):
        super().__init__()
        self.passages, self._reward, self._special, self._device = passages, reward, special, device

    def read(self, sentences: Sequence[MaskedSentence], rows_BK: np.ndarray) -> Reading:
        """Return log p(y|z,x) by the reward, one number for all masked words together."""
        rewarded_BK = np.zeros(rows_BK.shape, bool)
        for sentence, rows_K, rewarded_K in zip(sentences, rows_BK, rewarded_BK, strict=True):
            real_K = rows_K >= 0
            rewarded_K[real_K] = self._reward(RewardRequest(sentence, self.passages, rows_K[real_K], self._special.unk))
        log_probs_BK = torch.from_numpy(np.where(rewarded_BK, 0.0, ABSENT_NATS).astype(np.float32)).to(self._device)
        is_read_B1 = torch.ones(len(sentences), 1, dtype=torch.bool, device=self._device)
        return Reading(log_probs_BK[:, :, None], is_read_B1)

    def restores(self, sentences: Sequence[MaskedSentence], rows_B: np.ndarray) -> Tensor:
        """True for sentences whose passage in `rows_B` is rewarded, bool [B]."""
        return self.read(sentences, rows_B[:, None]).log_probs_BK[:, 0] == 0.0


class CandidateReader:
    """A reader with the passages it reads; a negative row is the null document, without a body.

    The joined input is [CLS] x [SEP] z_body [SEP], without the title (section 3.2). With `launch.recompute` the
    model's activations are not kept: the backward pass reads each group once more, with the same dropout.
    """

    def __init__(self, params: Params, reader: Reader, passages: Passages, special: SpecialIds):
        self.reader, self.passages, self._special = reader, passages, special
        self._max_length = params.corpus.sentence_length + params.corpus.passage_length
        self._token_budget, self._precision = params.launch.token_budget, params.model.precision
        self._recompute = params.launch.recompute
        self._device = next(reader.parameters()).device

    def read(self, sentences: Sequence[MaskedSentence], rows_BK: np.ndarray) -> Reading:
        """Read each sentence under its candidates; differentiable in the reader."""
        batch, candidates = rows_BK.shape
        bodies = [self._body(row) for row in rows_BK.reshape(-1)]
        owners = np.repeat(np.arange(batch), candidates).tolist()
        at_BM, is_masked_BM = pad_positions([sentence.positions for sentence in sentences])
        targets_BM, _ = pad_positions([sentence.targets for sentence in sentences])

        # Hidden states at the masked positions: pairs of similar length go through the encoder together.
        queries = [sentences[b].tokens for b in owners]
        lengths = [len(query) + len(body) + 3 for query, body in zip(queries, bodies, strict=True)]
        groups = length_groups([min(self._max_length, length) for length in lengths], self._token_budget)
        parts = []
        for group in groups:
            joined = self._join([queries[i] for i in group], [bodies[i] for i in group])
            at_NM = at_BM[torch.tensor([owners[i] for i in group])] + 1  # after [CLS]
            parts.append(computed(self._recompute, self._masked_hidden, joined, self._there(at_NM)))
        order = self._there(np.argsort(np.concatenate(groups)))
        hidden_NMD = torch.cat(parts)[order]

        # Words: the vocabulary is large and a group has few masks, so the head takes the masks of all groups together.
        # The indices of the masks are computed on the CPU: `nonzero` on the device would make the CPU wait for it.
        real_NM = is_masked_BM.repeat_interleave(candidates, 0)
        at_P = self._there(real_NM.flatten().nonzero()[:, 0])
        targets_P = self._there(targets_BM.repeat_interleave(candidates, 0)[real_NM])
        pieces = zip(hidden_NMD.flatten(0, 1)[at_P].split(HEAD_ROWS), targets_P.split(HEAD_ROWS), strict=True)
        found_P = torch.cat([computed(self._recompute, self._target_log_probs, *piece) for piece in pieces])
        token_N = found_P.new_zeros(real_NM.numel()).index_put((at_P,), found_P)
        return Reading(token_N.view(batch, candidates, -1), self._there(is_masked_BM))

    @torch.no_grad()
    def word_log_probs(self, tokens: np.ndarray, positions: np.ndarray, rows: Sequence[int]) -> Tensor:
        """Return log p(w|z,x) of every word at each masked position of one sentence, [K, M, V]."""
        joined = self._join([tokens] * len(rows), [self._body(row) for row in rows])
        at_KM = self._there(torch.from_numpy(positions + 1).expand(len(rows), -1))
        with autocast(self._device, self._precision):
            return self.reader.word_log_probs(self.reader.masked_hidden(joined, at_KM))

    @torch.no_grad()
    def restores(self, sentences: Sequence[MaskedSentence], rows_B: np.ndarray) -> Tensor:
        """True for sentences whose masked words are the most likely ones, given their passages `rows_B`, bool [B].
        An unknown word is never restored."""
        joined = self._join([sentence.tokens for sentence in sentences], [self._body(row) for row in rows_B])
        at_BM, is_masked_BM = pad_positions([sentence.positions for sentence in sentences])
        targets_BM, _ = pad_positions([sentence.targets for sentence in sentences])
        with autocast(self._device, self._precision):
            hidden_BMD = self.reader.masked_hidden(joined, self._there(at_BM + 1))
            guessed_P = self.reader.word_log_probs(hidden_BMD[self._there(is_masked_BM)]).argmax(-1).cpu()
        correct_BM = torch.ones(at_BM.shape, dtype=torch.bool)
        targets_P = targets_BM[is_masked_BM]
        correct_BM[is_masked_BM] = (guessed_P == targets_P) & (targets_P != self._special.unk)
        return correct_BM.all(1)

    def _there(self, values: Tensor | np.ndarray) -> Tensor:
        return to_device(values, self._device)

    def _body(self, row: int) -> np.ndarray:
        return self.passages.bodies[row] if row >= 0 else NO_TOKENS

    def _join(self, queries: Sequence[np.ndarray], bodies: Sequence[np.ndarray]) -> Batch:
        return join(queries, bodies, self._special, self._max_length).to(self._device)

    def _masked_hidden(self, joined: Batch, at_NM: Tensor) -> Tensor:
        with autocast(self._device, self._precision):
            return self.reader.masked_hidden(joined, at_NM)

    def _target_log_probs(self, hidden_PD: Tensor, targets_P: Tensor) -> Tensor:
        with autocast(self._device, self._precision):
            return self.reader.target_log_probs(hidden_PD, targets_P)


AnyReader = Reader | FrozenReader
PassageReader = CandidateReader | FrozenReader


def passage_reader(params: Params, reader: AnyReader, passages: Passages, special: SpecialIds) -> PassageReader:
    """Wrap a reader with the passages; a frozen reader, which already has them, is returned as it is."""
    if isinstance(reader, Reader):
        return CandidateReader(params, reader, passages, special)
    assert reader.passages is passages, "it reads the passages that it was made with"
    return reader
