"""examples/clozes.py: clozes of any text, which do not hold their own answer, and a study that replaces no other."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from realm_lab.corpus.readers import registry
from realm_lab.corpus.records import Document, Span
from tests.factories.errors import refused


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    path = Path(__file__).parents[2] / "examples" / "clozes.py"
    spec = importlib.util.spec_from_file_location("clozes", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.chdir(tmp_path)
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
    assert (question["answer"], question["evidence_ids"]) == (["Oslo"], ["b"])  # c holds the words only
    assert example.questions_of([cloze], left[2:]) == []
    given = {"id": "q", "cloze": "He left [MASK].", "answer": "Oslo", "source_id": "a", "evidence_ids": ["c", "a", "x"]}
    Path("part_1.jsonl").write_text(json.dumps(given))
    more = [item(f"e{n}", f"a{n} b{n} c{n} Rome d{n}.", "Rome") for n in range(10, 40)]
    Path("t.jsonl").write_text("\n".join(map(json.dumps, items + more)))
    monkeypatch.setattr("sys.argv", "clozes.py --name mine --texts t.jsonl --clozes part_1.jsonl".split())
    example.main()
    [test] = map(json.loads, Path("data/mine/questions_test.jsonl").read_text().splitlines())
    assert (test["groups"], test["evidence_ids"]) == (["part_1"], ["c"])  # the source and unknown items are none


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
