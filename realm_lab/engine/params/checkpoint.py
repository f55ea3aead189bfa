"""Fetch, check and digest the checkpoints that parameters name, folders or models of the Hugging Face Hub.

The sizes of model.checkpoint are read from its config.json before anything runs.
"""

from __future__ import annotations

import functools
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from realm_lab.engine.core.hub import fetched
from realm_lab.errors import UserError
from realm_lab.records.files import digest, digest_file, read_json, read_object

# parameter -> its name in config.json
SIZES = {
    "hidden_size": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "intermediate_size": "intermediate_size",
}
DISTILBERT_SIZES = {"hidden_size": "dim", "layers": "n_layers", "heads": "n_heads", "intermediate_size": "hidden_dim"}
OF_ROBERTA = ("roberta", "xlm-roberta")
# supported model_type of config.json -> its name; realm: released REALM weights
MODEL_TYPES = {
    "bert": "BERT",
    "realm": "REALM",
    "roberta": "RoBERTa",
    "xlm-roberta": "XLM-R",
    "distilbert": "DistilBERT",
    "electra": "ELECTRA",
    "modernbert": "ModernBERT",
}
OF_BERT = ("bert", "realm", None)  # the oldest folders name no type
GELUS = ("gelu", "gelu_new")
# model_type -> field of config.json -> its values that are supported, the first by default
SUPPORTED: dict[str, dict[str, tuple[Any, ...]]] = {
    "bert": {"hidden_act": GELUS, "position_embedding_type": ("absolute",), "type_vocab_size": (2,)},
    "distilbert": {"activation": GELUS},  # of the masked-word head; the heads of RoBERTa and ELECTRA have only GELU
    "modernbert": {"classifier_activation": GELUS},
}
CONVERT = (
    "import sys, torch; from safetensors.torch import save_file; "
    "tensors = torch.load(sys.argv[1], map_location='cpu', weights_only=True); "
    "save_file({k: v.clone().contiguous() for k, v in tensors.items()}, sys.argv[2])"
)
HUB = "hf://"
HUB_FILES = [
    "*.safetensors", "*.safetensors.index.json", "config.json", "modules.json", "vocab.txt", "tokenizer*",
    "special_tokens*", "1_*", "config_sentence_transformers.json",
]  # fmt: skip


class Family(NamedTuple):
    """Names in the files of masked-language models of one family of encoders."""

    architecture: str
    encoder: str  # the prefix of the encoder's tensors
    transform: str
    norm: str
    bias: str

    @property
    def head(self) -> dict[str, str]:
        """Name of each parameter of realm_lab's masked-word head -> its name in the file."""
        parts = {"transform": self.transform, "transform_norm": self.norm}
        named = {f"{ours}.{kind}": f"{theirs}.{kind}" for ours, theirs in parts.items() for kind in ("weight", "bias")}
        return {"word_bias": self.bias, **named}


BERT = Family(
    "BertForMaskedLM",
    "bert",
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    "cls.predictions.bias",
)
# model_type -> names of a family other than BERT
FAMILIES = {
    "roberta": Family("RobertaForMaskedLM", "roberta", "lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    "xlm-roberta": Family("XLMRobertaForMaskedLM", "roberta", "lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    "distilbert": Family(
        "DistilBertForMaskedLM", "distilbert", "vocab_transform", "vocab_layer_norm", "vocab_projector.bias"
    ),
    "electra": Family(
        "ElectraForMaskedLM",
        "electra",
        "generator_predictions.dense",
        "generator_predictions.LayerNorm",
        "generator_lm_head.bias",
    ),
    "modernbert": Family("ModernBertForMaskedLM", "model", "head.dense", "head.norm", "decoder.bias"),
}


def local(value: Any) -> Any:
    """Resolve a parameter's value: `hf://ORG/NAME`, or `hf://ORG/NAME@REVISION`, becomes the folder of that model."""
    return _fetched(value.removeprefix(HUB)) if isinstance(value, str) and value.startswith(HUB) else value


@functools.cache
def _fetched(name: str) -> str:
    repository, _, revision = name.partition("@")
    given = f"{HUB}{name}", repository, revision or None, HUB_FILES, hub_remedy(repository)
    return str(fetched(*given, "model", weight_files))


def check_config(config: Mapping[str, Any], path: Path) -> None:
    """Raise a UserError if the model type or a setting of `config` (config.json at `path`) is not supported.

    The oldest BERT folders name no model type, and some not even an architecture.
    """
    kind = config.get("model_type")
    others = [name for name in config.get("architectures") or () if not str(name).startswith("Bert")]
    found = kind or next(iter(others), None)
    if found is not None and found not in MODEL_TYPES:
        remedy = f"name the folder of one of: {', '.join(MODEL_TYPES.values())}"
        raise UserError(f"a model of type '{found}' is not supported", path=path, remedy=remedy)
    for name, values in SUPPORTED.get("bert" if kind in OF_BERT else kind, {}).items():
        if config.get(name, values[0]) not in values:
            supported = f"only {' and '.join(map(str, values))} are supported"
            raise UserError(f"{name} is {config[name]}; {supported}", path=path, remedy="name another encoder")


def weight_files(folder: Path) -> list[Path]:
    """Return the weight files of a model: model.safetensors, or the shards that an index names."""
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.is_file() or not index.is_file():
        return [whole]
    shards = read_object(index).get("weight_map")
    if not isinstance(shards, dict) or not shards or not all(isinstance(name, str) for name in shards.values()):
        raise UserError("no 'weight_map' of tensors to files", path=index, remedy="copy the folder again")
    return [folder / name for name in sorted(set(shards.values()))]


def check_checkpoint(folder: Path, names: Sequence[str] = ()) -> None:
    """Raise a UserError if a folder has no model of a supported kind. Only config.json, the names of weight files and
    their headers are read. `names`: values that may be given instead of a folder, for the remedy."""
    config = folder / "config.json"
    for path in (config, *weight_files(folder)):
        if not path.is_file() and (pickled := folder / "pytorch_model.bin").is_file():
            raise UserError("pickled weights are never loaded", path=pickled, remedy=to_convert(pickled, path))
        if not path.is_file():
            remedy = f"choose {', '.join(names)}, or " if names else ""
            remedy += "give a local folder with config.json and safetensors"
            remedy = remedy if folder.is_dir() else f"{remedy}; {hub_remedy(folder)}"
            raise UserError("no such file", path=path, remedy=remedy)
        if path == config:
            check_config(read_object(config), config)
    check_head(folder)


def check_head(folder: Path) -> None:
    """Raise a UserError if the masked-word head in a folder has other sizes than config.json gives. Only the headers of
    weight files are read."""
    config = read_object(folder / "config.json")
    family = FAMILIES.get(config.get("model_type", ""), BERT)
    size, words = sizes_of(config).get("hidden_size"), config.get("vocab_size")
    narrow = config.get("embedding_size") if config.get("model_type") == "electra" else size
    if None in (size, narrow, words):  # left to the defaults of transformers, which takes seconds to import
        return
    shapes: dict[str, tuple[Any, ...]] = dict.fromkeys(family.head.values(), (narrow,))
    shapes |= {f"{family.transform}.weight": (narrow, size), family.bias: (words,)}
    for path in weight_files(folder):
        with open_weights(path, "np") as file:
            known = {name: shapes.get(name.removeprefix("reader.")) for name in file.keys()}  # noqa: SIM118
            found = {name: tuple(file.get_slice(name).get_shape()) for name, shape in known.items() if shape}
        for name, shape in found.items():
            if shape != known[name]:
                problem = f"'{name}' has shape {shape}, and by config.json it has {known[name]}"
                raise UserError(problem, path=path, remedy="copy the folder again, or name another encoder")


@contextmanager
def open_weights(path: Path, framework: str) -> Iterator[Any]:
    """Open a safetensors file for a framework. UserError: it is truncated or damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework) as file:
            yield file
    except (SafetensorError, OSError, ValueError) as error:
        problem = f"truncated or not safetensors ({error})"
        raise UserError(problem, path=path, remedy="copy the file again") from None


def check_bert(folder: Path, system: str) -> None:
    """Raise a UserError if a folder holds no BERT. `system` needs one, since it is built from BERT's layers."""
    kind = read_object(folder / "config.json").get("model_type")
    if kind not in OF_BERT:
        problem = (
            f"parameter 'model.checkpoint': system '{system}' is built from BERT's layers, and {folder} is a {kind}"
        )
        raise UserError(problem, parameter="model.checkpoint", remedy="name a BERT folder")


def to_convert(pickled: Path, path: Path) -> str:
    """Return the remedy for pickled weights."""
    return f"convert them to safetensors with: {shlex.join(['python', '-c', CONVERT, str(pickled), str(path)])}"


def sizes_of(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sizes that config.json has, by the names of their parameters."""
    names = DISTILBERT_SIZES if config.get("model_type") == "distilbert" else SIZES
    return {ours: config[theirs] for ours, theirs in names.items() if theirs in config}


def positions_of(config: Mapping[str, Any]) -> int:
    """Return how many wordpieces an encoder reads at most, by config.json; RoBERTa's positions start after its padding
    id."""
    before = config.get("pad_token_id", 1) + 1 if config.get("model_type") in OF_ROBERTA else 0
    return int(config["max_position_embeddings"]) - before


def check_positions(folder: Path, passage_length: int, sentence_length: int) -> None:
    """Raise a UserError if the encoder of a folder reads fewer wordpieces than a sentence with a passage has."""
    config, longest = read_object(folder / "config.json"), max(passage_length, sentence_length) + sentence_length
    if "max_position_embeddings" in config and (found := positions_of(config)) < longest:
        needs = f"{found} positions, but corpus.passage_length + corpus.sentence_length needs {longest}"
        raise UserError(needs, path=folder, remedy="lower them, or name an encoder with more")


def digest_checkpoint(folder: Path, parameter: str, names: Sequence[str] = ()) -> str:
    """Return the digest of the models in a folder: all its .safetensors and .json files, by their paths in the folder.
    UserError: no such folder, or no supported model in it. `names`: other values of the parameter."""
    if names and not folder.is_dir():
        choices = f"choose {', '.join(names)}, or give a local folder with config.json and safetensors"
        raise UserError(f"parameter '{parameter}': no folder '{folder}'; {choices}", parameter=parameter)
    try:
        check_checkpoint(folder, names)
    except UserError as error:
        raise UserError(f"parameter '{parameter}': {error}", parameter=parameter) from None
    paths = sorted(path for pattern in ("*.safetensors", "*.json") for path in folder.rglob(pattern) if path.is_file())
    return digest({path.relative_to(folder).as_posix(): digest_file(path) for path in paths})


def with_sizes(values: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Add the sizes of model.checkpoint to flat parameters, if it is a folder. UserError: `given` (params.yaml with the
    overrides, without the preset) has another size than the folder."""
    folder = local(values.get("model.checkpoint"))
    path = Path(folder) / "config.json" if isinstance(folder, str) else None
    config = read_json(path) if path is not None and path.is_file() else None
    if not isinstance(config, dict):
        return values
    found = {f"model.{name}": size for name, size in sizes_of(config).items()}
    for name, size in found.items():
        if given.get(name) is not None and given[name] != size:
            raise UserError(
                f"parameter '{name}' is {given[name]}, but {path} has {size}; leave it empty", parameter=name
            )
    return values | found


def hub_remedy(name: Path | str) -> str:
    """Explain how to get a missing folder from the Hugging Face Hub."""
    parts = str(name).strip("/").split("/")
    hub = "/".join(parts) if len(parts) == 2 and parts[0] != "models" else "google-bert/bert-base-uncased"
    return f"a model of the Hub is fetched with `hf download {hub} --local-dir models/checkpoint`; name that folder"
