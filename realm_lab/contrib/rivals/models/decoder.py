"""An encoder-decoder that writes its answer, p(y|x, z_1..z_K): the encoder of all systems here, and a causal decoder.

A decoder layer is BERT's with causal self-attention followed by cross-attention to the encoder's states (Vaswani et
al. 2017), as deep and wide as the encoder; its input and output embeddings are the encoder's. A text starts with
[CLS] and ends with [SEP] (as in Rothe et al. 2020), so that the wordpieces are used unchanged. Its folder has
config.json and model.safetensors (BertModel: the encoder) and decoder.safetensors.
"""

# Shapes: B texts, T wordpieces of a text with [CLS] and [SEP], L those so far, S states looked at, D hidden size,
# H heads, E head size, K sources of a text (each one state sequence), N = B * K, V words

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from realm_lab.engine.core.seeding import derive_seed
from realm_lab.engine.corpus.vocabulary import SpecialIds
from realm_lab.engine.models import folders
from realm_lab.engine.models.encoder import MASKED, Block, Encoder, EncoderShape, initialise_blocks, sinusoids
from realm_lab.engine.models.hub import AnyEncoder
from realm_lab.engine.models.inputs import Batch, join

DECODER_FILE = "decoder.safetensors"
Heads = tuple[Tensor, Tensor]  # keys and values, [B, H, L, E] each


class Source(NamedTuple):
    """Encoder states that a decoder attends to."""

    states_BSD: Tensor
    mask_BS: Tensor  # bool: true at real states


class Cache(NamedTuple):
    """Keys and values of the previous wordpieces, by layer."""

    own: list[Heads]  # of the text so far
    source: list[Heads]  # of the states looked at


class Example(NamedTuple):
    """Input and output texts."""

    first: np.ndarray  # wordpieces of a question, or of a text with blanks
    seconds: Sequence[np.ndarray]  # wordpieces of the passages read with `first`, each in a separate sequence
    target: np.ndarray = np.empty(0, np.int64)  # wordpieces of the text to write


def join_examples(examples: Sequence[Example], special: SpecialIds, longest: int) -> Batch:
    """Return the sequences of examples with equally many passages, in order."""
    if not examples[0].seconds:
        return join([example.first for example in examples], None, special, longest)
    firsts = [example.first for example in examples for _ in example.seconds]
    return join(firsts, [second for example in examples for second in example.seconds], special, longest)


def pad_texts(targets: Sequence[np.ndarray], special: SpecialIds, longest: int) -> Tensor:
    """Return [CLS] text [SEP] of each, cut to `longest` wordpieces in all and padded, int64 [B, T]."""
    rows = [[special.cls, *target[: longest - 2].tolist(), special.sep] for target in targets]
    width = max(map(len, rows))
    return torch.tensor([row + [special.pad] * (width - len(row)) for row in rows])


class DecoderBlock(Block):
    """One post-norm layer: self-attention, cross-attention, feed-forward."""

    def __init__(self, shape: EncoderShape):
        super().__init__(shape)
        size = shape.hidden_size
        self.cross_query = nn.Linear(size, size)
        self.cross_key_value = nn.Linear(size, 2 * size)
        self.cross_output = nn.Linear(size, size)
        self.cross_norm = nn.LayerNorm(size, eps=shape.layer_norm_epsilon)

    def source_heads(self, states_BSD: Tensor) -> Heads:
        """Return keys and values of the cross-attention, the same at every step."""
        key, value = self.cross_key_value(states_BSD).chunk(2, -1)
        return self._split(key), self._split(value)

    def own_heads(self, hidden_BTD: Tensor, before: Heads | None) -> tuple[Tensor, Heads]:
        """Return queries of the self-attention, with keys and values of all wordpieces so far."""
        query, key, value = (self._split(part) for part in self.qkv(hidden_BTD).chunk(3, -1))
        if before is not None:
            key, value = torch.cat([before[0], key], 2), torch.cat([before[1], value], 2)
        return query, (key, value)

    def decode(
        self, hidden_BTD: Tensor, query: Tensor, own: Heads, bias_11TL: Tensor, source: Heads, bias_B11S: Tensor
    ) -> Tensor:
        """Return hidden states after the layer, [B, T, D]."""
        context = self.attention_output(self._attend(query, *own, bias_11TL))
        hidden = self.attention_norm(hidden_BTD + functional.dropout(context, self.dropout, self.training))
        context = self.cross_output(self._attend(self._split(self.cross_query(hidden)), *source, bias_B11S))
        hidden = self.cross_norm(hidden + functional.dropout(context, self.dropout, self.training))
        return self._feed_forward(hidden)


class Generator(nn.Module):
    """The encoder, and a decoder of the same depth and width."""

    def __init__(self, shape: EncoderShape):
        super().__init__()
        self.encoder = Encoder(shape)
        self.target_positions = nn.Embedding(shape.positions, shape.hidden_size)
        self.norm = nn.LayerNorm(shape.hidden_size, eps=shape.layer_norm_epsilon)
        self.blocks = nn.ModuleList(DecoderBlock(shape) for _ in range(shape.layers))
        self.word_bias = nn.Parameter(torch.zeros(shape.vocabulary_size))

    def encode(self, batch: Batch, joined: int = 1) -> Source:
        """Encode the sequences; the states of every `joined` neighbours form one long source (Fusion-in-Decoder)."""
        states_NLD = self.encoder(*batch)
        rows = len(states_NLD) // joined
        return Source(states_NLD.reshape(rows, -1, states_NLD.shape[-1]), batch.mask_BL.view(rows, -1))

    def forward(self, words_BT: Tensor, source: Source, cache: Cache | None = None) -> tuple[Tensor, Cache]:
        """Return the hidden states of wordpieces that follow those in the cache, [B, T, D], and the longer cache."""
        seen = cache.own[0][0].shape[2] if cache else 0
        length = words_BT.shape[1]
        hidden = self.encoder.word_embeddings(words_BT) + self.target_positions.weight[seen : seen + length]
        hidden = functional.dropout(self.norm(hidden), self.encoder.shape.dropout, self.training)
        later_TL = torch.ones(length, seen + length, dtype=torch.bool, device=words_BT.device).triu(seen + 1)
        bias_11TL = later_TL[None, None].to(torch.float32) * MASKED
        bias_B11S = (~source.mask_BS)[:, None, None, :].to(torch.float32) * MASKED
        own: list[Heads] = []
        sources: list[Heads] = []
        for number, block in enumerate(self.blocks):
            assert isinstance(block, DecoderBlock)
            query, heads = block.own_heads(hidden, cache.own[number] if cache else None)
            own.append(heads)
            sources.append(cache.source[number] if cache else block.source_heads(source.states_BSD))
            hidden = block.decode(hidden, query, heads, bias_11TL, sources[-1], bias_B11S)
        return hidden, Cache(own, sources)

    def word_log_probs(self, hidden: Tensor) -> Tensor:
        """Return log p(w|...) of every word, float32 even with precision bfloat16, [..., V]."""
        with torch.autocast(hidden.device.type, enabled=False):
            features = hidden.to(self.word_bias.dtype)
            logits = functional.linear(features, self.encoder.word_embeddings.weight, self.word_bias)
        return logits.log_softmax(-1)

    def target_log_probs(self, source: Source, text_BT: Tensor) -> Tensor:
        """Return log p(y_t|y_<t, source) of each wordpiece after [CLS], teacher-forced, [B, T - 1]."""
        hidden, _ = self(text_BT[:, :-1], source)
        return self.word_log_probs(hidden).gather(-1, text_BT[:, 1:, None])[..., 0]


@torch.no_grad()
def write(
    model: Generator, source: Source, special: SpecialIds, longest: int, log_prior_BK: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Write greedy texts with [CLS] and [SEP], of at most `longest` wordpieces between, padded, int64 [B, T]; and their
    log-likelihoods, [B].

    With `log_prior_BK` every K neighbours of the source's N rows are about one text, whose next word is the most
    likely under sum_z p(z|x) p(y_t|y_<t, z, x) (RAG-Token; Lewis et al. 2020, "Decoding").
    """
    device = source.mask_BS.device
    prior_BK = torch.zeros(len(source.mask_BS), 1, device=device) if log_prior_BK is None else log_prior_BK
    batch, per_text = prior_BK.shape
    text_BT = torch.full((batch, 1), special.cls, device=device)
    is_done_B = torch.zeros(batch, dtype=torch.bool, device=device)
    total_B = torch.zeros_like(prior_BK[:, 0])
    cache = None
    while not is_done_B.all():
        words_N1 = text_BT[:, -1:].repeat_interleave(per_text, 0)
        hidden_N1D, cache = model(words_N1, source, cache)
        log_probs_BKV = model.word_log_probs(hidden_N1D[:, 0]).view(batch, per_text, -1)
        log_probs_BV = (prior_BK[..., None] + log_probs_BKV).logsumexp(1)
        log_probs_BV[:, special.pad] = -torch.inf  # is only for padding
        next_B = log_probs_BV.argmax(-1)
        if text_BT.shape[1] > longest:
            next_B = torch.full_like(next_B, special.sep)
        total_B = total_B + log_probs_BV.gather(1, next_B[:, None])[:, 0].masked_fill(is_done_B, 0.0)
        text_BT = torch.cat([text_BT, next_B.masked_fill(is_done_B, special.pad)[:, None]], 1)
        is_done_B = is_done_B | (next_B == special.sep)
    return text_BT, total_B


def initialise_generator(model: Generator, generator: torch.Generator) -> None:
    """Initialise the decoder in the same way as an encoder from scratch; the encoder's weights stay."""
    initialise_blocks(model.blocks, ("attention_output", "cross_output", "output"), generator)
    shape = model.encoder.shape
    model.target_positions.weight.data.copy_(torch.from_numpy(sinusoids(shape.positions, shape.hidden_size)))


def new_generator(encoder: AnyEncoder, seed: int) -> Generator:
    """Build an encoder-decoder with a copy of the encoder's weights and a decoder drawn from the seed."""
    assert isinstance(encoder, Encoder)  # only_bert
    generator = Generator(encoder.shape)
    generator.encoder.load_state_dict(encoder.state_dict())
    initialise_generator(generator, torch.Generator().manual_seed(derive_seed(seed, "initial-decoder")))
    return generator


def write_generator(generator: Generator, folder: Path) -> None:
    """Save an encoder-decoder: its encoder as a BertModel folder, and the decoder next to it."""
    folders.write_tower(folder, generator.encoder, None)
    folders.write_tensors(folder / DECODER_FILE, folders.named_tensors(generator, _of_decoder(generator)))


def read_generator(folder: Path) -> Generator:
    """Load an encoder-decoder from a folder that write_generator wrote."""
    shape, weights = folders.read_checkpoint(folder)
    generator = Generator(shape)
    folders.from_bert(generator.encoder, weights, folder)
    decoder = folders.read_tensors(folder / DECODER_FILE)
    folders.load_named(generator, decoder, _of_decoder(generator), folder)
    return generator


def _of_decoder(generator: Generator) -> folders.Names:
    return {name: name for name, _ in generator.named_parameters() if not name.startswith("encoder.")}
