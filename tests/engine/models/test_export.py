"""Models are plain Hugging Face folders, read back bit for bit, and by transformers too."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from realm_lab.engine.models.embedder import Embedder, EmbedderShape
from realm_lab.engine.models.encoder import Encoder, EncoderShape
from realm_lab.engine.models.folders import read_embedder, to_bert, write_embedder
from realm_lab.errors import UserError
from tests.engine.models.same_bits import assert_same_bits, read_reader
from tests.tiny_system import TinySystem, scramble

SPAN_HIDDEN = 32


def test_automodel_opens_the_folders(system: TinySystem, reader_folder: Path, embedder_folder: Path) -> None:
    from transformers import AutoModel, AutoModelForMaskedLM

    encoders = {
        reader_folder: system.reader.encoder,
        embedder_folder: system.embedder.query_encoder,
        embedder_folder / "document": system.embedder.document_encoder,
    }
    for folder, encoder in encoders.items():
        assert isinstance(encoder, Encoder)
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


def edit(path: Path, name: str, value: torch.Tensor | None) -> None:
    """Replace one tensor of a file, or leave it out."""
    tensors = load_file(path)
    del tensors[name]
    save_file(tensors | ({} if value is None else {name: value}), path)


EVERYTHING = EmbedderShape(8, True, True, "tanh", True, 0.25, "inverse_sqrt", True, True)


@pytest.mark.parametrize(
    "head",
    [
        EVERYTHING,
        EVERYTHING._replace(share_projection=False),
        EVERYTHING._replace(share_towers=False, share_projection=False),
    ],
)
def test_an_embedder_with_every_switch_comes_back(tmp_path: Path, head: EmbedderShape) -> None:
    from transformers import AutoModel

    shape = EncoderShape(50, 16, 1, 2, 20, 16, 0.0, "gelu_new", 1e-5)
    embedder = Embedder(shape, head)
    scramble(embedder)
    write_embedder(embedder, tmp_path, 0.5)
    found, null_offset = read_embedder(tmp_path)
    assert_same_bits(found, embedder)
    assert (found.head, found.query_encoder.shape, null_offset) == (head, shape, 0.5)
    towers = {"query": tmp_path} | ({} if head.share_towers else {"document": tmp_path / "document"})
    tokens = torch.tensor([[2, 7, 8, 3]])
    for tower, folder in towers.items():
        model, report = AutoModel.from_pretrained(folder, output_loading_info=True)
        assert not report["missing_keys"]
        assert not report["unexpected_keys"]
        pooled = model.eval()(input_ids=tokens).pooler_output
        with torch.no_grad():
            first = getattr(embedder, f"{tower}_encoder").eval()(tokens, 0 * tokens, tokens > 0)[:, 0]
            ours = torch.tanh(getattr(embedder, f"{tower}_pooler")(first))
        torch.testing.assert_close(ours, pooled, atol=1e-5, rtol=0)


def cut_in_half(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


PROJECTIONS, HEAD, WORDS = "projections.safetensors", "span_head.safetensors", "model.safetensors"
WORD_BIAS = "cls.predictions.transform.dense.bias"
DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "projection of another size": (
        lambda folder: edit(folder / PROJECTIONS, "document_projection.weight", torch.zeros(32, 16)),
        r"'document_projection\.weight' has shape \(32, 16\), the parameters ask for \(32, 32\)",
    ),
    "no projection": (lambda folder: edit(folder / PROJECTIONS, "query_projection.weight", None), "query_projection"),
    "no shape": (lambda folder: (folder / "embedder.json").unlink(), r"embedder\.json: no such file"),
    "word head of one": (
        lambda folder: edit(folder / WORDS, WORD_BIAS, torch.zeros(1)),
        rf"'{re.escape(WORD_BIAS)}' has shape",
    ),
    "half of the words": (lambda folder: cut_in_half(folder / WORDS), WORDS),
    "half of the head": (lambda folder: cut_in_half(folder / HEAD), HEAD),
    "no words": (lambda folder: (folder / WORDS).unlink(), WORDS),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_is_refused(reader_folder: Path, embedder_folder: Path, damage: str) -> None:
    harm, said = DAMAGE[damage]
    of_reader = "word" in damage or "head" in damage
    harm(reader_folder if of_reader else embedder_folder)
    with pytest.raises(UserError, match=said):
        read_reader(reader_folder, SPAN_HIDDEN) if of_reader else read_embedder(embedder_folder)
