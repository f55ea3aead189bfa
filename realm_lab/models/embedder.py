"""The knowledge retriever's towers Embed_input and Embed_doc (section 3.2)."""

# Shapes: B sequences, D embedding size

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from realm_lab.models.encoder import Encoder, EncoderShape
from realm_lab.models.inputs import Batch

PROJECTION_STD = 0.05  # scores of an untrained projection spread by a few nats, neither flat nor one-hot


class Embedder(nn.Module):
    """Two towers W BERT_CLS(join(...)); with `share_towers` they share the Transformer but not the projection."""

    def __init__(self, shape: EncoderShape, projection_size: int, share_towers: bool):
        super().__init__()
        self.query_encoder = Encoder(shape)
        self.document_encoder = self.query_encoder if share_towers else Encoder(shape)
        self.query_projection = nn.Linear(shape.hidden_size, projection_size, bias=False)
        self.document_projection = nn.Linear(shape.hidden_size, projection_size, bias=False)

    @property
    def share_towers(self) -> bool:
        """Whether one Transformer serves both towers."""
        return self.query_encoder is self.document_encoder

    def embed_queries(self, batch: Batch) -> Tensor:
        """Embed_input(x), float32 [B, D]."""
        return self._embed(self.query_encoder, self.query_projection, batch)

    def embed_documents(self, batch: Batch) -> Tensor:
        """Embed_doc(z), float32 [B, D]."""
        return self._embed(self.document_encoder, self.document_projection, batch)

    @staticmethod
    def _embed(encoder: Encoder, projection: nn.Linear, batch: Batch) -> Tensor:
        first_B1 = torch.zeros(len(batch.tokens_BL), 1, dtype=torch.int64, device=batch.tokens_BL.device)
        return projection(encoder(*batch, first_B1)[:, 0]).float()

    def start_from(self, encoder: Encoder, generator: torch.Generator) -> None:
        """Copy `encoder` into the towers and draw one projection for both, so that f(x, z) starts as a similarity."""
        self.query_encoder.load_state_dict(encoder.state_dict())
        if not self.share_towers:
            self.document_encoder.load_state_dict(copy.deepcopy(encoder.state_dict()))
        nn.init.normal_(self.query_projection.weight, 0.0, projection_std(encoder.shape), generator=generator)
        self.document_projection.weight.data.copy_(self.query_projection.weight)


def projection_std(shape: EncoderShape) -> float:
    """PROJECTION_STD at 384 hidden units, scaled so that scores spread alike at every width."""
    return PROJECTION_STD * (384 / shape.hidden_size) ** 0.5
