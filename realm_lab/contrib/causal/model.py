"""A frozen causal language model as the reader: log p(y|z,x) of the masked text of a sentence after a passage.

Each form makes one prompt of a passage and a sentence, and the masked characters in it are scored:
left    {passage}\\n{sentence up to the end of its last mask}: every masked word is read after the text to its left
infill  {passage}\\n{sentence with ____ for each mask}\\n{masked texts}: the text to the right of a mask is read as well
The null document gives the same prompt without the passage. A folder or GGUF file is opened by transformers.

Both forms start with the passage, and a causal model's states of it do not depend on what follows. So on a CPU a
passage is read once, and its keys and values are the start of every prompt that has it.
"""

# Shapes: N prompts, T tokens, S scored tokens, K positions, V words, L layers, H heads, C tokens before, D dimensions

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from realm_lab.contrib.causal.files import NO_FIRST_TOKEN, check
from realm_lab.errors import UserError

BLANK, BETWEEN = "____", "; "
TOKENS_AT_ONCE = 768  # of prompts that are read together; on a CPU more are slower
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}

Spans = Sequence[tuple[int, int]]
Tokens = tuple[list[int], list[int]]  # the ids of a prompt, and the positions of the scored ones


class Prompt(NamedTuple):
    """A prompt, and the characters in it that are the answer."""

    text: str
    answers: list[tuple[int, int]]  # [first, end), ascending


def left_prompt(passage: str, sentence: str, spans: Spans) -> Prompt:
    """Join the passage and the sentence up to the end of its last masked span."""
    before = f"{passage}\n" if passage else ""
    moved = [(len(before) + first, len(before) + end) for first, end in spans]
    return Prompt(before + sentence[: spans[-1][1]], moved)


def infill_prompt(passage: str, sentence: str, spans: Spans) -> Prompt:
    """Join the passage, the sentence with blanks, and the masked spans one after the other."""
    text, done = f"{passage}\n" if passage else "", 0
    for first, end in spans:
        text, done = f"{text}{sentence[done:first]}{BLANK}", end
    text += f"{sentence[done:]}\n"
    answers: list[tuple[int, int]] = []
    for first, end in spans:
        text += BETWEEN if answers else ""
        answers.append((len(text), len(text) + end - first))
        text += sentence[first:end]
    return Prompt(text, answers)


FORMS: dict[str, Callable[[str, str, Spans], Prompt]] = {"left": left_prompt, "infill": infill_prompt}


class Begun(NamedTuple):
    """The start of a prompt that a model has read: its token ids [C], and their keys and values [2, L, H, C, D]."""

    ids_C: Tensor
    states_2LHCD: Tensor


class CausalModel:
    """A causal language model with its tokenizer, which is never trained."""

    def __init__(self, checkpoint: Path, precision: str, device: torch.device):
        self._device = device
        check(checkpoint)
        given = opened_as(checkpoint)
        try:
            from transformers import AutoModelForCausalLM, AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(**given)
            if "gguf_file" in given:
                from transformers import GgufConfig

                given["quantization_config"] = GgufConfig(dequantize=True)  # same numbers with any `kernels` installed
            model = AutoModelForCausalLM.from_pretrained(dtype=PRECISIONS[precision], **given)
        except Exception as error:  # any file may be named, and the libraries raise any exception
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"no causal language model that transformers opens ({reason})", path=checkpoint) from None
        if not self._tokenizer.is_fast:
            raise UserError(
                "its tokenizer is a slow one, without character offsets", "add tokenizer.json", path=checkpoint
            )
        for name, weight in model.named_parameters():
            if not bool(torch.isfinite(weight).all()):
                remedy = "copy the file again, or name another model"
                raise UserError(f"'{name}' has NaN or infinite values", remedy, path=checkpoint)
        self._model = model.eval().requires_grad_(False)
        if precision != "float32":  # the last product in float32: in bfloat16 a logit near 10 is off by up to .03
            head = copy.deepcopy(model.get_output_embeddings()).float()
            head.register_forward_pre_hook(lambda module, given: (given[0].float(),))
            model.set_output_embeddings(head)
        torch.nn.Module.to(self._model, device)
        first = self._tokenizer.bos_token_id
        self._first = self._tokenizer.eos_token_id if first is None else first
        if self._first is None:
            raise UserError(*NO_FIRST_TOKEN, path=checkpoint)
        text = model.config.get_text_config()
        self._checkpoint, self._positions = checkpoint, getattr(text, "max_position_embeddings", None)

    @cached_property
    def continues(self) -> bool:
        """True if the model can continue from stored keys and values: it is on a CPU, takes position ids, and every
        layer keeps the keys and values of all tokens. (Moving them to a GPU was not measured.)"""
        from transformers.cache_utils import DynamicCache, DynamicLayer

        if self._device.type != "cpu" or "position_ids" not in inspect.signature(self._model.forward).parameters:
            return False
        with torch.inference_mode():
            kept = self._model(input_ids=torch.tensor([[self._first]]), use_cache=True).past_key_values
        return isinstance(kept, DynamicCache) and all(type(layer) is DynamicLayer for layer in kept.layers)

    @torch.inference_mode()
    def begin(self, texts: Sequence[str]) -> list[Begun]:
        """Read texts that prompts start with, and return the model's states of them."""
        tokens = [self._tokenizer(text)["input_ids"] for text in texts]
        begun: dict[int, Begun] = {}
        for group in _groups([len(ids) for ids in tokens]):
            ids_NT = _padded([tokens[number] for number in group])
            kept = self._model(input_ids=ids_NT, logits_to_keep=1, use_cache=True).past_key_values
            keys, values = ([getattr(layer, name) for layer in kept.layers] for name in ("keys", "values"))
            states_2LNHTD = torch.stack([torch.stack(keys), torch.stack(values)])
            for position, number in enumerate(group):
                count = len(tokens[number])
                begun[number] = Begun(ids_NT[position, :count], states_2LNHTD[:, :, position, :, :count])
        return [begun[number] for number in range(len(texts))]

    @torch.inference_mode()
    def score(self, prompts: Sequence[Prompt], begun: Sequence[Begun | None] = ()) -> tuple[Tensor, Tensor]:
        """Return log p of the answer of each prompt after all text before it, float32 [N], and whether each token of
        the answer is the most likely one, bool [N]; on the CPU. A token counts if one of its characters is in the
        answer. `begun` has the start of each prompt if it has been read."""
        tokens = [self._tokens(prompt) for prompt in prompts]
        starts = begun or [None] * len(prompts)
        befores = [_shared(one, *found) for one, found in zip(starts, tokens, strict=True)]
        log_probs_N, likeliest_N = torch.zeros(len(prompts)), torch.ones(len(prompts), dtype=torch.bool)
        for group in _groups([len(ids) - before for (ids, _), before in zip(tokens, befores, strict=True)]):
            owners_S, log_probs_S, likeliest_S = self._read(
                [tokens[number] for number in group],
                [starts[number] for number in group],
                [befores[number] for number in group],
            )
            numbers_S = torch.tensor(group)[owners_S]
            log_probs_N.index_add_(0, numbers_S, log_probs_S)
            likeliest_N[numbers_S[~likeliest_S]] = False
        return log_probs_N, likeliest_N

    def _tokens(self, prompt: Prompt) -> Tokens:
        """Return the ids of a prompt, and the indices of the answer's tokens among them, never the first id."""
        encoded = self._tokenizer(prompt.text, return_offsets_mapping=True)
        ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
        scored = [
            position
            for position, (first, end) in enumerate(offsets)
            if any(first < until and start < end for start, until in prompt.answers)
        ]
        if self._positions is not None and len(ids) > self._positions:
            problem = f"made for {self._positions} tokens, and a prompt has {len(ids)}"
            remedy = "lower corpus.passage_length, or name a model with more"
            raise UserError(problem, remedy, path=self._checkpoint)
        if scored and scored[0] == 0:  # nothing precedes it: prepend a token that starts texts
            return [self._first, *ids], [position + 1 for position in scored]
        return ids, scored

    def _read(
        self, tokens: Sequence[Tokens], starts: Sequence[Begun | None], befores: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Read some prompts, each after `befores` tokens of its start.

        Returns, per scored token: the prompt's number, log p, and whether no token is more likely.
        """
        # Padding is at the end, after every token that could attend to it: it needs no mask.
        ids_NT = _padded([ids[before:] for (ids, _), before in zip(tokens, befores, strict=True)])
        owners_S = torch.tensor([number for number, (_, scored) in enumerate(tokens) for _ in scored])
        places_S = torch.tensor(
            [position - before for (_, scored), before in zip(tokens, befores, strict=True) for position in scored]
        )
        kept_K, column_S = (places_S - 1).unique(return_inverse=True)  # a token is predicted from the state before it
        given = {"input_ids": ids_NT.to(self._device), "logits_to_keep": kept_K.to(self._device), "use_cache": False}
        if any(befores):
            given |= _continued(starts, befores, ids_NT.shape[1])
        logits_SV = self._model(**given).logits[owners_S, column_S].float()
        targets_S1 = ids_NT[owners_S, places_S, None].to(self._device)
        log_probs_S = logits_SV.log_softmax(-1).gather(1, targets_S1)[:, 0]
        return owners_S, log_probs_S.cpu(), (logits_SV.argmax(-1) == targets_S1[:, 0]).cpu()


def _groups(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Yield the numbers of prompts that are read together: of similar length, with at most TOKENS_AT_ONCE tokens after
    padding, or a single prompt."""
    group: list[int] = []
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        if group and (len(group) + 1) * lengths[number] > TOKENS_AT_ONCE:
            yield group
            group = []
        group.append(number)
    if group:
        yield group


def _padded(ids: Sequence[Sequence[int]]) -> Tensor:
    longest = max(len(one) for one in ids)
    return torch.tensor([[*one, *[0] * (longest - len(one))] for one in ids])


def _shared(start: Begun | None, ids: list[int], scored: list[int]) -> int:
    """Count the leading tokens of a prompt that its start has read already. The last token before the answer is read
    again, since the answer is predicted from it."""
    if start is None:
        return 0
    pairs = zip(start.ids_C.tolist(), ids[: scored[0] - 1], strict=False)
    return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))


def _continued(starts: Sequence[Begun | None], befores: Sequence[int], length: int) -> dict[str, Any]:
    """Return the arguments of a model to read `length` more tokens of each prompt after its start."""
    from transformers.cache_utils import DynamicCache

    longest = max(befores)
    layers, heads, _, size = next(start.states_2LHCD.shape[1:] for start in starts if start)
    dtype = next(start.states_2LHCD.dtype for start in starts if start)
    # The starts are padded on the left, so that the tokens of a prompt are side by side; positions leave padding out.
    states_2LNHCD = torch.zeros(2, layers, len(starts), heads, longest, size, dtype=dtype)
    for number, (start, before) in enumerate(zip(starts, befores, strict=True)):
        if start:
            states_2LNHCD[:, :, number, :, longest - before :] = start.states_2LHCD[:, :, :, :before]
    cache = DynamicCache()
    for layer, (keys, values) in enumerate(zip(*states_2LNHCD, strict=True)):
        cache.update(keys, values, layer)
    before_N1 = torch.tensor(befores)[:, None]
    seen_NC = torch.arange(longest) >= longest - before_N1
    return {
        "past_key_values": cache,
        "use_cache": True,
        "attention_mask": torch.cat([seen_NC, torch.ones(len(starts), length, dtype=torch.bool)], 1).long(),
        "position_ids": before_N1 + torch.arange(length),
    }


def opened_as(checkpoint: Path) -> dict[str, Any]:
    """Return the arguments of transformers to open a folder or a GGUF file."""
    if checkpoint.suffix != ".gguf":
        return {"pretrained_model_name_or_path": str(checkpoint), "local_files_only": True}
    return {"pretrained_model_name_or_path": str(checkpoint.parent), "gguf_file": checkpoint.name}
