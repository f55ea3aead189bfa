"""Facts as triples, on cards and in both forms; sentences that also name an entity that they are not about."""

import re
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from realm_lab.contrib.section6.settings import TripleOptions
from realm_lab.contrib.section6.triples import TRIPLE_SHARE, TripleWorld
from realm_lab.engine.corpus.records import SPLITS
from realm_lab.engine.corpus.vocabulary import wordpiece_from_vocabulary
from realm_lab.engine.systems.identity import code_roots
from realm_lab.engine.worlds.world import ToyWorld
from tests.engine.corpus.preparing import made
from tests.tiny_system import tiny_params

TRIPLE = re.compile(r"(\w+) \| (\w+) \| (\w+) \.")


def world(**settings: Any) -> ToyWorld:
    options = TripleOptions(**{"entities": 80, "triples": "none", **settings})
    return TripleWorld(options, 3, options.triples, options.triple_cards)


def stated(bodies: list[str], rows: list[int], relation: str, subject: str, value: str, form: str) -> int:
    """Count the rows that state a fact in that form."""
    if form == "triple":
        return sum((subject, relation, value) in TRIPLE.findall(bodies[row]) for row in rows)
    return sum("|" not in bodies[row] and {subject, value} <= set(bodies[row].split()) for row in rows)


# (settings, passages of an entity, statements of a fact as text and as a triple together, triples of the entity)
CASES = [({"triples": "half"}, 8, 1, 3), ({"triples": "all"}, 8, 1, 6), ({"triples": "both"}, 14, 2, 6)]


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize(("settings", "passages", "statements", "triples"), CASES)
def test_each_fact_is_stated_in_its_rows_in_the_declared_form(
    settings: dict[str, Any], passages: int, statements: int, triples: int, version: int
) -> None:
    made_world = world(**settings)
    found = [passage for passage, _ in made_world.passages(version)]
    bodies = [passage.body for passage in found]
    assert len(found) == 80 * passages
    assert [passage.form == "triple" for passage in found] == ["|" in body for body in bodies]
    assert Counter(passage.form for passage in found)["triple"] == 80 * triples
    for entity in range(80):
        for number, (relation, *values) in enumerate(made_world.facts(entity)):
            asked = relation.name, made_world.subject(entity), values[version]
            rows = made_world.gold_rows(entity, number)
            as_text, as_triple = (stated(bodies, rows, *asked, form) for form in ("text", "triple"))
            assert as_text + as_triple == statements == len(rows)
            others = set(range(entity * passages, (entity + 1) * passages)) - set(rows)
            assert stated(bodies, sorted(others), *asked, "triple") == 0


def test_both_forms_differ_in_the_fact_alone() -> None:
    plain, both = (
        [passage.body for passage, _ in world(**settings).passages()] for settings in ({}, {"triples": "both"})
    )
    for entity in range(80):
        mine = both[entity * 14 : entity * 14 + 14]
        assert mine[:8] == plain[entity * 8 : entity * 8 + 8]
        for text, triple in zip(mine[:6], mine[8:], strict=True):
            [kept] = {f"{part} ." for part in text.split(" . ")} & {f"{part} ." for part in triple.split(" . ")} or {""}
            assert kept or text.removesuffix(" .").split(" . ")[-1] in triple


@pytest.mark.parametrize(("share", "count"), [("half", 3), ("all", 6)])
def test_a_card_names_its_subject_once_and_has_all_triples(share: str, count: int) -> None:
    cards = world(triples=share, triple_cards=True)
    found = list(cards.passages())
    for entity in range(80):
        size = cards.passages_per_entity
        [(row, card, sentences)] = [
            (row, passage.body, sentences)
            for row, (passage, sentences) in enumerate(found[entity * size : (entity + 1) * size], entity * size)
            if passage.form == "card"
        ]
        facts = [
            (r.name, old) for n, (r, old, _) in enumerate(cards.facts(entity)) if row in cards.gold_rows(entity, n)
        ]
        assert len(facts) == count == len(sentences)
        assert card == f"{cards.subject(entity)} | " + " ; ".join(f"{r} | {value}" for r, value in facts) + " ."
        values = [s.text[span.start : span.end] for s in sentences for span in s.spans]
        assert values == [value for _, value in facts]


@pytest.mark.parametrize("settings", [{"triples": "both"}, {"triples": "all", "triple_cards": True, "bystanders": 1.0}])
def test_no_word_is_unknown_no_name_is_cut_elsewhere_and_a_card_fits(settings: dict[str, Any]) -> None:
    made_world = world(**settings)
    tokenizer = wordpiece_from_vocabulary(made_world.vocabulary)
    bodies = [passage.body for passage, _ in made_world.passages()]
    news = [sentence.text for split in SPLITS for sentence, _ in made_world.sentences(split)]
    articles = [text for a in islice(made_world.articles(500), 500) for text in (a.restated, a.other)]
    for text in [*bodies, *news, *articles]:
        assert "[UNK]" not in tokenizer.encode(text, add_special_tokens=False).tokens, text
    assert all(len(tokenizer.encode(made_world.name(n), add_special_tokens=False).ids) == 2 for n in range(2000))
    assert max(len(tokenizer.encode(body, add_special_tokens=False).ids) for body in bodies) <= 40 - 3 - 2
    assert any(" | " in text for text in articles)


def test_throw_away_cards_tell_the_fact_or_the_others_of_its_subject() -> None:
    made_world = world(triples="all", triple_cards=True)
    drawn = [article for article in islice(made_world.articles(200), 200) if " ; " in article.restated]
    assert len(drawn) / 200 == pytest.approx(TRIPLE_SHARE, abs=0.1)
    for sentence, card, other in drawn:
        named = {span.label: sentence.text[span.start : span.end] for span in sentence.spans}
        told, others = ([part.strip(" .") for part in text.split(" ; ")] for text in (card, other))
        assert all(first.startswith(f"{named['subject']} | ") for first in (told[0], others[0]))
        assert (len(told), len(others)) == (6, 5)
        assert len({part.split(" | ")[-2] for part in told}) == 6
        [held] = [part for part in told if part.endswith(f" | {named['object']}")]
        assert not any(held.split(" | ")[-2] == part.split(" | ")[-2] for part in others)


def test_a_bystander_is_of_the_subjects_type_and_nothing_else_moves() -> None:
    with_them, without = world(bystanders=0.5), world()
    pairs = zip(with_them.sentences("train"), without.sentences("train"), strict=True)
    changed = total = first = 0
    for (sentence, row), (plain, same_row) in pairs:
        assert row == same_row
        assert [span.label for span in sentence.spans] == [span.label for span in plain.spans]
        total += plain.spans[0].label == "object"
        if sentence != plain:
            changed += 1
            entity = row // with_them.passages_per_entity
            names = {
                with_them.subject(other) for other in range(80) if with_them.type_of(other) == with_them.type_of(entity)
            }
            value = sentence.text[sentence.spans[0].start : sentence.spans[0].end]
            named = [word for word in sentence.text.split() if word in names - {value}]
            assert with_them.subject(entity) in named
            assert len(set(named)) == 2 or sentence.text.split().count(value) == 2
            first += named[0] != with_them.subject(entity)
    assert changed / total == pytest.approx(0.5, abs=0.08)
    assert first / changed == pytest.approx(0.5, abs=0.12)


def test_the_prepared_corpus_knows_the_form_of_each_passage(tmp_path: Path) -> None:
    source = {"name": "triples", "world": "easy", "entities": 40, "triples": "both", "articles": 20}
    params = tiny_params(corpus={"source": source, "passage_length": 40})
    passages = made(params, tmp_path / "corpus").corpus.passages()
    names, numbers = passages.forms
    assert [names[number] for number in numbers] == [
        "triple" if "|" in body else "text" for body in passages.text.column("body")
    ]


def test_the_code_that_reads_files_of_triples_is_recorded() -> None:
    files = {"source": "files", "tagger": "rule", "pretrain_corpus": "same", "files": {"knowledge": ["k.nt"]}}
    roots = [code_roots(tiny_params(corpus=corpus), "realm")["prepare"] for corpus in ({}, files)]
    assert ["realm_lab.contrib.section6.triple_files" in found for found in roots] == [False, True]
