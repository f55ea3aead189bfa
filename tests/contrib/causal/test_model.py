"""The causal reader against transformers' own loss, one prompt at a time."""

import json
import os
import struct
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPTNeoXConfig, MistralConfig

from realm_lab.contrib.causal.files import check, check_positions
from realm_lab.contrib.causal.gguf_header import check_gguf
from realm_lab.contrib.causal.model import CausalModel, Prompt, infill_prompt, left_prompt
from tests.contrib.causal.causal_folder import LLAMA, write_causal_folder
from tests.factories.errors import refused

PASSAGES = ["", "Fort William Henry stood at the lake.", "Ankara, Türkiye: 3 people die. More are hurt."]
SENTENCE = "Leaving a force at Fort William Henry, the army of Türkiye returned in May."
SPANS = [[(19, 37)], [(0, 7)], [(19, 37), (51, 58)], [(len(SENTENCE) - 4, len(SENTENCE) - 1)]]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_causal_folder(tmp_path_factory.mktemp("causal"), [*PASSAGES, SENTENCE])


def prompts() -> list[Prompt]:
    made = (left_prompt, infill_prompt)
    return [make(passage, SENTENCE, spans) for make in made for passage in PASSAGES for spans in SPANS]


def test_prompts_hold_what_they_score() -> None:
    left = left_prompt(PASSAGES[1], SENTENCE, SPANS[2])
    assert left.text == f"{PASSAGES[1]}\n{SENTENCE[:58]}"
    infill = infill_prompt(PASSAGES[1], SENTENCE, SPANS[2])
    blanks = "Leaving a force at ____, the army of ____ returned in May."
    assert infill.text == f"{PASSAGES[1]}\n{blanks}\nFort William Henry; Türkiye"
    for prompt in (left, infill):
        assert [prompt.text[start:end] for start, end in prompt.answers] == ["Fort William Henry", "Türkiye"]
    assert left_prompt("", SENTENCE, SPANS[1]) == ("Leaving", [(0, 7)])


def test_log_likelihood_is_transformers_loss(folder: Path) -> None:
    """transformers' loss is the mean over the tokens with a label; here these tokens are found from their texts."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    expected, likeliest = [], []
    for prompt in prompts():
        ids = tokenizer(prompt.text).input_ids
        ends = [len(str(tokenizer.decode(ids[: number + 1])).encode()) for number in range(len(ids))]
        inside = [(len(prompt.text[:start].encode()), len(prompt.text[:end].encode())) for start, end in prompt.answers]
        starts = [0, *ends[:-1]]
        scored = [any(s < until and first < e for first, until in inside) for s, e in zip(starts, ends, strict=True)]
        if scored[0]:
            ids, scored = [tokenizer.bos_token_id, *ids], [False, *scored]
        labels = [token if is_scored else -100 for token, is_scored in zip(ids, scored, strict=True)]
        with torch.no_grad():
            found = model(input_ids=torch.tensor([ids]), labels=torch.tensor([labels]))
        expected.append(-float(found.loss) * sum(scored))
        best = [-1, *found.logits[0].argmax(-1).tolist()]
        likeliest.append(all(best[n] == token for n, token in enumerate(ids) if scored[n]))
    log_probs_N, likeliest_N = CausalModel(folder, "float32", CPU).score(prompts())
    assert log_probs_N.tolist() == pytest.approx(expected, rel=1e-5, abs=1e-5)
    assert likeliest_N.tolist() == likeliest


FAMILIES = {
    "llama": LLAMA,
    "gpt2": GPT2Config(vocab_size=300, n_embd=32, n_layer=2, n_head=4, n_positions=256, initializer_range=0.3),
    "gpt_neox": GPTNeoXConfig(
        vocab_size=300, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48
    ),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_start_that_was_read_before_changes_no_number(family: str, tmp_path: Path) -> None:
    """A start may be longer than the prompt's, or end within a token; prompts without a start are mixed in."""
    model = CausalModel(write_causal_folder(tmp_path, [*PASSAGES, SENTENCE], config=FAMILIES[family]), "float32", CPU)
    assert model.continues
    whole = prompts()
    texts = [f"{PASSAGES[1]}\n", f"{PASSAGES[2]}\nNot this.", "Leav"]
    starts = model.begin(texts)
    begun = [
        next((one for one, text in zip(starts, texts, strict=True) if prompt.text.startswith(text[:4])), None)
        for prompt in whole
    ]
    assert {id(one) for one in begun} == {id(one) for one in [*starts, None]}
    read: list[int] = []  # tokens of each call, without padding of the starts
    model._model.register_forward_pre_hook(
        lambda _, args, given: read.append(given["input_ids"].numel()), with_kwargs=True
    )
    log_probs_N, likeliest_N = model.score(whole, begun)
    continued, read[:] = sum(read), []
    expected_N, expected_likeliest_N = model.score(whole)
    assert continued < 0.8 * sum(read), "a start is not read again"
    torch.testing.assert_close(log_probs_N, expected_N, rtol=1e-5, atol=1e-5)
    assert torch.equal(likeliest_N, expected_likeliest_N)


def test_a_window_of_attention_is_read_whole(tmp_path: Path) -> None:
    """Layers with a window of attention forget keys and values of the start."""
    window = MistralConfig(**{**LLAMA.to_dict(), "model_type": "mistral", "sliding_window": 8})
    assert not CausalModel(write_causal_folder(tmp_path, PASSAGES, config=window), "float32", CPU).continues


def test_a_likely_answer_is_the_likeliest(folder: Path) -> None:
    model, tokenizer = CausalModel(folder, "float32", CPU), AutoTokenizer.from_pretrained(folder)
    own = AutoModelForCausalLM.from_pretrained(folder).eval()
    start = tokenizer("Fort William", return_tensors="pt").input_ids
    text = str(tokenizer.decode(own.generate(start, do_sample=False, max_new_tokens=3)[0]))
    prompt = Prompt(text, [(len("Fort William"), len(text))])
    retokenised = tokenizer(text).input_ids[: start.shape[1]] == start[0].tolist()
    assert model.score([prompt])[1].item() == retokenised


@pytest.mark.skipif(
    "ATEN_CPU_CAPABILITY" in os.environ, reason="torch lays bfloat16 out for the processor, not for this capability"
)
def test_bfloat16_is_near(folder: Path) -> None:
    exact, _ = CausalModel(folder, "float32", CPU).score(prompts())
    rough, _ = CausalModel(folder, "bfloat16", CPU).score(prompts())
    assert 0 < (exact - rough).abs().max() < 0.05 * exact.abs().max()


def test_what_cannot_be_opened_is_named(folder: Path, tmp_path: Path) -> None:
    with refused(path=tmp_path / "config.json"):
        CausalModel(tmp_path, "float32", CPU)


def test_gguf_needs_its_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(gguf())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refused("gguf and accelerate", path=path):
        check(path)


def gguf(values: bytes = b"", count: int = 0, tensors: bytes = b"", tensor_count: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensor_count, count) + values + tensors


def text(value: str, length: int | None = None) -> bytes:
    return struct.pack("<Q", len(value) if length is None else length) + value.encode()


TENSOR = text("t") + struct.pack("<IQIQ", 1, 4, 0, 0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        gguf(text("abc", 1 << 62), 1),
        gguf(text("a") + struct.pack("<IIQ", 9, 4, 1 << 61), 1),
        gguf(text("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 1000, 1),
        gguf(tensors=TENSOR, tensor_count=1),  # a tensor without its data
    ],
)
def test_a_damaged_gguf_file_is_found_before_training(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(data)
    with refused("truncated or not GGUF", path=path):
        check(path)
    values = text("a") + struct.pack("<I", 8) + text("b") + text("c") + struct.pack("<IIQ", 9, 8, 1) + text("d")
    path.write_bytes(gguf(values, 2, TENSOR, 1) + bytes(16))
    check_gguf(path, "whole")


def test_what_does_not_fit_a_causal_model_is_found_before_training(tmp_path: Path) -> None:
    folder = write_causal_folder(tmp_path / "m", [SENTENCE])
    check(folder)
    check_positions(folder, 288, 64)
    config, tokenizer = folder / "config.json", folder / "tokenizer_config.json"
    whole = config.read_text()
    config.write_text(json.dumps(json.loads(whole) | {"max_position_embeddings": 60}))
    with refused("60 positions", path=folder):
        check_positions(folder, 40, 26)
    check_positions(folder, 34, 26)
    with refused("made for 60 tokens", path=folder):
        CausalModel(folder, "float32", CPU).score([Prompt("word " * 61, [(5, 9)])])
    config.write_text(json.dumps(json.loads(whole) | {"vocab_size": 280}))
    with refused("the model knows the ids below 280", path=folder / "tokenizer.json"):
        check(folder)
    config.write_text(whole)
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text()) | {"bos_token": None}))
    with refused("neither bos_token nor eos_token", path=tokenizer):
        check(folder)


def test_weights_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    folder = write_causal_folder(tmp_path, [SENTENCE])
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.model.layers[0].mlp.up_proj.weight.data[0, 0] = torch.nan
    model.save_pretrained(folder)
    with refused("'model.layers.0.mlp.up_proj.weight' has NaN or infinite values", path=folder):
        CausalModel(folder, "float32", CPU)
