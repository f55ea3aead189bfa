"""Initial models of pre-training and fine-tuning: exactly the weights that the parameters name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from realm_lab.engine.models.folders import read_embedder, write_embedder
from realm_lab.engine.systems.context import Context
from realm_lab.engine.systems.identity import plan_run, record_run
from realm_lab.engine.systems.initial import initial_state
from realm_lab.engine.systems.reading import DenseRetriever
from realm_lab.engine.systems.registry import system_of
from realm_lab.errors import UserError
from tests import tiny
from tests.engine.models.same_bits import read_reader

SPAN_HEAD = ("span_projection", "span_norm", "span_score")
Make = Callable[..., Context]


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished realm run and a finished baseline."""
    root = tiny.prepare(tiny.params(), tmp_path_factory.mktemp("initial"))
    for label in ("realm", "warm_start"):
        for stage in ("warm_start", "pretrain", "finetune", "evaluate"):
            if label == "realm" or stage != "pretrain":
                tiny.run(stage, tiny.params(), root, label)
    return root


@pytest.fixture
def context(line: Path) -> Make:
    """A run with other parameters in the same project."""

    def make(label: str = "realm", **changes: Any) -> Context:
        params = tiny.params({name.replace("__", "."): value for name, value in changes.items()})
        return Context(plan_run(params, label, 0), line)

    return make


def model(root: Path, stage: str, part: str, label: str = "realm") -> Path:
    return tiny.stage_run(stage, tiny.params(), root, label).path / "model" / part


def weights(module: nn.Module) -> dict[str, Tensor]:
    """Weights without the span head, which only fine-tuning trains."""
    return {name: value for name, value in module.state_dict().items() if not name.startswith(SPAN_HEAD)}


def equal(one: nn.Module, other: nn.Module) -> bool:
    ours, theirs = weights(one), weights(other)
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.slow
def test_each_name_gives_the_models_it_names(line: Path, context: Make) -> None:
    readers = {stage: read_reader(model(line, stage, "reader"), 16) for stage in ("warm_start", "pretrain")}
    retrievers = {stage: read_embedder(model(line, stage, "embedder"))[0] for stage in readers}
    assert not equal(readers["warm_start"], readers["pretrain"])
    for embedder in retrievers.values():
        embedder.split_towers()  # as fine-tuning does
    stages = {"previous": "pretrain", "warm_start": "warm_start"}
    for reader, reader_stage in stages.items():
        for retriever, retriever_stage in stages.items():
            changes = {"finetune__initial_reader": reader, "finetune__initial_retriever": retriever}
            state = initial_state(context(**changes), "finetune")
            assert equal(state.reader, readers[reader_stage])
            assert equal(state.embedder, retrievers[retriever_stage])
    baseline = initial_state(context("warm_start"), "finetune")
    assert equal(baseline.reader, readers["warm_start"])
    assert equal(baseline.embedder, retrievers["warm_start"])
    begun = initial_state(context(), "pretrain")
    assert equal(begun.reader, readers["warm_start"])
    assert equal(begun.embedder, read_embedder(model(line, "warm_start", "embedder"))[0])


def test_a_folder_gives_its_models(line: Path, context: Make) -> None:
    folders = [str(model(line, "finetune", part)) for part in ("reader", "embedder")]
    for stage in ("pretrain", "finetune"):
        changes = {f"{stage}__initial_reader": folders[0], f"{stage}__initial_retriever": folders[1]}
        state = initial_state(context("warm_start" if stage == "finetune" else "realm", **changes), stage)
        tuned = read_reader(Path(folders[0]), 16)
        assert equal(state.reader, tuned)
        assert equal(state.embedder, read_embedder(Path(folders[1]))[0])
        for name in ("span_projection.weight", "span_score.weight"):  # it was trained: it is kept
            assert torch.equal(state.reader.get_parameter(name), tuned.get_parameter(name))


def test_a_null_document_keeps_its_shift(line: Path, context: Make, tmp_path: Path) -> None:
    embedder, _ = read_embedder(model(line, "pretrain", "embedder"))
    write_embedder(embedder, tmp_path / "shifted", 1.25)
    assert initial_state(context(pretrain__initial_retriever=str(tmp_path / "shifted")), "pretrain").null_offset == 1.25
    assert initial_state(context(pretrain__initial_retriever="scratch"), "pretrain").null_offset == 0
    changed = {"pretrain.initial_retriever": str(tmp_path / "shifted"), "pretrain.steps": 0}
    run = tiny.run("pretrain", tiny.params(changed), line)
    assert read_embedder(run.path / "model" / "embedder")[1] == 1.25


def test_scratch_is_drawn_and_no_checkpoint_is_read(line: Path, context: Make) -> None:
    checkpoint = str(model(line, "pretrain", "reader"))
    scratch = {"finetune__initial_reader": "scratch", "finetune__initial_retriever": "scratch"}
    state = initial_state(context(**scratch), "finetune")
    known = read_reader(Path(checkpoint), 16)
    matrix = "encoder.word_embeddings.weight"
    again = initial_state(context(model__checkpoint=checkpoint, **scratch), "finetune")
    assert equal(state.reader, again.reader)  # the same draw, twice
    assert equal(state.embedder, again.embedder)
    for reader in (state.reader, again.reader):
        assert not torch.isclose(reader.get_parameter(matrix), known.get_parameter(matrix)).any(1).all()
    tower = state.embedder.query_encoder
    assert not torch.equal(tower.word_embeddings.weight, state.reader.encoder.word_embeddings.weight)


def test_the_readers_transformer_gives_the_towers(line: Path, context: Make) -> None:
    for reader in ("warm_start", "scratch"):
        changes = {"pretrain__initial_reader": reader, "pretrain__initial_retriever": "encoder"}
        state = initial_state(context(**changes), "pretrain")
        for tower in (state.embedder.query_encoder, state.embedder.document_encoder):
            assert equal(tower, state.reader.encoder)
        trained = read_embedder(model(line, "warm_start", "embedder"))[0]
        assert not torch.equal(state.embedder.query_projection.weight, trained.query_projection.weight)
        assert not torch.equal(
            state.embedder.query_encoder.word_embeddings.weight, trained.query_encoder.word_embeddings.weight
        )


def test_only_a_learned_null_document_has_a_vector_from_pretraining_on(line: Path, context: Make) -> None:
    changes = {"pretrain__null_document": "learned", "pretrain__initial_retriever": "warm_start"}
    learned = context("realm", **changes)
    vector = initial_state(learned, "pretrain").embedder.null_vector
    assert vector is not None
    assert not vector.any()
    assert initial_state(context("realm"), "pretrain").embedder.null_vector is None
    baseline = context("warm_start", **changes)
    assert learned.run.stages["warm_start"] == baseline.run.stages["warm_start"]
    assert baseline.run.stages["finetune"] == context("warm_start").run.stages["finetune"]
    system = system_of("warm_start")(baseline)
    assert isinstance(system, DenseRetriever)
    untuned = system.before_finetuning()
    assert untuned.models.embedder.null_vector is None
    assert untuned.retriever_with_null.embedder.null_vector is not None, "it is measured with the null document"


def test_every_reader_gets_the_same_span_head(context: Make) -> None:
    heads = []
    for name in ("previous", "warm_start", "scratch"):
        reader = initial_state(context(finetune__initial_reader=name), "finetune").reader
        heads.append({key: value for key, value in reader.state_dict().items() if key.startswith(SPAN_HEAD)})
    assert {name.split(".")[0] for name in heads[0]} == {*SPAN_HEAD}
    for head in heads[1:]:
        assert all(torch.equal(value, heads[0][name]) for name, value in head.items())


@pytest.mark.slow
@pytest.mark.parametrize(("reader", "retriever"), [("warm_start", "previous"), ("previous", "warm_start")])
def test_the_ablation_of_encoder_and_retriever(line: Path, context: Make, reader: str, retriever: str) -> None:
    params = tiny.params({"finetune.initial_reader": reader, "finetune.initial_retriever": retriever})
    tiny.run("finetune", params, line)
    results = tiny.run("evaluate", params, line).results()
    realm, baseline = (
        tiny.stage_run("evaluate", tiny.params(), line, label).results() for label in ("realm", "warm_start")
    )
    named, other = (realm, baseline) if retriever == "previous" else (baseline, realm)
    recalls = [name for name in realm if "recall_at" in name and not name.endswith("_finetuned")]
    assert {name: results[name] for name in recalls} == {name: named[name] for name in recalls}
    assert any(named[name] != other[name] for name in recalls)
    assert results["retrieval_utility_start"] == realm["retrieval_utility_start"]  # the start of pre-training
    assert results["retrieval_utility_end"] not in (realm["retrieval_utility_end"], baseline["retrieval_utility_end"])
    assert results["cloze_log_likelihood_end"] not in (realm["cloze_log_likelihood_end"], None)


@pytest.mark.parametrize("trained", ["query", "document"])
def test_one_tower_is_trained_without_the_other(line: Path, context: Make, trained: str) -> None:
    frozen = {"query": "document", "document": "query"}[trained]
    params = tiny.params({f"pretrain.train_{frozen}_tower": False, "pretrain.steps": 3})
    begun, _ = read_embedder(model(line, "warm_start", "embedder"))
    begun.split_towers()
    ended, _ = read_embedder(tiny.run("pretrain", params, line).path / "model" / "embedder")
    assert not ended.share_towers
    same = {name for name, value in begun.state_dict().items() if torch.equal(value, ended.state_dict()[name])}
    assert {name for name in begun.state_dict() if name.startswith(frozen)} <= same
    assert f"{trained}_projection.weight" not in same


def test_a_missing_model_names_a_finished_run_to_a_stage_that_reads_few_parameters(line: Path) -> None:
    """The finished run has an option of a plug-in of pre-training, which this system and stage do not read."""
    drift = tiny.params({"pretrain.refresh.policy": {"name": "drift", "overlap": 0.7}})
    record_run(line / "runs", plan_run(drift, "warm_start", 0))
    missing = plan_run(tiny.params({"warm_start.reader.steps": 3}), "warm_start", 0)
    with pytest.raises(UserError, match=r"A finished run has warm_start\.reader\.steps = 12, .*policy\.overlap = 0\.7"):
        Context(missing, line, "finetune").model_folder("warm_start")
