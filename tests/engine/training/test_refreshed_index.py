"""Every refresh policy: exact ages, the same run when it is killed and resumed, and a builder process that changes
nothing."""

import itertools
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from realm_lab.engine.retrieval.retriever import Retriever
from realm_lab.engine.training import builder
from realm_lab.engine.training.pretrain import PretrainTask
from realm_lab.errors import UserError
from tests import tiny

STEPS = 12
# The retriever moves fast, so that every vector shows its step.
BASE: dict[str, Any] = {
    "pretrain.steps": STEPS,
    "pretrain.retriever.learning_rate": 0.05,
    "pretrain.retriever.warmup_steps": 0,
    "evaluate.interval_steps": 6,
    "evaluate.cloze_sentences": 2,
    "evaluate.questions": 2,
    "launch.checkpoint_interval_seconds": 1000,
}
# Settings of the refreshes, and the ages of the index that the steps 0 to 11 search.
POLICIES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "interval": ({"interval_steps": 5}, [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1]),
    "never": ({"policy": "never"}, [*range(12)]),
    "delayed": ({"interval_steps": 3, "delay_steps": 2}, [0, 1, 2, 3, 4, 2, 3, 4, 2, 3, 4, 2]),
    "delayed beyond the next": ({"interval_steps": 2, "delay_steps": 5}, [0, 1, 2, 3, 4, 5, 6, 5, 6, 5, 6, 5]),
    "map": (
        {"policy": {"name": "map", "sample": 0.3, "every_steps": 2}, "interval_steps": 6},
        [0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5],
    ),
    "drift": ({"policy": {"name": "drift", "overlap": 0.9}, "interval_steps": 2}, []),
    "drift, delayed": ({"policy": {"name": "drift", "overlap": 1.0}, "interval_steps": 2, "delay_steps": 3}, []),
}
KEPT = ("delayed beyond the next", "drift, delayed", "map")  # all that a checkpoint can hold


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.prepare(tiny.params(BASE), tmp_path_factory.mktemp("refreshing") / "start", "warm_start")


@pytest.fixture
def root(start: Path, tmp_path: Path) -> Path:
    """A copy of `start` in another folder, without any pre-training."""
    return Path(shutil.copytree(start, tmp_path / "root", ignore=shutil.ignore_patterns("pretrain-*")))


def settings(policy: str, **more: Any) -> Any:
    return tiny.params(BASE | {f"pretrain.refresh.{key}": value for key, value in POLICIES[policy][0].items()} | more)


def by_name(rows: list[dict[str, Any]]) -> dict[str, list[float]]:
    """{metric: values in the order of the steps}."""
    return {name: list(values.values()) for name, values in tiny.by_name(rows).items()}


@pytest.mark.parametrize("policy", [name for name, (_, ages) in POLICIES.items() if ages])
def test_the_age_of_the_index_is_what_the_policy_says(start: Path, policy: str) -> None:
    found, ages = by_name(tiny.metrics(tiny.run("pretrain", settings(policy), start))), POLICIES[policy][1]
    assert found["index_staleness_steps"] == ages
    means = [sum(ages[: step + 1]) / (step + 1) for step in range(len(ages))]
    assert found["index_staleness_steps_mean"] == pytest.approx(means)
    assert found["refreshes"][-1] == sum(now < before + 1 for before, now in itertools.pairwise(ages))


@pytest.mark.slow
def test_drift_refreshes_when_the_overlap_falls_below_the_bound(start: Path) -> None:
    """The watch measures the index before the check does, and logs the overlap."""
    gently = {"pretrain.refresh.policy": {"name": "drift", "overlap": 0.6}, "pretrain.watch.interval_steps": 2}
    gently |= {"pretrain.retriever.learning_rate": 0.003}
    found = by_name(tiny.metrics(tiny.run("pretrain", settings("drift", **gently), start)))
    overlaps = dict(zip(range(0, STEPS + 1, 2), found["index_overlap_sampled"], strict=True))
    made, expected = 0, []
    for step in range(STEPS):
        if step and step % 2 == 0 and overlaps[step] < 0.6:
            made = step
        expected.append(step - made)
    assert found["index_staleness_steps"] == expected
    assert min(overlaps.values()) < 1
    assert found["refresh_operations"][-1] > 0  # only the checks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "how", "kills"),
    [
        *((policy, "inline", (1, 4, 7, 10)) for policy in KEPT),
        ("delayed beyond the next", "process", (5, 8)),
    ],
)
def test_a_killed_run_resumes_to_the_same_bits(
    start: Path, root: Path, monkeypatch: pytest.MonkeyPatch, policy: str, how: str, kills: tuple[int, ...]
) -> None:
    chosen = settings(policy)
    expected = tiny.outcome(tiny.run("pretrain", chosen, start))
    often = settings(policy, **{"launch.checkpoint_interval_seconds": 1, "launch.builder": how})
    monkeypatch.setattr(
        "realm_lab.engine.training.loop.time.monotonic", iter(range(0, 100_000, 2)).__next__
    )  # every step
    for step in kills:
        with tiny.steps_done(PretrainTask, killed_at=step):
            tiny.run("pretrain", often, root)
    assert tiny.outcome(tiny.run("pretrain", often, root)) == expected


def test_the_passages_are_embedded_once_for_each_weights(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Refreshes after steps 3, 6 and 9, evaluations after 0, 6 and 12."""
    chosen = settings("interval", **{"pretrain.refresh.interval_steps": 3})
    original, made = Retriever.embed_index, list[int]()

    def counted(self: Retriever, embedder: Any = None) -> Any:
        made.append(1)
        return original(self, embedder)

    monkeypatch.setattr(Retriever, "embed_index", counted)
    found = by_name(tiny.metrics(tiny.run("pretrain", chosen, root)))
    assert found["refreshes"][-1] == len(made) == 3
    frozen = {f"pretrain.train_{tower}_tower": False for tower in ("query", "document")}
    tiny.run("pretrain", settings("interval", **frozen), root)
    assert len(made) == 3, "no weights of documents move"


@pytest.mark.slow
def test_a_backend_is_built_anew_whenever_vectors_change(start: Path) -> None:
    """FAISS Flat finds what exact search finds, so a run would only differ if it searched old vectors."""
    models, metrics, _ = tiny.outcome(tiny.run("pretrain", settings("delayed"), start))
    flat = settings("delayed", **{"pretrain.search.backend": "faiss_flat"})
    flat_models, flat_metrics, _ = tiny.outcome(tiny.run("pretrain", flat, start))
    for name in ("manifest.json", "digests.json"):  # another key
        assert models.pop(name) != flat_models.pop(name)
    assert flat_models == models
    recalls = [row.pop("search_recall_at_8") for row in flat_metrics if "loss" in row]
    assert recalls == [1.0] * STEPS
    assert flat_metrics == metrics
    assert max(by_name(metrics)["refreshes"]) > 0


@pytest.mark.slow
def test_an_approximate_search_is_measured_and_evaluation_is_exact(start: Path) -> None:
    change: dict[str, Any] = {"pretrain.search.backend": {"name": "ivf_flat", "nlist": 64, "nprobe": 1}}
    change |= {"evaluate.questions": 12, "evaluate.cloze_sentences": 8}
    frozen = change | {"pretrain.train_query_tower": False, "pretrain.train_document_tower": False}
    exact = frozen | {"pretrain.search.backend": "exact"}
    found, expected = (
        by_name(tiny.metrics(tiny.run("pretrain", settings("interval", **part), start))) for part in (frozen, exact)
    )
    assert 0.1 < found["search_recall_at_8"][0] < 0.95
    assert len(set(found["search_recall_at_8"])) == 1  # the same vectors, the same seed
    assert found["loss"] != expected["loss"]
    assert "search_recall_at_8" not in expected
    recalls = [name for name in expected if "recall_at" in name]
    assert recalls
    for name in (*recalls, "index_overlap", "index_overlap_sampled"):
        assert found[name] == expected[name], name  # misses of an approximate search are no staleness


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["delayed beyond the next", "interval"])
def test_a_builder_process_changes_no_bit(
    start: Path, root: Path, monkeypatch: pytest.MonkeyPatch, policy: str
) -> None:
    expected = tiny.outcome(tiny.run("pretrain", settings(policy), start))
    embed, embedded = Retriever.embed_index, list[int]()

    def noted(self: Retriever, embedder: Any = None) -> Any:
        embedded.append(1)
        return embed(self, embedder)

    monkeypatch.setattr(Retriever, "embed_index", noted)
    wait = builder.ProcessBuilder._wait

    def warned(self: builder.ProcessBuilder, step: int) -> None:
        wait(self, step)
        self._process.send_signal(signal.SIGUSR2)  # type: ignore[union-attr]  # as SLURM warns all processes of a job

    monkeypatch.setattr(builder.ProcessBuilder, "_wait", warned)
    run = tiny.run("pretrain", settings(policy, **{"launch.builder": "process"}), root)
    assert tiny.outcome(run) == expected
    assert len(embedded) == 1  # for the evaluation after step 6; the store has the first index and the last
    assert not (run.path / "index").exists()  # it served its purpose, as the checkpoints did


BROKEN = "import sys; sys.stdin.readline(); sys.exit(3)"
TERMINATED = "import os; os.kill(os.getpid(), 15)"  # as all processes of a job are


@pytest.mark.slow
def test_a_command_begins_a_builder(start: Path, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A builder gets nothing of the trainer's job except SLURM's address, so that `srun` asks for a separate node."""
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    (tmp_path / "elsewhere").write_text('env > "$1"; shift; exec "$@"')
    command = f"sh '{tmp_path}/elsewhere' {tmp_path}/variables"
    expected = tiny.outcome(tiny.run("pretrain", settings("delayed"), start))
    assert tiny.outcome(tiny.run("pretrain", settings("delayed", **{"launch.builder": command}), root)) == expected
    variables = (tmp_path / "variables").read_text()
    assert "SLURM_CONF=/etc/slurm.conf" in variables
    assert "SLURM_JOB_ID" not in variables


def test_a_builder_that_cannot_begin_is_a_user_error(root: Path) -> None:
    with pytest.raises(UserError, match=r"launch.builder: no-such-run: No such file or directory"):
        tiny.run("pretrain", settings("delayed", **{"launch.builder": "no-such-run --nodes=1"}), root)


@pytest.mark.slow
def test_a_builder_that_fails_ends_the_run_which_resumes(
    start: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings("delayed", **{"launch.builder": "process"})
    expected = tiny.outcome(tiny.run("pretrain", settings("delayed"), start))
    with monkeypatch.context() as patches:
        patches.setattr(builder, "COMMAND", (sys.executable, "-c", BROKEN))
        with pytest.raises(UserError) as caught:
            tiny.run("pretrain", chosen, root)
    assert str(caught.value) == "the builder of the index ended with code 3, see above; run again"
    assert tiny.stage_run("pretrain", chosen, root).status().state == "FAILED"
    with monkeypatch.context() as patches:
        patches.setattr(builder, "COMMAND", (sys.executable, "-c", TERMINATED))
        with pytest.raises(SystemExit, match="143"):
            tiny.run("pretrain", chosen, root)
    assert tiny.stage_run("pretrain", chosen, root).status().state == "PREEMPTED"
    assert tiny.outcome(tiny.run("pretrain", chosen, root)) == expected
