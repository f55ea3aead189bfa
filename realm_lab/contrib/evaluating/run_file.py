"""TREC run files: retrieved passages of the test questions, for ir-measures, ranx, trec_eval or Pyserini."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import quote

import numpy as np

from realm_lab.engine.systems.asked import AskedQuestions
from realm_lab.engine.systems.context import Context
from realm_lab.errors import UserError
from realm_lab.records.files import atomic_write

DEPTH = 100  # passages per question; papers on open-domain questions count no more


def write_run_file(context: Context, path: Path) -> int:
    """Write `QID Q0 DOCID RANK SCORE TAG` lines of the run's test questions; returns the number of questions.

    Blanks in ids are percent-encoded. Tools sort by score and break ties differently: a score that is not
    below the one before is written as the next smaller float32, so that all of them keep this order. UserError:
    there are no test questions, the run is not finished, or its system retrieves no passages.
    """
    test = AskedQuestions.of_split(context, "test")
    if not len(test):
        raise UserError("no test questions in the prepared corpus; name them in corpus.files.questions_test")
    rows_QK, scores_QK = context.system.retrieve(test.texts, DEPTH)
    passages, tag = context.passages, context.run.name
    with atomic_write(path) as file:
        for identity, rows, scores in zip(test.ids, rows_QK, scores_QK, strict=True):
            below = np.float32(np.inf)
            for rank, (row, score) in enumerate(zip(rows[rows >= 0], scores[rows >= 0], strict=True), 1):
                below = min(np.float32(score), np.nextafter(below, np.float32(-np.inf)))
                file.write(f"{_plain(identity)} Q0 {_plain(passages.id_of(row))} {rank} {below:.9g} {tag}\n")
    return len(test)


def _plain(identity: str) -> str:
    """Percent-encode blanks and % in an id; different ids stay different."""
    return re.sub(r"[\s%]", lambda found: quote(found[0]), identity)
