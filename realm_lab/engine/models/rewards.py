"""Rewards: p(y|z,x) in pre-training without a reader.

A reward is a pure function (request) -> bool [K], true for the passages that it rewards: p(y|z,x) is 1 for these, and
near 0 for other passages and the null document. No passage is read, so training with a reward shows what the reader
adds: `containment` only looks for the masked wordpieces. A reward is registered under a name, or
`pretrain.reward` names custom code, `package.module:function`, with its options, such as experiments/evidence.py.
"""

# Shapes: K passages

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from realm_lab.engine.corpus.store import Passages
from realm_lab.engine.masking import MaskedSentence
from realm_lab.errors import UserError
from realm_lab.records.plugins import Choice, Kind

READER = "reader"


class RewardRequest(NamedTuple):
    """Argument of a reward: a masked sentence, and passages to reward or not."""

    sentence: MaskedSentence
    passages: Passages  # the knowledge corpus
    rows_K: np.ndarray  # rows of the passages in this corpus
    unknown: int  # the token id of an unknown word

    @property
    def documents(self) -> list[str]:
        """The ids of the documents that the passages are from."""
        return self.passages.text.taken("document", self.rows_K)


Reward = Callable[[RewardRequest], np.ndarray]
REWARDS: Kind[Callable[..., np.ndarray]] = Kind("reward", "function", "request")
# The default is the reader, not a reward: its name is declared for checks, and never called.
REWARDS.declare(READER, "realm_lab.engine.models.candidate_reader:CandidateReader")
register_reward = REWARDS.register  # makes a reward selectable as `pretrain.reward: NAME`


def training_reward(choice: Choice) -> Reward:
    """Return the reward that `pretrain.reward` names, with its options. The array that it returns is checked at
    every call. UserError: an unknown name, or a wrong option."""
    chosen = REWARDS.choose("pretrain.reward", choice)

    def checked(request: RewardRequest) -> np.ndarray:
        rewarded_K = np.asarray(chosen(request))
        if rewarded_K.dtype != bool or rewarded_K.shape != request.rows_K.shape:
            problem = (
                f"parameter 'pretrain.reward': '{chosen.name}' returned {rewarded_K.dtype} {list(rewarded_K.shape)}"
            )
            raise UserError(problem, f"return bool [{len(request.rows_K)}]", parameter="pretrain.reward")
        return rewarded_K

    return checked


@register_reward("containment")
def containment(request: RewardRequest) -> np.ndarray:
    """Reward passages that contain every run of neighbouring masked wordpieces (Ram et al. 2022)."""
    from realm_lab.engine.models.spans import holds_answer  # imports torch

    sentence, bodies = request.sentence, request.passages.bodies
    if request.unknown in sentence.targets:  # two unknown words may be different words
        return np.zeros(len(request.rows_K), bool)
    runs = np.split(sentence.targets, np.flatnonzero(np.diff(sentence.positions) > 1) + 1)
    holds_K: np.ndarray = np.logical_and.reduce([holds_answer(bodies, request.rows_K, [run]) for run in runs])
    return holds_K
