"""The choice and frequency of query sentences, and their masks: two independent choices."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from realm_lab.engine.corpus.store import NO_ROW, Sentences
from realm_lab.engine.corpus.vocabulary import SpecialIds
from realm_lab.engine.params.parameters import Pretrain
from realm_lab.engine.training.query_stream import QueryStream
from realm_lab.errors import UserError
from realm_lab.records.plugins import Choice
from tests.engine.corpus.preparing import write_part

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
MASK = SPECIAL.mask
VOCABULARY = [str(token) for token in range(1000)]
# The spans of each sentence; three have none.
SPANS: list[list[int]] = [[0, 2], [], [1, 3, 5, 6], [4, 5], [], [0, 1, 2, 3, 4, 6, 7, 8, 9, 12], [3, 6, 8, 9], []]
SALIENT = [row for row, spans in enumerate(SPANS) if spans]


def stored(folder: Path, spans: list[list[int]]) -> Sentences:
    plain = {"origins": NO_ROW, "gold": NO_ROW, "labels": "", "text": ""}
    rows = [
        plain | {"tokens": [100 * row + place for place in range(10, 22)], "spans": pairs}
        for row, pairs in enumerate(spans)
    ]
    return Sentences(write_part(folder, Sentences.COLUMNS, rows), np.uint16)


@pytest.fixture(scope="module")
def sentences(tmp_path_factory: pytest.TempPathFactory) -> Sentences:
    return stored(tmp_path_factory.mktemp("sentences"), SPANS)


def stream(sentences: Sentences, **changes: Any) -> QueryStream:
    seed = changes.pop("seed", 3)
    changes |= {"masking": Choice(changes.get("masking", "salient_span"))}
    # Not validated: a scheme and a choice that do not fit are wanted here.
    return QueryStream(Pretrain().model_copy(update=changes), sentences, MASK, seed, VOCABULARY)


def epochs(queries: QueryStream, count: int) -> list[list[int]]:
    length = len(queries)
    return [queries.rows(epoch * length, length).tolist() for epoch in range(count)]


def test_an_epoch_has_each_sentence_with_a_salient_span_once(sentences: Sentences) -> None:
    queries = stream(sentences, masking="random_token")
    assert len(queries) == len(SALIENT)
    drawn = epochs(queries, 40)
    assert all(sorted(rows) == SALIENT for rows in drawn)
    assert len({tuple(epoch) for epoch in drawn}) > 30  # shuffled again


@pytest.mark.parametrize("masking", ["salient_span", "random_token", "random_span"])
def test_a_query_is_its_sentence_with_the_answer_masked_and_no_special_token_in_it(
    sentences: Sentences, masking: str
) -> None:
    queries = stream(sentences, masking=masking, mask_rate=0.4)
    generator = np.random.default_rng(1)
    for row in queries.rows(0, 200).tolist():
        masked = queries.masked(row, generator)
        tokens = sentences.tokens[row].tolist()
        assert len(masked.tokens) == len(tokens)
        restored = masked.tokens.copy()
        restored[masked.positions] = masked.targets
        assert restored.tolist() == tokens
        assert np.flatnonzero(masked.tokens == MASK).tolist() == masked.positions.tolist()
        assert not set(SPECIAL) & set(masked.targets.tolist())
        assert masking != "salient_span" or masked.positions[0] in SPANS[row][::2]


def test_the_query_tower_reads_a_question_and_the_reader_the_sentence(sentences: Sentences) -> None:
    asked = dict(enumerate("who when where how many what ?".split(), 990))
    words = [asked.get(number, word) for number, word in enumerate(VOCABULARY)]
    questions = QueryStream(Pretrain(query_form="question"), sentences, MASK, 3, words)
    rows, queries = questions.sample(5, "calibration")
    plain_rows, plain = stream(sentences).sample(5, "calibration")
    assert rows.tolist() == plain_rows.tolist()
    for query, without in zip(queries, plain, strict=True):
        assert query.tolist() == [995, *without[without != MASK].tolist(), 996]  # 995: "what", for lack of labels
    one, other = (made.masked(int(rows[0]), np.random.default_rng(0)) for made in (questions, stream(sentences)))
    assert one.tokens.tolist() == other.tokens.tolist()
    assert one.question is not None
    assert other.question is None


def test_a_corpus_without_salient_spans_is_refused(tmp_path: Path) -> None:
    without = stored(tmp_path, [[], [], []])
    with pytest.raises(UserError, match=r"no sentence .* has a salient span; .*pretrain\.recurring_spans"):
        stream(without, masking="random_token")
