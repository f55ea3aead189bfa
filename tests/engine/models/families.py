"""Tiny random encoders of each family, written by transformers, with tokenizers learned from given texts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from realm_lab.engine.corpus.vocabulary import ROBERTA_TOKENS, ROLES, SPECIAL_TOKENS, save_tokenizer, train_wordpiece

FAMILIES = ("roberta", "xlm-roberta", "distilbert", "electra", "modernbert")
WORDS = 400  # at most, in a vocabulary


def byte_level(texts: Sequence[str], names: Sequence[str]) -> Tokenizer:
    """A byte-level BPE as RoBERTa and ModernBERT have it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=WORDS,
        special_tokens=[names[at] for at in (2, 0, 3, 1, 4)],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    cls, sep = ((name, int(tokenizer.token_to_id(name) or 0)) for name in (names[2], names[3]))
    tokenizer.post_processor = processors.RobertaProcessing(sep, cls)
    return tokenizer


def unigram(texts: Sequence[str], names: Sequence[str]) -> Tokenizer:
    """A Unigram tokenizer as XLM-R has it."""
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=WORDS, special_tokens=[names[at] for at in (2, 0, 3, 1, 4)], unk_token=names[1], show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def write_tokenizer(folder: Path, family: str, texts: Sequence[str]) -> Tokenizer:
    """Write the family's kind of tokenizer, as its folders of the Hub have it."""
    folder.mkdir(parents=True, exist_ok=True)
    if family in ("distilbert", "electra", "bert"):
        tokenizer = train_wordpiece(texts, WORDS)
        save_tokenizer(tokenizer, folder)
        return tokenizer
    names = SPECIAL_TOKENS if family == "modernbert" else ROBERTA_TOKENS
    tokenizer = (unigram if family == "xlm-roberta" else byte_level)(texts, names)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast"} | dict(zip(ROLES, names, strict=True))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return tokenizer


def family_config(family: str, vocabulary_size: int, positions: int, **ids: int | None) -> Any:
    """A tiny configuration: three layers, so that ModernBERT has local attention too."""
    from transformers import AutoConfig

    sizes: dict[str, Any] = {"vocab_size": vocabulary_size, "max_position_embeddings": positions} | ids
    if family == "distilbert":
        return AutoConfig.for_model(family, dim=32, n_layers=3, n_heads=2, hidden_dim=48, **sizes)
    sizes |= {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 48}
    if family == "electra":
        sizes["embedding_size"] = 24
    if family in ("roberta", "xlm-roberta"):
        sizes |= {"type_vocab_size": 1, "layer_norm_eps": 1e-5, "max_position_embeddings": positions + 2}
    if family == "modernbert":
        sizes |= {"local_attention": 16, "global_attn_every_n_layers": 2}
    return AutoConfig.for_model(family, **sizes)


def write_family(folder: Path, family: str, texts: Sequence[str], positions: int = 64, seed: int = 0) -> Path:
    """Write a masked-language model of a family with its tokenizer; its weights are noise."""
    from transformers import AutoModelForMaskedLM

    tokenizer = write_tokenizer(folder, family, texts)
    names = ROBERTA_TOKENS if family in ("roberta", "xlm-roberta") else SPECIAL_TOKENS
    pad, _, cls, sep, _ = (tokenizer.token_to_id(name) for name in names)
    ids = {"pad_token_id": pad, "bos_token_id": cls, "eos_token_id": sep}
    if family == "modernbert":
        ids |= {"cls_token_id": cls, "sep_token_id": sep}
    config = family_config(family, tokenizer.get_vocab_size(), positions, **ids)
    model = AutoModelForMaskedLM.from_config(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    model.save_pretrained(folder)
    return folder
