"""The options of BM25. This file has no heavy imports, so that systems can be declared quickly."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from realm_lab.engine.params.sections import Section


class Bm25Options(Section):
    """Options of every system that uses BM25. The defaults of k1 and b are Anserini's, as in the literature on
    open-domain question answering."""

    k1: Annotated[float, Field(ge=0.0)] = 0.9
    """Count of a term that gives it half of its largest weight, in a passage of mean length."""
    b: Annotated[float, Field(ge=0.0, le=1.0)] = 0.4
    """Growth of the count k1 with a passage's length: 0 none, 1 in proportion."""
    title_weight: Annotated[float, Field(ge=0.0)] = 1.0
    """Weight of a term in the title; in the body it is 1. 0: titles are not searched."""
