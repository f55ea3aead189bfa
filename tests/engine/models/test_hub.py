"""Encoders of other families: they give the numbers of transformers, and its folders are read and written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from realm_lab.engine.corpus.vocabulary import load_tokenizer, special_ids
from realm_lab.engine.models.embedder import Embedder, EmbedderShape
from realm_lab.engine.models.folders import (
    load_encoder,
    read_checkpoint,
    read_embedder,
    read_shape,
    write_embedder,
    write_reader,
)
from realm_lab.engine.models.hub import draw, new_encoder
from realm_lab.engine.models.initial import load_reader, read_reader_weights
from realm_lab.engine.models.inputs import join
from realm_lab.engine.models.reader import Reader
from realm_lab.engine.params import checkpoint
from realm_lab.engine.params.checkpoint import check_checkpoint
from tests.engine.models.families import FAMILIES, write_family
from tests.engine.models.same_bits import assert_same_bits
from tests.factories.errors import refused

TEXTS = ["Marie Curie left Warsaw for Paris in 1891.", "The café is (still) well known."] * 20
TOLERANCE: dict[str, Any] = {"atol": 1e-5, "rtol": 0}


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_family(tmp_path / request.param, request.param, TEXTS)


def read_reader(folder: Path) -> Reader:
    weights = read_reader_weights(folder)
    reader = Reader(weights.shape, 8)
    with torch.no_grad():
        for parameter in reader.parameters():
            parameter.fill_(torch.nan)  # a parameter that is not read stays NaN
    load_reader(reader, weights, folder)
    return reader.eval()


def pairs(folder: Path) -> Any:
    """Joined pairs of different lengths."""
    tokenizer = load_tokenizer(folder)
    ids = [torch.tensor(tokenizer.encode(text, add_special_tokens=False).ids).numpy() for text in TEXTS[:2]]
    return join([ids[0], ids[1][:3]], [ids[1], ids[0][:2]], special_ids(tokenizer), 60)


def test_hidden_states_and_words_are_those_of_transformers(folder: Path) -> None:
    from transformers import AutoModelForMaskedLM

    theirs = AutoModelForMaskedLM.from_pretrained(folder).eval()
    reader, batch = read_reader(folder), pairs(folder)
    given = {"input_ids": batch.tokens_BL, "attention_mask": batch.mask_BL.long()}
    given |= {"token_type_ids": batch.types_BL} if folder.name == "electra" else {}
    with torch.no_grad():
        out = theirs(**given, output_hidden_states=True)
        hidden_BLD = reader.encoder(*batch)
        words_BLV = reader.word_log_probs(hidden_BLD)
        some_BMD = reader.masked_hidden(batch, torch.tensor([[1, 4], [2, 3]]))
        alone_LD = reader.encoder(*(part[1:, : batch.mask_BL[1].sum()] for part in batch))[0]
    real_BL = batch.mask_BL
    base = theirs.base_model(**given).last_hidden_state
    torch.testing.assert_close(hidden_BLD[real_BL], base[real_BL], **TOLERANCE)
    torch.testing.assert_close(words_BLV[real_BL], out.logits.log_softmax(-1)[real_BL], **TOLERANCE)
    torch.testing.assert_close(some_BMD[0], hidden_BLD[0, [1, 4]], **TOLERANCE)
    torch.testing.assert_close(alone_LD, hidden_BLD[1][real_BL[1]], **TOLERANCE)  # padding changes nothing
    assert out.logits.std() > 0.1


def test_a_reader_comes_back_and_transformers_opens_it(folder: Path, tmp_path: Path) -> None:
    from transformers import AutoModel, AutoModelForMaskedLM

    reader = read_reader(folder)
    reader.span_projection.weight.data.zero_()
    write_reader(reader, tmp_path / "reader", span_head=False)
    again = read_reader(tmp_path / "reader")
    assert_same_bits(again.encoder, reader.encoder)
    batch = pairs(folder)
    words, report = AutoModelForMaskedLM.from_pretrained(tmp_path / "reader", output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    before = AutoModelForMaskedLM.from_pretrained(folder)
    given = {"input_ids": batch.tokens_BL, "attention_mask": batch.mask_BL.long()}
    with torch.no_grad():
        assert torch.equal(words.eval()(**given).logits, before.eval()(**given).logits)
    _, report = AutoModel.from_pretrained(tmp_path / "reader", output_loading_info=True)
    assert {name for name in report["missing_keys"] if "pooler" not in name} == set()


@pytest.mark.parametrize("share_towers", [True, False])
def test_an_embedder_comes_back(folder: Path, tmp_path: Path, share_towers: bool) -> None:
    shape, weights = read_checkpoint(folder)
    encoder = new_encoder(shape)
    load_encoder(encoder, weights, folder)
    embedder = Embedder(shape, EmbedderShape(8, share_towers=share_towers, pooling="mean", score_scale="cosine"))
    embedder.start_from(encoder, torch.Generator().manual_seed(0))
    write_embedder(embedder, tmp_path / "embedder", 0.5)
    found, null_offset = read_embedder(tmp_path / "embedder")
    assert_same_bits(found, embedder)
    assert null_offset == 0.5
    assert found.eval().embed_documents(pairs(folder)).isfinite().all()
    assert embedder.share_towers == share_towers == found.share_towers


def test_positions_are_those_that_the_model_reads(folder: Path) -> None:
    encoder = new_encoder(read_shape(folder)).eval()
    assert encoder.shape.positions == 64
    for length in (64, 65):
        tokens = torch.full((1, length), 9)
        if length > 64:
            with refused("65 wordpieces"):
                encoder(tokens, 0 * tokens, tokens > 0)
        else:
            assert encoder(tokens, 0 * tokens, tokens > 0).isfinite().all()


def test_drawing_depends_on_the_generator_alone(folder: Path) -> None:
    drawn: list[torch.Tensor] = []
    for seed in (1, 1, 2):
        encoder = new_encoder(read_shape(folder))
        torch.manual_seed(len(drawn))
        draw(encoder, torch.Generator().manual_seed(seed))
        drawn.append(encoder.word_embeddings.weight.detach())
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


@pytest.mark.parametrize("family", [*FAMILIES, "bert"])
def test_a_head_of_another_shape_is_named(tmp_path: Path, family: str) -> None:
    folder, names = write_family(tmp_path, family, TEXTS), checkpoint.FAMILIES.get(family, checkpoint.BERT)
    check_checkpoint(folder)
    read = load_file(folder / "model.safetensors")
    tensors = {name: one.clone() for name, one in read.items()}  # safetensors 0.5 maps the file, which is written again
    for name, shape in ((f"{names.transform}.weight", (5, 32)), (f"{names.norm}.weight", (5,)), (names.bias, (7,))):
        save_file(tensors | {name: torch.zeros(shape)}, folder / "model.safetensors")
        for refuse in (check_checkpoint, read_reader):
            with refused(f"'{name}' has shape {shape}") as error:
                refuse(folder)
            assert error.value.path in (folder, folder / "model.safetensors")
            assert error.value.remedy


def test_without_a_head_there_is_nothing_to_compare(tmp_path: Path) -> None:
    folder = write_family(tmp_path, "electra", TEXTS)
    tensors = load_file(folder / "model.safetensors")
    save_file({name: one for name, one in tensors.items() if "generator" not in name}, folder / "model.safetensors")
    check_checkpoint(folder)
    assert read_reader(folder)


def test_other_families_and_pickles_are_refused(tmp_path: Path) -> None:
    folder = write_family(tmp_path, "distilbert", TEXTS)
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    for refuse in (check_checkpoint, read_checkpoint):
        with refused("safetensors", "pickle"):
            refuse(folder)
    (folder / "pytorch_model.bin").rename(folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "mpnet"}))
    for refuse in (check_checkpoint, read_checkpoint):
        with refused("'mpnet'", "ModernBERT"):
            refuse(folder)
    (folder / "config.json").write_text(json.dumps(config | {"activation": "relu"}))
    with refused("relu"):
        read_checkpoint(folder)
