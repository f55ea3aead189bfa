"""A frozen causal language model as the reader: log p(y|z,x) of the masked text of a sentence after a passage.

Each form makes one prompt of a passage and a sentence, and the masked characters in it are scored:
left    {passage}\\n{sentence up to the end of its last mask}: every masked word is read after the text to its left
infill  {passage}\\n{sentence with ____ for each mask}\\n{masked texts}: the text to the right of a mask is read as well
The null document gives the same prompt without the passage. A folder or GGUF file is opened by transformers.
"""

# Shapes: N prompts, T tokens, S scored tokens, K positions, V words

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from realm_lab.errors import UserError, install_line

BLANK, BETWEEN = "____", "; "
TOKENS_AT_ONCE = 768  # of prompts that are read together; on a CPU more are slower
PRECISIONS = {"float32": torch.float32, "bfloat16": torch.bfloat16}

Spans = Sequence[tuple[int, int]]


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


class CausalModel:
    """A causal language model with its tokenizer, which is never trained."""

    def __init__(self, checkpoint: Path, precision: str, device: torch.device):
        self._device = device
        given = opened_as(checkpoint)
        try:
            from transformers import AutoModelForCausalLM, AutoTokenizer

            self._tokenizer = AutoTokenizer.from_pretrained(**given)
            if "gguf_file" in given:
                from transformers import GgufConfig

                given["quantization_config"] = GgufConfig(dequantize=True)  # the same numbers whatever is installed
            model = AutoModelForCausalLM.from_pretrained(dtype=PRECISIONS[precision], **given)
        except (OSError, ValueError, KeyError, ImportError) as error:
            reason = " ".join(str(error).split())[:200]
            raise UserError(f"no causal language model that transformers opens ({reason})", path=checkpoint) from None
        if not self._tokenizer.is_fast:
            raise UserError(
                "its tokenizer does not tell the characters of a token", "add tokenizer.json", path=checkpoint
            )
        self._model = model.eval().requires_grad_(False)
        if precision != "float32":  # the last product, whose 8 bits would move a logit near 10 by up to .03 nats
            head = copy.deepcopy(model.get_output_embeddings()).float()
            head.register_forward_pre_hook(lambda module, given: (given[0].float(),))
            model.set_output_embeddings(head)
        torch.nn.Module.to(self._model, device)
        first = self._tokenizer.bos_token_id
        self._first = self._tokenizer.eos_token_id if first is None else first

    @torch.inference_mode()
    def score(self, prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor]:
        """Return log p of the answer of each prompt after all text before it, float32 [N], and whether each token of
        the answer is the most likely one, bool [N]; on the CPU. A token counts if one of its characters is in the
        answer."""
        tokens = [self._tokens(prompt) for prompt in prompts]
        log_probs_N, likeliest_N = torch.zeros(len(prompts)), torch.ones(len(prompts), dtype=torch.bool)
        order = sorted(range(len(prompts)), key=lambda number: len(tokens[number][0]))
        start = 0
        while start < len(order):
            end = start + 1
            while end < len(order) and (end + 1 - start) * len(tokens[order[end]][0]) <= TOKENS_AT_ONCE:
                end += 1
            group, start = order[start:end], end
            owners_S, log_probs_S, likeliest_S = self._read([tokens[number] for number in group])
            numbers_S = torch.tensor(group)[owners_S]
            log_probs_N.index_add_(0, numbers_S, log_probs_S)
            likeliest_N[numbers_S[~likeliest_S]] = False
        return log_probs_N, likeliest_N

    def _tokens(self, prompt: Prompt) -> tuple[list[int], list[int]]:
        """Return the ids of a prompt, and the indices of the answer's tokens among them, never the first id."""
        encoded = self._tokenizer(prompt.text, return_offsets_mapping=True)
        ids, offsets = encoded["input_ids"], encoded["offset_mapping"]
        scored = [
            place
            for place, (first, end) in enumerate(offsets)
            if any(first < until and start < end for start, until in prompt.answers)
        ]
        if scored and scored[0] == 0:  # nothing precedes it: prepend a token that starts texts
            return [self._first, *ids], [place + 1 for place in scored]
        return ids, scored

    def _read(self, tokens: Sequence[tuple[list[int], list[int]]]) -> tuple[Tensor, Tensor, Tensor]:
        """Return, per scored token of some prompts: the prompt's number, log p, and whether no token is more likely."""
        longest = max(len(ids) for ids, _ in tokens)
        # Padding is at the end, after every token that could attend to it: it needs no mask.
        ids_NT = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids, _ in tokens])
        owners_S = torch.tensor([number for number, (_, scored) in enumerate(tokens) for _ in scored])
        places_S = torch.tensor([place for _, scored in tokens for place in scored])
        kept_K, column_S = (places_S - 1).unique(return_inverse=True)  # a token is predicted from the state before it
        given = {"input_ids": ids_NT.to(self._device), "logits_to_keep": kept_K.to(self._device), "use_cache": False}
        logits_SV = self._model(**given).logits[owners_S, column_S].float()
        targets_S1 = ids_NT[owners_S, places_S, None].to(self._device)
        log_probs_S = logits_SV.log_softmax(-1).gather(1, targets_S1)[:, 0]
        return owners_S, log_probs_S.cpu(), (logits_SV.argmax(-1) == targets_S1[:, 0]).cpu()


def opened_as(checkpoint: Path) -> dict[str, Any]:
    """Settings for transformers to open a folder or GGUF file. UserError: the package for GGUF files is missing."""
    if checkpoint.suffix != ".gguf":
        return {"pretrained_model_name_or_path": str(checkpoint), "local_files_only": True}
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"reading GGUF takes {' and '.join(missing)}", install_line("causal"), path=checkpoint)
    return {"pretrained_model_name_or_path": str(checkpoint.parent), "gguf_file": checkpoint.name}
