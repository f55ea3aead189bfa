"""`realm-lab index` on a tiny finished run, through the command line."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from realm_lab import cli
from realm_lab.params.parameters import Params
from realm_lab.retrieval.generation import GenerationStore, embedder_digest
from realm_lab.systems import index

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def params(tiny: ModuleType) -> Params:
    chosen: Params = tiny.params()
    return chosen


@pytest.fixture(scope="module")
def line(tiny: ModuleType, params: Params, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose warm start and pre-training have finished."""
    root: Path = tiny.prepare(params, tmp_path_factory.mktemp("index"))
    for stage in ("warm_start", "pretrain"):
        tiny.run(stage, params, root)
    return root


@pytest.fixture
def root(line: Path) -> Path:
    """The run, without an index."""
    for path in sorted((line / "data" / "index").rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    return line


@pytest.fixture
def store(params: Params, root: Path) -> GenerationStore:
    return index.open_store(index.open_context(params, root, 0, "realm"))


def run(tiny: ModuleType, root: Path, *arguments: str) -> int:
    verb, *rest = arguments
    return cli.main(["index", verb, "--root", str(root), "--params", str(tiny.PARAMETERS), *rest])


def test_a_generation_is_built_listed_and_searched(
    tiny: ModuleType, params: Params, root: Path, store: GenerationStore, capsys: Capture
) -> None:
    assert run(tiny, root, "list") == 0
    assert "no index has been built here; run `realm-lab index build`" in capsys.readouterr().out
    assert run(tiny, root, "build") == 0
    printed = capsys.readouterr()
    assert printed.err == ""  # no bar: this is no terminal
    context = index.open_context(params, root, 0, "realm")
    embedder, _ = context.load_embedder("pretrain")
    generation = store.open()
    assert generation.manifest.embedder_digest == embedder_digest(embedder)
    assert generation.name == f"gen-00000012-{embedder_digest(embedder)[:8]}"
    assert generation.folder.parent == root / "data" / "index" / context.plan.corpus_key[:12]
    assert f"{generation.folder}: {len(context.passages)} passages" in printed.out

    with store.pin():
        assert run(tiny, root, "list") == 0
    header, row = capsys.readouterr().out.splitlines()
    assert header.split() == "name step rows dtype search size current pinned".split()
    assert row.split()[:5] == [generation.name, "12", str(len(context.passages)), "float32", "exact"]
    assert row.split()[-2] == "yes"
    assert row.endswith(f":{os.getpid()}")

    assert run(tiny, root, "search", "Who is [MASK] ?", "--count", "3") == 0
    lines = capsys.readouterr().out.splitlines()
    ranked = [line.split()[:2] for line in lines if re.match(r"\s*\d+\s+-?\d+\.\d{4}\s", line)]
    retriever = context.retriever(embedder)
    retriever.refresh(12)
    tokens = index._tokens(context.tokenizer, context.special.mask, "Who is [MASK] ?")
    assert (tokens == context.special.mask).sum() == 1
    query_BD = retriever.embed_queries([tokens])
    rows_BK = retriever.find(query_BD, 3)
    scores_BK = retriever.score(query_BD, rows_BK)
    assert [rank for rank, _ in ranked] == ["1", "2", "3"]
    np.testing.assert_allclose([float(score) for _, score in ranked], scores_BK[0].tolist(), atol=1e-3)
    for row_number in rows_BK[0]:
        assert context.passages.text.row(int(row_number))["title"].split()[0] in "".join(lines)


def test_stages_dtypes_rollback_and_verify(
    tiny: ModuleType, root: Path, store: GenerationStore, capsys: Capture
) -> None:
    assert run(tiny, root, "build", "--dtype", "bfloat16") == 0
    [first] = store.names()
    assert store.open().embeddings().dtype == torch.bfloat16
    assert run(tiny, root, "build", "--stage", "warm_start") == 0
    [second] = set(store.names()) - {first}
    assert store.current() == second
    assert run(tiny, root, "rollback", first) == 0
    assert store.current() == first
    assert capsys.readouterr().out.splitlines()[-1] == f"{first} is now current"
    assert run(tiny, root, "verify") == 0
    assert capsys.readouterr().out.count("every shard is as it was written") == 2

    assert run(tiny, root, "search", "Who?", "--stage", "warm_start") == 2
    said = capsys.readouterr().err
    digests = [store.open(name).manifest.embedder_digest for name in (first, second)]
    assert all(digest in said for digest in digests)
    assert run(tiny, root, "search", "Who?", "--stage", "warm_start", "--generation", second) == 0
    capsys.readouterr()

    shard = store.folder / second / "shard-00000.bin"
    raw = shard.read_bytes()
    shard.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    assert run(tiny, root, "verify", first) == 0
    assert run(tiny, root, "verify") == 2
    assert f"{second}: shard-00000.bin: digest" in capsys.readouterr().err
    assert run(tiny, root, "rollback", second) == 2
    shard.write_bytes(raw[:-1])
    capsys.readouterr()
    assert run(tiny, root, "list") == 0
    assert "broken" in capsys.readouterr().out


def test_an_approximate_index_is_built_listed_and_searched(
    tiny: ModuleType, root: Path, store: GenerationStore, capsys: Capture
) -> None:
    lists = ["--set", "pretrain.search.backend=ivf_flat", "--set", "pretrain.search.lists=20"]
    lists += ["--set", "pretrain.search.probes=2"]
    assert run(tiny, root, "build") == 0
    assert run(tiny, root, "search", "Who is [MASK] ?", "--approximate") == 2
    assert "no approximate index; build one with `realm-lab index build --backend`" in capsys.readouterr().err
    assert run(tiny, root, "build", "--backend", "ivf_flat") == 2  # what is published never changes
    said = capsys.readouterr().err
    assert "already built with exact search, not ivf_flat; delete it to build it again" in said
    shutil.rmtree(store.folder / store.names()[0])
    assert run(tiny, root, "build", "--backend", "ivf_flat") == 0
    found = store.open().manifest.search
    assert found is not None
    assert (found.backend, found.settings["lists"], found.settings["seed"]) == ("ivf_flat", 8, 0)
    assert found.recall_at_8 == 1  # of 8 lists, it looks into 8
    assert "search ivf_flat (recall@8 1.000); current" in capsys.readouterr().out
    assert run(tiny, root, "build", "--backend", "ivf_flat") == 0  # it is there already
    assert run(tiny, root, "build") == 0
    assert run(tiny, root, "build", "--backend", "hnsw") == 2
    assert run(tiny, root, "verify") == 0
    capsys.readouterr()
    assert run(tiny, root, "search", "Who is [MASK] ?") == 0
    exactly = capsys.readouterr().out
    assert run(tiny, root, "search", "Who is [MASK] ?", "--approximate") == 0
    assert capsys.readouterr().out == exactly

    shutil.rmtree(store.folder / store.names()[0])  # with settings of its own, which are only those of its backend
    context = index.open_context(tiny.params(), root, 0, "realm")
    assert index._search_writer(context, "exact") is None
    assert run(tiny, root, "build", "--backend", "ivf_flat", *lists) == 2
    assert "has not finished for these parameters" in capsys.readouterr().err  # a search is part of pre-training
    assert run(tiny, root, "build", "--backend", "ivf_flat", "--stage", "warm_start", *lists) == 0
    found = store.open().manifest.search
    assert found is not None
    assert (found.settings["lists"], found.settings["probes"]) == (20, 2)
    assert found.recall_at_8 is not None
    assert found.recall_at_8 < 1


def test_a_job_array_publishes_with_its_last_part(
    tiny: ModuleType, root: Path, store: GenerationStore, capsys: Capture
) -> None:
    assert run(tiny, root, "build", "--shard", "1/2") == 0
    said = capsys.readouterr().out
    if store.names():  # the corpus fits one shard, which is the second part's
        assert "current" in said
    assert run(tiny, root, "build", "--shard", "0/2") == 0
    assert len(store.names()) == 1
    assert store.verify() == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["search", "Who?"], "no index has been built here; run `realm-lab index build`"),
        (["search", " "], "the text to search for is empty"),
        (["search", "Who?", "--generation", "x"], "'x' is no name of a generation"),
        (["verify"], "no index has been built here"),
        (["verify", "gen-00000001-01234567"], "there is no such generation"),
        (["rollback", "gen-00000001-01234567"], "there is no such generation"),
        (["build", "--stage", "finetune"], "the finetune stage has not finished for these parameters"),
        (["build", "--seed", "7"], "not a prepared corpus; run `realm-lab prepare` first"),
        (["build", "--label", "other"], "--label other: choose warm_start or realm"),
        (["build", "--label", "warm_start", "--stage", "pretrain"], "a warm_start run has warm_start, finetune"),
        (["list", "--set", "pretrain.step=1"], "unknown parameter 'pretrain.step'"),
    ],
)
def test_an_error_is_one_line(tiny: ModuleType, root: Path, capsys: Capture, arguments: list[str], said: str) -> None:
    assert run(tiny, root, *arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err
    assert printed.err.startswith("realm-lab: error: ")
    assert printed.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "VERB"),
        (["bild"], "invalid choice: 'bild'"),
        (["build", "--shard", "2/2"], "'2/2' is not a part such as 0/4, counted from 0"),
        (["build", "--shard", "1"], "'1' is not a part"),
        (["build", "--backend", "annoy"], "invalid choice: 'annoy'"),
        (["build", "--dtype", "int8"], "invalid choice: 'int8'"),
        (["rollback"], "NAME"),
        (["search", "Who?", "--count", "0"], "0 is not 1 or more"),
    ],
)
def test_a_wrong_command_line_leaves_with_2(arguments: list[str], said: str, capsys: Capture) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["index", *arguments])
    assert left.value.code == 2
    assert said in capsys.readouterr().err


def test_a_second_builder_is_told_who_the_first_is(
    tiny: ModuleType, root: Path, store: GenerationStore, capsys: Capture
) -> None:
    with store.lease():
        assert run(tiny, root, "build") == 2
    assert f"process {os.getpid()} on " in capsys.readouterr().err
    assert run(tiny, root, "build") == 0


def test_progress_is_shown_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    original = Console

    def terminal(**options: Any) -> Any:
        return original(force_terminal=True, width=120, **options)

    monkeypatch.setattr(index, "Console", terminal)
    with index._progress() as progress:
        for done in range(0, 101, 20):
            progress(done, 100)
    said = capsys.readouterr().err
    assert "embedding" in said
    assert "100/100" in said
    monkeypatch.setattr(index, "Console", original)
    with index._progress() as progress:
        progress(0, 100)
    assert capsys.readouterr().err == ""


def test_the_root_may_stand_before_the_verb(tiny: ModuleType, root: Path, capsys: Capture) -> None:
    assert cli.main(["index", "--root", str(root), "list", "--params", str(tiny.PARAMETERS)]) == 0
    assert str(root) in capsys.readouterr().out
