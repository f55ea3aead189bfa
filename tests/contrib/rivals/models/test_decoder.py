"""The encoder-decoder against a computation of one wordpiece at a time with nothing but vectors, in float64."""

import itertools
import math

import pytest
import torch
from torch import Tensor, nn

from realm_lab.contrib.rivals.models.decoder import DecoderBlock, Generator, Source, initialise_generator, write
from realm_lab.engine.corpus.vocabulary import SpecialIds
from realm_lab.engine.models.encoder import EncoderShape
from realm_lab.engine.models.inputs import Batch

SHAPE = EncoderShape(vocabulary_size=30, hidden_size=12, layers=2, heads=3, intermediate_size=20, positions=16)
SPECIAL = SpecialIds(pad=0, unk=1, cls=2, sep=3, mask=4)


@pytest.fixture(scope="module")
def model() -> Generator:
    """Weights that are all different noise."""
    made = Generator(SHAPE).double().eval()
    generator = torch.Generator().manual_seed(1)
    for parameter in made.parameters():
        nn.init.normal_(parameter, 0.0, 0.4, generator=generator)
    return made


def batch_of(lengths: list[int]) -> Batch:
    mask_BL = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    tokens_BL = torch.randint(5, 30, mask_BL.shape, generator=torch.Generator().manual_seed(len(lengths)))
    return Batch(tokens_BL.masked_fill(~mask_BL, 0), torch.zeros_like(tokens_BL), mask_BL)


def naive_log_probs(model: Generator, states_SD: Tensor, words: list[int]) -> Tensor:
    """log p of each word after the first."""

    def linear(module: nn.Module, name: str, x: Tensor) -> Tensor:
        return module.get_parameter(f"{name}.weight") @ x + module.get_parameter(f"{name}.bias")

    def norm(module: nn.Module, name: str, x: Tensor) -> Tensor:
        x = (x - x.mean()) / ((x - x.mean()).square().mean() + SHAPE.layer_norm_epsilon).sqrt()
        return x * module.get_parameter(f"{name}.weight") + module.get_parameter(f"{name}.bias")

    def attend(query: Tensor, keys: list[Tensor], values: list[Tensor]) -> Tensor:
        size, parts = 12 // 3, []
        for head in range(3):
            own = slice(head * size, (head + 1) * size)
            logits = torch.stack([query[own] @ key[own] for key in keys]) / math.sqrt(size)
            weights = logits.exp() / logits.exp().sum()
            parts.append((weights[:, None] * torch.stack([value[own] for value in values])).sum(0))
        return torch.cat(parts)

    kept: list[list[Tensor]] = [[] for _ in model.blocks]  # keys and values of each layer, a vector for each wordpiece
    found = []
    for place, (word, after) in enumerate(itertools.pairwise(words)):
        x = norm(model, "norm", model.encoder.word_embeddings.weight[word] + model.target_positions.weight[place])
        for block, seen in zip(model.blocks, kept, strict=True):
            joined = linear(block, "qkv", x)
            seen.append(joined)
            context = attend(joined[:12], [part[12:24] for part in seen], [part[24:] for part in seen])
            x = norm(block, "attention_norm", x + linear(block, "attention_output", context))
            pairs = [linear(block, "cross_key_value", state) for state in states_SD]
            query = linear(block, "cross_query", x)
            context = attend(query, [pair[:12] for pair in pairs], [pair[12:] for pair in pairs])
            x = norm(block, "cross_norm", x + linear(block, "cross_output", context))
            inner = linear(block, "intermediate", x)
            inner = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2)))
            x = norm(block, "output_norm", x + linear(block, "output", inner))
        logits = model.encoder.word_embeddings.weight @ x + model.word_bias
        found.append(logits[after] - logits.exp().sum().log())
    return torch.stack(found)


@pytest.mark.parametrize("gradient", [True, False])  # two attention kernels
def test_log_likelihoods_are_those_of_one_word_at_a_time(model: Generator, gradient: bool) -> None:
    batch = batch_of([6, 3, 5, 5])
    text_BT = torch.tensor([[2, 9, 11, 3, 0], [2, 8, 20, 25, 3]])
    with torch.set_grad_enabled(gradient):
        source = model.encode(batch, joined=2)  # two sources of two sequences each
        found_BT = model.target_log_probs(source, text_BT)
        for row, length in enumerate((4, 5)):
            real_S = source.mask_BS[row]
            expected_T = naive_log_probs(model, source.states_BSD[row][real_S], text_BT[row, :length].tolist())
            torch.testing.assert_close(found_BT[row, : length - 1], expected_T, atol=1e-12, rtol=0)


def test_joined_states_are_those_of_each_sequence_alone(model: Generator) -> None:
    batch = batch_of([4, 7, 2, 6])
    source = model.encode(batch, joined=4)
    assert source.states_BSD.shape == (1, 28, 12)
    for row in range(4):
        alone = Batch(*(part[row : row + 1] for part in batch))
        own = slice(7 * row, 7 * row + int(batch.mask_BL[row].sum()))
        expected = model.encode(alone).states_BSD[0, : own.stop - own.start]
        torch.testing.assert_close(source.states_BSD[0, own], expected, atol=1e-12, rtol=0)


def greedy_without_cache(model: Generator, source: Source, prior_K: Tensor, longest: int) -> tuple[list[int], float]:
    words, total = [SPECIAL.cls], 0.0
    while words[-1] != SPECIAL.sep and len(words) <= longest + 1:
        hidden, _ = model(torch.tensor([words] * len(prior_K)), source)
        log_probs_V = (prior_K[:, None] + model.word_log_probs(hidden[:, -1])).logsumexp(0)
        words.append(SPECIAL.sep if len(words) > longest else 1 + int(log_probs_V[1:].argmax()))  # never [PAD]
        total += log_probs_V[words[-1]].item()
    return words, total


@pytest.mark.parametrize("per_text", [1, 3])
def test_written_with_a_cache_is_what_is_written_without(model: Generator, per_text: int) -> None:
    source = model.encode(batch_of([5, 2, 7, 4, 6, 3]))
    prior_BK = torch.randn(6 // per_text, per_text, generator=torch.Generator().manual_seed(0)).double().log_softmax(1)
    text_BT, total_B = write(model, source, SPECIAL, 6, prior_BK)
    lengths = set()
    for row, text in enumerate(text_BT.tolist()):
        own = Source(*(part[per_text * row : per_text * (row + 1)] for part in source))
        expected, total = greedy_without_cache(model, own, prior_BK[row], 6)
        assert total_B[row].item() == pytest.approx(total, abs=1e-10)
        assert text == expected + [SPECIAL.pad] * (len(text) - len(expected))
        lengths.add(len(expected))
    assert max(lengths) <= 8


def test_a_text_ends_where_it_is_cut(model: Generator) -> None:
    with torch.no_grad():
        bias = model.word_bias.clone()
        model.word_bias[SPECIAL.sep] = -1e4
        assert (write(model, model.encode(batch_of([5, 2])), SPECIAL, 3)[0] == SPECIAL.sep).sum(1).tolist() == [1, 1]
        model.word_bias[SPECIAL.sep] = 1e4
        assert write(model, model.encode(batch_of([5, 2])), SPECIAL, 3)[0].tolist() == [[2, 3], [2, 3]]
        model.word_bias.copy_(bias)


def test_a_decoder_is_drawn_as_the_encoder_is() -> None:
    made, generator = Generator(SHAPE._replace(hidden_size=60)), torch.Generator().manual_seed(0)
    initialise_generator(made, generator)
    block = made.blocks[0]
    assert isinstance(block, DecoderBlock)
    for linear, spread in ((block.cross_query, 60**-0.5), (block.cross_output, (60 * 3 * 2) ** -0.5)):
        assert linear.weight.std().item() == pytest.approx(spread, rel=0.1)
        assert not linear.bias.any()


@torch.no_grad()
def test_states_are_joined_in_bfloat16_too() -> None:
    model = Generator(SHAPE).eval()
    with torch.autocast("cpu", torch.bfloat16):
        source = model.encode(batch_of([6, 3, 5, 2]), 2)
        apart = model.encode(batch_of([6, 3, 5, 2]))
    assert source.states_BSD.flatten(0, 1).equal(apart.states_BSD.flatten(0, 1))
    assert source.mask_BS.shape == (2, 12)
