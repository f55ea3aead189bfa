"""A tiny random BERT folder with a tokenizer, in the form of sentence embeddings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertModel

from realm_lab.engine.corpus.vocabulary import save_tokenizer, train_wordpiece


def write_sentence_folder(folder: Path, texts: Sequence[str], seed: int = 0, positions: int = 48) -> Path:
    """Write the folder with transformers; its wordpieces are learned from `texts`."""
    tokenizer = train_wordpiece(texts, 200)
    torch.manual_seed(seed)
    sizes: Any = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 40}
    size = tokenizer.get_vocab_size()
    config = BertConfig(vocab_size=size, max_position_embeddings=positions, initializer_range=0.5, **sizes)
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    save_tokenizer(tokenizer, folder, positions)
    return folder
