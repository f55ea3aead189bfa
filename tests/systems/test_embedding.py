"""A frozen sentence-embedding folder as the retriever: what it finds, its keys, and the whole way."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from realm_lab.cli import main
from realm_lab.errors import UserError
from realm_lab.models.sentence import SentenceEncoder
from realm_lab.systems.context import Context
from realm_lab.systems.embedding import Embedding
from realm_lab.systems.identity import plan_run
from tests.models.sentence_folder import write_sentence_folder
from tests.systems.conftest import OPTIONS, Whole


def bodies(context: Context) -> list[str]:
    columns = (context.passages.text.column(name) for name in ("title", "body"))
    return [f"{title} {body}" for title, body in zip(*columns, strict=True)]


@pytest.fixture(scope="module")
def folder(whole: Whole, tiny: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its wordpieces are others than the corpus's."""
    whole.results("warm_start")
    return write_sentence_folder(tmp_path_factory.mktemp("folder") / "bert", bodies(whole.context("warm_start")))


@pytest.fixture(scope="module")
def results(whole: Whole, folder: Path) -> dict[str, Any]:
    own = {"folder": str(folder), "passage_prefix": "river: ", "query_prefix": "what: ", "temperature": 0.1}
    whole.set({"system_options": OPTIONS | {"embedding": own}})
    return whole.results("embedding")


def test_it_goes_the_whole_way(
    whole: Whole, results: dict[str, Any], capsys: pytest.CaptureFixture[str], folder: Path
) -> None:
    assert results["questions"] == 12
    assert "recall_at_20" in results
    assert results["recall_at_20_finetuned"] == results["recall_at_20"]
    assert results["corpus_update"]["changed_questions"] > 0
    assert results["not_measured"].keys() == {"own measurements"}
    assert len(whole.ask("embedding", capsys)["candidates"]) == 5
    assert main(["fill", "who is [MASK] ?", "--system", "embedding", "--root", str(whole.root)]) == 2
    assert capsys.readouterr().err == "realm-lab: error: system embedding fills no blanks\n"


def test_it_finds_what_the_folder_finds_nearest(whole: Whole, results: dict[str, Any], folder: Path) -> None:
    context = whole.context("embedding")
    encoder = SentenceEncoder(folder, "mean", True, torch.device("cpu"))
    questions = context.corpus.questions("test").texts[:6]
    passages_ND = encoder.encode([f"river: {body}" for body in bodies(context)], 512)
    score_QN = encoder.encode([f"what: {question}" for question in questions], 512) @ passages_ND.T / 0.1
    expected = score_QN.topk(7, dim=1)
    found = context.system.retrieve(questions, 7)
    torch.testing.assert_close(torch.from_numpy(found.scores_QK), expected.values, rtol=1e-4, atol=1e-4)
    assert (torch.from_numpy(found.rows_QK) == expected.indices).float().mean() > 0.9  # but for equal texts
    beyond = context.system.retrieve(questions, len(passages_ND) + 2)
    assert (beyond.rows_QK[:, -2:] == -1).all()


def test_the_passages_are_embedded_once(whole: Whole, results: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    system = whole.context("embedding").system
    assert isinstance(system, Embedding)
    monkeypatch.setattr(SentenceEncoder, "encode", None)
    assert len(system.vectors_ND) == len(system.passages)


def test_the_content_of_the_folder_counts_and_its_place_does_not(
    tiny: ModuleType, folder: Path, tmp_path: Path
) -> None:
    def stages(place: Path, **own: Any) -> dict[str, str]:
        params = tiny.params({"system_options": {"embedding": {"folder": str(place)} | own}})
        return plan_run(params, "embedding", 0).stages

    moved = shutil.copytree(folder, tmp_path / "moved")
    before = stages(folder)
    assert stages(moved) == before
    assert stages(folder, temperature=0.05) == before  # spelled out
    weights = load_file(moved / "model.safetensors")
    save_file(
        weights | {"embeddings.LayerNorm.bias": weights["embeddings.LayerNorm.bias"] + 1}, moved / "model.safetensors"
    )
    for other in (stages(moved), stages(folder, pooling="cls"), stages(folder, temperature=1.0)):
        assert [stage for stage in before if before[stage] == other[stage]] == ["warm_start"]


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({}, "parameter 'system_options.embedding': folder: field required"),
        ({"folder": "nowhere"}, "parameter 'system_options.embedding.folder': nowhere/config.json: no such file"),
        ({"folder": "x", "pooling": "max"}, "pooling: input should be 'mean' or 'cls' .given: 'max'."),
    ],
)
def test_a_folder_that_is_not_there_is_one_line(tiny: ModuleType, own: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan_run(tiny.params({"system_options": {"embedding": own}}), "embedding", 0)
