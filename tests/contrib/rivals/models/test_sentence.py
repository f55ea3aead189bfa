"""Sentence embeddings: the vectors that transformers gives, one text at a time without padding."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from realm_lab.contrib.rivals.models.sentence import SentenceEncoder
from tests.engine.models.sentence_folder import write_sentence_folder

TEXTS = ["The capital of Peru is Lima .", "lima", "Who wrote the first novel of the river ?", "river stone " * 60, ""]


@torch.no_grad()
def by_transformers(folder: Path, pooling: str, normalise: bool) -> torch.Tensor:
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    vectors = []
    for text in TEXTS:
        length = model.config.max_position_embeddings
        given = tokenizer([text], return_tensors="pt", truncation=True, max_length=length)
        hidden_LD = model(**given).last_hidden_state[0]
        vector = hidden_LD.mean(0) if pooling == "mean" else hidden_LD[0]
        vectors.append(vector / vector.norm() if normalise else vector)
    return torch.stack(vectors)


@pytest.mark.parametrize(("pooling", "normalise"), [("mean", True), ("mean", False), ("cls", True)])
def test_the_vectors_are_those_of_transformers(tmp_path: Path, pooling: str, normalise: bool) -> None:
    folder = write_sentence_folder(tmp_path / "bert", TEXTS)
    encoder = SentenceEncoder(folder, pooling, normalise, torch.device("cpu"))
    for token_budget in (8, 4096):  # one by one, and padded together
        found = encoder.encode(TEXTS, token_budget)
        torch.testing.assert_close(found, by_transformers(folder, pooling, normalise), rtol=1e-4, atol=1e-5)
