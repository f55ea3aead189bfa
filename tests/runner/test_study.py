"""A study file that is wrong is refused with the line and the remedy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from realm_lab.errors import UserError
from realm_lab.runner.plan import plan_study
from realm_lab.runner.study import CHOSEN_BY, METRICS, Budget, CellEntry, Study, Tune, load_study
from tests.runner.conftest import PARAMETERS

Write = Callable[..., Path]
GOOD = "baseline: a\ncells:\n  a:\n  b: {set: {pretrain.candidates: 5}}\n"


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        plan_study(path, path.parent, params_path=PARAMETERS)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(f"{path.parent}/", "")


REFUSALS = [
    # keys
    (GOOD + "cell: {}\n", 7, "unknown key 'cell'; the nearest valid one is 'cells'"),
    (GOOD + "name: other\n", 7, "unknown key 'name'"),
    ("baseline: a\ncells:\n  a: {titel: A}\n", 5, "unknown key 'titel' of cells.a; the nearest valid one is 'title'"),
    ("baseline: a\ncells:\n  a:\n    system: ict\n", 6, "input should be 'realm' or 'warm_start' (given: 'ict')"),
    ("baseline: a\ncells:\n  a:\n  a: {system: warm_start}\n", 6, 'duplicate key "a"; keep one of the two'),
    (GOOD + "mode: grid\n", 7, "mode: input should be 'one_at_a_time' or 'product' (given: 'grid')"),
    (GOOD + "preset: toi\n", 7, "preset 'toi' is not one of toy, smoke, real, paper; did you mean 'toy'?"),
    (GOOD + "launcher: {slrum: {}}\n", 7, "unknown launcher 'slrum'; choose inline, local, slurm"),
    (GOOD + "metrics: [exact_match, recall_at5]\n", 7, "unknown metric 'recall_at5'; the nearest one is 'recall_at_5'"),
    (GOOD + "metrics: [f1, f1]\n", 7, "'f1' is named twice"),
    (GOOD + "budget: {device_hours: 0}\n", 7, "input should be greater than 0 (given: 0)"),
    (GOOD + "budget: {hours: 3}\n", 7, "unknown key 'hours' of budget; the nearest valid one is 'device_hours'"),
    # parameters
    (
        "baseline: a\ncells:\n  a:\n  b:\n    set:\n      pretrain.candidate: 5\n",
        8,
        "unknown parameter 'pretrain.candidate'; the nearest valid one is 'pretrain.candidates'",
    ),
    (
        GOOD + "set: {pretrain.step: 5}\n",
        7,
        "unknown parameter 'pretrain.step'; the nearest valid one is 'pretrain.steps'",
    ),
    (GOOD + "set: {pretrain.refresh: never}\n", 7, "'pretrain.refresh' is a section; name a parameter in it"),
    (GOOD + "set: {pretrain.steps: {a: 1}}\n", 7, "parameter 'pretrain.steps' is a value, not a section"),
    (GOOD + "set: {pretrain.steps: 5, pretrain: {steps: 6}}\n", 7, "parameter 'pretrain.steps' is set twice"),
    (GOOD + "set: {seeds: [1]}\n", 7, "use the study's own key 'seeds'"),
    (GOOD + "set: {preset: toy}\n", 7, "use the study's own key 'preset'"),
    ("baseline: a\ncells:\n  a:\n  b: {set: {launch.ranks: 2}}\n", 6, "move it to the study's 'set'"),
    ("baseline: a\ncells:\n  a:\n  b: {set: {seeds: [3]}}\n", 6, "use the study's own key 'seeds'"),
    (
        "baseline: a\ncells:\n  a:\n  b: {set: {pretrain.candidates: many}}\n",
        6,
        "cell 'b': parameter 'pretrain.candidates': input should be a valid integer",
    ),
    (GOOD + "set: {pretrain.batch_size: 0}\n", 7, "parameter 'pretrain.batch_size': input should be greater than"),
    (
        "baseline: a\ncells:\n  a:\n  b:\n    set:\n      finetune.steps: 9\n      pretrain.candidates: 1\n",
        9,
        "cell 'b': parameter 'pretrain': candidates must be at least 2 when the null document takes one place",
    ),
    # baseline
    ("cells:\n  a:\n", None, "'baseline' is missing; name the cell that the others are compared with"),
    ("baseline: c\ncells:\n  aa:\n", 3, "baseline: 'c' is no cell; the nearest one is 'aa'"),
    ("baseline: c\n", 3, "baseline: 'c' is no cell; add cells or axes"),
    ("baseline: {pretrain.steps: 5}\ncells:\n  a:\n", 3, "points are for axes and there are none"),
    ("baseline: [a]\ncells:\n  a:\n", 3, "baseline:"),
    # overlaps
    ("baseline: a\ncells:\n  a:\n  b:\n", 6, "cells 'a' and 'b' are the same run: they set the same parameters"),
    (
        "baseline: a\ncells:\n  a: {system: warm_start}\n"
        "  b: {system: warm_start, set: {pretrain.initial_reader: scratch}}\n",
        6,
        "parameters that matter to no stage of the run (pretrain.initial_reader is warm_start and scratch)",
    ),
]


@pytest.mark.parametrize(("text", "line", "message"), REFUSALS)
def test_a_wrong_file_is_refused(write: Write, text: str, line: int | None, message: str) -> None:
    found = refusal(write(text))
    assert found.startswith("study.yaml: " if line is None else f"study.yaml, line {line}: "), found
    assert message in found


@pytest.mark.parametrize(
    ("seeds", "message"),
    [
        ("seeds: []", "seeds: list should have at least 1 item"),
        ("seeds: [0, 1, 0]", "seeds: 0 is named twice; name each seed once"),
        ("seeds: [0, -1]", "seeds.1: input should be greater than or equal to 0 (given: -1)"),
        ("seeds: [0.5]", "seeds.0: input should be a valid integer"),
        ("seeds: [true]", "seeds.0: input should be a valid integer"),
        ("seeds: 3", "seeds: input should be a valid list (given: 3)"),
        ("", "'seeds' is missing; list the seeds, such as [0, 1, 2, 3, 4, 5]"),
    ],
)
def test_wrong_seeds_are_refused(write: Write, seeds: str, message: str) -> None:
    assert message in refusal(write(GOOD, head=f"question: q\n{seeds}\n"))


def test_a_study_that_is_not_there_names_the_nearest(write: Write, tmp_path: Path) -> None:
    write(GOOD, "masking")
    assert "did you mean masking.yaml?" in refusal(tmp_path / "maskin.yaml")


def test_a_good_file_is_read_with_plain_values(write: Write) -> None:
    study = load_study(write(GOOD + "set: {pretrain: {reader: {learning_rate: 1.0e-3}}}\n", "mine"))
    assert (study.name, study.question, study.seeds) == ("mine", "Does it matter?", [0, 1])
    assert study.cells["a"] == CellEntry()
    rate = study.set["pretrain"]["reader"]["learning_rate"]
    assert type(rate) is float
    assert rate == 1e-3


def test_every_key_is_explained_on_the_page_in_the_words_of_the_model(repository: Path) -> None:
    page = (repository / "docs" / "studies.md").read_text(encoding="utf-8")
    for model in (Study, CellEntry, Budget, Tune):
        for name, field in model.model_fields.items():
            assert f"| `{name}` | {' '.join((field.description or '').split())} |" in page, f"{model.__name__}.{name}"
    assert all(f"`{metric}`" in page for metric in (*METRICS, *CHOSEN_BY))
