"""Check the wording, the length and the code of documentation by the rules of words.yaml: `python -m tests.words`."""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = YAML(typ="safe").load(Path(__file__).with_name("words.yaml").read_text(encoding="utf-8"))
KINDS = ("page", "docstring", "comment")
WIDEST_CODE = 90  # characters: more have to be scrolled on the site
TEMPLATES = ("template", "note")  # attributes of a section of a report that hold its text


class Text(NamedTuple):
    line: int  # of its first line in the file, from 1
    kind: str  # one of KINDS
    text: str


def texts(path: Path) -> Iterator[Text]:
    """Read the prose of a file: a page or template without its code, a module's docstrings, templates and comments."""
    source = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        yield from _docstrings(source)
        yield from _comments(source)
    elif path.suffix in (".yaml", ".yml"):
        for number, line in enumerate(source.splitlines(), 1):
            if comment := re.search(r"(?:^|\s)#(.*)", line):
                yield Text(number, "comment", comment[1].strip())
    else:
        yield Text(1, "page", _prose(source))


def _docstrings(source: str) -> Iterator[Text]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield Text(node.lineno, "docstring", re.sub(r"`[^`\n]*`", "``", node.value.value))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in TEMPLATES:
            yield Text(node.lineno, "page", _prose(str(getattr(node.value, "value", ""))))


def _comments(source: str) -> Iterator[Text]:
    """Join the comments of neighbouring lines, since a sentence may go on."""
    first, last, words = 0, -1, ""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            is_next = token.start[0] == last + 1 and token.line.lstrip().startswith("#")
            if not is_next and words:
                yield Text(first, "comment", words)
            text = re.sub(r"`[^`\n]*`", "``", token.string.lstrip("# "))
            first, words = (first, f"{words}\n{text}") if is_next else (token.start[0], text)
            last = token.start[0]
    if words:
        yield Text(first, "comment", words)


def _prose(source: str) -> str:
    """Blank what is not prose, and keep the number of lines."""

    def blank(match: re.Match[str]) -> str:
        return "\n" * match[0].count("\n")

    for code in (r"^ *```.*?^ *```", r"\A---\n.*?^---$", r"<!--.*?-->", r"\{[%#].*?[%#]\}", r"<[a-zA-Z/][^>]*>"):
        source = re.sub(code, blank, source, flags=re.DOTALL | re.MULTILINE)
    source = re.sub(r"`[^`\n]*`", "``", source)
    source = re.sub(r"\{\{.*?\}\}", "X", source)
    return re.sub(r"\]\([^)\s]*\)", "]", source)


def findings(text: Text) -> Iterator[tuple[int, str, str]]:
    """Find the words that a rule forbids, with the line and what to write instead."""
    for rule in SETTINGS["rules"]:
        if text.kind in rule.get("in", KINDS):
            for match in re.finditer(rule["pattern"], text.text, re.MULTILINE if rule.get("case") else re.I | re.M):
                words = " ".join(match[0].split())
                yield text.line + text.text.count("\n", 0, match.start()), words, rule["instead"]


def checked() -> list[Path]:
    """List the checked files."""
    return sorted({path for pattern in SETTINGS["checked"] for path in ROOT.glob(pattern) if path.is_file()})


def check(files: list[Path]) -> list[str]:
    """One line for each forbidden phrase in these files."""
    return [
        f"{path.relative_to(ROOT)}:{line}: '{words}': {instead}"
        for path in files
        for text in texts(path)
        for line, words, instead in findings(text)
    ]


def pages(root: Path) -> list[Path]:
    """List README.md and the pages of docs/."""
    return [root / "README.md", *sorted((root / "docs").glob("*.md"))]


def wide_code(root: Path) -> list[str]:
    """One line for each line in a code block of a page that is wider than WIDEST_CODE."""
    lines = []
    for path in pages(root):
        text = path.read_text(encoding="utf-8")
        for block in re.finditer(r"^( *)```.*?^ *```", text, re.DOTALL | re.MULTILINE):
            first = text.count("\n", 0, block.start()) + 1
            for number, line in enumerate(block[0].splitlines(), first):
                if (width := len(line.removeprefix(block[1]))) > WIDEST_CODE:
                    name = path.relative_to(root).as_posix()
                    lines.append(f"{name}:{number}: {width} characters of code, at most {WIDEST_CODE}: break the line")
    return lines


def over_budget(root: Path, budget: dict[str, int]) -> list[str]:
    """One line for each page with more words (tokens with a letter or digit) than its budget, or without a budget."""
    lines = []
    for path in pages(root):
        name = path.relative_to(root).as_posix()
        count = sum(any(map(str.isalnum, word)) for word in path.read_text(encoding="utf-8").split())
        if name not in budget:
            lines.append(f"{name}: no budget of words in tests/words.yaml; it has {count}")
        elif count > budget[name]:
            lines.append(f"{name}: {count} words, at most {budget[name]} (tests/words.yaml): cut something")
    return lines


def rules() -> list[dict[str, Any]]:
    """The rules, each with a pattern, a remedy and examples."""
    return list(SETTINGS["rules"])


if __name__ == "__main__":
    given = [Path(name).resolve() for name in sys.argv[1:]]
    found = check(given) if given else check(checked()) + over_budget(ROOT, SETTINGS["budget"]) + wide_code(ROOT)
    print("\n".join(found))
    sys.exit(bool(found))
