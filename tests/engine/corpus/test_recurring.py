"""Recurring spans against a count by hand."""

import numpy as np
import pytest

from realm_lab.engine.corpus.recurring import only_recurring
from realm_lab.engine.corpus.store import Sentences
from tests import tiny
from tests.engine.corpus.preparing import Prepared, made


@pytest.fixture(scope="module")
def same(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    changes = {"corpus.pretrain_corpus": "same", "corpus.source.restate_facts": True}
    return made(tiny.params(changes), tmp_path_factory.mktemp("same") / "corpus")


def spans(sentences: Sentences, row: int) -> list[tuple[str, tuple[int, ...]]]:
    pairs = sentences.salient_spans(row)
    labels = sentences.labels(row)
    return [(label, tuple(sentences.tokens[row][a:b].tolist())) for label, (a, b) in zip(labels, pairs, strict=True)]


@pytest.mark.parametrize(("least", "most"), [(1, 20), (1, 1), (4, 6), (500, 900)])
def test_spans_are_kept_that_so_many_other_passages_have(same: Prepared, least: int, most: int) -> None:
    sentences = same.corpus.sentences()
    had: dict[tuple[int, ...], set[int]] = {}
    for row in range(len(sentences)):
        for _, span in spans(sentences, row):
            had.setdefault(span, set()).add(int(sentences.origins[row]))
    found = only_recurring(sentences, [sentences], least, most, unknown=-1)
    kept = 0
    for row in range(len(sentences)):
        wanted = [
            each for each in spans(sentences, row) if least <= len(had[each[1]] - {int(sentences.origins[row])}) <= most
        ]
        assert spans(found, row) == wanted
        kept += len(wanted)
    assert (kept > 0) == (least < 500)
    kinds = np.array([spans(found, row)[0][0] if spans(found, row) else "none" for row in range(len(found))])
    assert np.array_equal(found.kinds(), kinds)
    assert np.array_equal(found.rows_with_spans(), np.flatnonzero(kinds != "none"))
    assert len(spans(sentences, 0)) == len(spans(same.corpus.sentences(), 0))  # the corpus itself is as it was


def test_a_span_with_an_unknown_word_is_in_no_other_passage(same: Prepared) -> None:
    sentences = same.corpus.sentences()
    kept = only_recurring(sentences, [sentences], 1, 500, unknown=-1)
    row = int(kept.rows_with_spans()[0])
    unknown = spans(kept, row)[0][1][0]
    found = only_recurring(sentences, [sentences], 1, 500, unknown=unknown)
    lost = [span for row in range(len(kept)) for span in spans(kept, row) if unknown in span[1]]
    assert len(lost) > 1
    left = [sum(len(spans(one, row)) for row in range(len(one))) for one in (found, kept)]
    assert left[0] == left[1] - len(lost)
