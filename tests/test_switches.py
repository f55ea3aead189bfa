"""Every parameter of model, warm_start, pretrain and finetune changes its own effect, and nothing else.

Each is one line of a table: another value (with the circumstances in which it matters), and the part of its stage that
moves; the rest stays bit-identical. A parameter without a line fails the test.
"""

import functools
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from realm_lab.engine.params.load import flatten
from realm_lab.engine.systems.identity import plan_run
from realm_lab.engine.systems.registry import PARTS
from realm_lab.records.plugins import load_object
from realm_lab.records.run import Flag
from tests import tiny
from tests.factories.switches import BACKEND, BOTH, OPTIONS, SHORT, SWITCHES

STAGES = ("warm_start", "pretrain", "finetune")
FELT = {"model": "warm_start", "warm_start": "warm_start", "pretrain": "pretrain", "finetune": "finetune"}
FELT_BEFORE = {
    "finetune.span_hidden_size": "warm_start"
}  # the span head draws its weights before the head of masked words


class Outcome(NamedTuple):
    """Files of a finished stage."""

    reader: dict[str, bytes]
    embedder: dict[str, bytes]
    metrics: list[dict[str, Any]]
    flags: tuple[Flag, ...]


def names() -> list[str]:
    return [name for name in flatten(tiny.params()) if name.split(".")[0] in FELT]


def test_every_parameter_has_a_switch() -> None:
    assert set(names()) == set(SWITCHES)
    options = {
        f"{parameter}: {name}.{option}"
        for parameter, kind in PARTS.items()
        if not parameter.startswith("corpus.")
        for name, plugin in load_object(parameter, kind).items()
        for option in (plugin.model.model_fields if plugin.model else ())
    }
    options = {name for name in options if not name.startswith(BACKEND)}  # of FAISS, whose every option is its own
    options -= {"finetune.objective: gated.threshold"}  # which is refused there
    assert options <= set(OPTIONS)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("switches")


@functools.cache
def _prepared(root: Path, corpus: tuple[tuple[str, Any], ...]) -> None:
    tiny.prepare(tiny.params(SHORT | dict(corpus)), root)


def outcome(root: Path, stage: str, change: dict[str, Any]) -> Outcome:
    """Return the files of `stage`; missing stages before it are run."""
    _prepared(root, tuple((key, value) for key, value in change.items() if key.startswith("corpus.")))
    chosen = tiny.params(SHORT | change)
    for before in STAGES[: STAGES.index(stage)]:
        tiny.run(before, chosen, root)
    run = tiny.run(stage, chosen, root)
    weights = {key: value for key, value in tiny.files(run.path / "model").items() if key.endswith(".safetensors")}
    reader, embedder = (
        {key: value for key, value in weights.items() if key.startswith(f"{part}/")} for part in ("reader", "embedder")
    )
    return Outcome(reader, embedder, tiny.metrics(run), run.status().flags)


def first_step(metrics: list[dict[str, Any]], phase: str) -> dict[str, Any]:
    """Losses and gradients of the first optimiser step of a phase: no rate has acted on them yet."""
    rows = [row for row in metrics if f"gradient_norm_{phase}" in row]
    return {key: value for key, value in rows[0].items() if "loss" in key or key.startswith("gradient_norm")}


ONE_OPTIMISER = "pretrain.reader."  # all sections of an optimiser go to one class
OF_OPTIMISER = (".warmup_steps", ".final_fraction", ".recipe")
CHECKED = [one for one in (*names(), *OPTIONS) if one.startswith(ONE_OPTIMISER) or not one.endswith(OF_OPTIMISER)]


@pytest.mark.slow
@pytest.mark.parametrize("name", CHECKED)
def test_a_switch_moves_what_it_names_and_nothing_else(root: Path, name: str) -> None:
    switch, name = (SWITCHES | OPTIONS)[name], name.partition(":")[0]
    stage = FELT_BEFORE.get(name, FELT[name.split(".")[0]])
    given = {key: value(root) if callable(value) else value for key, value in switch.base.items()}
    base = outcome(root, stage, given)
    value = switch.value(root) if callable(switch.value) else switch.value
    change = given | {name: value}
    before, after = (plan_run(tiny.params(SHORT | part), "realm", 0) for part in (given, change))
    earlier = STAGES[: STAGES.index(stage)]
    assert [before.stages[other] for other in earlier] == [after.stages[other] for other in earlier]
    observes = not set(switch.moves) & set(BOTH)  # then it is in no key, and the run is done elsewhere once more
    assert (before.stages[stage] == after.stages[stage]) == observes
    changed = outcome(root / "observed" if observes else root, stage, change)

    moved = {part for part in Outcome._fields if getattr(base, part) != getattr(changed, part)}
    assert moved & set(BOTH) == set(switch.moves) & set(BOTH)
    assert moved >= set(switch.moves)
    if observes:  # the run itself is the same to the bit
        assert moved - {"metrics", "flags"} == set()
    if switch.first_step:
        phase = "retriever" if ".retriever." in name else "reader"
        if stage == "warm_start":
            phase = "embedder" if ".embedder." in name else "reader"
        assert first_step(base.metrics, phase) == first_step(changed.metrics, phase)
