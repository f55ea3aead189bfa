"""`realm-lab gradients` on a tiny finished run."""

import json
from pathlib import Path
from typing import Any

import pytest

from realm_lab import cli
from realm_lab.engine.retrieval.retriever import Retriever
from realm_lab.engine.systems.identity import open_stage, plan_run, record_run
from tests import tiny

PARAMS = tiny.params()


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with the finished run of params.yaml."""
    root = tiny.prepare(PARAMS, tmp_path_factory.mktemp("gradients"), "warm_start", "pretrain", "finetune")
    (root / "params.yaml").write_bytes(tiny.PARAMETERS.read_bytes())
    run = plan_run(PARAMS, "realm", 0)
    record_run(root / "runs", run)
    open_stage(root / "runs", run, "evaluate").finish({})
    return root


@pytest.mark.slow
def test_gradients_of_a_run_are_compared_with_the_exact_one(
    line: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ["gradients", "--run", "realm-s0", "--root", str(line), "--sentences", "3", "--draws", "2"]
    passages = 320
    numbers = ["--candidates", "2", str(passages + 1), "--json"]
    embedded, has_dropout = Retriever.embed_queries, list[bool]()

    def noted(self: Retriever, *given: Any) -> Any:
        has_dropout.append(self.embedder.training)
        return embedded(self, *given)

    monkeypatch.setattr(Retriever, "embed_queries", noted)
    assert cli.main([*asked, *numbers]) == 0
    found = json.loads(capsys.readouterr().out)
    assert not any(has_dropout)
    assert (found["stage"], found["sentences"], found["passages"]) == ("pretrain", 3, passages)
    estimates = {one.pop("name"): one for one in found["estimates"]}
    assert {"top 2", "hard_em", "reinforce draws 1", "batch", "random", "oracle", "containment"} <= set(estimates)
    everything = estimates[f"top {passages + 1}"]
    assert (everything["cosine"], everything["weights_cosine"]) == pytest.approx((1, 1), abs=1e-9)
    assert everything["gflop"] == pytest.approx(found["exact_gflop"], rel=0.02)
    assert all(one["bias"] + one["variance"] == pytest.approx(one["error"], abs=1e-9) for one in estimates.values())
    assert estimates["random"]["variance"] > 0 == estimates["batch"]["variance"]
    assert cli.main(["gradients", "--system", "warm_start", "--root", str(line)]) == 2
    assert "--stage pretrain: a warm_start run has warm_start, finetune" in capsys.readouterr().err
    assert found["left_out"] == {}
    assert cli.main([*asked, "--stage", "warm_start", "--candidates", "4"]) == 0
    shown = capsys.readouterr().out
    assert "weights after warm_start" in shown
    assert "index of the start" not in shown
