"""Initial models: from the seed, from a BERT, from a run's folders, from released REALM weights."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from realm_lab.engine.models.encoder import Encoder
from realm_lab.engine.models.folders import POOLER, bert_config, to_bert, write_embedder, write_reader, write_tensors
from realm_lab.engine.models.initial import (
    embedder_shape,
    encoder_shape,
    fit_null,
    load_reader,
    new_embedder,
    new_reader,
    read_initial_embedder,
    read_initial_reader,
    read_reader_weights,
    read_released_embedder,
)
from realm_lab.engine.models.inputs import Batch
from tests.engine.models.same_bits import assert_same_bits
from tests.factories.errors import refused
from tests.tiny_system import TinySystem, scramble, tiny_params

DATA = Path(__file__).parents[2] / "parity" / "data"  # of transformers 4.40.2
RELEASED = {"hidden_size": 8, "layers": 2, "heads": 2, "intermediate_size": 12, "projection_size": 6}
EVERYTHING = {"pooling": "tanh", "projection": "released", "share_towers": True}


@pytest.fixture
def size(system: TinySystem) -> int:
    return system.corpus.manifest.vocabulary_size


def test_a_reader_starts_from_a_checkpoint_with_its_word_head(system: TinySystem, reader_folder: Path) -> None:
    params = tiny_params(model={"checkpoint": str(reader_folder)})
    reader = new_reader(params, system.corpus.manifest.vocabulary_size, 7)
    assert_same_bits(reader.encoder, system.reader.encoder)
    assert torch.equal(reader.transform.weight, system.reader.transform.weight)
    assert torch.equal(reader.word_bias, system.reader.word_bias)


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


@pytest.mark.parametrize(
    ("section", "change", "words"),
    [
        ("model", {"hidden_size": 64}, ("hidden_size is 32", " 64")),
        ("model", {"layers": 3}, ("layers is 2", " 3")),
        ("model", {"heads": 4}, ("heads is 2", " 4")),
        ("corpus", {"passage_length": 60}, ("64 positions", "corpus.passage_length", "86")),
    ],
)
def test_a_checkpoint_of_other_sizes_is_refused(
    system: TinySystem, reader_folder: Path, section: str, change: dict[str, Any], words: tuple[str, ...]
) -> None:
    sections: dict[str, dict[str, object]] = {"model": {"checkpoint": str(reader_folder)}, "corpus": {}}
    sections[section].update(change)
    params = tiny_params(**sections)
    with refused(*words, path=reader_folder):
        encoder_shape(params, system.corpus.manifest.vocabulary_size)


def test_rows_that_pad_the_embeddings_have_their_share_of_the_probability(tmp_path: Path) -> None:
    """With 83 words and embeddings for 88, all 88 count in the softmax, as in transformers."""
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    sizes: Any = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    theirs = BertForMaskedLM(BertConfig(vocab_size=88, max_position_embeddings=96, initializer_range=0.5, **sizes))
    theirs.eval().save_pretrained(tmp_path)
    params = tiny_params(model={"checkpoint": str(tmp_path), "intermediate_size": 64})
    reader = new_reader(params, 83, 0).eval()
    embedder, _ = read_initial_embedder(tmp_path, params, 83, 0)
    assert reader.encoder.shape.vocabulary_size == embedder.query_encoder.shape.vocabulary_size == 88
    tokens_BL, types_BL = torch.randint(83, (3, 9)), torch.zeros(3, 9, dtype=torch.int64)
    with torch.no_grad():
        expected_BLV = theirs(tokens_BL).logits.log_softmax(-1)
        at_BM = torch.arange(9).expand(3, -1)
        hidden_BMD = reader.masked_hidden(Batch(tokens_BL, types_BL, types_BL == 0), at_BM)
        torch.testing.assert_close(reader.word_log_probs(hidden_BMD), expected_BLV, atol=1e-4, rtol=0)
    again = tmp_path / "stage"
    write_reader(reader, again)
    assert_same_bits(read_initial_reader(again, params, 83, 1), reader)
    for words in (79, 89):  # padded to 80, and more words than rows
        with refused("vocabulary_size is 88", f" {words}"):
            new_reader(params, words, 0)


def test_the_pooler_is_the_checkpoints(system: TinySystem, tmp_path: Path, size: int) -> None:
    assert isinstance(system.reader.encoder, Encoder)
    pooler = {POOLER["weight"]: torch.full((32, 32), 0.5), POOLER["bias"]: torch.ones(32)}
    write_tensors(tmp_path / "model.safetensors", to_bert(system.reader.encoder) | pooler)
    (tmp_path / "config.json").write_text(json.dumps(bert_config(system.reader.encoder.shape, "BertModel")))
    params = tiny_params(model={"checkpoint": str(tmp_path), "pooling": "tanh"})
    of_checkpoint = new_embedder(params, size, 0, system.reader.encoder)
    of_folder, null_offset = read_initial_embedder(tmp_path, tiny_params(model={"pooling": "tanh"}), size, 0)
    scratch = new_embedder(params, size, 0, None)
    assert null_offset == 0.0
    for embedder in (of_checkpoint, of_folder):
        assert embedder.query_pooler is not None
        assert torch.equal(embedder.query_pooler.weight, pooler[POOLER["weight"]])
        assert torch.equal(embedder.query_pooler.bias, pooler[POOLER["bias"]])
    assert_same_bits(of_folder, of_checkpoint)
    assert scratch.query_pooler is not None
    assert not torch.equal(scratch.query_pooler.weight, pooler[POOLER["weight"]])


def test_a_reader_of_a_run_comes_with_its_heads(system: TinySystem, reader_folder: Path, size: int) -> None:
    params = tiny_params(model={"dropout": 0.25})
    found = read_initial_reader(reader_folder, params, size, 0)
    assert found.has_span_head
    assert_same_bits(found, system.reader)
    assert found.encoder.shape == system.reader.encoder.shape._replace(dropout=0.25)
    with refused("span_projection.weight", remedy="set finetune.span_hidden_size to its sizes"):
        read_initial_reader(reader_folder, tiny_params(finetune={"span_hidden_size": 99}), size, 0)
    (reader_folder / "span_head.safetensors").unlink()
    again = read_initial_reader(reader_folder, params, size, 0)
    assert not again.has_span_head
    assert torch.equal(again.transform.weight, system.reader.transform.weight)
    assert torch.equal(again.span_projection.weight, new_reader(system.params, size, 0).span_projection.weight)


def test_an_embedder_of_a_run_comes_as_it_is(system: TinySystem, embedder_folder: Path, size: int) -> None:
    params = tiny_params(model={"dropout": 0.25})
    found, null_offset = read_initial_embedder(embedder_folder, params, size, 0)
    assert_same_bits(found, system.embedder)
    assert null_offset == 1.25
    assert found.document_encoder.shape.dropout == 0.25
    still_two, _ = read_initial_embedder(embedder_folder, tiny_params(model={"share_towers": True}), size, 0)
    assert not still_two.share_towers
    assert fit_null(found, null_offset, params.pretrain) == 1.25
    learned = params.pretrain.model_copy(update={"null_document": "learned"})
    assert fit_null(found, null_offset, learned) == 0.0, "it shifted the score of another null document"
    assert found.null_vector is not None


@pytest.mark.parametrize(
    ("change", "towers", "projection"),
    [
        ({}, True, True),
        ({"share_towers": False}, False, False),
    ],
)
def test_what_a_folder_shares_is_split_where_asked(
    tmp_path: Path, change: dict[str, Any], towers: bool, projection: bool
) -> None:
    embedder = new_embedder(tiny_params(model=EVERYTHING), 50, 0, None)
    scramble(embedder)
    write_embedder(embedder, tmp_path)
    found, _ = read_initial_embedder(tmp_path, tiny_params(model=EVERYTHING | change), 50, 1)
    assert (found.head.share_towers, found.head.share_projection) == (towers, projection)
    assert_same_bits(found, embedder)


@pytest.mark.parametrize(
    ("name", "found", "asked"),
    [
        ("projection_size", 32, 16),
        ("pooling", "cls", "tanh"),
        ("score_scale", "none", "inverse_sqrt"),
        ("layers", 2, 1),
    ],
)
def test_an_embedder_of_another_kind_is_refused(
    embedder_folder: Path, size: int, name: str, found: object, asked: object
) -> None:
    with refused(f"{name} is {found}", f" {asked}", path=embedder_folder):
        read_initial_embedder(embedder_folder, tiny_params(model={name: asked}), size, 0)


def test_an_embedder_with_another_projection_is_refused(embedder_folder: Path, size: int) -> None:
    with refused("projection_norm is True", "set model.projection to released", path=DATA / "embedder"):
        read_initial_embedder(DATA / "embedder", tiny_params(model=RELEASED | {"pooling": "tanh"}), 40, 1)


@pytest.mark.parametrize(("name", "span_head"), [("reader", True), ("encoder", False)])
def test_a_released_reader_is_read(name: str, span_head: bool) -> None:
    head = {"span_hidden_size": 5}
    params, folder = tiny_params(model=RELEASED, finetune=head), DATA / name
    found, expected = read_initial_reader(folder, params, 40, 1), new_reader(params, 40, 1)
    assert found.has_span_head == span_head
    load_reader(expected, read_reader_weights(folder), folder)
    assert_same_bits(found, expected)  # a span head that the folder lacks is drawn
    assert found.encoder.shape.activation == "gelu_new", "the folder's"


def test_a_released_embedder_is_read() -> None:
    params = tiny_params(model=EVERYTHING | RELEASED)
    found, null_offset = read_initial_embedder(DATA / "embedder", params, 40, 1)
    assert null_offset == 0.0
    assert found.head == embedder_shape(params)._replace(projection_bias=True)
    assert_same_bits(found, read_released_embedder(DATA / "embedder"))
    with refused("pooling is tanh", " cls", path=DATA / "embedder"):
        read_initial_embedder(DATA / "embedder", tiny_params(model=EVERYTHING | RELEASED | {"pooling": "cls"}), 40, 1)
