"""The knowledge retriever's towers Embed_input and Embed_doc (section 3.2)."""

# Shapes: B sequences, D embedding size

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from realm_lab.engine.models.encoder import EncoderShape
from realm_lab.engine.models.hub import AnyEncoder, has_segments, new_encoder
from realm_lab.engine.models.inputs import Batch

PROJECTION_STD = 0.05  # scores spread by a few nats at first: p(z|x) is neither flat nor one-hot
PARTS = ("encoder", "pooler", "projection", "norm")  # of a tower, each an attribute query_* and document_*


class EmbedderShape(NamedTuple):
    """Layers after the Transformers, and sharing between the towers; see section `model` of the parameters."""

    projection_size: int
    share_towers: bool = True
    share_projection: bool = False
    pooling: str = "cls"  # or "tanh", or "mean"
    projection_norm: bool = False
    projection_dropout: float = 0.0
    score_scale: str = "none"  # or "inverse_sqrt", or "cosine"
    learned_null: bool = False
    projection_bias: bool = False  # the released weights have one; Guu's equation has none
    initial_projection: str = "drawn"  # or "identity"
    temperature: float = 0.05  # of cosine scores


class Embedder(nn.Module):
    """Two towers W pool(BERT(join(...))), with one Transformer or two, of BERT or another family.

    Towers that share the Transformer also share BERT's pooler, if there is one. Towers that share the projection also
    share the LayerNorm.
    """

    null_vector: nn.Parameter | None  # [D]

    def __init__(self, shape: EncoderShape, head: EmbedderShape):
        super().__init__()
        assert head.share_towers or not head.share_projection, "one projection cannot serve two towers"
        self._head = head
        size = shape.hidden_size
        self.query_encoder = new_encoder(shape)
        self.document_encoder = self.query_encoder if head.share_towers else new_encoder(shape)
        self.query_projection = nn.Linear(size, head.projection_size, bias=head.projection_bias)
        self.document_projection = self.query_projection
        if not head.share_projection:
            self.document_projection = nn.Linear(size, head.projection_size, bias=head.projection_bias)
        self.query_pooler = nn.Linear(size, size) if head.pooling == "tanh" else None
        self.document_pooler = self.query_pooler if head.share_towers else copy.deepcopy(self.query_pooler)
        # The released TensorFlow code took Keras's default epsilon, 1e-3. RealmScorerProjection of transformers, the
        # port of these weights that people use, takes BERT's 1e-12, and so do we.
        norm = nn.LayerNorm(head.projection_size, eps=shape.layer_norm_epsilon) if head.projection_norm else None
        self.query_norm = norm
        self.document_norm = norm if head.share_projection else copy.deepcopy(norm)
        self.register_parameter("null_vector", None)
        self.set_learned_null(head.learned_null)

    @property
    def share_towers(self) -> bool:
        """True if one Transformer serves both towers."""
        return self.query_encoder is self.document_encoder

    @property
    def head(self) -> EmbedderShape:
        """The current shape; sharing and the null vector may have changed since construction."""
        return self._head._replace(
            share_towers=self.share_towers,
            share_projection=self.query_projection is self.document_projection,
            learned_null=self.null_vector is not None,
        )

    def embed_queries(self, batch: Batch) -> Tensor:
        """Return Embed_input(x), float32 [B, D], scaled so that f(x, z) is an inner product."""
        query_BD = self._embed("query", batch)
        if self._head.score_scale == "cosine":
            return query_BD / self._head.temperature
        return query_BD / query_BD.shape[1] ** 0.5 if self._head.score_scale == "inverse_sqrt" else query_BD

    def embed_documents(self, batch: Batch) -> Tensor:
        """Return Embed_doc(z), float32 [B, D]."""
        return self._embed("document", batch)

    @property
    def reads_segments(self) -> bool:
        """True if the towers distinguish title and body by segment embeddings; with mean pooling they do not."""
        return self._head.pooling != "mean" and has_segments(self.query_encoder)

    def scale_scores(self, factor: float) -> None:
        """Multiply f(x, z) by a factor through the last layer of the query tower. If the towers share that layer, it is
        multiplied by the root of the factor. Cosine scores do not change."""
        last = self.query_projection if self.query_norm is None else self.query_norm
        for parameter in last.parameters():
            parameter.data.mul_(factor**0.5 if self.head.share_projection else factor)

    def _embed(self, tower: str, batch: Batch) -> Tensor:
        encoder, pooler, projection, norm = (getattr(self, f"{tower}_{part}") for part in PARTS)
        if self._head.pooling == "mean":  # over all wordpieces
            hidden_BLD = encoder(batch.tokens_BL, torch.zeros_like(batch.types_BL), batch.mask_BL)
            real_BL1 = batch.mask_BL[:, :, None]
            pooled = (hidden_BLD * real_BL1).sum(1) / real_BL1.sum(1)
        else:
            first_B1 = torch.zeros(len(batch.tokens_BL), 1, dtype=torch.int64, device=batch.tokens_BL.device)
            pooled = encoder(*batch, first_B1)[:, 0]
        if pooler is not None:
            pooled = torch.tanh(pooler(pooled))
        vector_BD: Tensor = projection(pooled).float()
        if norm is not None:
            vector_BD = norm(vector_BD)
        vector_BD = functional.dropout(vector_BD, self._head.projection_dropout, self.training)
        return functional.normalize(vector_BD) if self._head.score_scale == "cosine" else vector_BD

    def start_from(
        self, encoder: AnyEncoder, generator: torch.Generator, pooler: dict[str, Tensor] | None = None
    ) -> None:
        """Copy `encoder` into the towers and draw one projection for both, so that f(x, z) starts as a similarity.

        `pooler` holds weight and bias of a checkpoint's pooler; without it a new one is drawn.
        """
        self.query_encoder.load_state_dict(encoder.state_dict())
        self.draw_projection(generator)
        if self._head.projection_bias:
            nn.init.zeros_(self.query_projection.bias)
        if self.query_pooler is not None and pooler is not None:
            self.query_pooler.load_state_dict(pooler)
        elif self.query_pooler is not None:
            size = encoder.shape.hidden_size
            nn.init.normal_(self.query_pooler.weight, 0.0, size**-0.5, generator=generator)
            nn.init.zeros_(self.query_pooler.bias)
        for part in PARTS:
            query, document = getattr(self, f"query_{part}"), getattr(self, f"document_{part}")
            if document is not query:
                document.load_state_dict(query.state_dict())

    @torch.no_grad()
    def draw_projection(self, generator: torch.Generator) -> None:
        """Draw one weight for both projections, or make both the identity. The CPU draws it, so that it is equal on
        every device."""
        weight = self.query_projection.weight
        if self._head.initial_projection == "identity":
            nn.init.eye_(weight)
            nn.init.eye_(self.document_projection.weight)
            return
        # Scores then have the same spread at every width; PROJECTION_STD is for 384 hidden units.
        spread = PROJECTION_STD * (384 / weight.shape[1]) ** 0.5
        weight.copy_(torch.empty(weight.shape).normal_(0.0, spread, generator=generator))
        self.document_projection.weight.copy_(weight)

    def split_towers(self) -> None:
        """Copy shared weights, so that one tower can be trained without the other; no number changes."""
        for part in PARTS:
            query = getattr(self, f"query_{part}")
            if query is not None and getattr(self, f"document_{part}") is query:
                setattr(self, f"document_{part}", copy.deepcopy(query))

    def set_learned_null(self, learned: bool) -> None:
        """Give the null document a vector, of zeros if it has none yet, or remove its vector.

        Zeros are no start for training: if passages score far above 0, p(null|x) is near 0 and the vector learns
        nothing. Pre-training starts by moving the vector among the passages (`initialise_null`).
        """
        if learned and self.null_vector is None:
            self.null_vector = nn.Parameter(torch.zeros_like(self.query_projection.weight[:, 0]))
        elif not learned:
            self.null_vector = None
