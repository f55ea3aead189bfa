"""CoNLL files: one token a line with its tag, a blank line after each sentence.

Layouts, told apart by the first line with a token:
    token TAG             blanks or a tab between them (WikiGold, WNUT)
    token ... TAG         three columns or more, the tag is the last (CoNLL-2003: token, part of speech, chunk, tag)
    id TAB token TAB TAG TAB ...   five columns or more, the first a number (Universal NER)
`-DOCSTART-` lines and `# newdoc` comments begin documents. Lines that begin with "# " are comments, unless they read as
a token "#" with a tag. Where there is a tab in the first line, tabs alone separate columns: a token may hold blanks.

Encodings, told apart by the whole file: bare (no prefixes), IO, IOB1 (B- only between two neighbours of one type),
IOB2 (each entity begins with B-), BIOES and BILOU. All are read by the one rule of conlleval (entity_scores.py). What
an encoding does not allow (an I- without its B-) is repaired by that rule and counted; what cannot be read is refused
with file and line.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal, NamedTuple

from realm_lab.corpus.entity_scores import Entity, entities_of
from realm_lab.corpus.text_files import Source, read_head
from realm_lab.errors import UserError

Labels = Literal["conll", "keep"]

I_WITHOUT_B = "I- where no entity of its type is open: read as B-"
B_INSIDE_IOB1 = "B- where no entity of its type stands before: read as it is"
BROKEN_BOUNDS = "B-, I-, E- and S- in an order that BIOES has not: read as conlleval does"
NOT_OF_CONLL = "entity whose label CoNLL-2003 does not have (dates, amounts): left to the date expressions"

# Labels of other data sets -> CoNLL-2003's four; None: no named entity there.
CONLL_LABELS: dict[str, str | None] = {
    **dict.fromkeys(("PER", "PERSON", "PEOPLE"), "PER"),
    **dict.fromkeys(("LOC", "LOCATION", "GPE", "GEO-LOC", "FAC", "FACILITY"), "LOC"),
    **dict.fromkeys(("ORG", "ORGANIZATION", "ORGANISATION", "CORPORATION", "COMPANY", "GROUP"), "ORG"),
    **dict.fromkeys(("MISC", "MISCELLANEOUS", "NORP", "PRODUCT", "CREATIVE-WORK", "WORK_OF_ART"), "MISC"),
    **dict.fromkeys(("EVENT", "LAW", "LANGUAGE", "OTHER"), "MISC"),
    **dict.fromkeys(("DATE", "TIME", "MONEY", "PERCENT", "QUANTITY", "ORDINAL", "CARDINAL"), None),
}
PREFIXES = "BIESLU"
DOCUMENT_STARTS = ("-DOCSTART-", "# newdoc")
_TAG = re.compile(r"O|[A-Z]-\S+")


class TaggedSentence(NamedTuple):
    """A sentence of a CoNLL file."""

    tokens: tuple[str, ...]
    entities: tuple[Entity, ...]  # offsets of tokens
    document: int  # counted from 0


class ConllFile(NamedTuple):
    """What a CoNLL file holds."""

    path: Path
    sentences: tuple[TaggedSentence, ...]
    encoding: str  # "bare", "IO", "IOB1", "IOB2", "BIOES" or "BILOU"
    labels: tuple[str, ...]  # sorted
    repaired: Counter[str]

    @property
    def tokens(self) -> int:
        """How many tokens there are."""
        return sum(len(sentence.tokens) for sentence in self.sentences)


class _Layout(NamedTuple):
    """How the lines of a file are cut."""

    tab: bool
    columns: int
    token: int
    tag: int


class _Raw(NamedTuple):
    """A sentence with its tags as they stand."""

    tokens: list[str]
    tags: list[str]
    document: int
    line: int


def read_conll(path: Path | str, labels: Labels = "keep") -> ConllFile:
    """Read a CoNLL file; `conll` maps its labels to PER, LOC, ORG and MISC.

    Raises:
        UserError: file and line of what cannot be read: a missing column, a tag without a known prefix, tags with and
            without prefixes in one file, a label that `conll` does not know; no token at all; not UTF-8.
    """
    path = Path(path)
    raw = list(_read_raw(path))
    if not raw:
        raise UserError(f"{path}: no line with a token and a tag; name a CoNLL file")
    encoding = _encoding(path, raw)
    repaired = _faults(raw, encoding)
    sentences = []
    for sentence in raw:
        found = entities_of([_plain(tag, encoding) for tag in sentence.tags])
        if labels == "conll":
            found = _mapped(found, path, sentence, repaired)
        sentences.append(TaggedSentence(tuple(sentence.tokens), tuple(found), sentence.document))
    names = sorted({entity.label for sentence in sentences for entity in sentence.entities})
    return ConllFile(path, tuple(sentences), encoding, tuple(names), +repaired)


def one_label_set(files: Iterable[ConllFile]) -> tuple[str, ...]:
    """The labels of all files, sorted; files that have none in common, or names in other spelling, are refused."""
    files = [file for file in files if file.labels]
    spelled: dict[str, tuple[str, Path]] = {}
    for file in files:
        for label in file.labels:
            first, where = spelled.setdefault(label.lower(), (label, file.path))
            if first != label:
                raise UserError(f"{file.path}: label '{label}', but {where} has '{first}'; set tagger.labels: conll")
    for one, two in itertools.pairwise(files):
        if not {*one.labels} & {*two.labels}:
            raise UserError(
                f"{two.path} has the labels {', '.join(two.labels)}, {one.path} has {', '.join(one.labels)}: "
                "none in common; set tagger.labels: conll"
            )
    return tuple(sorted({label for file in files for label in file.labels}))


def split_documents(file: ConllFile, share: float) -> tuple[ConllFile, ConllFile]:
    """The file without its last documents and these, `share` of all; sentences where it marks no documents."""
    ids = [sentence.document for sentence in file.sentences]
    if ids[0] == ids[-1]:
        ids = list(range(len(ids)))
    distinct = sorted(set(ids))
    first = distinct[len(distinct) - round(share * len(distinct)) :][:1] or [len(distinct) + max(ids)]
    early = tuple(sentence for number, sentence in zip(ids, file.sentences, strict=True) if number < first[0])
    late = tuple(sentence for number, sentence in zip(ids, file.sentences, strict=True) if number >= first[0])
    return file._replace(sentences=early), file._replace(sentences=late)


def _read_raw(path: Path) -> Iterator[_Raw]:
    read_head(path)  # an empty file and UTF-16 are refused
    layout: _Layout | None = None
    current = _Raw([], [], 0, 1)
    document, has_tokens = 0, False
    for number, line in Source(path).lines():
        line = line.rstrip("\r\n")
        begins, blank = line.startswith(DOCUMENT_STARTS), not line.strip()
        comment = line == "#" or line.startswith("# ")
        if layout is None and not (begins or blank or comment):
            layout = _layout(line, path, number)
        fields = None if layout is None or begins or blank else _fields(line, layout)
        if comment and fields is not None and not _TAG.fullmatch(fields[1]):
            fields = None
        if fields is not None:
            if not fields[0].strip(" "):
                raise UserError(f"{path}, line {number}: no token before the tag '{fields[1]}'; add it")
            if not current.tokens:
                current = _Raw([], [], document, number)
            current.tokens.append(fields[0])
            current.tags.append(fields[1])
            has_tokens = True
        elif begins or blank:
            if current.tokens:
                yield current
                current = _Raw([], [], document, number)
            if begins and has_tokens:
                document += 1
                has_tokens = False
        elif not comment:
            assert layout is not None, "the first such line has decided it"
            columns = len(_split(line, layout.tab))
            raise UserError(
                f"{path}, line {number}: the number of columns is {columns}, of the lines before {layout.columns}: "
                f"'{line[:60]}'; each line is a token and its tag"
            )
    if current.tokens:
        yield current


def _split(line: str, tab: bool) -> list[str]:
    return line.split("\t") if tab else [field for field in line.split(" ") if field]


def _layout(line: str, path: Path, number: int) -> _Layout:
    tab = "\t" in line
    fields = _split(line, tab)
    if len(fields) < 2:
        raise UserError(f"{path}, line {number}: one column: '{line[:60]}'; each line is a token and its tag")
    if tab and len(fields) >= 5 and fields[0].isdecimal():
        return _Layout(tab, len(fields), 1, 2)
    return _Layout(tab, len(fields), 0, len(fields) - 1)


def _fields(line: str, layout: _Layout) -> tuple[str, str] | None:
    """Token and tag; None where the columns are not as many as they must be."""
    fields = _split(line, layout.tab)
    return (fields[layout.token], fields[layout.tag].strip()) if len(fields) == layout.columns else None


def _encoding(path: Path, raw: list[_Raw]) -> str:
    """The encoding that all tags of a file follow."""
    prefixes: Counter[str] = Counter()
    bare: tuple[str, int] | None = None
    for sentence in raw:
        for place, tag in enumerate(sentence.tags):
            if tag == "O":
                continue
            if not tag:
                raise UserError(
                    f"{path}, line {sentence.line + place}: no tag after '{sentence.tokens[place]}'; add it"
                )
            prefix, dash, label = tag.partition("-")
            if dash and len(prefix) == 1 and label:
                if prefix not in PREFIXES:
                    raise UserError(
                        f"{path}, line {sentence.line + place}: tag '{tag}': its prefix is none of B, I, E, S, L, U; "
                        "write it in IOB2"
                    )
                prefixes[prefix] += 1
            else:
                bare = bare or (tag, sentence.line + place)
            if bare and prefixes:
                raise UserError(
                    f"{path}, line {sentence.line + place}: tag '{tag}', but line {bare[1]} has '{bare[0]}': tags with "
                    "and without prefix in one file; write it in IOB2"
                )
    if bare:
        return "bare"
    if prefixes["L"] or prefixes["U"]:
        if prefixes["E"] or prefixes["S"]:
            raise UserError(
                f"{path}: tags of BIOES (E-, S-) and of BILOU (L-, U-) in one file; write it in one of them"
            )
        return "BILOU"
    if prefixes["E"] or prefixes["S"]:
        return "BIOES"
    if not prefixes["B"]:
        return "IO"
    free, without = _b_and_i(raw)
    return "IOB2" if free >= without else "IOB1"


def _b_and_i(raw: list[_Raw]) -> tuple[int, int]:
    """B- that IOB1 would not write (nothing of its type before), and I- that IOB2 would not (the same)."""
    free = without = 0
    for sentence in raw:
        before = "O"
        for tag in sentence.tags:
            if tag != "O" and (before == "O" or before[2:] != tag[2:]):
                free += tag[0] == "B"
                without += tag[0] == "I"
            before = tag
    return free, without


def _faults(raw: list[_Raw], encoding: str) -> Counter[str]:
    """What the encoding does not allow, counted."""
    free, without = _b_and_i(raw)
    if encoding == "IOB2":
        return Counter({I_WITHOUT_B: without})
    if encoding == "IOB1":
        return Counter({B_INSIDE_IOB1: free})
    broken = 0
    if encoding in ("BIOES", "BILOU"):
        for sentence in raw:
            plain = ["O", *(_plain(tag, encoding) for tag in sentence.tags), "O"]
            for before, tag in itertools.pairwise(plain):
                opened = before[0] in "BI"
                goes_on = tag[0] in "IE"
                broken += opened != goes_on or (goes_on and before[2:] != tag[2:])
    return Counter({BROKEN_BOUNDS: broken})


def _plain(tag: str, encoding: str) -> str:
    """The tag in the prefixes of BIOES."""
    if tag == "O":
        return tag
    if encoding == "bare":
        return f"I-{tag}"
    return {"L": "E", "U": "S"}.get(tag[0], tag[0]) + tag[1:] if encoding == "BILOU" else tag


def _mapped(found: Iterable[Entity], path: Path, sentence: _Raw, counts: Counter[str]) -> list[Entity]:
    mapped = []
    for entity in found:
        if entity.label.upper() not in CONLL_LABELS:
            raise UserError(
                f"{path}, line {sentence.line + entity.start}: label '{entity.label}' is none of those that stand for "
                "PER, LOC, ORG or MISC; set tagger.labels: keep, or rename it"
            )
        label = CONLL_LABELS[entity.label.upper()]
        if label is None:
            counts[NOT_OF_CONLL] += 1
        else:
            mapped.append(entity._replace(label=label))
    return mapped
