"""Every objective against a separate calculation in numpy: its value, its gradient, and its detached terms."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from realm_lab.contrib.objectives import Distillation
from realm_lab.engine.models.objectives import OBJECTIVES, Gate, Objective, training_objective
from realm_lab.engine.models.realm import candidate_log_probs, score_gradient
from realm_lab.engine.models.spans import NO_ANSWER
from realm_lab.records.plugins import Choice
from tests.factories.errors import refused

# Shapes: B examples, K candidates

NO_SCORE = -1.0e4
TEMPERATURE = 0.7
THRESHOLD = 1.5
RANDOM = {"reinforce", "jsa"}  # draw passages: for the mean of their gradients see test_exact_gradient.py
NAMES = sorted(OBJECTIVES.keys() - RANDOM)
# log p(z|x) and log p(y|z,x) of one example, then both again as detached terms, which stay if the first two move.
Formula = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], float]


def read_alike(reader: np.ndarray) -> float:
    return float(np.log(np.exp(reader).mean()))


def divergence(weights: np.ndarray, prior: np.ndarray) -> float:
    target = weights ** (1 / TEMPERATURE) / (weights ** (1 / TEMPERATURE)).sum()
    return sum(t * (np.log(t) - p) for t, p in zip(target, prior, strict=True))


def left_out(reader: np.ndarray) -> np.ndarray:
    """1 / p(y|x, Z without z), one passage after the other taken out."""
    return np.array([1 / np.exp(np.delete(reader, k)).mean() for k in range(len(reader))])


FORMULAS: dict[str, Formula] = {
    "marginal": lambda prior, reader, _, __: float(np.log((np.exp(prior) * np.exp(reader)).sum())),
    "emdr2": lambda prior, reader, _, still: read_alike(reader) + np.log((np.exp(prior) * np.exp(still)).sum()),
    "perplexity_distillation": lambda prior, reader, _, still: read_alike(reader) - divergence(np.exp(still), prior),
    "leave_one_out": lambda prior, reader, _, still: read_alike(reader) - divergence(left_out(still), prior),
    "hard_em": lambda prior, reader, _, __: float((prior + reader).max()),
    "gated": lambda prior, reader, still_prior, still: float(
        np.log((np.exp(prior if still.max() - still[0] > THRESHOLD else still_prior) * np.exp(reader)).sum())
    ),
}


def draw(seed: int = 0) -> tuple[Tensor, Tensor]:
    """log p(z|x) and log p(y|z,x) of 3 examples and 5 candidates, float64 leaves."""
    generator = torch.Generator().manual_seed(seed)
    score_BK, reader_BK = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64).unbind()
    return candidate_log_probs(2 * score_BK).requires_grad_(), (-3 * reader_BK.abs()).requires_grad_()


def objective(name: str, temperature: float = TEMPERATURE) -> Objective:
    takes, options = OBJECTIVES[name].model, dict[str, float]()
    if takes is Distillation:
        options = {"temperature": temperature}
    elif takes is Gate:
        options = {"threshold": THRESHOLD}
    return training_objective("pretrain.objective", Choice(name, options))


def gradients(name: str, prior_BK: Tensor, reader_BK: Tensor) -> tuple[Tensor, Tensor]:
    value = objective(name)(prior_BK, reader_BK).sum()
    of_prior_BK, of_reader_BK = torch.autograd.grad(value, (prior_BK, reader_BK))
    return of_prior_BK, of_reader_BK


@pytest.mark.parametrize("name", NAMES)
def test_value_and_gradient_are_those_of_the_formula(name: str) -> None:
    """Compute the gradient by central differences with the detached terms held fixed: a missing detach would differ."""
    prior_BK, reader_BK = draw()
    value_B = objective(name)(prior_BK, reader_BK)
    found = gradients(name, prior_BK, reader_BK)
    for b, still in enumerate(zip(prior_BK.detach().numpy(), reader_BK.detach().numpy(), strict=True)):
        assert value_B[b].item() == pytest.approx(FORMULAS[name](*still, *still), abs=1e-12)
        for moves in (0, 1):
            for k in range(5):
                up, down = ([part.copy() for part in still] for _ in range(2))
                up[moves][k] += 1e-6
                down[moves][k] -= 1e-6
                slope = (FORMULAS[name](up[0], up[1], *still) - FORMULAS[name](down[0], down[1], *still)) / 2e-6
                assert found[moves][b, k].item() == pytest.approx(slope, abs=1e-8)


def test_a_gated_sentence_trains_the_reader_alone() -> None:
    """The best candidates of the three sentences add 0.3, 1.6 and 0 nats. An empty column that reads well does not
    count. The comparison is with the null document, even if it has no share of p(z|x)."""
    reader_BK = torch.tensor([[-4.0, -3.7, -6.0, -0.1], [-4.0, -9.0, -2.4, -0.1], [-1.0, -2.0, -3.0, -0.1]]).double()
    for null in (0.0, NO_SCORE):
        score_BK = torch.tensor([[null, 1.0, -1.0, NO_SCORE]] * 3).double().requires_grad_()
        of_reader_BK = reader_BK.clone().requires_grad_()
        found, expected = (
            torch.autograd.grad(
                objective(name)(candidate_log_probs(score_BK), of_reader_BK).sum(), (score_BK, of_reader_BK)
            )
            for name in ("gated", "marginal")
        )
        prior_BK = candidate_log_probs(score_BK.detach())
        appendix_a_BK = score_gradient(prior_BK, reader_BK)  # r(z)
        torch.testing.assert_close(found[0], appendix_a_BK * torch.tensor([[0.0], [1.0], [0.0]]), atol=1e-12, rtol=0)
        assert appendix_a_BK.abs().amax(1).min() > 0.05
        assert torch.equal(found[1], expected[1])


@pytest.mark.parametrize("empty", [NO_SCORE, -torch.inf])
@pytest.mark.parametrize("name", NAMES)
def test_a_place_without_a_candidate_counts_for_nothing(name: str, empty: float) -> None:
    """One of two empty columns reads well; the null document in the first column is a candidate like any other."""
    generator = torch.Generator().manual_seed(2)
    score_BK, reader_BK = torch.randn(2, 3, 4, generator=generator, dtype=torch.float64).unbind()
    whole_BK = torch.cat([score_BK, torch.full((3, 2), empty)], 1).requires_grad_()
    reader_whole_BK = torch.cat([reader_BK, torch.tensor([[-0.01, -5.0]] * 3)], 1).double().requires_grad_()
    few_BK, reader_few_BK = score_BK.clone().requires_grad_(), reader_BK.clone().requires_grad_()
    value_B = objective(name)(candidate_log_probs(whole_BK), reader_whole_BK)
    expected_B = objective(name)(candidate_log_probs(few_BK), reader_few_BK)
    torch.testing.assert_close(value_B, expected_B, atol=1e-12, rtol=0)
    found = torch.autograd.grad(value_B.sum(), (whole_BK, reader_whole_BK))
    expected = torch.autograd.grad(expected_B.sum(), (few_BK, reader_few_BK))
    for whole, few in zip(found, expected, strict=True):
        torch.testing.assert_close(whole[:, :4], few, atol=1e-12, rtol=0)
        assert torch.equal(whole[:, 4:], torch.zeros(3, 2, dtype=torch.float64))
    turned_B = objective(name)(candidate_log_probs(few_BK).flip(1), reader_few_BK.flip(1))
    torch.testing.assert_close(turned_B, expected_B, atol=1e-12, rtol=0)


@pytest.mark.parametrize("temperature", [0.001, 1000.0])
@pytest.mark.parametrize("name", sorted(OBJECTIVES))
def test_one_candidate_and_passages_without_the_answer_make_no_nan(name: str, temperature: float) -> None:
    score_BK = torch.tensor([[0.0, 1.0, 2.0], [0.0, NO_SCORE, NO_SCORE]], requires_grad=True)
    reader_BK = torch.tensor([[NO_ANSWER, -1.5, NO_ANSWER], [-1.5, -0.1, NO_ANSWER]], requires_grad=True)
    value_B = objective(name, temperature)(candidate_log_probs(score_BK), reader_BK)
    assert value_B.isfinite().all()
    assert value_B[1].item() == pytest.approx(-3.0 if name == "emdr2" else -1.5)
    for gradient in torch.autograd.grad(value_B.sum(), (score_BK, reader_BK)):
        assert gradient.isfinite().all()
    alone = objective(name, temperature)(torch.zeros(1, 1), torch.full((1, 1), -2.0))
    assert alone.item() == pytest.approx(-4.0 if name == "emdr2" else -2.0)


OWN = """
def best(log_prior_BK, log_reader_BK):
    return (log_prior_BK + log_reader_BK).amax(1)

def one_number(log_prior_BK, log_reader_BK):
    return log_reader_BK.sum()

def wrong(log_prior_BK, log_reader_BK):
    return log_reader_BK.most(1)

def cold(log_prior_BK):
    return log_reader_BK.amax(1)
"""


def test_an_objective_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_objective_of_test.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    best, number, wrong = (
        training_objective("pretrain.objective", Choice(f"own_objective_of_test:{name}"))
        for name in ("best", "one_number", "wrong")
    )
    given = draw()
    assert torch.equal(best(*given), objective("hard_em")(*given))
    with refused("()", "[3]"):
        number(*given)
    with refused("AttributeError", "own_objective_of_test.py, line 9"):
        wrong(*given)
    with refused("cold'", "(log_prior_BK)"):
        training_objective("finetune.objective", Choice("own_objective_of_test:cold"))


def test_the_objective_of_the_docs_draws_the_retriever_to_the_best_passage() -> None:
    text = (Path(__file__).parents[2] / "docs/extending.md").read_text()
    code = next(block for block in text.split("```python\n") if "my_objective" in block).partition("```")[0]
    docs: dict[str, Any] = {"__name__": "docs"}
    exec(code, docs)
    prior_BK, reader_BK = draw()
    more_B = docs["sharpened"](prior_BK, reader_BK, docs["Sharpness"](temperature=2.0))
    more_B = more_B - objective("marginal")(prior_BK, reader_BK)
    torch.testing.assert_close(2 * more_B, prior_BK[range(3), reader_BK.argmax(1)])


def test_a_broken_reader_is_not_hidden() -> None:
    """A broken reader's loss must not be finite, since only then the optimiser makes no step (optimiser.py)."""
    prior_BK, reader_BK = (part.detach() for part in draw())
    reader_BK[0, 1] = torch.nan
    for name in NAMES:
        assert not objective(name)(prior_BK, reader_BK)[0].isfinite()
