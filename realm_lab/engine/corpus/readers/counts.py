"""Format and counts of a file, as `realm-lab prepare --count` prints them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from realm_lab.engine.corpus.readers.inputs import InputFile, files_of, input_files
from realm_lab.engine.corpus.readers.registry import Dropped, find_reader, read_documents, read_questions
from realm_lab.errors import UserError


class FileCounts(NamedTuple):
    """The counts of one input: kept records, and dropped ones by reason."""

    name: str
    format: str
    counts: dict[str, int]
    dropped: dict[str, int]
    first_dropped: dict[str, str]  # reason -> the id of the first dropped record, if known

    @property
    def is_empty(self) -> bool:
        """True if nothing is kept, which `prepare` would refuse."""
        return not any(self.counts.get(name) for name in ("documents", "questions"))

    def lines(self) -> Iterator[str]:
        shown = ", ".join(f"{name} {count:,}" for name, count in self.counts.items())
        yield f"{self.name}: {self.format}: {shown}"
        for name, kind in (("documents", "texts"), ("questions", "questions")):
            if self.counts.get(name) == 0:
                yield f"  no {name[:-1]} is kept: it can be no file of {kind}"
        for reason, count in self.dropped.items():
            first = f", the first {self.first_dropped[reason]!r}" if reason in self.first_dropped else ""
            yield f"  {reason}: {count:,}{first}"


def count_inputs(names: Sequence[str]) -> Iterator[FileCounts | UserError]:
    """Yield the counts of each file or folder, or the error if it cannot be read.

    Ids are made as if all files and folders were inputs of one parameter.
    """
    files: dict[str, list[InputFile]] = {}
    faults: dict[str, UserError] = {}
    for name in names:
        try:
            files_of(name)
            files[name] = []
        except UserError as error:
            faults[name] = error
    for file in input_files(*files):
        files[file.given].append(file)
    for name in names:
        try:
            yield faults.get(name) or _count(name, files[name])
        except UserError as error:
            yield error


def _count(name: str, files: Sequence[InputFile]) -> FileCounts:
    readers = [find_reader(file.path) for file in files]
    counts: Counter[str] = Counter()
    dropped = Dropped()
    if any(reader.read_documents for reader in readers):
        articles: set[str] = set()
        counts.update(documents=0, articles=0, words=0, characters=0)
        for document in read_documents(files, dropped):
            counts.update(documents=1, words=len(document.text.split()), characters=len(document.text))
            articles.add(document.article)
        counts["articles"] = len(articles)
    if any(reader.read_questions for reader in readers):
        questions = read_questions(files, dropped)
        counts.update(questions=len(questions), answers=sum(len(question.answers) for question in questions))
        if judged := sum(len(question.judged) for question in questions):
            counts.update(judgements=judged)
    formats = ", ".join(dict.fromkeys(reader.name for reader in readers))
    return FileCounts(name, formats, dict(counts), dict(sorted(dropped.items())), dropped.first)
