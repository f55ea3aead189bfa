"""Measure which passages a retriever prefers: by form, if Z has several forms, and by entity, if a sentence names two.

Forms, such as text and triple, are defined by the prepared corpus. An entity is known by the title of its passages.
"""

# Shapes: B queries, K passages

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from realm_lab.engine.corpus.store import Passages
from realm_lab.engine.evaluation.recall import DEPTHS
from realm_lab.engine.evaluation.utility import MAIN_KIND, ClozeResult

DEPTH = 5


def question_forms(rows_BK: np.ndarray, gold: Sequence[np.ndarray], passages: Passages) -> dict[str, float]:
    """Return for each form its share of the first DEPTH passages, the recall of its gold passages, and the share of
    questions whose first found gold passage has this form. The last share counts only questions that have gold passages
    in several forms and a found one."""
    names, form_N = passages.forms
    values: dict[str, float] = {}
    if len(names) < 2 or not any(map(len, gold)):
        return values
    form_BK = np.where(rows_BK >= 0, form_N[rows_BK], -1)
    # Gold passages of each question, in as many columns as any question has; -3, which no row has, fills the rest.
    gold_BG = np.full((len(gold), max(map(len, gold))), -3)
    for number, rows in enumerate(gold):
        gold_BG[number, : len(rows)] = rows
    is_gold_BK = (rows_BK[:, :, None] == gold_BG[:, None]).any(2)
    gold_form_BG = np.where(gold_BG >= 0, form_N[gold_BG], -1)
    has_several_B = np.array([len({*forms} - {-1}) > 1 for forms in gold_form_BG.tolist()])
    is_found_B = has_several_B & is_gold_BK[:, : max(DEPTHS)].any(1)
    first_form_B = form_BK[np.arange(len(rows_BK)), is_gold_BK.argmax(1)]
    for form, name in enumerate(names):
        values[f"retrieved_at_{DEPTH}_{name}"] = float((form_BK[:, :DEPTH] == form).mean())
        has_B = (gold_form_BG == form).any(1)
        if has_B.any():
            found_B = (is_gold_BK & (form_BK == form))[:, :DEPTH].any(1)
            values[f"gold_recall_at_{DEPTH}_{name}"] = float(found_B[has_B].mean())
        if is_found_B.any():
            values[f"gold_first_{name}"] = float((first_form_B[is_found_B] == form).mean())
    return values


def _main(result: ClozeResult) -> ClozeResult:
    """Return the sentences with a masked span of MAIN_KIND, the object of a fact, and a known gold passage."""
    return result.only((result.gold_B >= 0) & (result.kind_B == MAIN_KIND))


def cloze_forms(result: ClozeResult, passages: Passages) -> dict[str, float]:
    """Return p(z|x) summed over the candidates of each form, if Z has several: means over sentences of MAIN_KIND."""
    names, form_N = passages.forms
    main = _main(result)
    if len(names) < 2 or not main.masked:
        return {}
    form_BK = torch.from_numpy(np.where(main.rows_BK >= 0, form_N[main.rows_BK], -1))
    prior_BK = main.log_prior_BK.exp()
    shares = (((prior_BK * (form_BK == form)).sum(1)).mean().item() for form in range(len(names)))
    return {f"cloze_probability_{name}": share for name, share in zip(names, shares, strict=True)}


def cloze_entities(result: ClozeResult, passages: Passages) -> dict[str, float]:
    """Return how often the passage of largest p(z|x), the null document aside, is about the entity of the gold passage,
    and how often about another entity in the sentence. Only sentences of MAIN_KIND that name both entities count."""
    result = _main(result)
    if not result.masked:
        return {}
    titles = {tuple(passages.titles[row].tolist()): row for row in range(len(passages))}
    lengths = {len(title) for title in titles} - {0}
    top_B = result.rows_BK[np.arange(len(result.rows_BK)), 1 + result.log_prior_BK[:, 1:].argmax(1).numpy()]
    same, other = [], []
    for masked, gold, top in zip(result.masked, result.gold_B.tolist(), top_B.tolist(), strict=True):
        tokens = masked.tokens.tolist()
        named = {tuple(tokens[i : i + n]) for n in lengths for i in range(len(tokens) - n + 1)} & titles.keys()
        subject, found = (tuple(passages.titles[row].tolist()) if row >= 0 else () for row in (gold, top))
        if named > {subject}:
            same.append(found == subject)
            other.append(found != subject and found in named)
    if not same:
        return {}
    return {
        "cloze_top1_subject": float(np.mean(same)),
        "cloze_top1_bystander": float(np.mean(other)),
    }
