"""examples/clozes.py and entities.py: clozes of any text, and a study that replaces no other."""

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

from realm_lab.engine.corpus.readers import registry
from realm_lab.engine.corpus.records import Document, Span
from realm_lab.records.plugins import import_plugins
from tests.factories.errors import refused
from tests.factories.modules import load_module


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    module = load_module("examples/clozes.py")
    monkeypatch.chdir(tmp_path)
    import_plugins()  # once a process: their formats would be gone after this test
    monkeypatch.setattr(registry, "READERS", dict(registry.READERS))  # it registers a shape of records
    return module


@pytest.mark.parametrize(
    ("text", "is_maskable"),
    [
        ("Then they both left Oslo by ship.", True),
        ("Then they both left Oslo by ship. Some went back to OSLO.", False),
        ("Then they both left Oslo by ship. Oslov is far.", True),  # another word
        ("They left Oslo by ship.", False),  # a reader needs three words before it
        ("Then , they left Oslo .", True),
        ("Then , they - Oslo .", False),  # two words, and marks
        ("The two from-Oslo left.", False),  # no word ends before it but two
    ],
)
def test_a_span_is_masked_if_it_is_once_in_the_item_with_words_before_it(
    example: Any, text: str, is_maskable: bool
) -> None:
    start = text.index("Oslo")
    item = Document("a", "", text, "a", spans=(Span(start, start + 4, "link"),))
    found = example.maskable(item, {"oslo": {1, 2}})
    assert found == [(start, start + 4)] * is_maskable
    for span in found:
        first, last = example.random_span(text, span, example.random.Random(0))
        assert text[first:last].strip()


def test_the_evidence_of_a_cloze_shares_another_span_with_its_item(
    example: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def item(name: str, text: str, *spans: str) -> dict[str, Any]:
        return {"id": name, "text": text, "spans": [[text.index(one), text.index(one) + len(one)] for one in spans]}

    items = [
        item("a", "In the rain Anna went to Oslo today.", "Anna", "Oslo"),
        item("b", "The mayor greeted ANNA near the bridges of Oslo.", "ANNA", "Oslo"),
        item("c", "Nobody has ever sold so much cheese in Oslo as Bert.", "Oslo", "Bert"),
        item("d", "Later that night Bert slept.", "Bert"),
    ]
    documents = [
        Document(
            str(one["id"]),
            "",
            str(one["text"]),
            "",
            spans=tuple(Span(start, end, "link") for start, end in one["spans"]),
        )
        for one in items
    ]
    left = [(one, number) for number, one in enumerate(documents[1:])]
    start = items[0]["text"].index("Oslo")
    cloze = documents[0], (start, start + 4)
    [question] = example.questions_of([cloze], left)
    assert (question["answer"], question["evidence_ids"]) == (["Oslo"], ["b"])  # c has only the words
    assert example.questions_of([cloze], left[2:]) == []
    given = {"id": "q", "cloze": "He left [MASK].", "answer": "Oslo", "source_id": "a", "evidence_ids": ["c", "a", "x"]}
    Path("part_1.jsonl").write_text(json.dumps(given))
    more = [item(f"e{n}", f"a{n} b{n} c{n} Rome d{n}.", "Rome") for n in range(10, 40)]
    Path("t.jsonl").write_text("\n".join(map(json.dumps, items + more)))
    monkeypatch.setattr("sys.argv", "clozes.py --name mine --texts t.jsonl --clozes part_1.jsonl".split())
    example.main()
    [test] = map(json.loads, Path("data/mine/questions_test.jsonl").read_text().splitlines())
    assert (test["groups"], test["evidence_ids"]) == (["part_1"], ["c"])  # the source and unknown items are no evidence


def test_another_study_of_the_same_name_stops_it_at_the_start(example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    items = [{"id": str(n), "text": f"a{n} b{n} c{n} Oslo d{n}.", "spans": [[12, 16]]} for n in range(10, 30)]
    Path("t.jsonl").write_text("\n".join(map(json.dumps, items)))
    monkeypatch.setattr("sys.argv", ["clozes.py", "--name", "mine", "--texts", "t.jsonl"])
    example.main()
    study, data = Path("experiments/mine.yaml"), Path("data/mine/knowledge.jsonl")
    text = study.read_text()
    example.main()
    assert study.read_text() == text
    data.unlink()
    study.write_text(text + "# changed")
    with refused("another study", path=study, remedy="choose another --name"):
        example.main()
    assert not data.exists()


def entity(name: str, text: str, *links: tuple[str, str]) -> dict[str, Any]:
    """An item whose links are (words, page)."""
    return {
        "id": name,
        "title": "",
        "text": text,
        "links": [[text.index(words), text.index(words) + len(words), page] for words, page in links],
    }


def entities(monkeypatch: pytest.MonkeyPatch, *given: str) -> dict[str, list[dict[str, Any]]]:
    """Run examples/entities.py and return its files."""
    examples = Path(__file__).parents[3] / "examples"
    monkeypatch.syspath_prepend(examples)
    monkeypatch.setattr("sys.argv", ["entities.py", "--name", "mine", "--texts", "t.jsonl", *given])
    runpy.run_path(str(examples / "entities.py"), run_name="__main__")
    return {
        path.stem: [json.loads(line) for line in path.read_text().splitlines()] for path in Path("data/mine").iterdir()
    }


def test_a_mention_has_an_entity_that_others_call_otherwise(
    example: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    items = []
    for n in range(12):
        city, club = f"City{n}x", f"Reds{n}x"
        items += [
            entity(
                f"full {n}",
                f"On day {n} they lost to {club} Union {n} in the last {n * 7} minutes.",
                (f"{club} Union {n}", club),
            ),
            entity(f"short {n}", f"Nobody in {city} had seen {club} play number {n * 11} before.", (club, club)),
            entity(f"same {n}", f"The mayor of the old {city} left after {n * 13} years.", (city, city)),
            entity(f"too {n}", f"Later the fire in {city} burned for {n * 17} hours.", (city, city)),
        ]
    Path("t.jsonl").write_text("\n".join(map(json.dumps, items)))
    found = entities(monkeypatch, "--test", "4", "--dev", "2")
    assert "12 mentions, 12 items, 12 entities" in capsys.readouterr().out
    asked = {
        split: {one["id"].removeprefix("full ") for one in found[f"questions_{split}"]} for split in ("test", "dev")
    }
    assert (len(asked["test"]), len(asked["dev"])) == (4, 2)
    for one in found["questions_test"] + found["questions_dev"]:
        number = one["id"].removeprefix("full ")
        assert one["evidence_ids"] == [f"short {number}"]
        assert one["answer"] == [f"Reds{number}x Union {number}"]
        assert one["groups"] == ["nowhere"]
        assert one["answer"][0] not in one["question"]
    left = {one["id"]: one for one in found["knowledge"]}
    assert len(left) == 48 - 6
    marked = {name for name, one in left.items() if one["spans"]}
    assert marked == {f"full {n}" for n in range(12)} - {f"full {n}" for split in asked.values() for n in split}
    rows = {row["sentence"]: row["evidence_ids"] for row in found["evidence"]}
    assert rows == {left[name]["text"]: [name.replace("full", "short")] for name in marked}
    assert "data/mine/evidence.jsonl" in Path("experiments/mine.yaml").read_text()


def test_a_mask_whose_words_are_elsewhere_trains_nothing(example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The words of half of the mentions are in an item that does not have their entity."""
    items = []
    for n in range(16):
        long, short = f"Lake{n}x Park", f"Shore{n}x"
        items += [
            entity(f"full {n}", f"Then at noon {n} fires began in {long} again, all {n * 7} said.", (long, short)),
            entity(f"short {n}", f"Nobody on {short} had seen number {n * 11} before.", (short, short)),
        ]
        if n % 2:
            items.append(entity(f"words {n}", f"Everything about {long} is {n * 13} years old."))
    Path("t.jsonl").write_text("\n".join(map(json.dumps, items)))
    found = entities(monkeypatch)
    marked = [int(one["id"].removeprefix("full ")) % 2 for one in found["knowledge"] if one["spans"]]
    assert 0 in marked
    assert 1 not in marked
    groups = {int(one["id"].removeprefix("full ")) % 2: one["groups"] for one in found["questions_test"]}
    assert groups.items() <= {0: ["nowhere"], 1: ["elsewhere"]}.items()


def test_names_without_links_are_one_entity_if_only_one_longer_name_has_them(
    example: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    people = "Abel Brandt Carver Dalton Ehrlich Farrow Grimes Holt Ingram Jansen Keller Lorenz".split()
    paragraphs = []
    for n, name in enumerate(people):
        paragraphs.append(f"The a{n} of b{n} and c{n} greeted Wilma {name} with d{n} and e{n}.")
        paragraphs.append(f"The f{n} and g{n} wrote that {name} was h{n} again.")
    Path("t.jsonl").write_text("\n".join(json.dumps({"id": str(n), "text": text}) for n, text in enumerate(paragraphs)))
    found = entities(monkeypatch)
    answers = {one["answer"][0]: one["evidence_ids"] for one in found["questions_test"]}
    assert answers
    for answer, evidence in answers.items():
        number = people.index(answer.removeprefix("Wilma "))
        assert evidence == [f"{2 * number + 1}/0"]


def test_texts_without_second_names_are_refused(example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("t.jsonl").write_text(json.dumps({"id": "a", "text": "Nobody has ever left Oslo by ship."}))
    with pytest.raises(SystemExit, match="too few entities have two names"):
        entities(monkeypatch)
