"""An embedder's folder is a folder of sentence-transformers: its files, and that library, give the same vectors."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from realm_lab.engine.corpus.vocabulary import encode_batch_plain, load_tokenizer, save_tokenizer, special_ids
from realm_lab.engine.models.embedder import Embedder, EmbedderShape
from realm_lab.engine.models.folders import load_encoder, read_checkpoint, write_embedder
from realm_lab.engine.models.hub import new_encoder
from realm_lab.engine.models.inputs import join
from realm_lab.engine.models.sentence_modules import write_sentence_modules
from tests.engine.models.families import write_family
from tests.tiny_system import scramble

TEXTS = ["Marie Curie left Warsaw.", "Paris (1891) is well known.", "The café is there."]
PAIRS = [("Marie Curie", "She left Warsaw for Paris in 1891."), ("Paris", "The café is (still) known.")]
HEADS = {
    "paper": EmbedderShape(8),
    "code": EmbedderShape(8, True, True, "tanh", True, projection_bias=True),
    "sentences": EmbedderShape(32, pooling="mean", score_scale="cosine", initial_projection="identity"),
    "two towers": EmbedderShape(8, share_towers=False),
}
CASES = [
    *(("bert", head) for head in HEADS),
    ("roberta", "paper"),
    ("modernbert", "sentences"),
    ("distilbert", "paper"),
]


@pytest.fixture(params=CASES, ids=" ".join)
def made(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Embedder, Path, Any]:
    family, head = request.param
    source = write_family(tmp_path / "source", family, TEXTS * 20)
    shape, weights = read_checkpoint(source)
    encoder = new_encoder(shape)
    load_encoder(encoder, weights, source)
    embedder = Embedder(shape, HEADS[head])
    embedder.start_from(encoder, torch.Generator().manual_seed(0))
    scramble(embedder, seed=1)
    folder, tokenizer = tmp_path / "embedder", load_tokenizer(source)
    write_embedder(embedder, folder)
    write_sentence_modules(embedder, folder)
    for place in (folder, folder / "document"):
        save_tokenizer(tokenizer, place, shape.positions, embedder.reads_segments)
    return embedder.eval(), folder, tokenizer


def vectors(embedder: Embedder, tokenizer: Any) -> tuple[Tensor, Tensor]:
    """Return the embedder's vectors of the texts as queries, and of the pairs as documents."""
    import numpy as np

    def ids(texts: list[str]) -> list[Any]:
        return [np.array(encoding.ids) for encoding in encode_batch_plain(tokenizer, texts)]

    special = special_ids(tokenizer)
    with torch.no_grad():
        queries = embedder.embed_queries(join(ids(TEXTS), None, special, 64))
        titles, bodies = (ids([pair[part] for pair in PAIRS]) for part in (0, 1))
        documents = embedder.embed_documents(join(titles, bodies, special, 64))
    scale = embedder.head.temperature if embedder.head.score_scale == "cosine" else 1.0
    return queries * scale, documents


def head_of(folder: Path, kind: str, pooled: Tensor) -> Tensor:
    """Apply one layer after the pooling."""
    weights = load_file(folder / "model.safetensors") if (folder / "model.safetensors").exists() else {}
    config = json.loads((folder / "config.json").read_text())
    if kind == "Dense":
        found = torch.nn.functional.linear(pooled, weights["linear.weight"], weights.get("linear.bias"))
        return found.tanh() if config["activation_function"].endswith("Tanh") else found
    if kind == "LayerNorm":
        return torch.nn.functional.layer_norm(
            pooled, [config["dimension"]], weights["norm.weight"], weights["norm.bias"]
        )
    assert kind == "Normalize"
    return torch.nn.functional.normalize(pooled)


def encoded(folder: Path, texts: Any, task: str) -> Tensor:
    """Embed with nothing but the files, by the documentation of their format."""
    from transformers import AutoModel, AutoTokenizer

    given = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = AutoModel.from_pretrained(folder).eval()(**given).last_hidden_state
    modules = json.loads((folder / "modules.json").read_text())
    assert [module["type"].rpartition(".")[2] for module in modules[:2]] == ["Transformer", "Pooling"]
    mode = json.loads((folder / modules[1]["path"] / "config.json").read_text())
    mask = given["attention_mask"][:, :, None]
    pooled = (hidden * mask).sum(1) / mask.sum(1) if mode["pooling_mode_mean_tokens"] else hidden[:, 0]
    for module in modules[2:]:
        kind, place = module["type"].rpartition(".")[2], folder / module["path"]
        if kind != "Router":
            pooled = head_of(place, kind, pooled)
            continue
        router = json.loads((place / "router_config.json").read_text())
        for name in router["structure"][task]:
            pooled = head_of(place / name, router["types"][name].rpartition(".")[2], pooled)
    return pooled


def test_the_files_give_the_same_vectors(made: tuple[Embedder, Path, Any]) -> None:
    embedder, folder, tokenizer = made
    queries, documents = vectors(embedder, tokenizer)
    of_documents = folder if embedder.share_towers else folder / "document"
    torch.testing.assert_close(encoded(folder, TEXTS, "query"), queries, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(encoded(of_documents, PAIRS, "document"), documents, atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(find_spec("sentence_transformers") is None, reason="pip install sentence-transformers")
def test_sentence_transformers_gives_the_same_vectors(made: tuple[Embedder, Path, Any]) -> None:
    library = import_module("sentence_transformers")
    embedder, folder, tokenizer = made
    queries, documents = vectors(embedder, tokenizer)
    model = library.SentenceTransformer(str(folder), device="cpu")
    found = model.encode_query(TEXTS, convert_to_tensor=True)
    torch.testing.assert_close(found, queries, atol=1e-4, rtol=1e-4)
    model = model if embedder.share_towers else library.SentenceTransformer(str(folder / "document"), device="cpu")
    found = model.encode_document(PAIRS, convert_to_tensor=True)
    torch.testing.assert_close(found, documents, atol=1e-4, rtol=1e-4)
    assert model.similarity_fn_name == ("cosine" if embedder.head.score_scale == "cosine" else "dot")
