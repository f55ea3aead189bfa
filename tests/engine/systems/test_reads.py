"""No stage of a registered system, contrib's included, reads a parameter that it does not declare. Reading one raises,
so each stage runs here, once with each set of values that its work branches on."""

from pathlib import Path
from typing import Any

import pytest

from realm_lab.engine.systems.context import Context
from realm_lab.engine.systems.identity import plan_run
from realm_lab.engine.systems.registry import SYSTEMS, system_of
from realm_lab.records.plugins import import_plugins
from tests import tiny
from tests.engine.models.sentence_folder import write_sentence_folder
from tests.whole import OPTIONS

import_plugins()
LINKED = {"steps": 4, "batch_size": 4, "negatives": 5}
QUICK: dict[str, Any] = {
    "corpus.source.hops": 2,
    "warm_start.reader.steps": 2,
    "warm_start.embedder.steps": 2,
    "pretrain.steps": 3,
    "finetune.steps": 3,
}
OF_REALM = "containment"  # a branch only of pre-training
BRANCHES: dict[str, dict[str, Any]] = {
    "as it is": {},
    "learned null": {"pretrain.null_document": "learned", "pretrain.calibrate_null": True, "finetune.softmax": "joint"},
    "from scratch": {
        "pretrain.null_document": "off",
        "pretrain.initial_retriever": "encoder",
        "pretrain.train_document_tower": False,
        "pretrain.query_form": "question",
        "corpus.pretrain_corpus": "same",
        "pretrain.recurring_spans": [1, 400],
        "finetune.initial_reader": "scratch",
        "finetune.train_query_tower": False,
        "model.share_towers": False,
    },
    OF_REALM: {
        "pretrain.train_reader": False,
        "pretrain.reward": "containment",
        "finetune.initial_reader": "warm_start",
    },
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    params = tiny.params(QUICK)
    root = tiny.prepare(params, tmp_path_factory.mktemp("reads"))
    texts = Context(plan_run(params, "realm", 0), root).passages.text.column("body")
    write_sentence_folder(root / "bert", list(texts))
    return root


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "branch"),
    [(system, branch) for system in sorted(SYSTEMS) for branch in BRANCHES if branch != OF_REALM or system == "realm"],
)
def test_no_stage_reads_more_than_it_declares(root: Path, system: str, branch: str) -> None:
    own = {"embedding": {"folder": str(root / "bert")}, "path_retriever": LINKED, "graph_retriever": LINKED}
    params = tiny.params(QUICK | {"system_options": OPTIONS | own} | BRANCHES[branch])
    for stage in ("prepare", *(stage.name for stage in system_of(system).stages)):
        assert tiny.run(stage, params, root, system).is_complete() or stage == "prepare"
