"""Findings, reasons and errors have fields, so no code reads their text back: no search in it, no cutting of it."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "realm_lab"

READING = "startswith endswith partition rpartition removeprefix removesuffix index find split rsplit".split()
EXPRESSIONS = "match search fullmatch findall finditer sub split".split()  # of module `re`
FIELDS = {"error", "reason", "why", "line", "lead", "rest", "verdict", "finding"}  # that hold text for people
MAKERS = {"explain", "validation_line", "in_short", "verdict", "in_words"}  # of such text
OUR_ERRORS = {"UserError", "Taken", "Unsupported", "DiskFull", "RankLost"}


def reads_of(source: str) -> list[str]:
    """Return every expression that reads a text that the package made for people."""

    def is_text(node: ast.AST, errors: frozenset[str]) -> bool:
        for part in ast.walk(node):
            if isinstance(part, ast.Name) and part.id in errors:
                return True
            if isinstance(part, ast.Attribute) and part.attr in FIELDS:
                return True
            if isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Constant) and part.slice.value in FIELDS:
                return True
            if isinstance(part, ast.Call) and ast.unparse(part.func).split(".")[-1] in MAKERS:
                return True
        return False

    def found(node: ast.AST, errors: frozenset[str]) -> Iterator[str]:
        if isinstance(node, ast.ExceptHandler) and node.name and node.type:
            names = {part.id for part in ast.walk(node.type) if isinstance(part, ast.Name)}
            errors |= {node.name} if names & OUR_ERRORS else set()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            method, owner = node.func.attr, node.func.value
            is_blank = method == "split" and not node.args  # text on one line is still text
            reads = method in READING and not is_blank and is_text(owner, errors)
            is_re = ast.unparse(owner) == "re" and method in EXPRESSIONS
            if reads or (is_re and any(is_text(given, errors) for given in node.args[1:])):
                yield ast.unparse(node)
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
            if is_text(node.comparators[0], errors):
                yield ast.unparse(node)
        for child in ast.iter_child_nodes(node):
            yield from found(child, errors)

    return list(found(ast.parse(source), frozenset()))


@pytest.mark.parametrize(
    "source",
    [
        "state.error.startswith('not run: ')",
        "summary['verdict'].removeprefix(summary['lead'])",
        "explain(error, path).partition(': ')[2]",
        "re.search('line (.*):', run.why)",
        "' is FAILED' not in state.reason",
        'try: work()\nexcept UserError as error: name = str(error).partition("\'")[2]',
        "try: work()\nexcept (OSError, Taken) as taken: print('gone' in str(taken))",
    ],
)
def test_reading_is_found(source: str) -> None:
    assert len(reads_of(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "' '.join(str(state.error).split())",
        "name.startswith('realm_lab.')",
        "queued.reason in NO_REASONS",
        "try: work()\nexcept OSError as error: code = str(error).partition(': ')[0]",
    ],
)
def test_what_is_no_reading_is_not_found(source: str) -> None:
    assert reads_of(source) == []


def test_no_code_reads_text_back() -> None:
    found = {
        path.relative_to(PACKAGE).as_posix(): reads
        for path in sorted(PACKAGE.rglob("*.py"))
        if (reads := reads_of(path.read_text(encoding="utf-8")))
    }
    assert found == {}
