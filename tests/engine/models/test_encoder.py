"""Our encoder is BertModel, number for number."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from realm_lab.engine.models import encoder as encoder_file
from realm_lab.engine.models.encoder import Block, Encoder, EncoderShape, Packing, initialise, show
from realm_lab.engine.models.folders import bert_config, from_bert
from tests.factories.errors import refused
from tests.tiny_system import scramble

SHAPE = EncoderShape(vocabulary_size=60, hidden_size=24, layers=3, heads=4, intermediate_size=40, positions=20)
LENGTHS = (20, 3, 11, 1)


def their_model(shape: EncoderShape) -> nn.Module:
    from transformers import BertConfig, BertModel

    config = BertConfig.from_dict(bert_config(shape, "BertModel"))
    return BertModel(config, add_pooling_layer=False).eval()


@pytest.fixture(scope="module")
def theirs() -> nn.Module:
    """A BertModel whose parameters are all different noise."""
    model = their_model(SHAPE)
    scramble(model, seed=1)
    return model


@pytest.fixture(scope="module")
def ours(theirs: nn.Module) -> Encoder:
    """The weights of `theirs` in our encoder."""
    encoder = Encoder(SHAPE)
    from_bert(encoder, dict(theirs.state_dict()), Path("random"))
    return encoder.eval()


def make_batch() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (len(LENGTHS), max(LENGTHS))
    mask_BL = torch.arange(shape[1])[None] < torch.tensor(LENGTHS)[:, None]
    tokens_BL = torch.randint(5, SHAPE.vocabulary_size, shape, generator=generator)
    types_BL = torch.randint(0, 2, shape, generator=generator)
    return tokens_BL * mask_BL, types_BL * mask_BL, mask_BL


def their_hidden(model: nn.Module, tokens_BL: Tensor, types_BL: Tensor, mask_BL: Tensor) -> Tensor:
    return model(input_ids=tokens_BL, token_type_ids=types_BL, attention_mask=mask_BL.long()).last_hidden_state


@pytest.mark.parametrize("gradient", [True, False])
def test_hidden_states_are_those_of_bert(ours: Encoder, theirs: nn.Module, gradient: bool) -> None:
    batch = make_batch()
    with torch.set_grad_enabled(gradient):  # two attention kernels of realm_lab
        difference = (ours(*batch) - their_hidden(theirs, *batch))[batch[2]].abs().max()
    assert difference < 1e-5


def test_gradients_are_those_of_bert(ours: Encoder, theirs: nn.Module) -> None:
    batch = make_batch()
    weight_BLD = torch.randn(*batch[0].shape, SHAPE.hidden_size, generator=torch.Generator().manual_seed(2))
    mine = torch.autograd.grad((ours(*batch) * weight_BLD)[batch[2]].sum(), list(ours.parameters()))
    by_name = dict(theirs.named_parameters())
    other = torch.autograd.grad((their_hidden(theirs, *batch) * weight_BLD)[batch[2]].sum(), list(by_name.values()))
    carrier = Encoder(SHAPE)  # carries their gradients through the same renaming as the weights
    from_bert(carrier, dict(zip(by_name, other, strict=True)), Path("gradients"))
    for (name, expected), found in zip(carrier.named_parameters(), mine, strict=True):
        assert torch.allclose(found, expected, atol=1e-4, rtol=1e-4), name


def test_selected_positions_have_the_gradients_of_the_full_output(ours: Encoder) -> None:
    batch = make_batch()
    at_BM = torch.tensor([[19, 0], [2, 1], [10, 5], [0, 0]])
    weight_BMD = torch.randn(4, 2, SHAPE.hidden_size, generator=torch.Generator().manual_seed(4)) / 10
    parameters = list(ours.parameters())
    full_BMD = ours(*batch).gather(1, at_BM[:, :, None].expand(-1, -1, SHAPE.hidden_size))
    expected = torch.autograd.grad((full_BMD * weight_BMD).sum(), parameters)
    found = torch.autograd.grad((ours(*batch, at_BM) * weight_BMD).sum(), parameters)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("gradient", [True, False])
def test_padding_changes_nothing(ours: Encoder, gradient: bool) -> None:
    tokens_BL, types_BL, mask_BL = make_batch()
    with torch.set_grad_enabled(gradient):
        hidden_BLD = ours(tokens_BL, types_BL, mask_BL)
        other_BLD = ours(tokens_BL.masked_fill(~mask_BL, 17), types_BL.masked_fill(~mask_BL, 1), mask_BL)
        assert torch.equal(hidden_BLD[mask_BL], other_BLD[mask_BL])  # the content of padding changes no bit
        for row, length in enumerate(LENGTHS):
            alone = (part[row : row + 1, :length] for part in (tokens_BL, types_BL, mask_BL))
            torch.testing.assert_close(ours(*alone)[0], hidden_BLD[row, :length], atol=2e-6, rtol=0)


@pytest.mark.parametrize(("length", "computed"), [(1, 8), (8, 8), (11, 16), (19, 20)])  # 20 positions at most
def test_in_bfloat16_lengths_are_few_and_the_states_as_in_float32(ours: Encoder, length: int, computed: int) -> None:
    tokens_BL, types_BL, mask_BL = (part[:, :length] for part in make_batch())
    seen = list[int]()
    handle = ours.blocks[-1].register_forward_pre_hook(lambda _, given: seen.append(given[0].shape[1]))
    with torch.autocast("cpu", torch.bfloat16):
        states_BLD = ours(tokens_BL, types_BL, mask_BL)
    handle.remove()
    assert seen == [computed]
    assert (states_BLD - ours(tokens_BL, types_BL, mask_BL))[mask_BL].abs().max() < 0.05


@pytest.fixture
def packing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The computation of bfloat16 on a CPU, in float32."""
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: device == "cpu")


@pytest.mark.parametrize("rows", [1, 32, 1000])  # no padding is packed, some, all
@pytest.mark.parametrize("gradient", [True, False])
@pytest.mark.usefixtures("packing")
def test_packed_states_are_those_of_bert(
    ours: Encoder, theirs: nn.Module, gradient: bool, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder_file, "ROWS", rows)
    packing = Packing.of(make_batch()[2])
    assert (packing and len(packing.at_N)) == {1: sum(LENGTHS), 32: 64, 1000: None}[rows]
    test_hidden_states_are_those_of_bert(ours, theirs, gradient)


@pytest.mark.usefixtures("packing")
def test_packed_gradients_are_those_of_bert(ours: Encoder, theirs: nn.Module) -> None:
    test_gradients_are_those_of_bert(ours, theirs)
    test_selected_positions_have_the_gradients_of_the_full_output(ours)


def test_too_long_a_sequence_is_refused(ours: Encoder) -> None:
    whole = torch.ones(1, 20, dtype=torch.int64)
    assert ours(whole, whole * 0, whole.bool()).shape == (1, 20, 24)
    long = torch.ones(1, 21, dtype=torch.int64)
    with refused("21 wordpieces", "20"):
        ours(long, long * 0, long.bool())


@pytest.mark.parametrize("gradient", [True, False])
def test_attention_weights_drop_out_in_both_kernels(gradient: bool) -> None:
    block = Block(SHAPE._replace(dropout=0.5))
    query, key, value = torch.randn(3, 2, 4, 7, 6, generator=torch.Generator().manual_seed(0))
    bias_B11L = torch.zeros(2, 1, 1, 7)
    with torch.set_grad_enabled(gradient):
        block.eval()
        assert torch.equal(block._attend(query, key, value, bias_B11L), block._attend(query, key, value, bias_B11L))
        block.train()
        whole_BLD = block._attend(query, key, torch.ones_like(value), bias_B11L)  # sums of the weights that are left
    assert whole_BLD.std() > 0.1
    assert whole_BLD.mean().item() == pytest.approx(1.0, abs=0.2)  # scaled up to make up for dropped weights


@pytest.mark.parametrize("change", [{"activation": "gelu_new"}, {"layer_norm_epsilon": 1e-2}])
def test_activation_and_epsilon_are_those_of_bert(ours: Encoder, change: dict[str, object]) -> None:
    shape = SHAPE._replace(**change)  # type: ignore[arg-type]
    model, encoder, batch = their_model(shape), Encoder(shape).eval(), make_batch()
    scramble(model, seed=1)
    from_bert(encoder, dict(model.state_dict()), Path("random"))
    mask_BL = batch[2]
    with torch.no_grad():
        found_BLD, plain_BLD = encoder(*batch), ours(*batch)
        expected_BLD = their_hidden(model, *batch)
    assert (found_BLD - expected_BLD)[mask_BL].abs().max() < 1e-5
    assert (plain_BLD - expected_BLD)[mask_BL].abs().max() > 1e-4


def picture_encoder() -> Encoder:
    shape = EncoderShape(50, 16, 1, 2, 32, 40, patch_values=12)
    encoder = Encoder(shape)
    initialise(encoder, torch.Generator().manual_seed(0))
    show(encoder, torch.randint(0, 256, (7, 12), generator=torch.Generator().manual_seed(1), dtype=torch.uint8))
    return encoder


def test_a_patch_is_a_projection_of_its_standardised_pixels_and_its_place_and_words_are_what_they_were() -> None:
    encoder = picture_encoder()
    embedded = encoder.embed(torch.tensor([[3, 52, 49], [56, 0, 50]]))
    assert encoder.patches is not None
    assert encoder.patch_projection is not None
    for place, patch, number in (((0, 1), 2, 0), ((1, 0), 6, 0), ((1, 2), 0, 1)):
        pixels = encoder.patches[patch].double() / 255
        standard = (pixels - pixels.mean()) / (pixels.var(unbiased=False) + 0.01).sqrt() / 12**0.5
        expected = encoder.patch_projection.weight.double() @ standard + encoder.patch_projection.bias.double()
        expected = expected + encoder.patch_places.weight[number]
        torch.testing.assert_close(embedded[place].double(), expected, atol=1e-6, rtol=1e-5)
    for place, word in (((0, 0), 3), ((0, 2), 49), ((1, 1), 0)):
        assert torch.equal(embedded[place], encoder.word_embeddings.weight[word])
    embedded.sum().backward()
    assert encoder.patch_projection.weight.grad is not None
    assert encoder.patch_projection.weight.grad.abs().sum() > 0
    assert encoder.word_embeddings.weight.grad is not None
    words = encoder.word_embeddings.weight.grad.abs().sum(1).nonzero()[:, 0].tolist()
    assert words == [0, 3, 49]


def test_text_alone_gives_the_same_bits_with_pictures_and_without() -> None:
    encoder, plain = picture_encoder(), Encoder(EncoderShape(50, 16, 1, 2, 32, 40))
    plain.load_state_dict({k: v for k, v in encoder.state_dict().items() if "patch" not in k})
    tokens = torch.tensor([[3, 5, 49, 1]])
    given = tokens, torch.zeros_like(tokens), torch.ones_like(tokens, dtype=torch.bool)
    assert torch.equal(encoder(*given), plain(*given))
