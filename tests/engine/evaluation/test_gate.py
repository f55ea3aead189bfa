"""The gate with readers that are known to read, and known not to."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from realm_lab.engine.evaluation.gate import DEPTH, WITHOUT, Gate, Mean, Support, measure_gate, measure_support
from realm_lab.engine.evaluation.utility import mask_first_span
from realm_lab.engine.masking import MaskedSentence
from realm_lab.engine.models.candidate_reader import FrozenReader, Reading
from realm_lab.engine.models.spans import find_answer
from realm_lab.engine.retrieval.candidates import CandidatePolicy
from realm_lab.engine.retrieval.rows import NULL
from tests.tiny_system import TinySystem


class Planted(FrozenReader):
    """A reader that gains `having` nats from a passage with the answer, `lacking` from another, and 0 from none."""

    def __init__(self, system: TinySystem, having: float, lacking: float):
        super().__init__()
        self._bodies, self._having, self._lacking = system.passages.bodies, having, lacking
        self.rows = list[list[int]]()

    def read(self, sentences: Sequence[MaskedSentence], rows_BK: np.ndarray) -> Reading:
        self.rows += rows_BK.tolist()
        nats = [[self._nats(one, row) for row in rows] for one, rows in zip(sentences, rows_BK, strict=True)]
        return Reading(torch.tensor(nats)[:, :, None], torch.ones(len(sentences), 1, dtype=torch.bool))

    def _nats(self, sentence: MaskedSentence, row: int) -> float:
        if row < 0:
            return -10.0
        found = find_answer(np.asarray(self._bodies[row]), [sentence.targets], len(sentence.targets))
        return -10.0 + (self._having if found else self._lacking)


def measured(system: TinySystem, reader: Planted, knows_gold: bool = True, passages: int = 7) -> Gate:
    sentences = system.corpus.sentences("cloze_dev")
    rows = np.flatnonzero((np.asarray(sentences.gold) >= 0) & (sentences.kinds() == "object"))
    masked = [mask_first_span(sentences, int(row), system.special.mask) for row in rows]
    gold = np.asarray(sentences.gold)[rows] if knows_gold else np.full(len(rows), -1)
    policy = CandidatePolicy(passages + 1)
    return measure_gate(policy, system.built_retriever(), reader, masked, np.full(len(rows), -1), gold)


@pytest.mark.parametrize("knows_gold", [True, False])
def test_what_a_passage_adds_is_what_was_planted(system: TinySystem, knows_gold: bool) -> None:
    reader = Planted(system, 8.0, 1.5)
    gate = measured(system, reader, knows_gold)
    assert gate.over_none.mean == pytest.approx(8.0)
    assert gate.over_best.mean == pytest.approx(6.5)
    assert gate.over_none.error == pytest.approx(0.0, abs=1e-6)
    assert gate.with_answer == len(reader.rows)
    assert gate.with_answer == gate.spans if knows_gold else 0 < gate.with_answer <= gate.spans
    for row in reader.rows:
        assert row[0] == NULL
        assert len(set(row)) == 2 + WITHOUT


def test_more_candidates_have_the_answer_more_often(system: TinySystem) -> None:
    shares = [measured(system, Planted(system, 8, 0), passages=count).among_candidates.mean for count in (1, 8, DEPTH)]
    assert shares[0] < shares[1] < shares[2]


class Supporting(Planted):
    """A reader that gains `more` nats in addition from passages that support the answers."""

    def __init__(self, system: TinySystem, gold: np.ndarray, more: float):
        super().__init__(system, 8.0, 0.0)
        self._gold, self._more = set(gold.tolist()), more

    def _nats(self, sentence: MaskedSentence, row: int) -> float:
        return super()._nats(sentence, row) + self._more * (row in self._gold)


@pytest.mark.parametrize(("more", "preferred"), [(2.0, 1.0), (0.0, 0.5), (-1.0, 0.0)])
def test_support_is_compared_with_others_that_hold_the_words(system: TinySystem, more: float, preferred: float) -> None:
    sentences, bodies = system.corpus.sentences("cloze_dev"), system.passages.bodies
    rows = np.flatnonzero((np.asarray(sentences.gold) >= 0) & (sentences.kinds() == "object"))
    retriever, compared = system.built_retriever(), 0
    for row in rows[:12].tolist():
        gold = sentences.gold[row : row + 1]
        reader, one = Supporting(system, gold, more), mask_first_span(sentences, row, system.special.mask)
        given: Any = CandidatePolicy(8), retriever, reader, [one], np.array([-1]), [gold.tolist()]
        found = measure_support(*given)
        compared += found is not None
        if found is not None:
            assert (found.spans, found.with_words) == (1, 1)
            assert (found.over_best.mean, found.preferred.mean) == pytest.approx((more, preferred))
        for supporting, *others in reader.rows:
            assert supporting == gold[0] not in others
            for other in others:
                assert other < 0 or find_answer(np.asarray(bodies[other]), [one.targets], len(one.targets))
    assert compared > 3


def test_support_without_the_words_is_compared_with_others_without_them(system: TinySystem) -> None:
    sentences, bodies = system.corpus.sentences("cloze_dev"), system.passages.bodies
    one = mask_first_span(sentences, 0, system.special.mask)

    def holds(row: int) -> bool:
        return bool(find_answer(np.asarray(bodies[row]), [one.targets], len(one.targets)))

    row = next(row for row in range(len(bodies)) if not holds(row))
    reader = Supporting(system, np.array([row]), 2.0)
    found = measure_support(CandidatePolicy(8), system.built_retriever(), reader, [one], np.array([-1]), [[row]])
    assert found is not None
    assert (found.spans, found.with_words, found.over_best.mean) == (1, 0, pytest.approx(2.0))
    [[supporting, *others]] = reader.rows
    assert supporting == row not in others
    assert not any(map(holds, others))


def support_of(preferred: float) -> Support:
    return Support(90, 0, Mean(0.0, 0.1), Mean(preferred, 0.04), Mean(0.5, 0.02))


def test_support_is_told_apart_two_standard_errors_above_a_half() -> None:
    for mean, expected in ((0.7, True), (0.55, False), (0.49, False)):
        assert support_of(mean).prefers_support == expected


def gate_of(over_none: float, over_best: float, share: float, with_answer: int = 90) -> Gate:
    return Gate(100, with_answer, Mean(over_none, 0.1), Mean(over_best, 0.1), Mean(share, 0.01), 7)


@pytest.mark.parametrize(
    ("gate", "named"),
    [
        (gate_of(8.0, 7.0, 0.5), []),
        (gate_of(3.0, 3.0, 0.35), []),
        (gate_of(0.8, 0.7, 0.5), ["reader gains too little"]),
        (gate_of(8.0, 2.9, 0.5), ["nearly as much from passages without"]),
        (gate_of(8.0, 7.0, 0.34), ["too few candidates"]),
        (gate_of(0.8, 0.7, 0.2), ["reader gains too little", "too few candidates"]),
        (gate_of(float("nan"), float("nan"), 0.0, 0), ["no span is in any", "too few candidates"]),
        (gate_of(float("nan"), float("nan"), 0.0, 0)._replace(support=support_of(0.7)), []),
        (
            gate_of(float("nan"), float("nan"), 0.0, 0)._replace(support=support_of(0.5)),
            ["does not prefer the passages"],
        ),
    ],
)
def test_each_failure_has_its_reason_and_remedy(gate: Gate, named: list[str]) -> None:
    assert len(gate.problems) == len(named)
    for problem, part in zip(gate.problems, named, strict=True):
        reason, remedy = problem.split("; ", 1)
        assert part in reason
        assert remedy
