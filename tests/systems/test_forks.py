"""A fork continues the state of its parent: without a change it equals the parent to the bit."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from realm_lab.core.files import read_json, write_json
from realm_lab.core.plugins import import_plugins
from realm_lab.errors import UserError
from realm_lab.params.parameters import Params
from realm_lab.systems.forks import fork_of, parent_of, steps_of
from realm_lab.systems.identity import plan_run
from realm_lab.systems.registry import SYSTEMS, system_of
from realm_lab.tracking.code_record import NAME as CODE
from realm_lab.tracking.run_dir import StageRun
from realm_lab.training.pretrain import PretrainTask
from tests import tiny
from tests.whole import OPTIONS

STEP = 5
SHORT = {"warm_start.reader.steps": 2, "warm_start.embedder.steps": 2, "model.dropout": 0.1}
LINKED = {
    "path_retriever": {"steps": 8, "batch_size": 4, "negatives": 5, "first": 3},
    "graph_retriever": {"steps": 8, "batch_size": 4, "negatives": 5},
}
OWN = {"system_options": OPTIONS | LINKED | {name: OPTIONS[name] | {"denoise_steps": 8} for name in ("fid", "rag")}}
import_plugins()
FORKED = [name for name in sorted(SYSTEMS) if system_of(name).pretraining()]


def outcome(run: StageRun) -> Any:
    weights = {name: data for name, data in tiny.files(run.path).items() if name.endswith(".safetensors")}
    assert weights
    return weights, *tiny.outcome(run)[1:]


def stage_of(system: str) -> str:
    stage = system_of(system).pretraining()
    assert stage is not None
    return stage.name


def run_fork(system: str, params: Params, root: Path) -> StageRun:
    """Run the state of the parent, then the fork."""
    stage = stage_of(system)
    tiny.run(f"{stage}@{STEP}", params, root, system)
    return tiny.run(stage, params, root, system)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which the parents of all systems are run, from the start to the end of pre-training."""
    return tiny.prepare(tiny.params(SHORT), tmp_path_factory.mktemp("forks") / "whole")


def elsewhere(whole: Path, folder: Path, system: str) -> Path:
    """A project with the same first stages, and nothing of the pre-training."""
    shutil.copytree(whole, folder, ignore=shutil.ignore_patterns(f"{stage_of(system)}-*", f"{stage_of(system)}@*"))
    return folder


def expected(system: str, params: Params, root: Path) -> Any:
    for stage in system_of(system).stages:
        run = tiny.run(stage.name, params, root, system)
        if stage.name == stage_of(system):
            return outcome(run)


@pytest.mark.parametrize(
    "system", [pytest.param(name, marks=[] if name == "realm" else pytest.mark.slow) for name in FORKED]
)
def test_a_fork_that_changes_nothing_equals_its_parent(whole: Path, tmp_path: Path, system: str) -> None:
    params = tiny.params(SHORT | OWN)
    parent = expected(system, params, whole)
    fork = fork_of(params, params, STEP)
    root = elsewhere(whole, tmp_path / "forked", system)
    assert outcome(run_fork(system, fork, root)) == parent
    assert outcome(tiny.run(stage_of(system), params, root, system)) == parent, "the parent after its fork"
    assert plan_run(fork, system, 0).key(stage_of(system)) != plan_run(params, system, 0).key(stage_of(system))


@pytest.mark.slow
def test_a_state_of_other_code_is_not_continued(whole: Path, tmp_path: Path) -> None:
    params = tiny.params(SHORT)
    root = tiny.prepare(params, elsewhere(whole, tmp_path / "forked", "realm"), "warm_start")
    code = tiny.run(f"pretrain@{STEP}", params, root).path / CODE
    record = read_json(code)
    record["modules"]["realm_lab.training.pretrain"] = "0" * 64
    write_json(code, record)
    with pytest.raises(UserError, match="other code"):
        tiny.run("pretrain", fork_of(params, params, STEP), root)
    with tiny.steps_done(PretrainTask) as done:
        tiny.run("pretrain", params, root)
    assert done == list(range(steps_of(params, "realm"))), "its parent begins at its own start"


# A change -> parameters of the parent, and changes in the fork.
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "masking": ({}, {"pretrain.masking": "random_span", "pretrain.sentence_choice": "any"}),
    "never refreshed": ({}, {"pretrain.refresh.policy": "never"}),
    "a null vector": ({"pretrain.null_document": "off"}, {"pretrain.null_document": "learned"}),
    "a null vector no more": ({"pretrain.null_document": "learned"}, {"pretrain.null_document": "encoded"}),
    "a calibrated null document": ({"pretrain.calibrate_null": False}, {"pretrain.calibrate_null": True}),
    "learning rate, objective, steps": (
        {},
        {"pretrain.reader.learning_rate": 1e-3, "pretrain.objective": "emdr2", "pretrain.steps": 10},
    ),
}
SLOW = [pytest.param(change, marks=pytest.mark.slow) for change in list(CHANGES)[3:]]


@pytest.mark.slow
@pytest.mark.parametrize("change", [*list(CHANGES)[:3], *SLOW])
def test_a_fork_trains_with_its_change_from_its_step_on(whole: Path, tmp_path: Path, change: str) -> None:
    before, after = CHANGES[change]
    parent, child = tiny.params(SHORT | before), tiny.params(SHORT | before | after)
    fork = fork_of(child, parent, STEP)
    assert parent_of(fork) == parent
    root = elsewhere(whole, tmp_path / "forked", "realm")
    tiny.prepare(parent, root, "warm_start")
    with tiny.steps_done(PretrainTask) as done:
        run = run_fork("realm", fork, root)
    assert done == list(range(steps_of(fork, "realm"))), "every step once"
    shared = tiny.metrics(StageRun(next(run.path.parent.glob("pretrain@5-*")), "pretrain"))
    own = tiny.metrics(run)
    assert own[: len(shared)] == shared
    assert all(abs(row["loss"]) < 1000 for row in own if "loss" in row)
    again = elsewhere(root, tmp_path / "killed", "realm")  # killed in its second step, it ends in the same bits
    tiny.run(f"pretrain@{STEP}", fork, again)
    with tiny.steps_done(PretrainTask, killed_at=STEP + 1):
        tiny.run("pretrain", fork, again)
    assert outcome(tiny.run("pretrain", fork, again)) == outcome(run)


@pytest.mark.parametrize(
    ("system", "step", "change", "named"),
    [
        ("realm", 12, {}, "fork"),
        ("warm_start", 5, {}, "fork"),
        ("realm", 5, {"pretrain.batch_size": 5}, "pretrain.batch_size"),
        ("realm", 5, {"model.dropout": 0.5}, "model.dropout"),
        ("realm", 5, {"warm_start.reader.steps": 3}, "warm_start.reader.steps"),
        ("realm", 5, {"corpus.passage_length": 41}, "corpus.passage_length"),
        ("realm", 5, {"pretrain.search_query": "fresh"}, "pretrain.search_query"),
        ("rag", 2, {"system_options.rag.denoise_batch_size": 5}, "system_options.rag.denoise_batch_size"),
        (
            "closed_book",
            2,
            {"system_options.closed_book.corruption_steps": 9},
            "system_options.closed_book.corruption_steps",
        ),
    ],
)
def test_what_a_fork_cannot_change(system: str, step: int, change: dict[str, Any], named: str) -> None:
    parent = tiny.params(SHORT | OWN)
    with pytest.raises(UserError) as caught:
        plan_run(fork_of(tiny.params(SHORT | OWN | change), parent, step), system, 0)
    assert caught.value.parameter == named


def test_the_key_of_a_fork_is_that_of_its_parent_and_its_step() -> None:
    parent, child = tiny.params(), tiny.params({"pretrain.null_document": "off", "finetune.batch_size": 4})
    plans = [plan_run(fork_of(child, base, step), "realm", 0) for base in (parent, child) for step in (2, 3)]
    keys = [plan.key("pretrain") for plan in plans]
    assert len({*keys, plan_run(child, "realm", 0).key("pretrain")}) == 5
    assert {plan.key("warm_start") for plan in plans} == {plan_run(parent, "realm", 0).key("warm_start")}
    assert plans[1].key("pretrain@3") == plan_run(parent, "realm", 0).key("pretrain@3")
    rag = fork_of(tiny.params(OWN | {"system_options.rag.batch_size": 7}), tiny.params(OWN), 2)
    assert plan_run(rag, "rag", 0).continues is not None, "the batches of another stage may differ"
