"""Exchange information between passages before one is chosen (Min et al. 2019, "Knowledge Guided Text Retrieval ...").

z is the [CLS] of the question with a passage. A layer is z' = relu(W_0 z + sum over relations r of the mean of W_r z_j
over the passages j in relation r to it); a passage is chosen by the softmax of w . z. Without layers each passage is
judged separately, and chosen among all (the paper's ParReader++).
"""

# Shapes: N passages, R relations, D hidden size

from __future__ import annotations

import torch
from torch import Tensor, nn

from realm_lab.models.encoder import Encoder

RELATIONS = 3  # links to, is linked from, has the same title (links.py)


class GraphModel(nn.Module):
    """The encoder of questions with passages, and the layers over their relations."""

    def __init__(self, encoder: Encoder, layers: int, generator: torch.Generator):
        super().__init__()
        size = encoder.shape.hidden_size
        self.encoder = encoder
        self.own = nn.ModuleList(nn.Linear(size, size) for _ in range(layers))
        self.related = nn.ModuleList(nn.Linear(size, RELATIONS * size, bias=False) for _ in range(layers))
        self.chosen = nn.Linear(size, 1)
        for linear in (*self.own, *self.related, self.chosen):
            assert isinstance(linear, nn.Linear)
            nn.init.normal_(linear.weight, 0.0, linear.in_features**-0.5, generator=generator)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def forward(self, vectors_ND: Tensor, relations_RNN: Tensor) -> Tensor:
        """Return the logit of each passage of a question, [N]; `relations_RNN[r, i, j]`: j is in relation r to i."""
        mean_RNN = relations_RNN.float() / relations_RNN.sum(2, keepdim=True).clamp(min=1)
        for own, related in zip(self.own, self.related, strict=True):
            sent_RND = torch.stack(related(vectors_ND).chunk(RELATIONS, dim=1))
            vectors_ND = torch.relu(own(vectors_ND) + (mean_RNN @ sent_RND).sum(0))
        chosen_N1: Tensor = self.chosen(vectors_ND)
        return chosen_N1[:, 0]

    def loss(self, vectors_ND: Tensor, relations_RNN: Tensor, positive_N: Tensor) -> Tensor:
        """Return -log of the probability that a passage with the answer is chosen."""
        log_prob_N: Tensor = self(vectors_ND, relations_RNN).log_softmax(0)
        return -log_prob_N[positive_N].logsumexp(0)
