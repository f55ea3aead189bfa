"""What is in a file: its format and counts, as `realm-lab prepare --count` prints them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple, TypeVar

from realm_lab.corpus.readers.data_sets import files_of
from realm_lab.corpus.readers.registry import find_reader, keep_documents, keep_questions
from realm_lab.corpus.text_files import Source

Item = TypeVar("Item")


class FileCounts(NamedTuple):
    """The counts of one input."""

    name: str
    format: str
    counts: dict[str, int]  # only what the format has; "documents kept" is after the drops
    dropped: dict[str, int]
    problems: list[str]

    def lines(self) -> Iterator[str]:
        """For people."""
        shown = ", ".join(f"{name} {count:,}" for name, count in self.counts.items())
        yield f"{self.name}: {self.format}: {shown}"
        for reason, count in self.dropped.items():
            yield f"  {reason}: {count:,}"
        for problem in self.problems:
            yield f"  {problem}"


def count_input(name: str) -> FileCounts:
    """Read all of a file, folder or data set and count."""
    pairs = [(find_reader(path), Source(path)) for path in files_of(name)]
    counts: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    problems: list[str] = []

    def counted(items: Iterable[Item], what: str) -> Iterator[Item]:
        for item in items:
            counts[what] += 1
            yield item

    streams = [reader.read_documents(source, dropped) for reader, source in pairs if reader.read_documents]
    if streams:
        counts.update({"documents": 0, "documents kept": 0, "articles": 0})
        articles: set[str] = set()
        dates: set[str] = set()
        documents = keep_documents(counted(chain.from_iterable(streams), "documents"), dropped)
        for document in counted(documents, "documents kept"):
            counts.update({"characters": len(document.text), "words": len(document.text.split())})
            counts.update({"links": len(document.links)} if document.links else {})
            articles.add(document.article)
            dates.update([document.date] if document.date else [])
        counts["articles"] = len(articles)
        counts.update({"dates": len(dates)} if dates else {})
    asked = [reader.read_questions(source, dropped) for reader, source in pairs if reader.read_questions]
    if asked:
        counts.update({"questions": 0, "questions kept": 0, "answers": 0})
        questions = keep_questions(counted(chain.from_iterable(asked), "questions"), dropped, problems)
        for question in counted(questions, "questions kept"):
            counts["answers"] += len(question.answers)
            if question.answers_updated not in ((), question.answers):
                counts["answers changed later"] += 1
    for reader, source in pairs:
        for what, count in (reader.counts(source) if reader.counts else {}).items():
            counts[what] = count if len(pairs) == 1 else counts[what] + count
    formats = ", ".join(dict.fromkeys(reader.name for reader, _ in pairs))
    counts.update({"files": len(pairs)} if len(pairs) > 1 else {})
    return FileCounts(str(name), formats, dict(counts), dict(sorted(dropped.items())), problems)
