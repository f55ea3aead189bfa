"""A frozen sentence-embedding folder as the retriever: its results, its keys, and the whole pipeline."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from realm_lab.cli import main
from realm_lab.contrib.rivals.embedding import Embedding, EmbeddingOptions
from realm_lab.contrib.rivals.models.sentence import SentenceEncoder
from realm_lab.engine.params.load import load
from realm_lab.engine.systems.context import Context
from realm_lab.engine.systems.identity import plan_run
from realm_lab.errors import UserError
from tests import tiny
from tests.engine.models.sentence_folder import write_sentence_folder
from tests.factories.errors import refused
from tests.whole import OPTIONS, Whole


def bodies(context: Context) -> list[str]:
    columns = (context.passages.text.column(name) for name in ("title", "body"))
    return [f"{title} {body}" for title, body in zip(*columns, strict=True)]


@pytest.fixture(scope="module")
def folder(whole: Whole, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of sentence embeddings with other wordpieces than the corpus."""
    tiny.prepare(load(whole.root / "params.yaml"), whole.root)
    return write_sentence_folder(tmp_path_factory.mktemp("folder") / "bert", bodies(whole.context("warm_start")))


@pytest.fixture(scope="module")
def results(whole: Whole, folder: Path) -> dict[str, Any]:
    own = {"folder": str(folder), "passage_prefix": "river: ", "query_prefix": "what: ", "temperature": 0.1}
    whole.set({"system_options": OPTIONS | {"embedding": own}})
    return whole.results("embedding")


@pytest.mark.slow
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


@pytest.mark.slow
def test_it_finds_what_the_folder_finds_nearest(whole: Whole, results: dict[str, Any], folder: Path) -> None:
    context = whole.context("embedding")
    encoder = SentenceEncoder(folder, "mean", True, torch.device("cpu"))
    questions = context.corpus.questions("test").texts[:6]
    passages_ND = encoder.encode([f"river: {body}" for body in bodies(context)], 512)
    score_QN = encoder.encode([f"what: {question}" for question in questions], 512) @ passages_ND.T / 0.1
    expected = score_QN.topk(7, dim=1)
    found = context.system.retrieve(questions, 7)
    torch.testing.assert_close(torch.from_numpy(found.scores_QK), expected.values, rtol=1e-4, atol=1e-4)
    assert (torch.from_numpy(found.rows_QK) == expected.indices).float().mean() > 0.9  # except for equal texts
    beyond = context.system.retrieve(questions, len(passages_ND) + 2)
    assert (beyond.rows_QK[:, -2:] == -1).all()


@pytest.mark.slow
def test_the_passages_are_embedded_once(whole: Whole, results: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    system, again = (whole.context("embedding").system for _ in range(2))
    assert isinstance(system, Embedding)
    assert isinstance(again, Embedding)
    monkeypatch.setattr(SentenceEncoder, "encode", None)
    assert len(system.vectors_ND) == len(system.passages)
    monkeypatch.setattr("realm_lab.engine.retrieval.embeddings.embedding_code", lambda *given: "changed")
    with pytest.raises(TypeError, match="not callable"):
        assert again.vectors_ND, "other code embeds again"


@pytest.mark.slow
def test_the_content_of_the_folder_counts_and_its_place_does_not(folder: Path, tmp_path: Path) -> None:
    def stages(place: Path, **own: Any) -> dict[str, str]:
        params = tiny.params({"system_options": {"embedding": {"folder": str(place)} | own}})
        return plan_run(params, "embedding", 0).stages

    moved = shutil.copytree(folder, tmp_path / "moved")
    before = stages(folder)
    assert stages(moved) == before
    assert stages(folder, temperature=0.05) == before  # the default, spelled out
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
        ({"folder": "x", "pooling": "max"}, "pooling must be 'mean' or 'cls', got 'max'"),
    ],
)
def test_a_folder_that_is_not_there_is_one_line(own: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        plan_run(tiny.params({"system_options": {"embedding": own}}), "embedding", 0)


MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]


def described(folder: Path, pooling: dict[str, Any], modules: int = 3, similarity: str | None = None) -> Path:
    """A folder with the files of sentence-transformers."""
    (folder / "1_Pooling").mkdir(parents=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 24} | pooling))
    (folder / "modules.json").write_text(json.dumps(MODULES[:modules]))
    if similarity:
        (folder / "config_sentence_transformers.json").write_text(json.dumps({"similarity_fn_name": similarity}))
    return folder


CLS = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}


@pytest.mark.parametrize(
    ("pooling", "more", "given", "expected"),
    [
        (CLS, {}, {}, ("cls", True)),
        ({"pooling_mode": "cls"}, {}, {}, ("cls", True)),
        (CLS, {"modules": 2, "similarity": "dot"}, {}, ("cls", False)),
        (CLS, {"modules": 2, "similarity": "cosine"}, {}, ("cls", True)),
        (CLS, {}, {"pooling": "mean", "normalise": False}, ("mean", False)),
        ({"pooling_mode": "max"}, {}, {"pooling": "mean"}, ("mean", True)),
    ],
)
def test_the_folder_decides_how_vectors_are_made_unless_the_parameters_do(
    tmp_path: Path, pooling: dict[str, Any], more: dict[str, Any], given: dict[str, Any], expected: tuple[str, bool]
) -> None:
    options = EmbeddingOptions(folder=str(described(tmp_path / "bge", pooling, **more)), **given)
    assert (options.pooling, options.normalise) == expected


@pytest.mark.parametrize(
    ("pooling", "given", "message"),
    [
        ({"pooling_mode": "lasttoken"}, {}, "lasttoken is not supported; set pooling to mean or cls"),
        (CLS | {"pooling_mode_mean_tokens": True}, {}, "cls_token and pooling_mode_mean_tokens is not supported"),
        (CLS | {"include_prompt": False}, {"query_prefix": "q: "}, "include_prompt false is not supported; leave out"),
    ],
)
def test_a_pooling_that_is_not_supported_is_one_line(
    tmp_path: Path, pooling: dict[str, Any], given: dict[str, Any], message: str
) -> None:
    own = {"folder": str(described(tmp_path / "x", pooling))} | given
    with pytest.raises(UserError, match=message):
        plan_run(tiny.params({"system_options": {"embedding": own}}), "embedding", 0)
    (tmp_path / "x" / "modules.json").write_text('[{"idx": 0}]')
    with refused("modules.json", "copy the folder again"):
        plan_run(tiny.params({"system_options": {"embedding": own}}), "embedding", 0)
    (tmp_path / "x" / "modules.json").write_text(json.dumps([{"path": "2_Dense", "type": "a.models.Dense"}]))
    with refused("modules.json", "Dense"):
        plan_run(tiny.params({"system_options": {"embedding": own}}), "embedding", 0)
