"""Print the recall@5 of BM25 for the training questions of real_answers_bm25.yaml, over k1, b and the weight of titles.

realm-lab prepare --preset real --set corpus.files.max_articles=8
python -m experiments.bm25_constants
"""

from __future__ import annotations

import itertools
from pathlib import Path

from realm_lab.engine.systems.asked import AskedQuestions
from realm_lab.engine.systems.bm25_options import Bm25Options
from realm_lab.engine.systems.context import Context
from realm_lab.lab.plan import plan_study

GRID = {
    "k1": (0.3, 0.6, 0.9, 1.2, 1.6, 2.0),
    "b": (0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8),
    "title_weight": (0.25, 1, 2, 4, 8, 16),
}


def main() -> None:
    all_questions = {"evaluate.questions": 10**6}
    plan = plan_study(Path("experiments/real_answers_bm25.yaml"), Path(), overrides=all_questions)
    context = Context(plan.runs[0], Path())
    questions = AskedQuestions.of_split(context, "train")
    found = []
    for values in itertools.product(*GRID.values()):
        options = Bm25Options(**dict(zip(GRID, values, strict=True)))
        retrieved = context.bm25.with_options(options).search(questions.texts, 5)
        found.append((questions.recalls(retrieved.rows_QK)[0]["recall_at_5"], options))
    print(f"{len(questions)} questions")
    for recall, options in sorted(found, key=lambda pair: -pair[0]):
        print(f"{recall:.4f} {options!r}")


if __name__ == "__main__":
    main()
