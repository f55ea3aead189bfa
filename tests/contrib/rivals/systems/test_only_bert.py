"""Systems that are built from BERT's layers refuse an encoder of another family when a run is planned."""

from pathlib import Path

import pytest

from realm_lab.engine.systems.identity import plan_run
from realm_lab.errors import UserError
from tests import tiny


@pytest.fixture
def roberta(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text('{"model_type": "roberta"}')
    (tmp_path / "model.safetensors").touch()
    return tmp_path


@pytest.mark.parametrize("system", ["closed_book", "fid", "rag", "path_retriever", "graph_retriever"])
def test_another_encoder_than_bert_is_refused(roberta: Path, system: str) -> None:
    params = tiny.params({"model.checkpoint": str(roberta)})
    assert plan_run(params, "realm", 0).stages
    with pytest.raises(UserError, match=f"'{system}'.*roberta") as error:
        plan_run(params, system, 0)
    assert (error.value.parameter, error.value.remedy) == ("model.checkpoint", "name a BERT folder")
    (roberta / "config.json").write_text('{"model_type": "bert"}')
    assert plan_run(params, system, 0).stages
