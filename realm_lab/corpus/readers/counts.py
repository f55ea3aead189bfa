"""What is in a file: its format and counts, as `realm-lab prepare --count` prints them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from realm_lab.corpus.readers.data_sets import files_of
from realm_lab.corpus.readers.registry import Reader, find_reader, keep_documents, keep_questions
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
    """Read all of a file, folder or data set and count.

    Raises:
        UserError: as reading it would.
    """
    files = files_of(name)
    readers = [find_reader(path) for path in files]
    sources = [Source(path) for path in files]
    counts: Counter[str] = Counter()
    dropped: Counter[str] = Counter()
    problems: list[str] = []
    pairs = list(zip(readers, sources, strict=True))
    if any(reader.read_documents for reader in readers):
        _count_documents(pairs, counts, dropped)
    if any(reader.read_questions for reader in readers):
        _count_questions(pairs, counts, dropped, problems)
    for reader, source in pairs:
        for what, count in (reader.counts(source) if reader.counts else {}).items():
            counts[what] = count if len(pairs) == 1 else counts[what] + count
    formats = ", ".join(dict.fromkeys(reader.name for reader in readers))
    if len(files) > 1:
        counts["files"] = len(files)
    return FileCounts(str(name), formats, dict(counts), dict(sorted(dropped.items())), problems)


def _count_documents(pairs: list[tuple[Reader, Source]], counts: Counter[str], dropped: Counter[str]) -> None:
    stream = (
        document
        for reader, source in pairs
        if reader.read_documents
        for document in reader.read_documents(source, dropped)
    )
    counts["documents"] = counts["documents kept"] = counts["articles"] = 0
    articles: set[str] = set()
    dates: set[str] = set()
    for document in keep_documents(_counted(stream, counts, "documents"), dropped):
        counts["documents kept"] += 1
        counts["characters"] += len(document.text)
        counts["words"] += len(document.text.split())
        counts["links"] += len(document.links)
        articles.add(document.article)
        if document.date:
            dates.add(document.date)
    counts["articles"] = len(articles)
    counts["dates"] = len(dates)
    for name in ("links", "dates"):
        if not counts[name]:
            del counts[name]


def _count_questions(
    pairs: list[tuple[Reader, Source]], counts: Counter[str], dropped: Counter[str], problems: list[str]
) -> None:
    stream = (
        question
        for reader, source in pairs
        if reader.read_questions
        for question in reader.read_questions(source, dropped)
    )
    counts["questions"] = counts["questions kept"] = counts["answers"] = 0
    for question in keep_questions(_counted(stream, counts, "questions"), dropped, problems):
        counts["questions kept"] += 1
        counts["answers"] += len(question.answers)
        if question.answers_updated not in ((), question.answers):
            counts["answers changed later"] += 1


def _counted(items: Iterable[Item], counts: Counter[str], name: str) -> Iterator[Item]:
    for item in items:
        counts[name] += 1
        yield item
