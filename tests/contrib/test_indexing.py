"""`realm-lab index` on a tiny finished run, through the command line."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from realm_lab import cli
from realm_lab.engine.retrieval.embeddings import Embeddings, EmbeddingStore, tower_digest
from realm_lab.engine.retrieval.index import Embedded
from realm_lab.engine.systems.context import embedding_store, open_run
from realm_lab.engine.systems.registry import EVALUATE, System
from tests import tiny
from tests.whole import OPTIONS

PARAMS = tiny.params()

Capture = pytest.CaptureFixture[str]


class Untrained(System):
    """A system without models."""

    name = title = "untrained"
    stages = (EVALUATE,)


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which the run of params.yaml has finished its warm start and pre-training."""
    root = tiny.prepare(PARAMS, tmp_path_factory.mktemp("index"), "warm_start", "pretrain")
    (root / "params.yaml").write_bytes(tiny.PARAMETERS.read_bytes())
    return root


@pytest.fixture
def root(line: Path) -> Path:
    """The project, with nothing embedded."""
    shutil.rmtree(embedding_store(line).folder, ignore_errors=True)
    return line


@pytest.fixture
def store(root: Path) -> EmbeddingStore:
    return embedding_store(root)


def run(root: Path, *arguments: str) -> int:
    return cli.main(["index", *arguments, "--root", str(root)])


def test_a_corpus_is_embedded_once_listed_and_searched(
    root: Path, store: EmbeddingStore, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(root, "list") == 0
    assert "nothing is embedded yet" in capsys.readouterr().out
    before = Embedded.passages
    context = open_run(PARAMS, root, 0, "realm")
    count = len(context.passages)
    for _ in range(2):
        assert run(root, "build") == 0
        printed = capsys.readouterr()
        assert printed.err == ""  # no bar: this is no terminal
    embedder, _ = context.load_embedder("pretrain")
    [found] = store.published()
    assert (found.identity.tower_digest, found.identity.rows) == (tower_digest(embedder), count)
    assert found.folder == root / "runs" / "embeddings" / found.key[:12]
    assert f"{found.folder}: {count} passages of" in printed.out

    assert run(root, "list") == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == "key corpus embedder precision rows size created".split()
    corpus = context.corpus.manifest.digest
    assert row.split()[:5] == [found.key[:12], corpus[:12], tower_digest(embedder)[:12], "float32", str(count)]

    assert Embedded.passages == before + count  # all of the above embedded no other passage

    questions = context.question_tokens(["Who is it ?"])
    retriever = context.retriever(embedder)
    query_BD = retriever.embed_queries(questions)
    rows_BK = retriever.find(query_BD, 3)
    monkeypatch.setattr("realm_lab.engine.retrieval.embeddings.IN_MEMORY_BYTES", 0)  # nothing fits in memory
    in_place = context.retriever(embedder)
    assert in_place.index is not None
    assert isinstance(in_place.index.embeddings_ND, Embeddings)
    np.testing.assert_array_equal(in_place.find(query_BD, 3), rows_BK)
    assert in_place.indexed_score(query_BD, rows_BK).tolist() == retriever.indexed_score(query_BD, rows_BK).tolist()


def test_each_stage_has_its_own(root: Path, store: EmbeddingStore) -> None:
    assert run(root, "build") == 0
    [first] = store.published()
    assert run(root, "build", "--stage", "warm_start") == 0
    assert first.key in {entry.key for entry in store.published()}
    assert len(store.published()) == 2


def test_another_system_has_the_vectors_of_its_last_embedder_or_none(
    root: Path, store: EmbeddingStore, capsys: Capture
) -> None:
    given = f"{tiny.PARAMETERS.read_text()}system_options: {json.dumps(OPTIONS)}\n"
    (root / "others.yaml").write_text(given)
    others = tiny.params({"system_options": OPTIONS})
    for system, stage in (("fid", "denoise"), ("drqa", "document_reader")):
        tiny.run(stage, others, root, system)
    other = ("--params", str(root / "others.yaml"), "--system")
    assert run(root, "build", *other, "fid") == 0
    assert run(root, "build", "--stage", "warm_start") == 0
    assert len(store.published()) == 1
    for system in ("drqa", f"{__name__}:Untrained"):
        assert run(root, "build", *other, system) == 2
        assert f"{system} run has no embedder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["build", "--stage", "finetune"], "the finetune stage has not finished for these parameters"),
        (["build", "--system", "warm_start", "--stage", "pretrain"], "a warm_start run has warm_start, finetune"),
    ],
)
def test_an_error_is_one_line(root: Path, capsys: Capture, arguments: list[str], said: str) -> None:
    assert run(root, *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert printed.err.startswith("realm-lab: error: ")
    assert printed.err.count("\n") == 1
