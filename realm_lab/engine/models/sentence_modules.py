"""Write the files that make an embedder's folder a model of sentence-transformers.

`SentenceTransformer(FOLDER)` then embeds queries with `encode_query` and passages, as pairs (title, body), with
`encode_document`. If the towers are separate, FOLDER has the query tower and FOLDER/document the document tower. Scores
lack the constant factor of `model.score_scale`, which changes no order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn

from realm_lab.engine.models.embedder import Embedder
from realm_lab.engine.models.folders import write_tensors
from realm_lab.records.files import write_json

MODULES = "sentence_transformers.models."  # path of the classes that every release reads
Layers = list[tuple[str, dict[str, Any], dict[str, Tensor]]]  # kind, config.json, weights


def write_sentence_modules(embedder: Embedder, folder: Path) -> None:
    """Write modules.json with pooling, pooler and projection of the towers next to their Transformers."""
    if not embedder.share_towers:
        _write(embedder, folder, ("query",))
        _write(embedder, folder / "document", ("document",))
    else:
        _write(embedder, folder, ("query",) if embedder.head.share_projection else ("query", "document"))


def _write(embedder: Embedder, folder: Path, towers: tuple[str, ...]) -> None:
    shape, head = embedder.query_encoder.shape, embedder.head
    pooling = {"word_embedding_dimension": shape.hidden_size, "pooling_mode_mean_tokens": head.pooling == "mean"}
    layers: Layers = [("Pooling", pooling | {"pooling_mode_cls_token": head.pooling != "mean"}, {})]
    if (pooler := getattr(embedder, f"{towers[0]}_pooler")) is not None:
        layers.append(_dense(pooler, "activation.Tanh"))
    heads = {tower: _head(embedder, tower) for tower in towers}
    if len(towers) == 1:
        layers += heads[towers[0]]
    else:
        layers.append(("Router", {}, {}))
    modules = [{"idx": 0, "name": "0", "path": "", "type": f"{MODULES}Transformer"}]
    for number, (kind, config, weights) in enumerate(layers, 1):
        path = f"{number}_{kind}"
        modules.append({"idx": number, "name": str(number), "path": path, "type": f"{MODULES}{kind}"})
        if kind == "Router":
            _write_router(folder / path, heads)
        else:
            _write_layer(folder / path, config, weights)
    write_json(folder / "modules.json", modules)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": shape.positions, "do_lower_case": False})
    similarity = "cosine" if head.score_scale == "cosine" else "dot"
    write_json(folder / "config_sentence_transformers.json", {"similarity_fn_name": similarity})


def _write_router(folder: Path, heads: dict[str, Layers]) -> None:
    """Write the layers after pooling, different for queries and documents, as two routes of a Router."""
    named = {
        tower: {
            f"{tower}_{number}_{kind}": (kind, config, weights) for number, (kind, config, weights) in enumerate(own)
        }
        for tower, own in heads.items()
    }
    for own in named.values():
        for name, (_, config, weights) in own.items():
            _write_layer(folder / name, config, weights)
    described = {
        "types": {name: f"{MODULES}{layer[0]}" for own in named.values() for name, layer in own.items()},
        "structure": {tower: list(own) for tower, own in named.items()},
        "parameters": {"default_route": "query", "allow_empty_key": True},
    }
    write_json(folder / "router_config.json", described)


def _write_layer(folder: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> None:
    write_json(folder / "config.json", config)
    if weights:
        write_tensors(folder / "model.safetensors", weights)


def _head(embedder: Embedder, tower: str) -> Layers:
    """Return the projection of a tower, with its LayerNorm and, for cosine scores, the scaling to length 1."""
    layers = [_dense(getattr(embedder, f"{tower}_projection"), "linear.Identity")]
    if (norm := getattr(embedder, f"{tower}_norm")) is not None:
        weights = {f"norm.{name}": value for name, value in norm.state_dict().items()}
        layers.append(("LayerNorm", {"dimension": norm.normalized_shape[0]}, weights))
    return layers + ([("Normalize", {}, {})] if embedder.head.score_scale == "cosine" else [])


def _dense(linear: nn.Linear, activation: str) -> tuple[str, dict[str, Any], dict[str, Tensor]]:
    sizes = {"in_features": linear.in_features, "out_features": linear.out_features, "bias": linear.bias is not None}
    weights = {f"linear.{name}": value for name, value in linear.state_dict().items()}
    return "Dense", sizes | {"activation_function": f"torch.nn.modules.{activation}"}, weights
