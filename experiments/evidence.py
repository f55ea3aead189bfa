"""The variant `oracle` of real_entities.yaml: a reward for passages that are known to support the masked words."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Annotated

import numpy as np

from realm_lab import FILE, RewardRequest, Section, UserError


class Table(Section):
    """Options of the reward `evidence`."""

    file: Annotated[str, FILE]
    """JSON lines of {sentence, evidence_ids}: the sentence as it is written, with its one marked span."""


def evidence(request: RewardRequest, options: Table) -> np.ndarray:
    """Return bool [K], true if the passage's document supports the sentence. UserError: the file lacks the sentence."""
    table = _read(options.file)
    if request.sentence.text not in table:
        raise UserError(f"the sentence '{request.sentence.text[:60]}' is missing", "make it again", path=options.file)
    return np.array([document in table[request.sentence.text] for document in request.documents], bool)


@functools.cache
def _read(file: str) -> dict[str, frozenset[str]]:
    records = map(json.loads, Path(file).read_text(encoding="utf-8").splitlines())
    return {record["sentence"]: frozenset(record["evidence_ids"]) for record in records}
