"""A tagger of salient spans from a Hugging Face token-classification folder (paper section 3.4: a BERT tagger).

transformers' pipeline finds the entities: the first wordpiece of a word decides its label, and a text longer than the
model's input is read in overlapping windows. Weights must be safetensors, and code of the folder is never run.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from typing import Any

from realm_lab.engine.corpus.dates import find_dates
from realm_lab.engine.corpus.records import Span
from realm_lab.engine.corpus.salient_spans import merge_spans
from realm_lab.engine.corpus.sources import TaggerFolder, register_tagger
from realm_lab.errors import UserError

OVERLAP = 64  # wordpieces that neighbouring windows share
TEXTS_TOGETHER = 32
LONGEST = 512  # wordpieces of a window, at most
DATE = "date"
_DATE_LABELS = ("DATE", "TIME")  # of taggers with more labels than CoNLL-2003


class ModelTagger:
    """A salient_spans.Tagger: a token classifier finds entities, and `find_dates` date expressions."""

    def __init__(self, classify: Any):
        """`classify` is a transformers token-classification pipeline with an aggregation strategy."""
        self._classify = classify

    def tag_batch(self, texts: Sequence[str], contexts: Sequence[str]) -> list[tuple[Span, ...]]:
        """Return entities and date expressions; of overlapping ones the longest stays. `contexts` is ignored."""
        filled = [text for text in texts if text.strip()]
        found = iter(self._classify(filled, batch_size=TEXTS_TOGETHER) if filled else ())
        return [self._spans(text, next(found) if text.strip() else ()) for text in texts]

    def _spans(self, text: str, entities: Sequence[dict[str, Any]]) -> tuple[Span, ...]:
        dates = [Span(start, end, DATE) for start, end in find_dates(text)]
        spans = []
        for entity in entities:
            start, end = int(entity["start"]), int(entity["end"])
            label = DATE if entity["entity_group"] in _DATE_LABELS else str(entity["entity_group"])
            if any(character.isalnum() for character in text[start:end]):
                spans.append(Span(start, end, label))
        return merge_spans(dates, spans)


@register_tagger("model")
def read_tagger(options: TaggerFolder) -> ModelTagger:
    """Return the tagger of a Hugging Face token-classification folder. UserError: no such folder, or no safetensors (a
    pickle is never loaded)."""
    import torch
    from transformers import AutoModelForTokenClassification, AutoTokenizer, TokenClassificationPipeline

    folder = options.folder
    how: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        model = AutoModelForTokenClassification.from_pretrained(folder, use_safetensors=True, **how).eval()
        # split_special_tokens: "[MASK]" in a text is plain text
        tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True, split_special_tokens=True, **how)
        positions = int(getattr(model.config, "max_position_embeddings", LONGEST))
        longest = min(LONGEST, positions - 2 if positions > LONGEST else positions)  # RoBERTa: 514 for 512
        tokenizer.model_max_length = longest
        classify = TokenClassificationPipeline(
            model=model, tokenizer=tokenizer, aggregation_strategy="first", stride=min(OVERLAP, longest // 4)
        )
    except (OSError, ValueError, KeyError, AttributeError, ImportError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(
            f"transformers cannot read this tagger ({reason})", "name another folder", path=folder
        ) from None
    if multiprocessing.parent_process() is not None:
        torch.set_num_threads(1)  # one of several processes that prepare a corpus
    return ModelTagger(classify)
