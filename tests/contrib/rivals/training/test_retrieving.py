"""RAG's marginals against explicit enumeration, and attention distillation against its closed form, in float64."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from realm_lab.contrib.objectives import distilled
from realm_lab.contrib.rivals.models.decoder import Example, Generator, join_examples, new_generator, pad_texts, write
from realm_lab.contrib.rivals.training.generation import passage_attention, rag_log_likelihood
from realm_lab.contrib.rivals.writing import write_marginal
from realm_lab.engine.corpus.vocabulary import SpecialIds
from realm_lab.engine.models.encoder import Encoder, EncoderShape, initialise
from tests import tiny

SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)
SHAPE = EncoderShape(vocabulary_size=9, hidden_size=12, layers=1, heads=2, intermediate_size=16, positions=70)
BATCH, PASSAGES = 3, 4


@pytest.fixture(scope="module")
def model() -> Generator:
    """Untrained, with a decoder that looks at its passage more than at itself."""
    encoder, generator = Encoder(SHAPE), torch.Generator().manual_seed(3)
    initialise(encoder, generator)
    encoder.word_embeddings.weight.data.mul_(3.0)
    made = new_generator(encoder, 0).double().eval()
    made.blocks[0].get_parameter("cross_output.weight").data.mul_(20.0)
    return made


@pytest.fixture(scope="module")
def examples() -> list[Example]:
    generator = np.random.default_rng(0)
    return [
        Example(generator.integers(5, 9, 3), [generator.integers(5, 9, 1 + n) for n in range(PASSAGES)])
        for _ in range(BATCH)
    ]


@pytest.fixture(scope="module")
def log_prior_BK() -> Tensor:
    return torch.randn(BATCH, PASSAGES, generator=torch.Generator().manual_seed(0)).double().log_softmax(1)


def probability(
    model: Generator, example: Example, prior_K: list[float], words: list[int], kind: str
) -> float:  # of one text, each passage read by itself
    by_passage = []
    for second in example.seconds:
        source = model.encode(join_examples([example._replace(seconds=[second])], SPECIAL, 66))
        by_passage.append(model.target_log_probs(source, torch.tensor([[SPECIAL.cls, *words]]))[0][0].exp().tolist())
    if kind == "sequence":
        return sum(prior * math.prod(each) for prior, each in zip(prior_K, by_passage, strict=True))
    return math.prod(
        sum(prior * each[place] for prior, each in zip(prior_K, by_passage, strict=True)) for place in range(len(words))
    )


@pytest.mark.parametrize("kind", ["sequence", "token"])
@torch.no_grad()
def test_marginals_are_those_of_enumeration(
    model: Generator, examples: list[Example], log_prior_BK: Tensor, kind: str
) -> None:
    targets = [np.array(words) for words in ([5], [6, 8, 7], [8, 5])]
    text_NT = pad_texts(targets, SPECIAL, 70).repeat_interleave(PASSAGES, 0)
    log_probs_NT, _ = model.target_log_probs(model.encode(join_examples(examples, SPECIAL, 66)), text_NT)
    found_B = rag_log_likelihood(kind, log_prior_BK, log_probs_NT, text_NT[:, 1:] != SPECIAL.pad)
    for found, example, prior_K, target in zip(found_B, examples, log_prior_BK.exp().tolist(), targets, strict=True):
        expected = probability(model, example, prior_K, [*target.tolist(), SPECIAL.sep], kind)
        assert found.item() == pytest.approx(math.log(expected), abs=1e-12)


@pytest.mark.parametrize("kind", ["sequence", "token"])
@torch.no_grad()
def test_all_texts_of_two_words_have_probability_one(
    model: Generator, examples: list[Example], log_prior_BK: Tensor, kind: str
) -> None:
    texts = itertools.product(range(9), repeat=2)
    total = sum(probability(model, examples[0], log_prior_BK[0].exp().tolist(), list(text), kind) for text in texts)
    assert total == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("kind", ["sequence", "token"])
def test_what_is_written_is_the_best_by_enumeration(
    model: Generator, examples: list[Example], log_prior_BK: Tensor, kind: str
) -> None:
    params = tiny.params({"launch.token_budget": 2 * 66 * PASSAGES})  # two questions at once
    written = list(write_marginal(params, model, SPECIAL, examples, log_prior_BK, kind))
    chosen = set()
    for each, example, log_prior_K in zip(written, examples, log_prior_BK, strict=True):
        prior_K = log_prior_K.exp().tolist()
        found = [*each.wordpieces, SPECIAL.sep]
        with torch.no_grad():
            marginal = float(np.logaddexp.reduce(log_prior_K.numpy() + each.log_reader_K))
            expected = probability(model, example, prior_K, found, "sequence")
            assert marginal == pytest.approx(math.log(expected), abs=1e-10)
            if kind == "token":
                for place, word in enumerate(found[:-1] if len(found) > 3 else found):  # an end may be forced
                    begun = found[:place]
                    odds = [probability(model, example, prior_K, [*begun, other], kind) for other in range(1, 9)]
                    assert word == 1 + int(np.argmax(odds))
                continue
            candidates = []
            for second in example.seconds:
                source = model.encode(join_examples([example._replace(seconds=[second])], SPECIAL, 66))
                candidates.append([word for word in write(model, source, SPECIAL, 3)[0][0].tolist()[1:] if word])
            best = max(candidates, key=lambda words: probability(model, example, prior_K, words, "sequence"))
            assert found == best
            chosen |= {tuple(words) for words in candidates}
    assert kind == "token" or len(chosen) > BATCH  # texts written from the passages differ


def test_attention_of_a_passage_is_the_mean_over_its_states() -> None:
    logits_BS, mask_BS = torch.randn(2, 12).double(), torch.rand(2, 12) < 0.7
    mask_BS[:, ::4] = True
    found_BK = passage_attention(logits_BS, mask_BS, 3)
    for row, place in itertools.product(range(2), range(3)):
        own = [logits_BS[row, at].item() for at in range(4 * place, 4 * place + 4) if mask_BS[row, at]]
        assert found_BK[row, place].item() == pytest.approx(sum(own) / len(own), abs=1e-12)


def test_distilled_attention_moves_scores_to_it_and_nothing_else() -> None:
    generator = torch.Generator().manual_seed(0)
    score_BK = torch.randn(2, 3, generator=generator).double().requires_grad_()
    logits_BS = torch.randn(2, 12, generator=generator).double().requires_grad_()
    mask_BS = torch.ones(2, 12, dtype=torch.bool)

    def loss(score_BK: Tensor) -> Tensor:
        return -distilled(score_BK.log_softmax(1), passage_attention(logits_BS, mask_BS, 3), 1.0).sum()

    target_BK = passage_attention(logits_BS, mask_BS, 3).softmax(1).detach()
    expected = (target_BK * (target_BK.log() - score_BK.log_softmax(1))).sum()
    torch.testing.assert_close(loss(score_BK), expected)
    assert torch.autograd.gradcheck(loss, score_BK)
    loss(score_BK).backward()
    torch.testing.assert_close(score_BK.grad, score_BK.softmax(1).detach() - target_BK)
    assert logits_BS.grad is None
