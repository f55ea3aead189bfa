"""Questions with the documents that answer them: DPR's training file, KILT, HotpotQA, Natural Questions (simplified).

Each file except a task of KILT holds the passages or pages too, so that it can be the knowledge corpus. A document that
answers the question has the relevance 1, a negative of DPR 0.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from realm_lab.engine.corpus.readers.json_records import QUESTION_IDS, Record, passage_id, register_shape
from realm_lab.engine.corpus.readers.registry import Dropped
from realm_lab.engine.corpus.readers.squad import readable_title
from realm_lab.engine.corpus.records import Document, Question

POSITIVES, NEGATIVES = "positive_ctxs", ("hard_negative_ctxs", "negative_ctxs")
PASSAGE_IDS = ("passage_id", "psg_id", "id")  # of DPR's passages, in different versions of its files
LONGEST_ANSWER = 5  # tokens of an answer of Natural Questions in the open-domain task (Lee et al. 2019)
_TAG = re.compile(r"</?[A-Za-z][^ ]*>")


def _judged(relevant: Iterable[str], negative: Iterable[str] = ()) -> tuple[tuple[str, int], ...]:
    """Return judgements; a document in both lists is relevant."""
    return tuple((dict.fromkeys(negative, 0) | dict.fromkeys(relevant, 1)).items())


def _contexts(record: Record, *lists: str) -> Iterator[Document]:
    """Yield the passages in those of the named lists that the record has."""
    for name in lists:
        for passage in record.within(name) if record.fields.get(name) is not None else ():
            title, text = passage.text("title").strip(), passage.field("text", str)
            identity = passage.given_id(*PASSAGE_IDS) or passage_id(title, text)
            yield Document(identity, title, text, title or identity)


def _dpr_documents(record: Record, dropped: Dropped) -> Iterator[Document]:
    record.field(POSITIVES, list)
    yield from _contexts(record, POSITIVES, *NEGATIVES)


def _dpr_question(record: Record, dropped: Dropped) -> Iterator[Question]:
    question, answers = record.field("question", str), record.texts("answers") if "answers" in record.fields else ()
    record.field(POSITIVES, list)
    judged = _judged(*((document.id for document in _contexts(record, *names)) for names in ((POSITIVES,), NEGATIVES)))
    yield Question(record.identity(*QUESTION_IDS), question, answers, None, judged=judged)


def _kilt_page(record: Record, dropped: Dropped) -> Iterator[Document]:
    """Yield a page of the knowledge source without headings, bullet marks and a first paragraph that is the title."""
    identity, title = record.identity("wikipedia_id"), record.field("wikipedia_title", str)
    text = record.field("text", object)
    of_the_hub = isinstance(text, dict)
    paragraphs = record._replace(fields=text).texts("paragraph") if of_the_hub else record.texts("text")
    lines = [paragraph.strip().removeprefix("BULLET::::-").strip() for paragraph in paragraphs]
    lines = lines[1:] if lines[:1] == [title.strip()] else lines
    kept = "\n".join(line for line in lines if line and not line.startswith("Section::::"))
    yield Document(identity, title, kept, title)


def _kilt_question(record: Record, dropped: Dropped) -> Iterator[Question]:
    answers, pages = [], []
    for output in record.within("output") if record.fields.get("output") is not None else ():
        answers += [output.text("answer")] if output.text("answer") else []
        for page in output.within("provenance") if output.fields.get("provenance") is not None else ():
            pages.append(page.given_id("wikipedia_id") or page.field("wikipedia_id", str))
    identity = record.identity(*QUESTION_IDS)
    yield Question(identity, record.field("input", str), tuple(answers), None, judged=_judged(pages))


def _pairs(record: Record, key: str, second: str) -> list[Any]:
    """Return a field of HotpotQA, a list of [title, ...]. On the Hub it has two lists, `title` and the key `second`."""
    value = record.field(key, object)
    if not isinstance(value, dict):
        return list(record.field(key, list))
    columns = record._replace(fields=value)
    return list(map(list, zip(columns.field("title", list), columns.field(second, list), strict=False)))


def _hotpot_documents(record: Record, dropped: Dropped) -> Iterator[Document]:
    """Yield the paragraphs of the context; the id is the title, as supporting facts use it."""
    for number, paragraph in enumerate(_pairs(record, "context", "sentences"), 1):
        match paragraph:
            case [str(title), [*sentences]] if all(isinstance(sentence, str) for sentence in sentences):
                yield Document(title, title, _joined(sentences), title)
            case _:
                raise record.error(f"context {number} is not [title, [sentences]]")


def _joined(sentences: Sequence[str]) -> str:
    """Join sentences: HotpotQA's start with a blank, 2WikiMultihopQA's do not."""
    text = ""
    for sentence in sentences:
        is_glued = bool(text and sentence) and not (text[-1].isspace() or sentence[0].isspace())
        text += " " * is_glued + sentence
    return text


def _hotpot_question(record: Record, dropped: Dropped) -> Iterator[Question]:
    titles = []
    for number, fact in enumerate(_pairs(record, "supporting_facts", "sent_id"), 1):
        match fact:
            case [str(title), _]:
                titles.append(title)
            case _:
                raise record.error(f"supporting_facts {number} is not [title, sentence]")
    identity, question = record.identity(*QUESTION_IDS), record.field("question", str)
    yield Question(identity, question, record.texts("answer"), None, judged=_judged(titles))


def _wikipedia_title(record: Record) -> str:
    """Return the title of the page in a URL such as https://en.wikipedia.org//w/index.php?title=Oslo&amp;oldid=7."""
    url = urlsplit(html.unescape(record.field("document_url", str)))
    return readable_title(parse_qs(url.query).get("title", [url.path.rpartition("/")[2]])[0])


def _nq_page(record: Record, dropped: Dropped) -> Iterator[Document]:
    """A page without its HTML tags; the cells of a table row share a line, any other element has a separate line."""
    title, lines = _wikipedia_title(record), [""]
    for token in record.field("document_text", str).split(" "):
        if not _TAG.fullmatch(token):
            lines[-1] += f" {token}" if lines[-1] else token
        elif not token.lower().lstrip("</").startswith(("td", "th")):
            lines.append("")
    yield Document(title, title, "\n".join(filter(None, lines)), title)


def _nq_question(record: Record, dropped: Dropped) -> Iterator[Question]:
    identity, title = record.identity("example_id"), _wikipedia_title(record)
    tokens = record.field("document_text", str).split(" ")
    answers = []
    for annotation in record.within("annotations"):
        for span in annotation.within("short_answers"):
            start, end = span.field("start_token", int), span.field("end_token", int)
            if not 0 <= start < end <= len(tokens):
                raise span.error(f"tokens {start} to {end} are not in a text of {len(tokens)}")
            words = [token for token in tokens[start:end] if not _TAG.fullmatch(token)]
            if len(words) > LONGEST_ANSWER:
                dropped.leave_out(f"answer: over {LONGEST_ANSWER} tokens", identity)
            else:
                answers.append(" ".join(words))
    if answers:
        yield Question(identity, record.field("question_text", str), tuple(answers), title)
    else:
        dropped.leave_out("question: no answer", identity)


register_shape(
    "dpr",
    {"question", POSITIVES},
    "{question, answers: [texts], positive_ctxs: [{title, text, passage_id?}], hard_negative_ctxs?, negative_ctxs?}",
    documents=_dpr_documents,
    questions=_dpr_question,
)
register_shape(
    "kilt_knowledge",
    {"wikipedia_id", "wikipedia_title", "text"},
    "{wikipedia_id, wikipedia_title, text: [paragraphs]} (KILT's knowledge source)",
    documents=_kilt_page,
)
register_shape(
    "kilt",
    {"input", "output"},
    "{id, input, output: [{answer?, provenance?: [{wikipedia_id}]}]} (a task of KILT)",
    questions=_kilt_question,
)
register_shape(
    "hotpotqa",
    {"question", "answer", "supporting_facts", "context"},
    "{_id, question, answer, supporting_facts: [[title, sentence]], context: [[title, [sentences]]]} (HotpotQA)",
    documents=_hotpot_documents,
    questions=_hotpot_question,
)
register_shape(
    "natural_questions",
    {"question_text", "document_text", "annotations"},
    "{example_id, question_text, document_url, document_text, annotations: [{short_answers: [{start_token, end_token}]}"
    "]} (Natural Questions, simplified)",
    documents=_nq_page,
    questions=_nq_question,
)
