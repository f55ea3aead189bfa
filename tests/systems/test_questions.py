"""Questions as a query tower reads them."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

from realm_lab.systems.context import open_run


def test_a_blank_in_a_question_is_what_pretraining_masks_with(tiny: ModuleType, tmp_path: Path) -> None:
    root = tiny.prepare(tiny.params(), tmp_path)
    context = open_run(tiny.params(), root, 0, "realm")
    word = context.corpus.questions("test").texts[0].split()[0]
    pieces, mask = list(context.wordpieces([word])[0]), context.special.mask
    blank, plain, twice = context.question_tokens([f"{word} [MASK] {word}.", f"{word}.", f"[MASK] [MASK]{word}"])
    stop = context.wordpieces(["."])[0]
    assert blank.tolist() == [*pieces, mask, *pieces, *stop]
    assert plain.tolist() == [*pieces, *stop]
    assert twice.tolist() == [mask, mask, *pieces]
    longest = tiny.params().corpus.sentence_length - 2
    assert len(context.question_tokens([f"{word} " * longest])[0]) == longest
