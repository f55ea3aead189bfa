"""Examples of distant supervision, the reader's loss, and that it learns to read what a question asks for."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from realm_lab.contrib.rivals.models.document_reader import DocumentReader
from realm_lab.contrib.rivals.training.document_reader import DocumentReaderTask, Example, distant_examples
from realm_lab.engine.core.seeding import EpochOrder
from realm_lab.engine.corpus.store import Ragged
from realm_lab.engine.corpus.vocabulary import SpecialIds
from realm_lab.engine.models.inputs import join
from realm_lab.errors import UserError
from tests.tiny_system import tiny_params

SPECIAL = SpecialIds(**(dict.fromkeys(SpecialIds._fields, 0) | {"cls": 1, "sep": 2}))
OF, LAST, WORDS = 5, 59, 60
READ = tiny_params().corpus.passage_length - 1


def ragged(rows: list[list[int]]) -> Ragged:
    return Ragged.of(np.cumsum([0, *map(len, rows)]), np.array([word for row in rows for word in row], np.int64))


def found(
    query: list[int], answer: list[int], bodies: list[list[int]], gold: list[int], read: int = 200
) -> list[Example]:
    questions: Any = SimpleNamespace(tokens=[np.array(query)], gold=[np.array(gold)])
    passages: Any = SimpleNamespace(bodies=ragged(bodies))
    rows = [np.arange(len(bodies))]
    return distant_examples(questions, [[np.array(answer)]], rows, passages, frozenset({OF}), 3, read)


def test_the_place_that_shares_most_words_with_the_question_is_meant() -> None:
    answer, far = [8, 9], [LAST] * 40
    body = [8, 9, 20, *far, 20, 21, 8, 9, *far, 8, 9]
    assert found([20, 21, OF], answer, [body], []) == [Example(0, 0, 45, 46)]
    assert found([20, OF], answer, [body], []) == [Example(0, 0, 0, 1)]  # the first of equal positions
    assert found([OF, 30], answer, [[OF, 8, 9, OF]], []) == []  # a shared stop word does not count


def test_only_what_the_reader_sees_of_a_long_passage_is_an_example() -> None:
    seen = [*[LAST] * (READ - 2), 20, 8]
    assert found([20], [8], [seen, [LAST, *seen]], [], READ) == [Example(0, 0, READ - 1, READ - 1)]
    world = World(32, 1)  # the longest question leaves room for the last wordpiece seen
    world.questions.tokens = [np.full(tiny_params().corpus.sentence_length - 2, 20)] * 32
    world.passages.bodies = ragged([[*seen, LAST]] * 32)
    world.examples = [Example(row, row, READ - 1, READ - 1) for row in range(32)]
    assert np.isfinite(make_task(world)[0].train_step(0)["loss"])


def test_gold_passages_come_first_and_five_are_enough() -> None:
    bodies = [[20, 8], [21, 8], [20, 7], *[[20, LAST, 8]] * 6]
    examples = found([20], [8], bodies, [5])
    assert [example.row for example in examples] == [5, 0, 3, 4, 6]
    assert all(bodies[row][start] == 8 == bodies[row][end] for _, row, start, end in examples)


class World:
    """Passages of four pairs "key OF value", with new words in each, so that nothing can be learned by heart. A
    question is a key, and its answer the value after it. The words 8..39 are both keys and values."""

    def __init__(self, size: int, seed: int):
        rng = np.random.default_rng(seed)
        words_RS = np.stack([rng.permutation(np.arange(8, WORDS - 1))[:8] for _ in range(size)])
        bodies = [[w for key, value in row.reshape(4, 2) for w in (key, OF, value, LAST)] for row in words_RS]
        self.passages: Any = SimpleNamespace(bodies=ragged(bodies))
        asked = rng.integers(0, 4, size)
        self.questions: Any = SimpleNamespace(tokens=[words_RS[r, [2 * n]] for r, n in enumerate(asked)])
        self.examples = [Example(row, row, 4 * int(n) + 2, 4 * int(n) + 2) for row, n in enumerate(asked)]


def make_task(world: World, dropout: float = 0.0) -> tuple[DocumentReaderTask, DocumentReader]:
    torch.manual_seed(0)
    reader = DocumentReader(WORDS, 16, 16, dropout)
    texts = world.questions, world.passages, SPECIAL
    return DocumentReaderTask(tiny_params(), 0, 100, 32, 0.01, reader, world.examples, *texts), reader


def joined(world: World, rows: list[int]) -> Any:
    queries, bodies = [world.questions.tokens[row] for row in rows], [world.passages.bodies[row] for row in rows]
    return join(queries, bodies, SPECIAL, 64)


def test_the_loss_is_that_of_start_and_end() -> None:
    world = World(50, 1)
    task, reader = make_task(world)
    rows = EpochOrder(50, 0, "document-reader-examples").take(32, 32).tolist()
    with torch.no_grad():
        found = reader.endpoints(joined(world, rows))
    losses = [
        -found.start_NP[n].log_softmax(0)[world.examples[row].start]
        - found.end_NP[n].log_softmax(0)[world.examples[row].end]
        for n, row in enumerate(rows)
    ]
    assert task.train_step(1)["loss"] == pytest.approx(torch.stack(losses).mean().item(), rel=1e-5)


@pytest.mark.slow
def test_it_learns_to_read_the_value_of_a_key_that_it_has_not_met_there() -> None:
    world, other = World(2000, 1), World(100, 2)
    task, reader = make_task(world)
    for step in range(80):
        task.train_step(step)
    reader.eval()
    with torch.no_grad():
        logits_NLW = reader.span_logits(joined(other, list(range(100))), 2)
    best_N = logits_NLW.flatten(1).argmax(1)
    expected = [2 * (len(other.questions.tokens[0]) + 2 + example.start) for example in other.examples]
    assert np.mean(best_N.numpy() == expected) > 0.9


def test_without_examples_it_says_so() -> None:
    world = World(3, 1)
    world.examples = []
    with pytest.raises(UserError, match=r"no passage answers training questions; name others in corpus"):
        make_task(world)
