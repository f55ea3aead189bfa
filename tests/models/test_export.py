"""Models are plain Hugging Face folders: what is written is read back bit for bit, and by transformers too."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file

from realm_lab.errors import UserError
from realm_lab.models.encoder import to_bert
from realm_lab.models.export import (
    MIN_POSITIONS,
    encoder_shape,
    frozen_names,
    new_embedder,
    new_reader,
    read_embedder,
    read_reader,
    write_embedder,
    write_reader,
)

if TYPE_CHECKING:
    from tests.tiny_system import TinySystem

SPAN_HIDDEN = 32


@pytest.fixture
def reader_folder(system: TinySystem, tmp_path: Path) -> Path:
    write_reader(system.reader, tmp_path / "reader")
    return tmp_path / "reader"


@pytest.fixture
def embedder_folder(system: TinySystem, tmp_path: Path) -> Path:
    write_embedder(system.embedder, tmp_path / "embedder", 1.25)
    return tmp_path / "embedder"


def assert_same_bits(one: torch.nn.Module, other: torch.nn.Module) -> None:
    state, expected = one.state_dict(), other.state_dict()
    assert state.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(state[name], value), name


def test_a_reader_comes_back_bit_for_bit(system: TinySystem, reader_folder: Path) -> None:
    found = read_reader(reader_folder, SPAN_HIDDEN)
    assert_same_bits(found, system.reader)
    assert found.encoder.shape == system.reader.encoder.shape


def test_an_embedder_comes_back_bit_for_bit(system: TinySystem, embedder_folder: Path) -> None:
    found, null_offset = read_embedder(embedder_folder)
    assert_same_bits(found, system.embedder)
    assert null_offset == 1.25
    assert not found.share_towers


def test_a_shared_embedder_stays_shared(system: TinySystem, tiny: ModuleType, tmp_path: Path) -> None:
    params = tiny.tiny_params(model={"share_towers": True})
    embedder = new_embedder(params, system.corpus.manifest.vocabulary_size, 0, None)
    tiny.scramble(embedder)
    write_embedder(embedder, tmp_path / "shared")
    found, null_offset = read_embedder(tmp_path / "shared")
    assert found.share_towers
    assert null_offset == 0.0
    assert_same_bits(found, embedder)


def test_automodel_opens_the_folders(system: TinySystem, reader_folder: Path, embedder_folder: Path) -> None:
    from transformers import AutoModel, AutoModelForMaskedLM

    encoders = {
        reader_folder: system.reader.encoder,
        embedder_folder: system.embedder.query_encoder,
        embedder_folder / "document": system.embedder.document_encoder,
    }
    for folder, encoder in encoders.items():
        model, report = AutoModel.from_pretrained(folder, add_pooling_layer=False, output_loading_info=True)
        assert not report["missing_keys"], folder
        state = model.state_dict()
        for name, value in to_bert(encoder).items():
            assert torch.equal(state[name], value), (folder, name)
    words, report = AutoModelForMaskedLM.from_pretrained(reader_folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert load_file(reader_folder / "model.safetensors").keys() <= words.state_dict().keys()  # its own names
    assert torch.equal(words.cls.predictions.transform.dense.weight, system.reader.transform.weight)
    assert torch.equal(words.cls.predictions.bias, system.reader.word_bias)
    assert torch.equal(words.get_output_embeddings().weight, system.reader.encoder.word_embeddings.weight)  # tied


def test_a_reader_starts_from_a_checkpoint_with_its_word_head(
    system: TinySystem, tiny: ModuleType, reader_folder: Path
) -> None:
    params = tiny.tiny_params(model={"checkpoint": str(reader_folder)})
    reader = new_reader(params, system.corpus.manifest.vocabulary_size, 7)
    assert_same_bits(reader.encoder, system.reader.encoder)
    assert torch.equal(reader.transform.weight, system.reader.transform.weight)
    assert torch.equal(reader.word_bias, system.reader.word_bias)
    assert not torch.equal(reader.span_projection.weight, system.reader.span_projection.weight)  # a new task's head


def test_the_word_head_of_the_first_bert_is_read(system: TinySystem, tiny: ModuleType, reader_folder: Path) -> None:
    path = reader_folder / "model.safetensors"
    old = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    tensors = {}
    for name, value in load_file(path).items():
        stem = next((stem for stem in old if name.endswith(stem)), "")
        tensors[name.removesuffix(stem) + old[stem] if stem else name] = value
    save_file(tensors, path)
    params = tiny.tiny_params(model={"checkpoint": str(reader_folder)})
    reader = new_reader(params, system.corpus.manifest.vocabulary_size, 7)
    assert torch.equal(reader.transform_norm.weight, system.reader.transform_norm.weight)
    assert torch.equal(reader.transform.weight, system.reader.transform.weight)


def test_new_models_follow_the_seed_alone(system: TinySystem) -> None:
    size = system.corpus.manifest.vocabulary_size
    torch.manual_seed(1)
    readers, embedders = [new_reader(system.params, size, 0)], [new_embedder(system.params, size, 0, None)]
    torch.manual_seed(2)
    readers += [new_reader(system.params, size, seed) for seed in (0, 1)]
    embedders += [new_embedder(system.params, size, seed, None) for seed in (0, 1)]
    for models in (readers, embedders):
        assert_same_bits(models[0], models[1])
        first, other = models[0].state_dict(), models[2].state_dict()
        assert any(not torch.equal(first[name], other[name]) for name in first)


def test_an_embedder_starts_from_the_encoder_it_is_given(system: TinySystem) -> None:
    size = system.corpus.manifest.vocabulary_size
    embedder = new_embedder(system.params, size, 0, system.reader.encoder)
    assert_same_bits(embedder.query_encoder, system.reader.encoder)
    assert_same_bits(embedder.document_encoder, system.reader.encoder)
    assert embedder.query_encoder is not system.reader.encoder


def test_places_for_the_longest_joined_sequence(tiny: ModuleType) -> None:
    corpus = {"passage_length": 100, "sentence_length": 30, "toy": {"entities": 40}}
    assert encoder_shape(tiny.tiny_params(corpus=corpus), 500).positions == 130
    assert encoder_shape(tiny.tiny_params(), 500).positions == MIN_POSITIONS


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("model", {"hidden_size": 64}, r"its hidden_size is 32, the parameters ask for 64; set the model section"),
        ("model", {"layers": 3}, r"its layers is 2, the parameters ask for 3"),
        ("model", {"heads": 4}, r"its heads is 2, the parameters ask for 4"),
        ("corpus", {"passage_length": 60}, r"64 positions.*corpus\.passage_length.*needs 86; lower them"),
    ],
)
def test_a_checkpoint_of_other_sizes_is_refused(
    system: TinySystem, tiny: ModuleType, reader_folder: Path, section: str, change: dict[str, int], message: str
) -> None:
    sections: dict[str, dict[str, object]] = {"model": {"checkpoint": str(reader_folder)}, "corpus": {}}
    sections[section].update(change)
    params = tiny.tiny_params(**sections)
    with pytest.raises(UserError, match=message) as error:
        encoder_shape(params, system.corpus.manifest.vocabulary_size)
    assert str(reader_folder) in str(error.value)


def test_another_vocabulary_is_refused(tiny: ModuleType, reader_folder: Path) -> None:
    params = tiny.tiny_params(model={"checkpoint": str(reader_folder)})
    with pytest.raises(UserError, match=r"vocabulary_size is \d+, the parameters ask for 500; .*tokenizer\.checkpoint"):
        encoder_shape(params, 500)


def test_a_span_head_of_another_size_is_refused(reader_folder: Path) -> None:
    with pytest.raises(UserError, match=r"'span_\w+\.\w+' has shape .*, expected ") as error:
        read_reader(reader_folder, 2 * SPAN_HIDDEN)
    assert str(reader_folder) in str(error.value)


def test_a_projection_of_another_size_is_refused(embedder_folder: Path) -> None:
    edit(embedder_folder / "projections.safetensors", "document_projection.weight", torch.zeros(32, 16))
    with pytest.raises(UserError, match=r"'document_projection\.weight' has shape \(32, 16\), expected \(32, 32\)"):
        read_embedder(embedder_folder)


def test_a_bert_without_its_word_head_is_no_reader(embedder_folder: Path, reader_folder: Path) -> None:
    (embedder_folder / "span_head.safetensors").write_bytes((reader_folder / "span_head.safetensors").read_bytes())
    with pytest.raises(UserError, match="no masked-word head"):
        read_reader(embedder_folder, SPAN_HIDDEN)


@pytest.mark.parametrize("name", ["model.safetensors", "span_head.safetensors"])
def test_a_missing_or_truncated_part_is_named(reader_folder: Path, name: str) -> None:
    content = (reader_folder / name).read_bytes()
    (reader_folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=name):
        read_reader(reader_folder, SPAN_HIDDEN)
    (reader_folder / name).unlink()
    with pytest.raises(UserError, match=name):
        read_reader(reader_folder, SPAN_HIDDEN)


def edit(path: Path, name: str, value: torch.Tensor | None) -> None:
    """Replace one tensor of a file, or leave it out."""
    tensors = load_file(path)
    del tensors[name]
    save_file(tensors | ({} if value is None else {name: value}), path)


@pytest.mark.parametrize("name", ["span_score.weight", "span_norm.bias"])
def test_a_span_head_with_a_part_missing_is_refused(reader_folder: Path, name: str) -> None:
    edit(reader_folder / "span_head.safetensors", name, None)
    with pytest.raises(UserError, match=name):
        read_reader(reader_folder, SPAN_HIDDEN)


@pytest.mark.parametrize("name", ["query_projection.weight", "document_projection.weight"])
def test_an_embedder_with_a_projection_missing_is_refused(embedder_folder: Path, name: str) -> None:
    edit(embedder_folder / "projections.safetensors", name, None)
    with pytest.raises(UserError, match=name):
        read_embedder(embedder_folder)


@pytest.mark.parametrize("value", [torch.zeros(1), torch.zeros(31)])
def test_a_word_head_of_another_size_is_refused(reader_folder: Path, value: torch.Tensor) -> None:
    edit(reader_folder / "model.safetensors", "cls.predictions.transform.dense.bias", value)
    with pytest.raises(UserError, match=r"cls\.predictions\.transform\.dense\.bias"):
        read_reader(reader_folder, SPAN_HIDDEN)


def test_embeddings_are_frozen_only_where_asked(system: TinySystem, tiny: ModuleType) -> None:
    size = system.corpus.manifest.vocabulary_size
    reader = new_reader(system.params, size, 0)
    assert frozen_names(reader, system.params) == set()
    params = tiny.tiny_params(model={"train_word_embeddings": False})
    frozen = frozen_names(reader, params)
    expected = {f"encoder.{part}_embeddings.weight" for part in ("word", "position", "type")}
    assert frozen == expected
    assert {name for name, value in reader.named_parameters() if not value.requires_grad} == expected
