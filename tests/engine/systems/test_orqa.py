"""ORQA: the early loss over the whole toy corpus and one softmax over all spans, by definition."""

import numpy as np
import pytest

from realm_lab.engine.core.seeding import EpochOrder
from realm_lab.engine.systems.identity import plan_run
from realm_lab.engine.systems.registry import System
from tests import tiny
from tests.whole import Whole


@pytest.fixture(scope="module")
def system(whole: Whole) -> System:
    assert whole.results("orqa")["questions"] == 12
    return whole.context("orqa").system


def test_the_loss_of_its_first_step_is_that_of_the_equations(system: System) -> None:
    """The early loss once more in numpy: the share of a softmax over all passages that holds the answer."""
    context = system.context
    questions, passages = context.corpus.questions("train"), context.passages
    batch = EpochOrder(len(questions), 0, "finetune-questions").take(0, context.params.finetune.batch_size).tolist()
    size = len(passages)
    rows_BN, score_BN = system.before_finetuning().retrieve([questions.texts[n] for n in batch], size)
    bodies = [f" {passages.text.row(row)['body'].lower()} " for row in range(size)]
    losses = []
    for number, rows, scores in zip(batch, rows_BN, score_BN.astype(np.float64), strict=True):
        answers = [f" {answer.lower()} " for answer in questions.answers[number]]
        held = np.array([any(answer in bodies[row] for answer in answers) for row in rows])
        shares = np.exp(scores - scores.max())
        losses.append(-np.log(shares[held].sum() / shares.sum()))
    first = context.stage("finetune").metrics.rows()[0]
    assert system.params.finetune.softmax == "joint"
    assert first["early_answerable_fraction"] == 1.0
    assert first["loss_early"] == pytest.approx(np.mean(losses), rel=1e-4)
    assert first["loss"] == pytest.approx(first["loss_early"] + first["loss_reader"])


def test_it_answers_and_shares_the_warm_start(whole: Whole, system: System, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(whole.ask("orqa", capsys)["candidates"]) == 5
    keys = {name: plan_run(tiny.params(), name, 0) for name in ("orqa", "warm_start")}
    assert keys["orqa"].key("warm_start") == keys["warm_start"].key("warm_start")
    assert keys["orqa"].key("finetune") != keys["warm_start"].key("finetune")
