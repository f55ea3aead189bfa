"""What is in a file: its format and counts, as `realm-lab prepare --count` prints them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from realm_lab.corpus.readers.inputs import files_of
from realm_lab.corpus.readers.registry import Dropped, find_reader, read_documents, read_questions


class FileCounts(NamedTuple):
    """The counts of one input: what is kept, and what is left out by reason."""

    name: str
    format: str
    counts: dict[str, int]
    dropped: dict[str, int]
    first_dropped: dict[str, str]  # the id of the first, by reason, where it is known

    def lines(self) -> Iterator[str]:
        """For people."""
        shown = ", ".join(f"{name} {count:,}" for name, count in self.counts.items())
        yield f"{self.name}: {self.format}: {shown}"
        for reason, count in self.dropped.items():
            first = f", the first {self.first_dropped[reason]!r}" if reason in self.first_dropped else ""
            yield f"  {reason}: {count:,}{first}"


def count_input(name: str) -> FileCounts:
    """Read all of a file or folder and count."""
    readers = [find_reader(path) for path in files_of(name)]
    counts: Counter[str] = Counter()
    dropped = Dropped()
    if any(reader.read_documents for reader in readers):
        articles: set[str] = set()
        counts.update(documents=0, articles=0, words=0, characters=0)
        for document in read_documents(name, dropped):
            counts.update(documents=1, words=len(document.text.split()), characters=len(document.text))
            articles.add(document.article)
        counts["articles"] = len(articles)
    if any(reader.read_questions for reader in readers):
        counts.update(questions=0, answers=0)
        for question in read_questions(name, dropped):
            counts.update(questions=1, answers=len(question.answers))
    formats = ", ".join(dict.fromkeys(reader.name for reader in readers))
    return FileCounts(str(name), formats, dict(counts), dict(sorted(dropped.items())), dropped.first)
