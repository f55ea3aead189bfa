"""The packed sample of the explorer: a fair sample, nothing lost in packing, and what pages share kept once."""

from __future__ import annotations

from typing import Any

from realm_lab.reporting.explorer import CANDIDATES, PASSAGE_CHARACTERS, merge, pack, sample, sentences


def candidate(title: str, body: str, probability: float, **more: Any) -> dict[str, Any]:
    plain = {"title": title, "before": body, "span": "", "after": "", "probability": probability, "reader": -1.0}
    return plain | {"utility": 0.5, "is_null": False, "is_gold": False} | more


def example(label: str, seed: int, text: str, **more: Any) -> dict[str, Any]:
    plain = {"label": label, "seed": seed, "kind": "cloze", "when": "end", "moment": "after", "text": text}
    plain |= {"answer": "a", "prediction": None, "null": -3.0, "marginal": -1.0}
    return plain | {"candidates": [candidate("t", f"body of {text}", 0.9)]} | more


def test_a_sample_is_even_over_seeds_and_kinds_and_keeps_pairs() -> None:
    examples = [
        example("realm", seed, f"{kind} {number}", kind=kind, when=when)
        for seed in (0, 1)
        for kind, times in (("cloze", ("start", "end")), ("question", ("end",)))
        for when in times
        for number in range(5)
    ]
    chosen = sample(examples, 6)
    assert {(e["seed"], e["kind"], e["text"][-1]) for e in chosen} == {
        (0, "cloze", "0"), (0, "question", "0"), (1, "cloze", "0"), (1, "question", "0"), (0, "cloze", "1"),
        (0, "question", "1"),
    }  # fmt: skip
    assert sum(e["kind"] == "cloze" for e in chosen) == 6, "before and after"
    assert sample(examples, 1000) == examples


def test_packing_keeps_texts_spans_and_numbers() -> None:
    hit = candidate("snow \U0001f600", "the \U0001f600 of ", 0.25, span="oslo", after=" .", is_gold=True)
    null = candidate("", "", 0.75, is_null=True, utility=None)
    packed = pack([example("realm", 3, "x", candidates=[hit, null])], "s", "S", [("realm", "REALM")], 5)
    assert packed["studies"] == [{"name": "s", "title": "S", "cells": [["realm", "REALM"]]}]
    [row] = packed["examples"]
    assert row[:3] == [0, 0, 3]
    assert [packed["texts"][place] for place in row[3:8]] == ["cloze", "end", "after", "x", "a"]
    assert row[8:13] == [-1, -3, -1, 0, 0]
    empty, found = row[13]
    assert empty == [-1, 0.75, -1, None, 0, 0, 0]
    title, body = packed["passages"][found[0]]
    assert (title, body) == ("snow \U0001f600", "the \U0001f600 of oslo .")
    units = body.encode("utf-16-le")
    assert units[2 * found[4] : 2 * found[5]].decode("utf-16-le") == "oslo", "as JavaScript counts"
    assert found[6] == 1


def test_few_candidates_are_kept_and_the_gold_one_always() -> None:
    candidates = [candidate(f"t{n}", f"b{n}", 0.3 / (n + 1)) for n in range(20)]
    candidates[17]["is_gold"] = True
    packed = pack([example("realm", 0, "x", candidates=candidates)], "", "", [], 5)
    [row] = packed["examples"]
    assert len(row[13]) == CANDIDATES + 1
    assert row[13][-1][6] == 1
    assert row[11] == 20 - CANDIDATES - 1
    assert abs(row[12] - sum(c["probability"] for n, c in enumerate(candidates) if n >= CANDIDATES and n != 17)) < 1e-4


def test_a_long_passage_is_cut_around_its_span() -> None:
    far = candidate("t", "w " * 900, 0.5, span="oslo", after=" z" * 900)
    near = candidate("t", "w ", 0.5, span="oslo", after=" z" * 900)
    packed = pack([example("realm", 0, "x", candidates=[far, near])], "", "", [], 5)
    for found in packed["examples"][0][13]:
        body = packed["passages"][found[0]][1]
        assert len(body) <= PASSAGE_CHARACTERS + 6
        assert body[found[4] : found[5]] == "oslo"
        assert body.endswith(" …")


def test_only_the_named_cells_are_packed() -> None:
    packed = pack([example("realm", 0, "x"), example("realm@1e-4", 0, "y")], "s", "S", [("realm", "REALM")], 5)
    assert len(packed["examples"]) == 1


def test_a_half_of_a_surrogate_pair_does_not_stop_the_page() -> None:
    packed = pack([example("realm", 0, "x\ud800")], "", "", [], 5)
    "".join(packed["texts"]).encode("utf-8")


def test_merging_shares_passages_and_keeps_every_row_readable() -> None:
    first = pack([example("realm", 0, "x"), example("realm", 0, "y")], "one", "One", [("realm", "REALM")], 5)
    second = pack([example("b", 1, "y"), example("b", 1, "z", prediction="p")], "two", "Two", [("b", "B")], 5)
    both = merge([first, second])
    assert [study["name"] for study in both["studies"]] == ["one", "two"]
    assert len(both["passages"]) == 3
    assert len(set(both["texts"])) == len(both["texts"])
    shown = [
        (both["studies"][row[0]]["name"], row[2], both["texts"][row[6]], both["passages"][row[13][0][0]][1])
        for row in both["examples"]
    ]
    assert shown == [
        ("one", 0, "x", "body of x"),
        ("one", 0, "y", "body of y"),
        ("two", 1, "y", "body of y"),
        ("two", 1, "z", "body of z"),
    ]
    assert [row[8] for row in both["examples"]][:3] == [-1, -1, -1]
    assert both["texts"][both["examples"][3][8]] == "p"
    assert first["studies"][0]["name"] == "one", "what is merged stays as it was"
    assert sentences(both) == 4
