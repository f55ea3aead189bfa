"""Hugging Face BERT folders: supported ones are read as they are, others are refused with a remedy."""

import json
import pickle
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from realm_lab.engine.models.encoder import Encoder, EncoderShape
from realm_lab.engine.models.folders import (
    bert_config,
    from_bert,
    read_checkpoint,
    read_embedder,
    read_tensors,
    to_bert,
    write_tensors,
)
from realm_lab.engine.params.checkpoint import check_checkpoint
from realm_lab.errors import UserError
from tests.factories.errors import refused
from tests.tiny_system import scramble

SHAPE = EncoderShape(vocabulary_size=60, hidden_size=24, layers=3, heads=4, intermediate_size=40, positions=20)


@pytest.fixture(scope="module")
def ours() -> Encoder:
    """An encoder whose parameters are all different noise."""
    encoder = Encoder(SHAPE)
    scramble(encoder, seed=1)
    return encoder.eval()


@pytest.fixture
def folder(tmp_path: Path, ours: Encoder) -> Path:
    """A Hugging Face BERT folder."""
    write_tensors(tmp_path / "model.safetensors", to_bert(ours))
    (tmp_path / "config.json").write_text(json.dumps(bert_config(SHAPE, "BertModel")), encoding="utf-8")
    return tmp_path


def load_encoder(folder: Path) -> Encoder:
    found, weights = read_checkpoint(folder)
    encoder = Encoder(found).eval()
    from_bert(encoder, weights, folder)
    return encoder


class Trap:
    """Touches a file when unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize(
    ("name", "remedy"), [("pytorch_model.bin", "with: python -c"), ("model.safetensors", "copy the file again")]
)
def test_a_pickle_is_refused_and_never_run(folder: Path, name: str, remedy: str) -> None:
    (folder / "model.safetensors").unlink()
    sprung = folder / "sprung"
    (folder / name).write_bytes(pickle.dumps(Trap(sprung)))
    with refused(remedy, path=folder / name):
        read_checkpoint(folder)
    assert not sprung.exists()


@pytest.mark.parametrize("kept", [0, -8])
def test_a_truncated_file_is_named(folder: Path, kept: int) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with refused(path=path, remedy="copy the file again"):
        read_tensors(path)


def test_the_first_berts_names_are_read(folder: Path, ours: Encoder) -> None:
    # bert-base-uncased, the paper's own start, has the names gamma and beta.
    path = folder / "model.safetensors"
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in load_file(path).items()
    }
    save_file(renamed, path)
    loaded = load_encoder(folder)
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in ours.state_dict().items())


def change_config(folder: Path, change: dict[str, object]) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text(encoding="utf-8")) | change), encoding="utf-8")


def without(path: Path, name: str) -> None:
    tensors = load_file(path)
    del tensors[name]
    save_file(tensors, path)


OTHER_TYPES = ("gpt2",)
KEY_BIAS = "encoder.layer.1.attention.self.key.bias"
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no configuration": (
        lambda folder: (folder / "config.json").unlink(),
        r"no config\.json; model\.checkpoint must be a local Hugging Face folder",
    ),
    **{
        text: (
            lambda folder, text=text: (folder / "config.json").write_text(text),  # type: ignore[misc]
            r"config\.json.*not (valid JSON|a BERT config)",
        )
        for text in ("{", "[]", '{"hidden_size": 24}')
    },
    **{
        kind: (
            lambda folder, kind=kind: change_config(folder, {"model_type": kind}),  # type: ignore[misc]
            rf"config\.json: a model of type '{kind}' is not supported; name the folder of one of: BERT",
        )
        for kind in OTHER_TYPES
    },
    **{
        name: (lambda folder, name=name, value=value: change_config(folder, {name: value}), rf"config\.json.*{name}")  # type: ignore[misc]
        for name, value in (("hidden_act", "relu"), ("type_vocab_size", 3), ("position_embedding_type", "relative_key"))
    },
    "no tensor": (
        lambda folder: without(folder / "model.safetensors", KEY_BIAS),
        rf"no tensor '.*{re.escape(KEY_BIAS)}'; it holds another model",
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_another_folder_is_refused(folder: Path, damage: str) -> None:
    harm, said = DAMAGE[damage]
    harm(folder)
    with pytest.raises(UserError, match=said) as caught:
        load_encoder(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ['{"projection_size": 8, "other": 1}', "{}", "[]"])
def test_an_embedder_with_other_fields_is_refused(folder: Path, text: str) -> None:
    (folder / "embedder.json").write_text(text)
    with refused("projection_size", path=folder / "embedder.json"):
        read_embedder(folder)


@pytest.mark.slow
def test_the_command_of_the_message_converts_a_pickle(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    tied = {"tied.one": torch.arange(3.0)}
    torch.save(tensors | tied | {"tied.two": tied["tied.one"]}, folder / "pytorch_model.bin")
    with refused() as error:
        read_checkpoint(folder)
    command = shlex.split(error.value.remedy.partition(" with: ")[2])
    assert command[0] == "python"
    subprocess.run([sys.executable, *command[1:]], check=True, capture_output=True)
    _, found = read_checkpoint(folder)
    assert all(torch.equal(value, found[name]) for name, value in tensors.items())
    assert torch.equal(found["tied.two"], tied["tied.one"])


@pytest.mark.parametrize(("architectures", "is_bert"), [(None, True), (["BertModel"], True), (["RobertaModel"], False)])
def test_a_folder_without_a_type_is_known_by_its_architecture(
    folder: Path, architectures: list[str] | None, is_bert: bool
) -> None:
    change_config(folder, {"model_type": None, "architectures": architectures})
    if is_bert:
        assert read_checkpoint(folder)[0] == SHAPE
        return
    with refused("'RobertaModel'", path=folder / "config.json"):
        read_checkpoint(folder)


def shard(folder: Path) -> list[str]:
    """Put the weights of a folder into two files with an index; returns the names of the second file's tensors."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, own in parts.items():
        save_file({name: tensors[name] for name in own}, folder / file)
    index = {"metadata": {}, "weight_map": {name: file for file, own in parts.items() for name in own}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return names[1::2]


def test_weights_in_several_files_are_read(folder: Path, ours: Encoder) -> None:
    missing = shard(folder)
    check_checkpoint(folder)
    loaded = load_encoder(folder)
    assert all(torch.equal(value, loaded.state_dict()[name]) for name, value in ours.state_dict().items())
    path = folder / "model-00002-of-00002.safetensors"
    save_file({missing[0]: torch.zeros(1)}, path)
    with refused("no tensor"):
        load_encoder(folder)
    path.unlink()
    for refuse in (check_checkpoint, read_checkpoint):
        with refused("no such file", path=path):
            refuse(folder)
    (folder / "model.safetensors.index.json").write_text("{}")
    with refused("'weight_map'", path=folder / "model.safetensors.index.json"):
        check_checkpoint(folder)


@pytest.mark.parametrize("value", [float("nan"), float("-inf")])
@pytest.mark.parametrize("sharded", [False, True])
def test_weights_that_are_no_numbers_are_named(folder: Path, value: float, sharded: bool) -> None:
    path = folder / "model.safetensors"
    if sharded:
        assert KEY_BIAS in shard(folder)
        path = folder / "model-00002-of-00002.safetensors"
    tensors = load_file(path)
    tensors[KEY_BIAS][3] = value
    save_file(tensors, path)
    with refused(f"'{KEY_BIAS}'", path=path):
        read_checkpoint(folder)
