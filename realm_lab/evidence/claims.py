"""`realm-lab claims`: checks numbers and verdicts in a text against the results of studies (docs/claims.md).

claims.yaml lists claims for each Markdown file. A claim is a piece of the file's text, with `{QUERY}` for a number and
`{WORDS = QUERY}` for a verdict. LaTeX has `\\claim{QUERY}{TEXT}`. Texts and results are only read.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from realm_lab.errors import UserError, suggestion
from realm_lab.evidence.bound_results import SOURCES, WORDS_OF_NUMBERS, BoundResults, agrees, fits
from realm_lab.records.yaml_file import reach, read_yaml

CLAIMS = "claims.yaml"
PART = ", "  # between a file and a heading in `FILE, HEADING`, if only the section of this heading is checked
COUNTS = WORDS_OF_NUMBERS[2:]
NUMBER = r"(?:(?<![\w.])[−+-])?(?<![\w@.])(?>(?>\d+(?:,\d+)*(?:\.\d+)?|\.\d+)(?:e[−+-]?\d+)?)(?:x\b|(?![\w@]))(?: ?%)?"
COUNT = rf"\b(?:{'|'.join(['one', *COUNTS])})\b"
COUNTED = rf"\b(?:{'|'.join(COUNTS)})\b(?=(?:\s+\w+){{0,2}}\s+(?:seeds?|runs?|others?)\b|\s+of\b)"
VERDICTS = (
    r"\b(?:better|best|worse|worst|higher|highest|lower|lowest|outperforms?|beats?|significant(?:ly)?|equal|equivalent"
    r"|ruled out|ahead|no (?:\w+ )?difference|(?:finds?|answers?|scores?) (?:far )?(?:more|less|fewer)|improves?"
    r"|rises?|falls?)\b"
)
TOKEN = re.compile(rf"(?P<number>{NUMBER}|{COUNTED})|(?P<verdict>{VERDICTS})", re.IGNORECASE)
AROUND = 80  # characters before and after a verdict in which a negation is looked for
SLOT = re.compile(r"\{([^{}]*)\}")
# A sentence with one of these words states an outcome: a verdict, a plan, the scope of a result, or the answer to a
# question. Claims must quote such a sentence in full, and emphasised text as well, so that no edit goes unnoticed.
OUTCOME = re.compile(
    rf"{VERDICTS}|\b(?:declar\w+|criteri(?:on|a)|met|missed|confirm\w*|toys?|synthetic|real|scale|GPUs?|papers?|open"
    r"|shown?|shows|prove\w*|established|above|below|more|less|fewer|gains?|loss|loses?|costs?|harms?|helps?"
    r"|as well as|guess|favou?rs?|depends?)\b"
    r"|\?[*)]*\s+\S",
    re.IGNORECASE,
)
EMPHASISED = re.compile(r"\*\*\S.*?\*\*|(?<![\w*])\*[^\s*]+(?:\s+[^\s*]+){3,}(?<=[.?!])\*", re.DOTALL)
SENTENCE_END = re.compile(r"[.!?][*)\"”]*(?=\s)|\n(?=\s*(?:\n|[-*|#>]|\d+\. ))")
HEADER = re.compile(r"^\|([^\n]*)\|\n(?=\|[-:| ]+\|$)", re.MULTILINE)
INCLUDED = re.compile(
    r"\\(?:input|include|subfile)\s*\{(?P<file>[^{}]+)\}|\\(?:sub)?import\*?\s*\{(?P<folder>[^{}]*)\}\s*\{(?P<name>[^{}]+)\}"
    r"|\\input\s+(?P<word>[^\s{}\\]+)"
)
TEX_COMMENTS = (
    r"(?<!\\)(?:\\\\)*%[^\n]*", r"\\begin\{comment\}.*?\\end\{comment\}", r"\\iffalse\b.*?\\fi\b",
    r"\\end\{document\}.*\Z",
)  # fmt: skip
# Parts of a text that hold no claim: code, comments, targets of links, dates, names of tables and of papers.
MARKDOWN_REST = (
    r"^ *```.*?^ *```", r"<!--.*?-->", r"`[^`\n]*`", r"(?<=\])\([^)\s]*\)", r"\b\d{4}-\d\d-\d\d\b", r"^\d+\.(?= )",
    r"\b(?:Table|Figure|Section|Eq\.|et al\.,?) \d+", r"https?://\S+",
)  # fmt: skip
TEX_REST = (
    r"\A.*?\\begin\{document\}",
    r"\\(?:begin|end)\{[^{}]*\}(?:\[[^\]]*\])?(?:\{[lcrp|@{}.\d\s]*\})?",
    r"\\(?:\w*cite\w*|\w*ref|label|include\w*|input|[vh]space|url|href|bibliography\w*)\*?(?:\[[^\]]*\])*\{[^{}]*\}",
    r"\b(?:Table|Figure|Section|Eq\.)[ ~]\d+",
)  # fmt: skip


class Slot(NamedTuple):
    """A part of a text that is bound to a query. `words`: the verdict in this part; None for a number."""

    start: int
    end: int
    query: str
    words: str | None


class Problem(NamedTuple):
    """A claim that does not hold, or a number or verdict that is not bound."""

    path: str
    line: int
    says: str  # the words of the text
    found: str  # the result that contradicts them, or the fault
    remedy: str


class Checked(NamedTuple):
    """The claims of some files. `bound`: the count of numbers and verdicts that are bound."""

    files: list[str]
    bound: int
    problems: list[Problem]


class Claim(NamedTuple):
    """An entry of claims.yaml. `study`: the study of queries that name none; `source`: the origin of its numbers if
    they come from no study."""

    template: str
    line: int
    study: str = ""
    source: str = ""


def check(root: Path, files: list[str], results: BoundResults | None = None, source: Path | None = None) -> Checked:
    """Check `files`, by default all that `source` (default: ROOT/claims.yaml) lists; they are relative to its folder.
    Files that LaTeX includes are checked too. UserError: `source` is malformed, or lacks a file that is not LaTeX."""
    is_needed = source is not None or not files
    source = source or root / CLAIMS
    bound_to = read_claims(source) if is_needed or source.exists() else {}
    for name in files:
        if name not in bound_to and Path(name).suffix != ".tex":
            raise UserError(f"no claims of {name}", path=source, remedy=suggestion(name, bound_to))
    results = results or BoundResults(root)
    bound, problems, waiting = 0, list[Problem](), [*(files or bound_to)]
    checked: list[str] = []
    main = {name: Path(name).parent for name in waiting}  # the folder of the text that includes a file
    while waiting:
        name = waiting.pop(0)
        checked.append(name)
        page, _, heading = name.partition(PART)
        text = _read(source.parent, page, source)
        mine = _Text(page, _part(text, heading, source, page) if heading else text, source.name, results)
        for claim in bound_to.get(name, []):
            mine.bind(claim)
        if Path(name).suffix == ".tex":
            mine.bind_latex()
            more = mine.included(source.parent, main[name])
            waiting = [*(one for one in more if one not in (*checked, *waiting)), *waiting]
            main = dict.fromkeys(more, main[name]) | main
        mine.find_unbound()
        bound += mine.bound
        problems += sorted(mine.problems, key=lambda one: (one.path != page, one.line))
    if not files:
        problems += _unlisted(bound_to, source, results)
    return Checked(checked, bound, problems)


def _unlisted(bound_to: Iterable[str], source: Path, results: BoundResults) -> Iterator[Problem]:
    """Yield a problem for each section that has a number with three decimals and a link to a report, but is not listed.
    The folders of the listed pages are searched."""
    for folder in sorted({source.parent / Path(name.partition(PART)[0]).parent for name in bound_to}):
        for path in sorted(folder.glob("*.md")):
            name = path.relative_to(source.parent).as_posix()
            text = _read(source.parent, name, source)
            prose = _blanked(text, MARKDOWN_REST)
            for heading, start, end in _sections(text) if name not in bound_to else ():
                studies = [one for one in re.findall(r"/(\w+)/report\.md\)", text[start:end]) if results.has(one)]
                number = re.compile(r"\.\d{3}").search(prose, start, end)
                if studies and number and f"{name}{PART}{heading}" not in bound_to:
                    line, remedy = text.count("\n", 0, number.start()) + 1, f"add '{name}{PART}{heading}' to {source}"
                    yield Problem(name, line, number[0], f"a number near a link to the report of {studies[0]}", remedy)


def _sections(text: str) -> list[tuple[str, int, int]]:
    """Return (heading, start, end) of each section; a section ends at the next heading of any level."""
    headings = [*re.finditer(r"^#+ +(.*)$", _blanked(text, MARKDOWN_REST[:1]), re.MULTILINE)]  # not in code
    ends = [*(one.start() for one in headings[1:]), len(text)]
    return [(one[1].strip(), one.start(), end) for one, end in zip(headings, ends, strict=True)]


def _part(text: str, heading: str, source: Path, name: str) -> str:
    """Return the text with blanks for everything outside the section of this heading. UserError: no such heading."""
    found = {title: (start, end) for title, start, end in _sections(text)}
    if heading not in found:
        raise UserError(f"{name} has no heading '{heading}'", path=source, remedy=suggestion(heading, found))
    start, end = found[heading]
    return re.sub(r"[^\n]", " ", text[:start]) + text[start:end] + re.sub(r"[^\n]", " ", text[end:])


def _read(folder: Path, name: str, source: Path) -> str:
    try:
        return (folder / name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError("not a text in UTF-8", path=name, remedy="save it in UTF-8") from None
    except OSError as error:
        raise UserError(
            f"cannot be read ({error.strerror})", path=name, remedy=f"correct its name, here or in {source}"
        ) from None


def read_claims(path: Path) -> dict[str, list[Claim]]:
    """Read file -> its claims. UserError: an unknown key or a wrong value, with its line."""
    if not path.is_file():
        raise UserError("no such file", path=path, remedy="docs/claims.md has an example")
    document = read_yaml(path)
    found: dict[str, list[Claim]] = {}
    for name, groups in document.items():
        found[name] = []
        if not isinstance(groups or [], list):
            raise UserError("expected a list of groups", "write `- claims: [...]` below", value=reach(document, name))
        for number, group in enumerate(groups or []):
            found[name] += _claims_of(group, reach(document, name, number))
    return found


def _claims_of(group: Any, place: Any) -> Iterator[Claim]:
    if not isinstance(group, dict):
        raise UserError("expected a group with `claims`", value=place)
    allowed = ("study", "source", "where", "claims")
    if unknown := next((key for key in group if key not in allowed), None):
        raise UserError(f"unknown key '{unknown}'", suggestion(unknown, allowed), value=unknown)
    source = f"{group['source']}: {group.get('where', '')}" if "source" in group else ""
    if source and (group["source"] not in SOURCES or not group.get("where")):
        remedy = f"`source` is one of {', '.join(SOURCES)}, and `where` names the place"
        raise UserError(f"a source '{source}'", remedy, value=group)
    study = str(group.get("study", ""))
    claims = group.get("claims", [])
    if not isinstance(claims, list):
        raise UserError(
            "`claims` is no list", "write its texts in lines that start with '- '", value=reach(group, "claims")
        )
    for number, template in enumerate(claims):
        place = reach(group, "claims", number)
        if not isinstance(template, str):
            raise UserError("a claim is a text", "put it in quotes", value=place)
        yield Claim(str(template), place.line, study, source)


class _Text:
    """A text, and the problems that the check of its claims finds."""

    def __init__(self, name: str, text: str, claims: str, results: BoundResults) -> None:
        self.name, self._claims, self._results = name, claims, results
        self.is_latex = name.endswith(".tex")
        self.text = _blanked(text, TEX_COMMENTS) if self.is_latex else text
        self.problems: list[Problem] = []
        self._spans: list[tuple[int, int]] = []
        self._quoted = bytearray(len(text))  # 1: a character that a claim quotes
        self._verdicts: list[int] = []  # starts of the verdicts that claims bind
        self.bound = 0

    @functools.cached_property
    def prose(self) -> str:
        """The text, of the same length, with blanks for its code, comments and links."""
        return _blanked(self.text, TEX_REST if self.is_latex else MARKDOWN_REST)

    def bind(self, claim: Claim) -> None:
        """Find a claim in the text, and check the numbers and verdicts that it binds."""
        matches = [*_pattern(claim.template, "").finditer(self.text)]
        if not matches and (near := _pattern(claim.template, r"[^\n|]{1,60}?").search(self.text)):
            self._differs(claim, near)
            return
        if len(matches) != 1:
            found = f"found {len(matches)} times in {self.name}" if matches else f"not in {self.name}"
            remedy = "add words around it" if matches else "bind the text as it is now, or delete the claim"
            self.problems.append(Problem(self._claims, claim.line, claim.template, found, remedy))
        for match in matches[:1]:
            self._quoted[slice(*match.span())] = b"\1" * len(match[0])
            for gap in (match.span(name) for name in match.re.groupindex if name.startswith("g")):
                self._quoted[slice(*gap)] = bytes(gap[1] - gap[0])
            slots = [Slot(*match.span(), claim.source, match[0])] if claim.source else []
            for n, (query, words) in enumerate(map(_parts, SLOT.findall("" if claim.source else claim.template))):
                slots.append(Slot(*match.span(f"s{n}"), query, words))
            for slot in slots:
                self.check(slot, claim.study)

    def _differs(self, claim: Claim, near: re.Match[str]) -> None:
        """Report the slots in which the text has another verdict than the claim, or no number."""
        for number, (query, words) in enumerate(map(_parts, SLOT.findall(claim.template))):
            start, end = near.span(f"s{number}")
            self._spans.append((start, end))
            if words is not None and words.casefold() != near[f"s{number}"].casefold():
                remedy = f"write '{words}', or bind the new words at {self._claims}:{claim.line}"
                self._add(start, near[f"s{number}"], f"bound to '{words}' ({query})", remedy)
            elif words is None and not re.fullmatch(f"{NUMBER}|{COUNT}", near[f"s{number}"], re.I):
                self._add(start, near[f"s{number}"], f"bound to a number ({query})", f"see {self._claims}:{claim.line}")

    def bind_latex(self) -> None:
        """Check each `\\claim{QUERY}{TEXT}`."""
        for match in re.finditer(r"\\claim\s*(?=\{)", self.text):
            query = _in_braces(self.text, match.end())
            said = _in_braces(self.text, query[1] + 1)
            text = _plain_latex(self.text[slice(*said)])
            is_number = re.fullmatch(f"{NUMBER}|{COUNT}", text, re.IGNORECASE)
            self._spans.append((match.start(), said[1] + 1))
            self.check(Slot(*said, self.text[slice(*query)].strip(), None if is_number else text), "", text)

    def included(self, folder: Path, main: Path) -> list[str]:
        """Return the files that this text includes, relative to `folder`. Each is looked for in `main`, the folder of
        the main text, and in the folder of this text. A missing file is a problem."""
        found = []
        for match in INCLUDED.finditer(self.text):
            name = match["file"] or match["word"] or f"{match['folder']}/{match['name']}"
            tries = [at / f"{name.strip()}{end}" for at in (main, Path(self.name).parent) for end in (".tex", "")]
            file = next((one for one in tries if (folder / one).is_file()), None)
            if file:
                found.append(file.as_posix())
            else:
                self._add(match.start(), match[0], "not read: no such file", "correct the name, or delete the line")
        return found

    def check(self, slot: Slot, study: str, said: str = "") -> None:
        """Compare the number or verdict of a slot with the result. `said`: the text of the slot, if it is LaTeX."""
        said = said or self.text[slot.start : slot.end]
        self._spans.append((slot.start, slot.end))
        kind, _, where = slot.query.partition(": ")
        try:
            if kind in SOURCES:
                self.bound += sum(1 for _ in TOKEN.finditer(said))
                self._results.check_source(where, [one["number"] for one in TOKEN.finditer(said) if one["number"]])
            elif slot.words is None:
                self.bound += 1
                for value, name in self._results.values(slot.query, study):
                    if not agrees(said, value):
                        self._add(slot.start, said, f"{name} is {value:.6g}", "write that number, or correct the claim")
            else:
                self.bound += 1
                self._verdicts.append(slot.start)
                around = self.text[max(0, slot.start - AROUND) : slot.start], self.text[slot.end : slot.end + AROUND]
                if found := fits(self._results, slot.query, study, said, *around):
                    self._add(slot.start, said, found, "write what the result says, or correct the claim")
        except UserError as error:
            self._add(slot.start, said, error.fault, error.remedy or "correct the claim")

    def find_unbound(self) -> None:
        """Report every number and verdict that no claim covers, wrong links to reports, and unquoted outcomes."""
        spans = sorted(self._spans)
        for match in TOKEN.finditer(self.prose):
            if any(start < match.end() and match.start() < end for start, end in spans):
                continue
            is_precise = re.search(r"\.\d\d", match[0])
            likely = self._results.likely(match[0], self._studies_near(match.start())) if is_precise else []
            hint = f"; perhaps {' or '.join(f'{{{query}}}' for query in likely)}" if likely else ""
            way = r"write \claim{QUERY}{TEXT}" if self.is_latex else f"add a claim to {self._claims}"
            self._add(match.start(), match[0], "not bound to a result or a source", f"{way}{hint}")
        for link in re.finditer(r"\[(\w+)\]\([^)\s]*/(\w+)/report\.md\)", self.text):
            if link[1] != link[2]:
                self._add(link.start(), link[1], f"a link to the report of {link[2]}", "name the study that is linked")

        if not self.is_latex:
            self._find_unquoted()

    def _find_unquoted(self) -> None:
        """Report sentences with an outcome, emphasised texts and table headers that claims do not quote in full."""
        ends = [0, *(end.end() for end in SENTENCE_END.finditer(self.prose)), len(self.prose)]
        words = [word.end() - 1 for word in OUTCOME.finditer(self.prose)] + self._verdicts
        places = {bisect_right(ends, place) for place in words if place < ends[-1]}
        spans = [(ends[n - 1], ends[n]) for n in places]
        spans += [one.span() for pattern in (EMPHASISED, HEADER) for one in pattern.finditer(self.prose)]
        for start, end in sorted(spans):
            missing = (n for n in range(start, end) if self.prose[n].isalnum() and not self._quoted[n])
            if (first := next(missing, None)) is not None:
                says = " ".join(self.prose[first:end].split()[:6]).strip("*|")
                remedy = f"quote the whole sentence in {self._claims}: a change of it then needs a second look"
                self._add(first, says, "not quoted by a claim", remedy)

    def _studies_near(self, position: int) -> list[str]:
        """Return the studies whose reports are linked in the section around a position of the text."""
        start = max(self.text.rfind("\n## ", 0, position), self.text.rfind("\n### ", 0, position), 0)
        section = re.split(r"^###? ", self.text[start + 5 :], maxsplit=1, flags=re.MULTILINE)[0]
        return [*dict.fromkeys(re.findall(r"/(\w+)/report\.md", section))]

    def _add(self, position: int, says: str, found: str, remedy: str) -> None:
        line = self.text.count("\n", 0, position) + 1
        self.problems.append(Problem(self.name, line, " ".join(says.split()), found, remedy))


def _blanked(text: str, patterns: Iterable[str]) -> str:
    """The text, of the same length, with blanks for each match of the patterns."""
    for pattern in patterns:
        text = re.sub(pattern, lambda match: re.sub(r"[^\n]", " ", match[0]), text, flags=re.DOTALL | re.MULTILINE)
    return text


def _in_braces(text: str, start: int) -> tuple[int, int]:
    """Return start and end of the text in the braces that open at `start`; an empty range without braces."""
    depth = 0
    for brace in re.compile(r"(?<!\\)[{}]").finditer(text, start) if text[start : start + 1] == "{" else ():
        depth += 1 if brace[0] == "{" else -1
        if not depth:
            return start + 1, brace.start()
    return start, start


def _plain_latex(text: str) -> str:
    """LaTeX as plain text: .79 for \\textbf{.79}, 0.79 for \\num{0,79} and 0{,}79. Commas in braces are decimal commas,
    unless one in the text separates thousands, as in 1{,}000."""
    text = re.sub(r"(\\num\w*\{\d*),(?=\d)", r"\1.", text)
    if not re.search(r"\b[1-9]\d{0,2}(?:\{,\}\d{3})+(?!\d)", text):
        text = text.replace("{,}", ".")
    text = re.sub(r"\s*\\(?:times|cdot)\s*10\^\{?([−+-]?\d+)\}?", r"e\1", text)
    text = re.sub(r"\\(?:percent\b|%)", "%", text)
    return re.sub(r"\\[A-Za-z]+\*?(?:\[[^\]]*\])?|\\[^A-Za-z]|[${}~]", "", text).strip()


def _parts(content: str) -> tuple[str, str | None]:
    """Return (query, words) of `{WORDS = QUERY}`, and (query, None) of `{QUERY}`."""
    words, is_verdict, query = content.partition(" = ")
    return (query.strip(), words.strip()) if is_verdict else (content.strip(), None)


@functools.cache
def _pattern(template: str, other: str) -> re.Pattern[str]:
    """Return the pattern that finds a claim in a text; `...` in a claim skips up to 400 characters. `other`: a pattern
    for the content of every slot, instead of the number or the verdict that is bound."""
    pieces, number, gap = list[str](), 0, 0
    for n, piece in enumerate(SLOT.split(template)):
        if n % 2:
            words = _parts(piece)[1]
            inner = other or (_literal(words) if words is not None else f"{NUMBER}|{COUNT}")
            pieces.append(f"(?P<s{number}>{inner})")
            number += 1
        else:
            for place, words_between in enumerate(piece.split("...")):
                pieces.append(f"(?P<g{gap}>.{{0,400}}?)" if place else "")
                pieces.append(_literal(words_between))
                gap += bool(place)
    return re.compile("".join(pieces), re.IGNORECASE | re.DOTALL)


def _literal(text: str) -> str:
    return re.sub(r"(?:\\?\s)+", r"\\s+", re.escape(text))


def markdown(checked: Checked) -> str:
    """The outcome as Markdown, for a comment on a pull request."""
    count = len(checked.problems)
    outcome = f"{count} {'problem' if count == 1 else 'problems'}" if count else "all hold"
    lines = [f"**Claims:** {checked.bound} numbers and verdicts in {', '.join(checked.files)}: {outcome}."]
    if checked.problems:
        lines += ["", "| where | text | result | remedy |", "|---|---|---|---|"]
    for one in checked.problems:
        cells = [f"{one.path}:{one.line}", one.says, one.found, one.remedy]
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines) + "\n"
