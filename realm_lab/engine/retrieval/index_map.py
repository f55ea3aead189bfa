"""A linear map between the vectors of a stale index and those of the current weights, fitted on a sample of passages.

If the current vectors are about W old + b, then q . current = (W^T q) . old + q . b, and q . b is the same for every
passage: the stale index is searched with the mapped query W^T q, and no vector is rewritten.
"""

# Shapes: B queries, S sampled passages, D embedding size

from __future__ import annotations

import torch
from torch import Tensor

RIDGE = 1e-9  # share of the columns' mean squared length, added so that directions outside the sample do not change


def fitted(old_SD: Tensor, new_SD: Tensor, kind: str) -> Tensor:
    """Return the matrix that maps queries, [D, D]: q @ matrix is W^T q. `kind`: `orthogonal` (a rotation or a
    reflection: orthogonal Procrustes) or `affine` (least squares). Directions that the sample does not span do
    not change."""
    old, new = old_SD.double(), new_SD.double()
    identity = torch.eye(old.shape[1], dtype=old.dtype, device=old.device)
    if kind == "affine":
        old, new = old - old.mean(0), new - new.mean(0)
        found: Tensor = identity + torch.linalg.pinv(old, rtol=1e-6) @ (new - old)  # new = old @ found
    else:
        ridge = RIDGE * old.square().sum() / old.shape[1]
        left, _, right = torch.linalg.svd(old.T @ new + ridge * identity)
        found = left @ right
    return found.T.to(new_SD.dtype)
