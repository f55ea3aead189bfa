"""Changes during pre-training: from their step on, resumed to the bit, in the keys as far as they have an effect."""

import itertools
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from realm_lab.engine.params.parameters import Params
from realm_lab.engine.systems.context import Context
from realm_lab.engine.systems.identity import code_roots, plan_run
from realm_lab.engine.systems.registry import view_of
from realm_lab.engine.training import loop
from realm_lab.engine.training.pretrain import PretrainTask
from realm_lab.errors import UserError
from realm_lab.records.run import StageRun
from tests import tiny

STEP, CHANGES = 5, "pretrain.changes"
SHORT = {
    "warm_start.reader.steps": 2,
    "warm_start.embedder.steps": 2,
    "model.dropout": 0.1,
    "launch.checkpoint_interval_seconds": 1,
}


def changed(**changes: Any) -> dict[str, Any]:
    """Return parameters with these changes at STEP."""
    return SHORT | {CHANGES: {STEP: {name.replace("__", "."): value for name, value in changes.items()}}}


def key(given: dict[str, Any], stage: str = "pretrain", system: str = "realm") -> str:
    return plan_run(tiny.params(given), system, 0).key(stage)


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.prepare(tiny.params(SHORT), tmp_path_factory.mktemp("changes") / "warm", "warm_start")


@pytest.fixture(scope="module")
def unchanged(warm: Path) -> Any:
    return outcome(tiny.run("pretrain", tiny.params(SHORT), warm))


def outcome(run: StageRun) -> Any:
    """Return weights, metrics and results; the other files name the key."""
    weights = {name: data for name, data in tiny.files(run.path / "model").items() if name.endswith(".safetensors")}
    assert weights
    return weights, *tiny.outcome(run)[1:]


def killed(params: Params, root: Path, step: int) -> None:
    """Train with a checkpoint after every step, and kill the run when it is about to do `step`."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(loop, "time", SimpleNamespace(monotonic=itertools.count(step=100).__next__))
        with tiny.steps_done(PretrainTask, killed_at=step):
            tiny.run("pretrain", params, root)


def test_a_change_without_an_effect_moves_no_bit(warm: Path, unchanged: Any) -> None:
    given = changed(mask_rate=0.4)  # which salient masks ignore
    assert key(given) != key(SHORT)
    assert outcome(tiny.run("pretrain", tiny.params(given), warm)) == unchanged


EFFECTS: dict[str, dict[str, Any]] = {
    "masking": {"masking": "random_span"},
    "no refresh": {"refresh": {"policy": "never"}},
    "a null vector": {"null_document": "learned"},
    "a calibrated null document": {"calibrate_null": True},
    "learning rate and objective": {"reader__learning_rate": 1e-3, "objective": "emdr2"},
    "a reader that is not trained": {"train_reader": False, "candidates": 4},
}


@pytest.mark.parametrize(
    "effect", [pytest.param(name, marks=pytest.mark.slow if number else []) for number, name in enumerate(EFFECTS)]
)
def test_a_change_is_felt_from_its_step_on_and_resumed_to_the_bit(
    warm: Path, unchanged: Any, tmp_path: Path, effect: str
) -> None:
    params = tiny.params(changed(**EFFECTS[effect]))
    run = tiny.run("pretrain", params, warm)
    rows = tiny.metrics(run)
    before = [row for row in unchanged[1] if row["step"] <= STEP]
    assert [row for row in rows if row["step"] <= STEP] == before
    assert len(before) < len(rows)
    assert rows != unchanged[1]
    for step in (STEP, STEP + 2):  # a checkpoint of the task before, and one of the next
        root = tmp_path / str(step)
        shutil.copytree(warm, root, ignore=shutil.ignore_patterns("pretrain-*"))
        killed(params, root, step)
        with tiny.steps_done(PretrainTask) as done:
            again = tiny.run("pretrain", params, root)
        assert done == list(range(step, 12))
        assert tiny.outcome(again) == tiny.outcome(run)


def test_changes_follow_one_another(warm: Path, unchanged: Any) -> None:
    there_and_back = SHORT | {CHANGES: {3: {"masking": "random_token"}, 4: {"masking": "salient_span"}}}
    alone = SHORT | {CHANGES: {3: {"masking": "random_token"}}}
    rows = [tiny.metrics(tiny.run("pretrain", tiny.params(given), warm)) for given in (there_and_back, alone)]
    same = [[row for row in found if row["step"] <= 4] for found in rows]
    assert same[0] == same[1]
    assert rows[0] != rows[1]
    assert rows[0] != unchanged[1]


def test_only_what_a_change_does_is_in_the_key() -> None:
    base = key(SHORT)
    assert key(SHORT | {CHANGES: {}}) == base
    assert key(SHORT | {CHANGES: {12: {"candidates": 4}}}) == base, "after the last step"
    same = {"candidates": 6, "masking": {"name": "salient_span"}}
    assert key(SHORT | {CHANGES: {5: same}}) == base, "the values that they have"
    twice = {3: {"candidates": 4, "refresh.policy": "never"}, 7: {"candidates": 4}}
    once = {3: {"refresh": {"policy": "never"}, "candidates": 4}}
    assert key(SHORT | {CHANGES: twice}) == key(SHORT | {CHANGES: once}) != base
    assert key(SHORT | {CHANGES: {4: once[3]}}) not in (base, key(SHORT | {CHANGES: once}))
    assert key(changed(candidates=4), "warm_start") == key(SHORT, "warm_start")


def test_custom_code_of_a_change_is_in_key_and_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    source, found = tmp_path / "own_late_masks.py", []
    given = changed(masking="own_late_masks:first")
    for more in ("", "more = 1\n"):
        source.write_text(f"def first(request, generator):\n    return [1]\n{more}")
        found.append(key(given))
    assert found[0] != found[1]
    roots = code_roots(tiny.params(given), "realm")
    assert "own_late_masks" in roots["pretrain"]
    assert "own_late_masks" not in roots["warm_start"]


@pytest.mark.parametrize("system", ["realm", "warm_start"])
def test_later_stages_read_the_last_settings(tmp_path: Path, system: str) -> None:
    params, plain = tiny.params(changed(null_document="off")), tiny.params(SHORT | {"pretrain.null_document": "off"})
    views = [view_of(params, system, stage) for stage in ("finetune", "evaluate")]
    assert views[1].pretrain.null_document == "off"
    assert view_of(params, "realm", "pretrain").pretrain.null_document == "encoded"
    assert Context(plan_run(params, system, 0), tmp_path).params.pretrain.null_document == "off"
    if system == "warm_start":  # it has no pre-training: only how its utility is measured changes
        assert plan_run(params, system, 0).stages == plan_run(plain, system, 0).stages


@pytest.mark.parametrize(
    "changes",
    [
        {5: {"batch_size": 3}},
        {5: {"train_query_tower": False}},
        {5: {"recurring_spans": [1, 3]}},
        {5: {"maskin": "random_token"}},
        {5: {"model.dropout": 0.5}},
        {5: {"candidates": 1}},  # contradicts the null document
        {5: {"null_document": "off"}, 7: {"candidates": 1, "null_document": "learned"}},
        {0: {"candidates": 4}},
        {"five": {"candidates": 4}},
        {5: 4},
    ],
)
def test_what_cannot_change_is_refused(changes: Any) -> None:
    with pytest.raises(UserError) as caught:
        tiny.params({CHANGES: changes})
    assert CHANGES in str(caught.value)
