"""Every format of docs/data.md, on samples in their distributed form; and custom formats."""

import gzip
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from realm_lab.engine.corpus.readers import (
    Dropped,
    Record,
    find_reader,
    input_files,
    read_documents,
    read_questions,
    register_shape,
    registry,
)
from realm_lab.engine.corpus.records import Document, Question, Span
from tests.factories.errors import refused


def lines(*records: Any) -> bytes:
    return b"".join(json.dumps(record, ensure_ascii=False).encode() + b"\n" for record in records)


def parquet(**columns: list[Any]) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()


def put(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def item(identity: str, question: str, *answers: str) -> dict[str, Any]:
    return {"id": identity, "question": question, "answers": [{"text": a, "answer_start": 0} for a in answers]}


def squad(*articles: tuple[str, dict[str, list[Any]]], indent: int | None = None) -> bytes:
    """Return a SQuAD file; an article is its title, and its paragraphs with their questions."""
    data = [
        {"title": title, "paragraphs": [{"context": text, "qas": qas} for text, qas in paragraphs.items()]}
        for title, paragraphs in articles
    ]
    return json.dumps({"version": "1.1", "data": data}, indent=indent).encode()


RUS = "Kievan_Rus%27"
SQUAD = squad(
    (RUS, {"One.": [item("q1", "  Who? ", "Ann", "Ann", "Bob")], "Two.": []}),
    ("Oslo", {"Three.": [item("q2", "What?", "the")]}),
    (RUS, {"Four.": [item("q3", "Q?", "x"), item("q4", "Why?") | {"is_impossible": True}]}),  # a title comes twice
)
PARAGRAPHS = [
    Document(f"{RUS}#0", "Kievan Rus'", "One.", RUS), Document(f"{RUS}#1", "Kievan Rus'", "Two.", RUS),
    Document("Oslo#0", "Oslo", "Three.", "Oslo"), Document(f"{RUS}#2", "Kievan Rus'", "Four.", RUS),
]  # fmt: skip
EXTRACTED = {"id": "12", "url": "u", "title": "R &amp; D", "revid": "7", "text": "R &amp; D\n\nIt is &lt;white&gt;."}
WIKITEXT = b" \n = Oslo = \n \n Oslo is a <unk> . \n \n = = Past = = \n \n Old . \n = Bergen = \n Rain . \n x = y\n"
SWAPPED = {
    "title": "Old_Oslo", "paragraph": 3, "old_context": "Ann won.", "new_context": "Bob won.",
    "swapped": [{"id": "s1", "question": "Who?", "type": "PERSON", "old_answer": "Ann", "new_answer": "Bob"}],
    "unchanged": [{"id": "s2", "question": "When?", "answer": "1969"}],
}  # fmt: skip
LABEL = "<http://www.w3.org/2000/01/rdf-schema#label>"
TRIPLES = rf"""# names
<http://x.org/Oslo> {LABEL} "Oslo city"@en-GB .
<http://x.org/Oslo> <http://x.org/p#part_of> <http://x.org/a/St._Hans%27s_\u00e5/> .
<http://x.org/Oslo> <http://x.org/motto> "\"one\"\tand\U00000020all"@la .

<http://x.org/Oslo><http://x.org/founded>"1040"^^<http://www.w3.org/2001/XMLSchema#gYear>.# a year
<http://x.org/Oslo> {LABEL} "\u00d8slo"@no .
<urn:x> <http://x.org/in> <http://x.org/Norway> .
<http://x.org/Norway> {LABEL} "Norge"@no .
<http://x.org/Norway> {LABEL} "Kingdom of Norway"@en .
""".encode()
SALIENT: dict[str, Any] = {"title": "Oslo", "text": "Åse in Oslo, 1925."}
SALIENT["spans"] = {"start": [14, 0], "limit": [18, 4], "type": ["DATE", ""]}
SPANS = (Span(0, 3, "span"), Span(13, 17, "DATE"))
DPR = {
    "dataset": "nq_train", "question": "where is oslo", "answers": ["Norway"],
    "positive_ctxs": [
        {"title": "Oslo", "text": "In Norway.", "score": 1000, "title_score": 1, "passage_id": "7"},
        {"title": "Oslo", "text": "North.", "psg_id": 9},
    ],
    "negative_ctxs": [{"title": "", "text": "No id.", "score": 0}],
    "hard_negative_ctxs": [{"title": "Rome", "text": "In Italy.", "passage_id": "8"}, {"text": "Norway.", "id": "7"}],
}  # fmt: skip
NO_ID = "#82032fe2b6691fa6"
HOTPOT = {
    "_id": "h1", "question": "Which?", "answer": "Norway", "type": "bridge", "level": "easy",
    "supporting_facts": [["Oslo", 0], ["Oslo", 1], ["Elsewhere", 0]],
    "context": [["Oslo", ["In Norway.", " A city."]], ["Rome", ["In Italy."]]],
}  # fmt: skip
HOTPOT_DOCUMENTS = [
    Document("Oslo", "Oslo", "In Norway. A city.", "Oslo"), Document("Rome", "Rome", "In Italy.", "Rome"),
]  # fmt: skip
NQ = {
    "example_id": -7, "question_text": "what is oslo",
    "document_url": "https://en.wikipedia.org//w/index.php?title=Oslo_%28city%29&amp;oldid=1",
    "document_text": "Oslo <H1> Oslo </H1> <P> A city . </P> "
        "<Table> <Tr> <Td_colspan=\"2\"> a < b </Td> <Td> c </Td> </Tr> </Table>",
    "long_answer_candidates": [],
    "annotations": [
        {"long_answer": {"start_token": 4, "end_token": 9}, "short_answers": [{"start_token": 5, "end_token": 7}],
            "yes_no_answer": "NONE"},
        {"long_answer": {}, "short_answers": [{"start_token": 0, "end_token": 19}], "yes_no_answer": "NONE"},
    ],
}  # fmt: skip
KILT_PAGE = {
    "wikipedia_id": "7", "wikipedia_title": "Oslo", "anchors": [],
    "text": ["Oslo\n", "A city.\n", "Section::::Past.\n", "BULLET::::- Old.\n"],
}  # fmt: skip
KILT = {
    "id": "k1", "input": "what is oslo", "meta": {},
    "output": [{"answer": "a city", "provenance": [{"wikipedia_id": "7", "title": "Oslo", "start_paragraph_id": 1}]},
        {"answer": "", "provenance": [{"wikipedia_id": 8}]}, {"answer": "a town", "meta": {"score": 1}}],
}  # fmt: skip
TRIVIA = {
    "Data": [
        {"Question": "What?", "QuestionId": "tc_1", "Answer": {"Value": "Oslo", "Aliases": ["Oslo", "Christiania"],
            "NormalizedAliases": ["oslo"], "HumanAnswers": ["the city"]}, "EntityPages": [], "SearchResults": []},
        {"Question": "Who?", "QuestionId": "tc_2"},
    ],
    "Domain": "Web", "VerifiedEval": False,
}  # fmt: skip
LONG = "x" * 100_000  # longer than the head that identifies a format
TEXT_LINES = lines({"text": LONG, "id": 7, "title": " T "}, {"text": "B\u2028b", "title": None})

# name of the file, its content, the format, its documents
# fmt: off
TEXTS: dict[str, tuple[str, bytes, str, list[Document]]] = {
    "squad": ("no_suffix", SQUAD, "squad", PARAGRAPHS),
    "texts": ("d", TEXT_LINES, "texts", [Document("7", "T", LONG, "T"), Document("d:2", "", "B\u2028b", "d:2")]),
    "beir": ("corpus.jsonl", lines({"_id": "d1", "title": "T", "text": "A", "metadata": {}}, {"_id": "", "text": "B"}),
        "texts", [Document("d1", "T", "A", "T"), Document("corpus.jsonl:2", "", "B", "corpus.jsonl:2")]),
    "marked_texts": ("n.jsonl", lines(
            {"id": "a", "title": "T", "text": "Oslo wins.", "spans": [[0, 4, "place"], [5, 9]], "article": "copies"},
            {"text": "No.", "spans": []}), "marked_texts",
        [Document("a", "T", "Oslo wins.", "copies", spans=(Span(0, 4, "place"), Span(5, 9, "span"))),
        Document("n.jsonl:2", "", "No.", "n.jsonl:2", spans=())]),
    "salient_span_wikipedia": ("s.jsonl", lines(SALIENT, {"title": "", "text": "No.", "spans": {
            "start": [], "limit": [], "type": []}}), "salient_span_wikipedia",
        [Document("s.jsonl:1", "Oslo", "Åse in Oslo, 1925.", "Oslo", spans=SPANS),
        Document("s.jsonl:2", "", "No.", "s.jsonl:2", spans=())]),
    "salient_spans_in_a_list": ("s.jsonl", lines({"title": "", "text": "Åse.", "spans": [{"start": 0, "limit": 4}]}),
        "salient_span_wikipedia", [Document("s.jsonl:1", "", "Åse.", "s.jsonl:1", spans=(Span(0, 3, "span"),))]),
    "ms_marco": ("collection.tsv.gz", gzip.compress(b'0\tHe said "no.\n8\tPlain.\r\n'), "ms_marco",
        [Document("0", "", 'He said "no.', "0"), Document("8", "", "Plain.", "8")]),
    "ms_marco_documents": ("msmarco-docs.tsv", b"D1\thttp://x.org\tOslo\tA city.\nD2\tu\t\tOld.\n", "ms_marco",
        [Document("D1", "Oslo", "A city.", "Oslo"), Document("D2", "", "Old.", "D2")]),
    "kilt_knowledge": ("k.json", lines(KILT_PAGE), "kilt_knowledge", [Document("7", "Oslo", "A city.\nOld.", "Oslo")]),
    "kilt_knowledge_of_the_hub": ("k.parquet", parquet(wikipedia_id=["7"], wikipedia_title=["Oslo"],
            text=[{"paragraph": KILT_PAGE["text"]}]), "kilt_knowledge",
        [Document("7", "Oslo", "A city.\nOld.", "Oslo")]),
    "hotpotqa": ("h.json", json.dumps([HOTPOT]).encode(), "hotpotqa", HOTPOT_DOCUMENTS),
    "2wikimultihopqa": ("dev.jsonl", lines(HOTPOT | {"context": [["Oslo", ["In Norway.", "A city.", ""]]]}), "hotpotqa",
        HOTPOT_DOCUMENTS[:1]),
    "natural_questions": ("nq.jsonl.gz", gzip.compress(lines(NQ)), "natural_questions",
        [Document("Oslo (city)", "Oslo (city)", "Oslo\nOslo\nA city .\na < b c", "Oslo (city)")]),
    "pyserini": ("c.jsonl", lines({"id": "d1", "contents": "A"}, {"docid": 2, "contents": "B"},
        {"_id": "x", "contents": "C"}), "pyserini",
        [Document("d1", "", "A", "d1"), Document("2", "", "B", "2"), Document("x", "", "C", "x")]),
    "psgs_w100": ("psgs_w100.tsv", b'id\ttext\ttitle\n1\t"He said ""no"".\nTwice."\tT\n2\tPlain.\t\n',
        "text_table", [Document("1", "T", 'He said "no".\nTwice.', "T"), Document("2", "", "Plain.", "2")]),
    "wikiextractor": ("wiki_00", lines(EXTRACTED), "wikiextractor",
        [Document("12", "R & D", "It is <white>.", "R & D")]),
    "wikitext": ("w.txt", WIKITEXT, "wikitext", [Document("w.txt:2", "Oslo", "Oslo is a <unk> .\nOld .", "w.txt:2"),
        Document("w.txt:9", "Bergen", "Rain .\nx = y", "w.txt:9")]),
    "plain_text": ("tale.txt.gz", gzip.compress(b"Once upon\na time.\n\n\nThe end."), "plain_text",
        [Document("tale.txt:1", "", "Once upon\na time.", "tale.txt"),
        Document("tale.txt:5", "", "The end.", "tale.txt")]),
    "n_triples": ("kb.nt.gz", gzip.compress(TRIPLES), "n_triples", [
        Document("kb.nt:3", "Oslo city", "Oslo city | part of | St. Hans's \u00e5 .\n"
            "Oslo city | motto | \"one\" and all .\nOslo city | founded | 1040 .", "Oslo city", "triple"),
        Document("kb.nt:8", "urn:x", "urn:x | in | Kingdom of Norway .", "urn:x", "triple")]),
    "triples_table": ("kb.tsv", b"subject\tpredicate\tobject\nOslo\tin\tNorway\r\n\nOslo\tis \t a  city\nBergen\tin\tX",
        "triples_table", [Document("kb.tsv:2", "Oslo", "Oslo | in | Norway .\nOslo | is | a city .", "Oslo", "triple"),
        Document("kb.tsv:5", "Bergen", "Bergen | in | X .", "Bergen", "triple")]),
    "swapped_paragraphs": ("swap.jsonl", lines(SWAPPED), "swapped_paragraphs", [
        Document("Old_Oslo#3", "Old Oslo", "Ann won.", "Old_Oslo"),
        Document("Old_Oslo#3@new", "Old Oslo", "Bob won.", "Old_Oslo")]),
}
# fmt: on


@pytest.mark.parametrize("case", TEXTS)
def test_documents(tmp_path: Path, case: str) -> None:
    name, content, kind, expected = TEXTS[case]
    path = put(tmp_path / name, content)
    assert find_reader(path).name == kind
    dropped = Dropped()
    assert list(read_documents(input_files(path), dropped)) == expected
    assert not dropped


CLOZE = {"id": "c", "cloze": "In [MASK].", "answer": "Oslo", "source_id": "n1", "evidence_ids": ["n2"]}
TIMEQA = {"id": "x#0", "title": "T", "question": "Who in 1811?", "answer": ["Ann"], "level": "easy"}
# name of the file, its content, the format, its questions, what is dropped
# fmt: off
ASKED: dict[str, tuple[Any, ...]] = {
    "squad": ("s.json", SQUAD, "squad",
        [Question("q1", "Who?", ("Ann", "Bob"), f"{RUS}#0"), Question("q3", "Q?", ("x",), f"{RUS}#2")],
        {"answer: normalises to nothing": 1, "question: no answer": 1, "question: unanswerable": 1}),
    "nq_open": ("NQ-open.jsonl", b"\n" + lines({"question": "who won", "answer": ["Ann", "Ann B."]}), "open_questions",
        [Question("nq-open.jsonl:2", "who won", ("Ann", "Ann B."), None)], {}),
    "with_groups": ("q.jsonl", lines({"question": "when?", "answer": "x", "groups": ["a", "b"]}), "open_questions",
        [Question("q.jsonl:1", "when?", ("x",), None, groups=("a", "b"))], {}),
    "patterns_by_record": ("q.jsonl",
        lines({"id": "a", "question": "When?", "answer": "19\\d", "answer_kind": "regex"}),
        "open_questions", [Question("a", "When?", ("19\\d",), None, "regex")], {}),
    "dpr": ("train.json", json.dumps([DPR], indent=1).encode(), "dpr", [Question("train.json:1", "where is oslo",
        ("Norway",), None, judged=(("8", 0), ("7", 1), (NO_ID, 0), ("9", 1)))], {}),
    "hotpotqa": ("h.json", json.dumps([HOTPOT]).encode(), "hotpotqa",
        [Question("h1", "Which?", ("Norway",), None, judged=(("Oslo", 1), ("Elsewhere", 1)))], {}),
    "hotpotqa_of_the_hub": ("h.parquet", parquet(id=["h1"], question=["Which?"], answer=["Norway"],
            supporting_facts=[{"title": ["Oslo"], "sent_id": [0]}],
            context=[{"title": ["Oslo"], "sentences": [["In Norway."]]}]), "hotpotqa",
        [Question("h1", "Which?", ("Norway",), None, judged=(("Oslo", 1),))], {}),
    "natural_questions": ("nq.jsonl", lines(NQ, NQ | {"example_id": 8, "annotations": [{"short_answers": []}]}),
        "natural_questions", [Question("-7", "what is oslo", ("A city",), "Oslo (city)")],
        {"answer: over 5 tokens": 1, "question: no answer": 1}),
    "kilt": ("nq-dev-kilt.jsonl", lines(KILT, {"id": "k2", "input": "why"}), "kilt",
        [Question("k1", "what is oslo", ("a city", "a town"), None, judged=(("7", 1), ("8", 1)))],
        {"question: no answer": 1}),
    "triviaqa": ("dev.json", json.dumps(TRIVIA).encode(), "triviaqa",
        [Question("tc_1", "What?", ("Oslo", "Christiania", "the city"), None)], {"question: no answer": 1}),
    "triviaqa_of_the_hub": ("v.parquet", parquet(question=["What?", "Who?"], question_id=["tc_1", "tc_2"],
            answer=[{"aliases": ["Oslo", "Christiania"], "value": "Oslo"}, {"aliases": [], "value": "<unk>"}]),
        "triviaqa_records", [Question("tc_1", "What?", ("Oslo", "Christiania"), None)], {"question: no answer": 1}),
    "webquestions": ("main.json", b'[\n {"qId": "w4", "answers": ["Bahamian dollar"], "qText": "what money?"}\n]',
        "webquestions", [Question("w4", "what money?", ("Bahamian dollar",), None)], {}),
    "curated_trec": ("CuratedTrec.txt", lines({"question": "When?", "answer": ["Sept?(ember)? "]}), "curated_trec",
        [Question("curatedtrec.txt:1", "When?", ("Sept?(ember)? ",), None, "regex")], {}),
    "curated_trec_table": ("large.tsv", b'462\tfactoid\tWhat is in "curies"?\tRAO|wastes?\\\t1 Sv\n',
        "curated_trec_table", [Question("462", 'What is in "curies"?', ("RAO|wastes?\\\t1 Sv",), None, "regex")], {}),
    "qa_of_dpr": ("nq-test.qa.csv", b'who won\t["Ann", \'Ann B.\']\n"""who"" lost"\t"[\'""Bob""\']"\n'
        + "which ?\t['🚁', 'A', \"O'Neil\"]\nwhere ?\t\"['拳闘', \"\"l'eau\"\"]\"\n".encode(),
        "question_table", [Question("nq-test.qa.csv:1", "who won", ("Ann", "Ann B."), None),
        Question("nq-test.qa.csv:2", '"who" lost', ('"Bob"',), None),
        Question("nq-test.qa.csv:3", "which ?", ("🚁", "O'Neil"), None),
        Question("nq-test.qa.csv:4", "where ?", ("拳闘", "l'eau"), None)], {"answer: normalises to nothing": 1}),
    "tsv_with_a_header": ("mine.txt", b"question\tanswer\nwho won\tAnn\n\nwho lost\t\n", "question_table",
        [Question("mine.txt:2", "who won", ("Ann",), None)],
        {"answer: normalises to nothing": 1, "question: no answer": 1}),
    "csv_with_a_header": ("mine.csv",
        b'id,Question,Answers,document,groups\r\na,"where,\r\nthen?","[\'here\', \'there\']",d1,"[\'x\']"\r\nb,x,1,,\n',
        "question_table",
        [Question("a", "where,\r\nthen?", ("here", "there"), "d1", groups=("x",)),
        Question("b", "x", ("1",), None)], {}),
    "csv_of_a_spreadsheet": ("mine.csv", b"\xef\xbb\xbfQuestion;Answer\r\nwho, then?;Ann\r\n", "question_table",
        [Question("mine.csv:2", "who, then?", ("Ann",), None)], {}),
    "timeqa": ("t.jsonl", lines(TIMEQA, TIMEQA | {"level": "hard"}), "timeqa",
        [Question(f"x#0?{level}", "Who in 1811?", ("Ann",), None) for level in ("easy", "hard")], {}),
    "swapped_paragraphs": ("swap.jsonl", lines(SWAPPED), "swapped_paragraphs", [
        Question("s1", "Who?", ("Ann",), "Old_Oslo#3", answers_updated=("Bob",)),
        Question("s2", "When?", ("1969",), "Old_Oslo#3", answers_updated=("1969",))], {}),
    "cloze": ("cloze.jsonl", lines(CLOZE), "cloze",
        [Question("c", "In [MASK].", ("Oslo",), "n1", evidence=("n2",))], {}),
}
# fmt: on


@pytest.mark.parametrize("case", ["marked_texts", "natural_questions"])
@pytest.mark.parametrize("form", ["lines", "array", "marked"])
def test_a_format_is_known_by_keys_behind_a_long_text(tmp_path: Path, case: str, form: str) -> None:
    name, content, kind, expected = TEXTS[case]
    data = gzip.decompress(content) if name.endswith(".gz") else content
    records = json.loads(data) if data.startswith(b"[") else [json.loads(line) for line in data.splitlines()]
    records = [{"long": LONG, **record} for record in records]
    content = lines(*records) if form == "lines" else json.dumps(records, indent=2).encode()
    path = put(tmp_path / name.partition(".")[0], b"\xef\xbb\xbf" * (form == "marked") + content)
    assert find_reader(path).name == kind
    assert [document.spans for document in read_documents(input_files(path))] == [one.spans for one in expected]


@pytest.mark.parametrize("case", ASKED)
def test_questions(tmp_path: Path, case: str) -> None:
    name, content, kind, expected, dropped = ASKED[case]
    path = put(tmp_path / name, content)
    assert find_reader(path).name == kind
    counted = Dropped()
    assert list(read_questions(input_files(path), counted)) == expected
    assert counted == dropped


GOLD = {"title": "Oslo", "passage": "Oslo is a city.", "answer": ["a city"]}
QED = {
    "example_id": -4, "title_text": "Oslo", "url": "u", "question_text": "what is oslo",
    "paragraph_text": "Oslo is a city .",
    "original_nq_answers": [[{"start": 8, "end": 14, "string": "a city"}], [{"string": "a"}, {"string": "town"}]],
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "records", "identity", "answers"),
    [
        ("nq_gold_passages", [GOLD | {"question": "q1"}, GOLD | {"question": "q2"}], "g.jsonl:1", ("a city",)),
        ("qed", [QED, QED | {"example_id": 5}], "-4", ("a city", "a town")),
    ],
)
def test_questions_with_their_gold_passage(
    tmp_path: Path, kind: str, records: list[Any], identity: str, answers: tuple[str, ...]
) -> None:
    path = put(tmp_path / "g.jsonl", lines(*records))
    assert find_reader(path).name == kind
    dropped = Dropped()
    [document] = read_documents(input_files(path), dropped)
    assert dropped == {"document: copy of an earlier one": 1}, "one passage of two questions"
    first, second = read_questions(input_files(path))
    assert (first.id, first.answers, first.document) == (identity, answers, document.id)
    assert second.document == document.id
    assert (document.title, document.article) == ("Oslo", "Oslo")


def test_plain_text_without_blank_lines_is_cut_at_line_ends(tmp_path: Path) -> None:
    path = put(tmp_path / "long.txt", b"A sentence of the tale.\n" * 10_000)
    documents = list(read_documents(input_files(path)))
    assert [document.id for document in documents] == ["long.txt:1", "long.txt:4168", "long.txt:8335"]
    assert sum(document.text.count("tale") for document in documents) == 10_000


def test_no_format_of_the_package_is_custom_code() -> None:
    """A format that counted as custom code would give its corpora other keys than before."""
    assert [name for name, reader in registry.READERS.items() if reader.modules(custom=True)] == []


def test_a_shape_of_records_can_be_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "READERS", dict(registry.READERS))

    def recipe(record: Record, dropped: Dropped) -> Iterator[Document]:
        if record.text("kind") == "draft":
            dropped["recipe: draft"] += 1
            return
        yield Document(record.identity(), record.field("dish", str), "\n".join(record.texts("steps")), "recipes")

    register_shape("recipes", {"dish", "steps"}, "{dish, steps: [texts]}", documents=recipe)
    records = [{"dish": "Soup", "steps": ["Boil.", "Eat."]}, {"dish": "Pie", "steps": [], "kind": "draft"}]
    for name, content in (("a.jsonl", lines(*records)), ("b.json", json.dumps(records).encode())):
        dropped = Dropped()
        [document] = read_documents(input_files(put(tmp_path / name, content)), dropped)
        assert document == Document(f"{name}:1", "Soup", "Boil.\nEat.", "recipes")
        assert dropped == {"recipe: draft": 1}
    with refused("'steps' is missing", line=2, remedy="expected {dish, steps: [texts]}"):
        list(read_documents(input_files(put(tmp_path / "c.jsonl", lines(records[0], {"dish": "Pie"})))))
