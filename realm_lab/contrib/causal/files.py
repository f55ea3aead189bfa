"""The files of a causal language model: a GGUF file, or a folder. They are checked and read without torch."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from typing import Any

from realm_lab.contrib.causal.gguf_header import check_gguf
from realm_lab.engine.params.checkpoint import weight_files
from realm_lab.errors import UserError, install_line
from realm_lab.records.files import digest, digest_file, read_object

NO_FIRST_TOKEN = (
    "neither bos_token nor eos_token, so nothing can come before the first word of a text",
    "name one in tokenizer_config.json",
)
GENERAL_TOKENIZERS = ("PreTrainedTokenizerFast", "TokenizersBackend")  # classes without default special tokens


def check(path: Path) -> None:
    """Raise a UserError unless `path` is a GGUF file, or a folder with a model that transformers could open and a
    tokenizer that fits it. No weight is read."""
    needed = [path] if path.suffix == ".gguf" else [path / "config.json", *weight_files(path)]
    for one in needed:
        if not one.is_file():
            remedy = "name a .gguf file, or a folder with config.json and safetensors"
            raise UserError("no such file", path=one, remedy=remedy)
    if path.suffix == ".gguf":
        check_gguf(path, digest_file(path))
        if missing := [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]:
            raise UserError(f"reading GGUF takes {' and '.join(missing)}", install_line("causal"), path=path)
        return
    tokenizer, words = path / "tokenizer.json", _of_text(path).get("vocab_size")
    if not tokenizer.is_file():
        return
    largest = largest_token(tokenizer, digest_file(tokenizer))
    if words is not None and largest >= words:
        problem = f"it has the id {largest}, and by config.json the model knows the ids below {words}"
        raise UserError(problem, "copy the tokenizer and the model of one version", path=tokenizer)
    config = path / "tokenizer_config.json"
    named = (read_object(one) for one in (path / "special_tokens_map.json", config) if one.is_file())
    given = {name: value for each in named for name, value in each.items()}  # the second file wins, even with null
    if given.get("tokenizer_class") in GENERAL_TOKENIZERS and not (given.get("bos_token") or given.get("eos_token")):
        raise UserError(*NO_FIRST_TOKEN, path=config)


@functools.cache
def largest_token(path: Path, content: str) -> int:
    """Return the largest id of a tokenizer.json. `content`: the digest of the file, for the cache."""
    state = read_object(path)
    vocabulary, added = (state.get("model") or {}).get("vocab") or {}, state.get("added_tokens") or []
    ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))  # Unigram has a list
    return max([*ids, *(token["id"] for token in added)], default=-1)


def positions(path: Path) -> int | None:
    """Return the number of tokens that a causal language model was made for; None: unknown, or a GGUF file."""
    if path.suffix == ".gguf":
        return None
    config = _of_text(path)
    found = next((config[name] for name in ("max_position_embeddings", "n_positions") if config.get(name)), None)
    return None if found is None else int(found)


def _of_text(folder: Path) -> dict[str, Any]:
    """Return the config.json of a causal language model, or the part of it that describes the text model."""
    config = read_object(folder / "config.json")
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def check_positions(path: Path, passage_length: int, sentence_length: int) -> None:
    """Raise a UserError if a causal language model was made for fewer tokens than a prompt has wordpieces."""
    found, longest = positions(path), passage_length + sentence_length
    if found is not None and found < longest:
        needs = f"{found} positions, but prompts of corpus.passage_length + corpus.sentence_length have {longest}"
        raise UserError(needs, path=path, remedy="lower them, or name a model with more")


def digest_of(path: Path) -> str:
    """Return the digest of a causal language model: of a GGUF file, or of the relevant files of a folder. UserError:
    `check` refuses the model."""
    try:
        check(path)
    except UserError as error:
        raise UserError(f"parameter 'pretrain.causal_checkpoint': {error}") from None
    if path.is_file():
        return digest_file(path)
    names = sorted(one for pattern in ("*.safetensors", "*.json", "*.txt", "*.model") for one in path.glob(pattern))
    return digest({one.name: digest_file(one) for one in names})
