"""The records of the corpus. All offsets count characters (Unicode code points); an end is exclusive."""

from __future__ import annotations

import hashlib
from typing import Literal, NamedTuple

AnswerKind = Literal["text", "regex"]
Split = Literal["train", "dev", "test"]
UPDATED = " updated"  # follows the digest of a corpus if its second version is meant
PICTURE = "picture"  # the form of passages that are pictures
SPLITS: tuple[Split, ...] = ("train", "dev", "test")


class Span(NamedTuple):
    """A salient span of a text: `text[start:end]`."""

    start: int  # offset of the first character
    end: int  # offset after the last character
    label: str  # "name", "date" or "number" (rule tagger); a kind of mask, such as "object" (toy world)


class Document(NamedTuple):
    """One text with a title, to be cut into passages (of SQuAD: one paragraph)."""

    id: str  # unique in a corpus; SQuAD: "<article>#<paragraph number>", counted from 0
    title: str  # as people write it: no underscores, no percent signs of URLs; may be empty
    text: str  # not empty, except for pictures
    article: str  # shared by documents of one article; SQuAD: the title as in the file
    form: str = "text"  # or another form such as "triple": the passages of each form are measured separately
    picture: str | None = None  # an image file, in place of text
    spans: tuple[Span, ...] | None = None  # its salient spans, if the file names them; None: the tagger finds them


class Passage(NamedTuple):
    """A retrieval unit, the paper's document z."""

    id: str  # "<document id>/<n>", counted from 0
    title: str  # title of the document, repeated in each of its passages
    body: str  # exact slice of the document's text
    document: str  # id of the document
    article: str  # article of the document
    form: str = "text"  # form of the document


class Sentence(NamedTuple):
    """A sentence with the spans that may be masked in it."""

    text: str
    spans: tuple[Span, ...]  # sorted, not overlapping; offsets in `text`


class Question(NamedTuple):
    """An open-domain question with its reference answers."""

    id: str
    question: str  # without outer blanks
    answers: tuple[str, ...]  # at least one, unless documents are `judged`
    document: str | None  # id of the gold document; None if unknown
    answer_kind: AnswerKind = "text"  # "regex": each answer is a regular expression (CuratedTREC)
    answers_updated: tuple[str, ...] = ()  # in the later version of the corpus, if the file has them; else empty
    groups: tuple[str, ...] = ()  # question groups with separate scores, such as "relation_held_out"
    path: tuple[int, ...] = ()  # rows of the passages that lead to the answer, in order, if it takes several
    judged: tuple[tuple[str, int], ...] = ()  # documents or passages (ID/N), and their relevance; 0: a hard negative
    relevance: tuple[tuple[int, int], ...] = ()  # `judged` as (row of the corpus, relevance); row -1: not in it
    evidence: tuple[str, ...] = ()  # ids of documents that support the answer, not only hold its words by chance
    supporting: tuple[int, ...] = ()  # rows of passages of `evidence`: those that hold an answer; all if none does

    @property
    def gold_documents(self) -> tuple[str, ...]:
        """The documents that are known to answer the question."""
        found = () if self.document is None else (self.document,)
        return *found, *(document for document, relevance in self.judged if relevance > 0)

    @property
    def named_documents(self) -> tuple[str, ...]:
        """The documents that the question names, relevant or not, and the document of each passage that it names."""
        named = [*self.gold_documents, *self.evidence, *(document for document, _ in self.judged)]
        return tuple(filter(None, (*named, *map(document_of, named))))


def document_of(numbered: str, mark: str = "/") -> str:
    """Return the document in the id of a passage, ID/N, or of another document, ID~N; "" if it is no such id."""
    document, _, number = numbered.rpartition(mark)
    return document if number.isdecimal() else ""


def text_hash(*parts: str) -> int:
    """64 bits of BLAKE2b: two of 13 million texts share them with a chance of one in 200,000."""
    return int.from_bytes(hashlib.blake2b("\0".join(parts).encode(), digest_size=8).digest(), "little")
