"""Cells from axes: one at a time, products, exclusions, names and titles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from realm_lab.errors import UserError
from realm_lab.runner.design import Cell, cells_of
from realm_lab.runner.plan import StudyPlan
from realm_lab.runner.study import load_study

AXES = """
axes:
  pretrain.candidates: [4, 6, 8]
  refresh:
    often: {pretrain.refresh.interval_steps: 5}
    never: {pretrain.refresh.policy: never}
"""
BASE = "baseline: {pretrain.candidates: 6, refresh: often}\n"


@pytest.fixture
def cells(write: Callable[..., Path]) -> Callable[[str], list[Cell]]:
    return lambda text: cells_of(load_study(write(text)))


def test_one_at_a_time_moves_one_axis_and_leaves_the_others_at_the_baseline(
    cells: Callable[[str], list[Cell]],
) -> None:
    found = {cell.name: cell.overrides for cell in cells(BASE + AXES)}
    often = {"pretrain.refresh.interval_steps": 5}
    assert found == {
        "baseline": {"pretrain.candidates": 6, **often},
        "candidates=4": {"pretrain.candidates": 4, **often},
        "candidates=8": {"pretrain.candidates": 8, **often},
        "never": {"pretrain.candidates": 6, "pretrain.refresh.policy": "never"},
    }


def test_a_product_has_every_combination_the_baseline_first(cells: Callable[[str], list[Cell]]) -> None:
    found = cells(BASE + AXES + "mode: product\n")
    assert [cell.name for cell in found] == [
        "candidates=6,often",
        "candidates=4,often",
        "candidates=4,never",
        "candidates=6,never",
        "candidates=8,often",
        "candidates=8,never",
    ]
    assert found[2].overrides == {"pretrain.candidates": 4, "pretrain.refresh.policy": "never"}
    assert found[2].title == "candidates = 4, never"
    assert found[0].changes == {}
    assert found[2].changes == {"pretrain.candidates": 4, "pretrain.refresh.policy": "never"}


def test_exclusions_leave_combinations_out(cells: Callable[[str], list[Cell]]) -> None:
    rules = "exclude: [{refresh: never, pretrain.candidates: [4, 8]}]\nmode: product\n"
    assert [cell.name for cell in cells(BASE + AXES + rules)] == [
        "candidates=6,often",
        "candidates=4,often",
        "candidates=6,never",
        "candidates=8,often",
    ]


def test_cells_beside_axes_change_the_baseline(cells: Callable[[str], list[Cell]]) -> None:
    more = "cells:\n  warm: {system: warm_start}\n  token: {set: {pretrain.masking: random_token}}\n"
    found = {cell.name: cell for cell in cells(BASE + AXES + more)}
    assert found["warm"].system == "warm_start"
    assert found["warm"].title == "warm start only"
    assert found["token"].overrides == {**found["baseline"].overrides, "pretrain.masking": "random_token"}
    assert found["token"].title == "masking = random_token"


def test_axes_may_vary_around_a_named_cell(planned: Callable[..., StudyPlan]) -> None:
    """tiny.yaml has 6 candidates: that point is the baseline, not another cell."""
    plan = planned("baseline: all\ncells:\n  all: {title: everything}\naxes:\n  pretrain.candidates: [4, 6]\n")
    assert [cell.name for cell in plan.cells] == ["all", "candidates=4"]
    assert plan.cells[1].changes == {"pretrain.candidates": 4}


def test_a_point_may_have_a_title(cells: Callable[[str], list[Cell]]) -> None:
    text = """
    baseline: {rate: low}
    axes:
      rate:
        low: {title: a low rate, set: {pretrain.retriever.learning_rate: 1.0e-4}}
        very_high: {pretrain.retriever.learning_rate: 1.0e-2}
      """
    found = cells(text)
    assert [(cell.name, cell.title) for cell in found] == [("low", "a low rate"), ("very_high", "very high")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("baseline: {refresh: often}\n" + AXES, "no point of axis 'pretrain.candidates'; add one"),
        (
            "baseline: {refresh: oftn, pretrain.candidates: 6}\n" + AXES,
            "'oftn' is no point of axis 'refresh'; the nearest",
        ),
        ("baseline: {refesh: often}\n" + AXES, "'refesh' is no axis; the nearest one is 'refresh'"),
        (BASE + AXES + "exclude: [{refresh: nevr}]\n", "'nevr' is no point of axis 'refresh'; the nearest is 'never'"),
        (BASE + AXES + "exclude: [{refrsh: never}]\n", "exclude: 'refrsh' is no axis; the nearest one is 'refresh'"),
        (
            BASE + AXES + "exclude: [{refresh: never, pretrain.candidates: 4}]\n",
            "exclude: {refresh: never, pretrain.candidates: 4} matches no cell",
        ),
        (BASE + AXES + "exclude: [{refresh: often}]\nmode: product\n", "this leaves out the baseline"),
        (BASE + AXES + "exclude: [{}]\n", "an empty rule would leave out every cell"),
        ("baseline: {pretrain.steps: 5}\naxes: {pretrain.steps: []}\n", "axis 'pretrain.steps' has no points"),
        ("baseline: {pretrain.steps: 5}\naxes: {pretrain.steps: [5, 5]}\n", "point '5' is there twice"),
        ("baseline: {pretrain.step: 5}\naxes: {pretrain.step: [5]}\n", "unknown parameter 'pretrain.step'"),
        (
            "baseline: {refresh: a}\naxes: {refresh: [{pretrain.steps: 5}]}\n",
            "a point that sets parameters needs a name",
        ),
        ("baseline: {launch.ranks: 1}\naxes: {launch.ranks: [1, 2]}\n", "changes no result"),
        (
            "baseline: {a: x, b: y}\naxes: {a: {x: {pretrain.steps: 5}}, b: {y: {pretrain.steps: 6}}}\n",
            "axes 'a' and 'b' both set 'pretrain.steps'",
        ),
        (BASE + AXES + "cells: {never: {system: warm_start}}\n", "two cells are named 'never'"),
        ("baseline: a b\ncells: {a b: {}}\n", "cell 'a b': use letters, digits"),
        ("baseline: {a: x}\naxes: {a: {x: {}, y z: {pretrain.steps: 6}}}\n", "cannot name a cell"),
    ],
)
def test_a_wrong_design_is_refused(cells: Callable[[str], list[Cell]], text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        cells(text)
    assert message in str(caught.value)
    assert ", line " in str(caught.value)


def test_the_baselines_points_win_over_what_the_study_sets(cells: Callable[[str], list[Cell]]) -> None:
    """A moved axis gives back what the study sets for all cells."""
    text = """
    set: {pretrain.steps: 9}
    baseline: {a: short}
    axes:
      a:
        short: {pretrain.steps: 5}
        rate: {pretrain.retriever.learning_rate: 1.0e-4}
    """
    found = {cell.name: cell.overrides for cell in cells(text)}
    assert found["short"] == {"pretrain.steps": 5}
    assert found["rate"] == {"pretrain.steps": 9, "pretrain.retriever.learning_rate": 1e-4}
