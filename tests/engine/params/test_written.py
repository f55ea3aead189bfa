"""Values know where they were written, through every layer of parameters, and are plain in records and pickles."""

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from realm_lab.engine.params.load import beyond_preset, flatten, load, read_values, setting
from realm_lab.errors import UserError
from tests.factories.errors import refused
from tests.factories.plain import plain

WRITTEN = """
preset: narrow
seeds:
  - 3
  - 0
plugins: [json]
pretrain:
  masking:
    name: random_token
    share: 0.5
  refresh: {policy: never}
system_options: {dpr: {steps: 3}}
"""


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "narrow.yaml").write_text("preset: smoke\nmodel:\n  hidden_size: 9\n")


def write(text: str) -> Path:
    path = Path("params.yaml")
    path.write_text(text)
    return path


@pytest.fixture
def layers() -> dict[str, Any]:
    """Values of a built-in preset, a preset of the project, a file and flags."""
    return read_values(write(WRITTEN), {"pretrain.steps": 7, "model": {"heads": 3}})


@pytest.mark.parametrize(
    ("key", "path", "line"),
    [
        ("model.hidden_size", "presets/narrow.yaml", 3),
        ("model.heads", "--set model.heads", None),
        ("pretrain.masking.share", "params.yaml", 10),
        ("system_options.dpr.steps", "params.yaml", 12),
    ],
)
def test_values_know_where_they_were_written(layers: dict[str, Any], key: str, path: str, line: int | None) -> None:
    found = setting(layers, key)
    error = UserError(value=found)
    assert (found, error.line) == (key, line)
    assert str(error.path).endswith(path)
    assert setting(layers, "finetune.batch_size") is None, "of a built-in preset"


def test_written_values_become_plain_parameters_copies_and_pickles(layers: dict[str, Any]) -> None:
    assert not plain(layers)
    pickled = pickle.loads(pickle.dumps(layers))  # noqa: S301  # as processes exchange them
    for again in (copy.deepcopy(layers), pickled, json.loads(json.dumps(layers))):
        assert again == layers
        assert plain(again)
    params = load(Path("params.yaml"), {"model.heads": 3})
    assert params.seeds == [3, 0]
    assert plain([copy.deepcopy(params), flatten(params), beyond_preset(params)])


def test_a_fault_of_two_layers_is_where_the_last_was_set() -> None:
    path = write("preset: narrow\n")
    with refused("hidden_size 9", path=Path("presets/narrow.yaml"), line=3):
        load(path)
    with refused("hidden_size 9", path="--set model.heads"):
        load(path, {"model.heads": 4})
    with refused("hidden_size 9", path=path, line=2):
        load(write("preset: narrow\nmodel: {heads: 2}\n"))


def test_true_as_a_preset_and_step_0_of_changes_have_their_line() -> None:
    path = write("\npreset: true\n")
    with refused("unknown preset", path=path, line=2):
        load(path)
    path = write("pretrain:\n  changes: {0: {masking: random_token}}\n")
    with refused("at least 1", path=path, line=2):
        load(path)
