"""The pre-training task: micro-batches, recomputing, reader first, and an index that nothing moves."""

from __future__ import annotations

import itertools
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from realm_lab.core.files import read_json
from realm_lab.errors import UserError
from realm_lab.retrieval.retriever import Retriever
from realm_lab.training.objective import RealmObjective
from realm_lab.training.reader_probe import ReaderProbe

SHORT = {"pretrain.steps": 3, "evaluate.interval_steps": 3, "pretrain.refresh.interval_steps": 1}


@pytest.fixture(scope="module")
def line(tiny: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a warm start."""
    root: Path = tiny.prepare(tiny.params(), tmp_path_factory.mktemp("pretrain"))
    tiny.run("warm_start", tiny.params(), root)
    return root


def outcome(
    tiny: ModuleType, line: Path, changes: dict[str, Any], again: bool = True
) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Weights and metrics of a short pre-training; what `launch` says is no part of its key, so it is done again."""
    chosen = tiny.params(SHORT | changes)
    folder = tiny.stage_run("pretrain", chosen, line).path
    if again and folder.exists():
        (folder / "status.json").unlink(missing_ok=True)
        (folder / "results.json").unlink(missing_ok=True)
    run = tiny.run("pretrain", chosen, line)
    tensors = {
        f"{path.parent.name}/{path.stem}/{name}": value
        for path in sorted((run.path / "model").rglob("*.safetensors"))
        for name, value in load_file(path).items()
    }
    return tensors, tiny.metrics(run)


def losses(rows: list[dict[str, Any]]) -> list[float]:
    return [row["loss"] for row in rows if "loss" in row]


@pytest.mark.parametrize("marginal", ["example", "token"])
@pytest.mark.parametrize("micro_batch", [1, 3])
def test_a_micro_batch_changes_no_number(
    tiny: ModuleType, line: Path, monkeypatch: pytest.MonkeyPatch, micro_batch: int, marginal: str
) -> None:
    """Four sentences a step; several masks a sentence, so that the two normalisers differ."""
    changes = {"pretrain.marginal": marginal, "pretrain.masking": "random_token"}
    whole, rows = outcome(tiny, line, changes)
    sizes = []
    called = RealmObjective.__call__

    def noted(self: RealmObjective, sentences: Any, *others: Any, **named: Any) -> Any:
        sizes.append(len(sentences))
        return called(self, sentences, *others, **named)

    monkeypatch.setattr(RealmObjective, "__call__", noted)
    parts, part_rows = outcome(tiny, line, changes | {"launch.micro_batch": micro_batch})
    assert sizes == {1: [1, 1, 1, 1], 3: [3, 1]}[micro_batch] * 3
    assert losses(part_rows) == pytest.approx(losses(rows), rel=1e-5)
    for name, value in whole.items():
        torch.testing.assert_close(parts[name], value, rtol=1e-3, atol=2e-5)
    for metric in ("candidate_entropy", "marginal_log_likelihood", "retrieval_utility_train"):
        found, expected = ([row[metric] for row in each if metric in row] for each in (part_rows, rows))
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_recomputing_changes_no_bit(tiny: ModuleType, line: Path) -> None:
    held, rows = outcome(tiny, line, {"model.dropout": 0.1, "pretrain.initial_reader": "scratch"} | COLD)
    again, again_rows = outcome(
        tiny, line, {"model.dropout": 0.1, "pretrain.initial_reader": "scratch", "launch.recompute": True} | COLD
    )
    assert losses(again_rows) == losses(rows)
    assert all(torch.equal(again[name], value) for name, value in held.items())


COLD = {"pretrain.initial_retriever": "scratch"}


def test_a_held_retriever_does_not_move_and_its_schedule_begins_with_its_release(tiny: ModuleType, line: Path) -> None:
    held, rows = outcome(tiny, line, {"pretrain.hold_retriever_steps": 2})
    rates = {row["step"]: row.get("learning_rate_retriever") for row in rows if "loss" in row}
    assert rates[1] is None
    assert rates[2] is None
    assert rates[3] == pytest.approx(5e-4 / 4)  # the first of four steps of its warm-up
    assert [row["retriever_held"] for row in rows if "retriever_held" in row] == [1.0]  # at the start; not at the end
    moved, _ = outcome(tiny, line, {})
    assert not torch.equal(
        held["embedder/projections/query_projection.weight"], moved["embedder/projections/query_projection.weight"]
    )


@pytest.mark.parametrize(("utilities", "first"), [([-1.0, 0.0, 0.5], 3), ([0.1], 1), ([-1.0, -1.0, -1.0], None)])
def test_the_retriever_waits_until_it_is_useful(
    tiny: ModuleType, line: Path, monkeypatch: pytest.MonkeyPatch, utilities: list[float], first: int | None
) -> None:
    asked = iter(utilities)
    monkeypatch.setattr(ReaderProbe, "retrieved_utility", lambda *_: next(asked))
    changes = {"pretrain.hold_retriever_until_useful": True, "pretrain.watch.interval_steps": 1}
    _, rows = outcome(tiny, line, changes)
    learning = [row["step"] for row in rows if "learning_rate_retriever" in row]
    assert learning == ([] if first is None else list(range(first, 4)))


def test_waiting_for_usefulness_needs_held_out_sentences(
    tiny: ModuleType, line: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("realm_lab.corpus.store.Sentences.__len__", lambda self: 0)
    with pytest.raises(UserError, match=r"'pretrain.hold_retriever_until_useful': this corpus has no held-out"):
        outcome(tiny, line, {"pretrain.hold_retriever_until_useful": True, "pretrain.batch_size": 3})


@pytest.mark.parametrize(
    ("changes", "built"), [({}, 3), ({"train_document_tower": False}, 1), ({"hold_retriever_steps": 2}, 1)]
)
def test_an_index_behind_which_nothing_moves_is_not_built_again(
    tiny: ModuleType, line: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], built: int
) -> None:
    builds: list[int] = []
    monkeypatch.setattr(Retriever, "embed_passages", _counting(Retriever.embed_passages, builds))
    named = {f"pretrain.{name}": value for name, value in changes.items()}
    _, rows = outcome(tiny, line, named | {"pretrain.batch_size": 2})
    assert len(builds) == built + 2  # two evaluations look with an index of their own
    assert [row["index_staleness_steps"] for row in rows if "index_staleness_steps" in row] == [0.0, 0.0, 0.0]


def _counting(original: Any, calls: list[int]) -> Any:
    def embed(self: Retriever, rows_U: np.ndarray | None = None, embedder: Any = None) -> Any:
        if rows_U is None:
            calls.append(len(self.passages))
        return original(self, rows_U, embedder)

    return embed


def test_a_loss_that_is_no_number_ends_the_run_with_its_batch_in_a_file(
    tiny: ModuleType, line: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = tiny.params(SHORT | {"pretrain.mask_rate": 0.2})
    run = tiny.stage_run("pretrain", chosen, line)
    original = RealmObjective.__call__
    calls = itertools.count(1)

    def broken(self: RealmObjective, rows: np.ndarray, *others: Any, **named: Any) -> Any:
        read = original(self, rows, *others, **named)
        return read._replace(objective=read.objective * torch.nan) if next(calls) == 2 else read

    monkeypatch.setattr(RealmObjective, "__call__", broken)
    with pytest.raises(UserError, match=r"bad_batch-step-2\.json") as caught:
        tiny.run("pretrain", chosen, line)
    assert "the loss is nan at step 2" in str(caught.value)
    batch = read_json(run.path / "bad_batch-step-2.json")["batch"]
    assert len(batch["sentence_rows"]) == len(batch["queries"]) == 4
    assert all(
        len(positions) == len(targets)
        for positions, targets in zip(batch["masked_positions"], batch["targets"], strict=True)
    )
