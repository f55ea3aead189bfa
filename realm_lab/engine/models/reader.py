"""The knowledge-augmented encoder p(y|z,x): masked words (pre-training) and answer spans (fine-tuning), section 3.2."""

# Shapes: N pairs (x, z), L positions, M masked positions, D hidden size, V vocabulary, S spans, W span widths

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from realm_lab.engine.models.encoder import EncoderShape, activate
from realm_lab.engine.models.hub import new_encoder, word_head
from realm_lab.engine.models.inputs import Batch

SPAN_NORM_EPSILON = 1e-3  # Keras's default, as in the released span head
NO_SPAN = -1.0e4


class Reader(nn.Module):
    """An encoder with BERT's masked-word head (output matrix tied to the word embeddings) and a span head."""

    def __init__(self, shape: EncoderShape, span_hidden_size: int):
        super().__init__()
        self.encoder = new_encoder(shape)
        self.transform, self.transform_norm = word_head(self.encoder)
        self.word_bias = nn.Parameter(torch.zeros(shape.vocabulary_size))
        self.span_projection = nn.Linear(shape.hidden_size, 2 * span_hidden_size)
        self.span_norm = nn.LayerNorm(span_hidden_size, eps=SPAN_NORM_EPSILON)
        self.span_score = nn.Linear(span_hidden_size, 1)
        self.selection: nn.Linear | None = None
        self.has_span_head = False  # true: the span head was trained or loaded, not only drawn

    def add_selection(self, generator: torch.Generator) -> None:
        """Add a passage-selection head over [CLS] (Karpukhin et al. 2020, section 6.1), unless there is one."""
        if self.selection is None:
            head = nn.Linear(self.encoder.shape.hidden_size, 1, bias=False)
            _draw(head, self.encoder.shape.hidden_size, generator)
            self.selection = head.to(self.span_score.weight.device)

    def masked_hidden(self, batch: Batch, at_NM: Tensor) -> Tensor:
        """Return final hidden states at the masked positions, [N, M, D]."""
        hidden_NMD: Tensor = self.encoder(*batch, at_NM)
        return hidden_NMD

    def word_log_probs(self, hidden_MD: Tensor) -> Tensor:
        """Return log p(w|z,x) for every word w at each hidden state, float32 [..., V].

        The last product is float32 even under bfloat16, whose 8 significant bits would round a logit near 10 by up to
        .03 nats.
        """
        features = self.transform_norm(activate(self.transform(hidden_MD), self.encoder.shape.activation))
        with torch.autocast(features.device.type, enabled=False):
            logits = functional.linear(features.float(), self.encoder.word_embeddings.weight, self.word_bias)
        return logits.log_softmax(-1)

    def target_log_probs(self, hidden_MD: Tensor, targets_M: Tensor) -> Tensor:
        """Return log p(y_j|z,x) of the masked words themselves, float32 [..., M]."""
        return self.word_log_probs(hidden_MD).gather(-1, targets_M[..., None])[..., 0]

    def span_logits(self, batch: Batch, max_width: int) -> Tensor:
        """Return MLP([h_START; h_END]) for every span inside the passage, float32 [N, L, W].

        Entry [n, s, w] is the span of wordpieces s..s+w. Spans not wholly inside the second segment (its closing
        [SEP] excluded) are NO_SPAN.
        """
        return self._span_logits(self.encoder(*batch), batch, max_width)

    def selecting_logits(self, batch: Batch, max_width: int) -> tuple[Tensor, Tensor]:
        """Return `span_logits`, and the passage-selection head's logit of each passage, float32 [N]."""
        assert self.selection is not None
        hidden_NLD = self.encoder(*batch)
        return self._span_logits(hidden_NLD, batch, max_width), self.selection(hidden_NLD[:, 0])[:, 0].float()

    def _span_logits(self, hidden_NLD: Tensor, batch: Batch, max_width: int) -> Tensor:
        start_NLS, end_NLS = self.span_projection(hidden_NLD).chunk(2, dim=-1)
        inside_NL = (batch.types_BL == 1) & batch.mask_BL
        inside_NL = inside_NL & inside_NL.roll(-1, 1)  # drop the closing [SEP]; position 0, [CLS], is never inside
        logits = []
        for width in range(max_width):
            if width >= end_NLS.shape[1]:
                logits.append(torch.full(inside_NL.shape, NO_SPAN, device=inside_NL.device))
                continue
            joined = start_NLS[:, : end_NLS.shape[1] - width] + end_NLS[:, width:]
            score = self.span_score(self.span_norm(functional.relu(joined)))[:, :, 0].float()
            valid = inside_NL[:, : inside_NL.shape[1] - width] & inside_NL[:, width:]
            score = score.masked_fill(~valid, NO_SPAN)
            logits.append(functional.pad(score, (0, width), value=NO_SPAN))
        return torch.stack(logits, dim=-1)


def initialise_heads(reader: Reader, generator: torch.Generator, words_too: bool) -> None:
    """Initialise the span head, and with `words_too` the masked-word head."""
    size = reader.encoder.shape.hidden_size
    linears = [reader.span_projection, reader.span_score] + ([reader.transform] if words_too else [])
    for linear in linears:
        _draw(linear, size, generator)
        if linear.bias is not None:
            nn.init.zeros_(linear.bias)


def _draw(linear: nn.Linear, size: int, generator: torch.Generator) -> None:
    """Draw weights as BERT does, with a larger spread in a narrower model."""
    nn.init.normal_(linear.weight, 0.0, min(0.02 * (768 / size), linear.in_features**-0.5), generator=generator)
