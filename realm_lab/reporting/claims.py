"""`realm-lab claims`: numbers and words of a verdict in a text, bound to the results of studies (docs/claims.md).

claims.yaml has, for each Markdown file, claims: pieces of its text with a query in braces where the text has a number
or a verdict. LaTeX has `\\claim{QUERY}{TEXT}`. Nothing here changes a text or a result.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from realm_lab.errors import UserError, suggestion
from realm_lab.params.yaml_file import line_of, read_yaml
from realm_lab.reporting.bound_results import SOURCES, BoundResults, agrees, fits

CLAIMS = "claims.yaml"
COUNTS = "two three four five six seven eight nine ten eleven twelve".split()
NUMBER = r"(?:(?<![\w.])[−+-])?(?<![\w@.])(?:\d[\d,]*\.?\d*|\.\d+)(?<![,.])(?![\w@])(?: ?%)?"
COUNT = rf"\b(?:{'|'.join(['one', *COUNTS])})\b"
COUNTED = rf"\b(?:{'|'.join(COUNTS)})\b(?=(?:\s+\w+){{0,2}}\s+(?:seeds?|runs?|others?)\b|\s+of\b)"
VERDICTS = (
    r"\b(?:better|best|worse|worst|higher|highest|lower|lowest|outperforms?|beats?|significant(?:ly)?|equal|equivalent"
    r"|ruled out|ahead|no (?:\w+ )?difference|(?:finds?|answers?|scores?) (?:far )?(?:more|less|fewer)|improves?"
    r"|rises?|falls?)\b"
)
TOKEN = re.compile(rf"(?P<number>{NUMBER}|{COUNTED})|(?P<verdict>{VERDICTS})", re.IGNORECASE)
SLOT = re.compile(r"\{([^{}]*)\}")
TEX_CLAIM = re.compile(r"\\claim\{([^{}]*)\}\{((?:[^{}]|\{[^{}]*\})*)\}")
# Parts of a text that hold no claim: code, comments, targets of links, dates, names of tables and of papers.
MARKDOWN_REST = (
    r"^ *```.*?^ *```", r"<!--.*?-->", r"`[^`\n]*`", r"(?<=\])\([^)\s]*\)", r"\b\d{4}-\d\d-\d\d\b", r"^\d+\.(?= )",
    r"\b(?:Table|Figure|Section|Eq\.|et al\.,?) \d+", r"https?://\S+",
)  # fmt: skip
TEX_REST = (
    r"\A.*?\\begin\{document\}", r"(?<!\\)%[^\n]*",
    r"\\(?:begin|end)\{[^{}]*\}(?:\[[^\]]*\])?(?:\{[lcrp|@{}.\d\s]*\})?",
    r"\\(?:\w*cite\w*|\w*ref|label|include\w*|input|[vh]space|url|href|bibliography\w*)\*?(?:\[[^\]]*\])*\{[^{}]*\}",
    r"\b(?:Table|Figure|Section|Eq\.)[ ~]\d+",
)  # fmt: skip


class Slot(NamedTuple):
    """A part of a text that a query is bound to. `words`: the verdict there; None for a number."""

    start: int
    end: int
    query: str
    words: str | None


class Problem(NamedTuple):
    """A claim that does not hold, or a number or verdict that is not bound."""

    path: str
    line: int
    says: str  # the text
    found: str  # the result
    remedy: str


class Checked(NamedTuple):
    """The claims of some files. `bound`: how many numbers and verdicts are bound."""

    files: list[str]
    bound: int
    problems: list[Problem]


class Claim(NamedTuple):
    """An entry of claims.yaml. `study`: of its queries without one; `source`: of a text whose numbers no study has."""

    template: str
    line: int
    study: str = ""
    source: str = ""
    rows: Mapping[str, str] = MappingProxyType({})  # first cell of a row -> cell of the study; then it is a table
    columns: tuple[tuple[str, str], ...] = ()  # header -> query without the cell


def check(root: Path, files: list[str], results: BoundResults | None = None) -> Checked:
    """Check these files, by default all of claims.yaml. UserError: claims.yaml is malformed or has no such file."""
    source = root / CLAIMS
    bound_to = read_claims(source) if source.exists() or not files else {}
    for name in files:
        if name not in bound_to and Path(name).suffix != ".tex":
            raise UserError(f"no claims of {name}", path=source, remedy=suggestion(name, bound_to))
    results = results or BoundResults(root)
    bound, problems = 0, []
    for name in files or bound_to:
        try:
            text = (root / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot be read ({error})", path=name, remedy=f"correct its name in {source}") from None
        mine = _Text(name, text, source.name, results)
        for claim in bound_to.get(name, []):
            mine.bind(claim)
        if Path(name).suffix == ".tex":
            mine.bind_latex()
        mine.find_unbound()
        bound += mine.bound
        problems += sorted(mine.problems, key=lambda one: (one.path != name, one.line))
    return Checked([*(files or bound_to)], bound, problems)


def read_claims(path: Path) -> dict[str, list[Claim]]:
    """File -> its claims. UserError: a key or a value that claims.yaml does not have, with its line."""
    if not path.is_file():
        raise UserError("no such file", path=path, remedy="docs/claims.md has an example")
    document = read_yaml(path)
    found: dict[str, list[Claim]] = {}
    for name, groups in document.items():
        found[name] = []
        for number, group in enumerate(groups or []):
            found[name] += _claims_of(path, document, [name, number], group)
    return found


def _claims_of(path: Path, document: Any, keys: list[str | int], group: Any) -> Iterator[Claim]:
    line = line_of(document, keys)
    if not isinstance(group, dict):
        raise UserError("expected a group with `claims` or with `rows` and `columns`", path=path, line=line)
    allowed = ("study", "source", "where", "claims", "rows", "columns")
    if unknown := next((key for key in group if key not in allowed), None):
        raise UserError(f"no key '{unknown}'", path=path, line=line, remedy=suggestion(unknown, allowed))
    source = f"{group['source']}: {group.get('where', '')}" if "source" in group else ""
    if source and (group["source"] not in SOURCES or not group.get("where")):
        remedy = f"`source` is one of {', '.join(SOURCES)}, and `where` names the place"
        raise UserError(f"a source '{source}'", path=path, line=line, remedy=remedy)
    study = str(group.get("study", ""))
    if "rows" in group:
        columns = tuple((str(key), str(value or "")) for one in group.get("columns", []) for key, value in one.items())
        rows = {str(label): str(cell) for label, cell in group["rows"].items()}
        yield Claim("", line or 1, study, source, rows, columns)
    for number, template in enumerate(group.get("claims", [])):
        if not isinstance(template, str):
            where = line_of(document, [*keys, "claims", number])
            raise UserError("a claim is a text", path=path, line=where, remedy="put it in quotes")
        yield Claim(template, line_of(document, [*keys, "claims", number]) or 1, study, source)


class _Text:
    """A text while its claims are checked."""

    def __init__(self, name: str, text: str, claims: str, results: BoundResults) -> None:
        self.name, self.text, self._claims, self._results = name, text, claims, results
        self.problems: list[Problem] = []
        self._spans: list[tuple[int, int]] = []
        self.bound = 0

    @functools.cached_property
    def prose(self) -> str:
        """The text, of the same length, with blanks for its code, comments and links."""
        found = self.text
        for pattern in TEX_REST if self.name.endswith(".tex") else MARKDOWN_REST:
            flags = re.DOTALL | re.MULTILINE
            found = re.sub(pattern, lambda match: re.sub(r"[^\n]", " ", match[0]), found, flags=flags)
        return found

    def bind(self, claim: Claim) -> None:
        """Find the claim in the text, and check what it binds."""
        if claim.rows:
            self._bind_table(claim)
            return
        matches = [*_pattern(claim.template, "").finditer(self.text)]
        if not matches and (near := _pattern(claim.template, r"[^\n|]{1,60}?").search(self.text)):
            self._differs(claim, near)
            return
        if len(matches) != 1:
            found = f"found {len(matches)} times in {self.name}" if matches else f"not in {self.name}"
            remedy = "add words around it" if matches else "bind the text as it is now, or delete the claim"
            self.problems.append(Problem(self._claims, claim.line, claim.template, found, remedy))
        for match in matches[:1]:
            self._check_match(claim, claim.template, match, 0)

    def _check_match(self, claim: Claim, template: str, match: re.Match[str], offset: int) -> None:
        if claim.source:
            slots = [Slot(match.start() + offset, match.end() + offset, claim.source, match[0])]
        else:
            contents = [_parts(content) for content in SLOT.findall(template)]
            slots = [
                Slot(match.start(f"s{n}") + offset, match.end(f"s{n}") + offset, query, words)
                for n, (query, words) in enumerate(contents)
            ]
        for slot in slots:
            self.check(slot, claim.study)

    def _differs(self, claim: Claim, near: re.Match[str]) -> None:
        """The text around is there, with another number or verdict than the claim can take."""
        for number, (query, words) in enumerate(map(_parts, SLOT.findall(claim.template))):
            start, end = near.span(f"s{number}")
            self._spans.append((start, end))
            if words is not None and words.casefold() != near[f"s{number}"].casefold():
                remedy = f"write '{words}', or bind the new words at {self._claims}:{claim.line}"
                self._add(start, near[f"s{number}"], f"bound to '{words}' ({query})", remedy)
            elif words is None and not re.fullmatch(f"{NUMBER}|{COUNT}", near[f"s{number}"], re.I):
                self._add(start, near[f"s{number}"], f"bound to a number ({query})", f"see {self._claims}:{claim.line}")

    def _bind_table(self, claim: Claim) -> None:
        headers = [header for header, _ in claim.columns]
        for table in self._tables:
            rows = {cells[0][0]: cells for cells in table[1:]}
            if rows.keys() >= claim.rows.keys() and [header for header, _ in table[0][1:]] == headers:
                break
        else:
            found = f"no table with these rows and the columns {', '.join(headers)} in {self.name}"
            remedy = "bind the rows and columns that it has"
            self.problems.append(Problem(self._claims, claim.line, ", ".join(claim.rows), found, remedy))
            return
        for label, cell in claim.rows.items():
            for (header, query), (shown, offset) in zip(claim.columns, rows[label][1:], strict=False):
                if shown in ("", "–") or not query:
                    continue
                whole = query if "{" in query else f"{{{query}}}"
                template = SLOT.sub(lambda slot, cell=cell: f"{{{cell} {slot[1]}}}", whole)  # type: ignore[misc]
                if match := _pattern(template, "").fullmatch(shown):
                    self._check_match(claim, template, match, offset)
                else:
                    self._add(offset, shown, f"column '{header}' is bound to {whole}", "bind this row as text")

    @functools.cached_property
    def _tables(self) -> list[list[list[tuple[str, int]]]]:
        """Tables of rows of cells: a text without its links, and where it starts."""
        tables = []
        for block in re.finditer(r"(?:^\|[^\n]*\|$\n?)+", self.text, re.MULTILINE):
            rows = []
            for line in re.finditer(r"^\|([^\n]*)\|$", block[0], re.MULTILINE):
                if set(line[1]) <= set("|-: "):
                    continue
                cells = re.finditer(r"[^|]+", line[1])
                start = block.start() + line.start(1)
                rows.append([(_plain(cell[0]), start + cell.end() - len(cell[0].lstrip())) for cell in cells])
            tables.append(rows)
        return tables

    def bind_latex(self) -> None:
        """Check each `\\claim{QUERY}{TEXT}`."""
        for match in TEX_CLAIM.finditer(self.text):
            said = re.sub(r"\\[,%;]|[${}~]", lambda tex: "%" if tex[0] == r"\%" else "", match[2]).strip()
            is_number = re.fullmatch(f"{NUMBER}|{COUNT}", said, re.IGNORECASE)
            self._spans.append(match.span())
            self.check(Slot(*match.span(2), match[1].strip(), None if is_number else said), "", said)

    def check(self, slot: Slot, study: str, said: str = "") -> None:
        """Compare the number or verdict there with the result."""
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
                if found := fits(self._results, slot.query, study, said):
                    self._add(slot.start, said, found, "write what the result says, or correct the claim")
        except UserError as error:
            self._add(slot.start, said, error.fault, error.remedy or "correct the claim")

    def find_unbound(self) -> None:
        """Report every number and verdict that no claim covers."""
        spans = sorted(self._spans)
        for match in TOKEN.finditer(self.prose):
            if any(start < match.end() and match.start() < end for start, end in spans):
                continue
            is_precise = re.search(r"\.\d\d", match[0])
            likely = self._results.likely(match[0], self._studies_near(match.start())) if is_precise else []
            hint = f"; perhaps {' or '.join(f'{{{query}}}' for query in likely)}" if likely else ""
            way = r"write \claim{QUERY}{TEXT}" if self.name.endswith(".tex") else f"add a claim to {self._claims}"
            self._add(match.start(), match[0], "not bound to a result or a source", f"{way}{hint}")
        for link in re.finditer(r"\[(\w+)\]\([^)\s]*/(\w+)/report\.md\)", self.text):
            if link[1] != link[2]:
                self._add(link.start(), link[1], f"a link to the report of {link[2]}", "name the study that is linked")

    def _studies_near(self, position: int) -> list[str]:
        """The studies whose reports the section of the text links."""
        start = max(self.text.rfind("\n## ", 0, position), self.text.rfind("\n### ", 0, position), 0)
        section = re.split(r"^###? ", self.text[start + 5 :], maxsplit=1, flags=re.MULTILINE)[0]
        return [*dict.fromkeys(re.findall(r"/(\w+)/report\.md", section))]

    def _add(self, position: int, says: str, found: str, remedy: str) -> None:
        line = self.text.count("\n", 0, position) + 1
        self.problems.append(Problem(self.name, line, " ".join(says.split()), found, remedy))


def _parts(content: str) -> tuple[str, str | None]:
    """The query and the words of `{QUERY}` or `{WORDS = QUERY}`."""
    words, is_verdict, query = content.partition(" = ")
    return (query.strip(), words.strip()) if is_verdict else (content.strip(), None)


@functools.cache
def _pattern(template: str, other: str) -> re.Pattern[str]:
    """Return the pattern that finds a claim in the text. `other`: a pattern for all slots. `...` skips some words."""
    pieces, number = [], 0
    for n, piece in enumerate(SLOT.split(template)):
        if n % 2:
            words = _parts(piece)[1]
            inner = other or (_literal(words) if words is not None else f"{NUMBER}|{COUNT}")
            pieces.append(f"(?P<s{number}>{inner})")
            number += 1
        else:
            pieces.append(r".{0,400}?".join(map(_literal, piece.split("..."))))
    return re.compile("".join(pieces), re.IGNORECASE | re.DOTALL)


def _literal(text: str) -> str:
    return re.sub(r"(?:\\?\s)+", r"\\s+", re.escape(text))


def _plain(text: str) -> str:
    return re.sub(r"\[([^\]]*)\]\([^)\s]*\)", r"\1", text).strip()


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
