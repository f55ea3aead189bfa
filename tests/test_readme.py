"""README.md and docs/tutorial.md: their shell blocks run, and their commands, options and targets exist.

A comment above every ```bash block decides how it is tested:

    <!-- test: fast -->        run with every test
    <!-- test: slow -->        run too, and marked slow
    <!-- test: no, REASON -->  not run, and why

The blocks of a page are run from top to bottom in a copy of the checkout, each in a new `bash -euo pipefail`, with the
environment of the tests active. Words inside `backticks` and blocks are checked in any case. Trainings of slow blocks
are shorter (SHORTER).
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from realm_lab.cli import build_parser
from tests.limits import HANG_SECONDS

ROOT = Path(__file__).resolve().parents[1]
PAGES = ["README.md", "docs/tutorial.md"]
SHORTER = {  # page -> a part of a study that it writes, and the same with fewer steps
    "docs/tutorial.md": (
        '{pretrain.masking: "my_masks:last_words"}',
        '{pretrain.masking: "my_masks:last_words", pretrain.steps: 40, finetune.steps: 40}',
    ),
}
MARK = re.compile(r"<!-- test: (fast|slow|no, \S.*?) -->")


class Block(NamedTuple):
    line: int  # of the opening fence, from 1
    mark: str | None  # "fast", "slow", "no, REASON", or None where the comment is missing
    code: str


def shell_blocks(text: str) -> list[Block]:
    """The ```bash blocks of a Markdown text."""
    blocks: list[Block] = []
    lines = text.splitlines()
    opened: int | None = None
    for number, line in enumerate(lines):
        if opened is None and re.match(r"```\w*", line):
            opened = number
        elif opened is not None and line.strip() == "```":
            if lines[opened].strip() == "```bash":
                before = [above for above in lines[:opened] if above.strip()][-1:]
                marked = MARK.fullmatch(before[0].strip()) if before else None
                blocks.append(Block(opened + 1, marked[1] if marked else None, "\n".join(lines[opened + 1 : number])))
            opened = None
    return blocks


def code_of(text: str) -> str:
    """Return fenced blocks and `backticks`, one piece per line; prose about making sure is not a command."""
    fenced = re.findall(r"^```\w*\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    rest = re.sub(r"^```\w*\n.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return "\n".join([*fenced, *re.findall(r"`([^`\n]+)`", rest)])


def verbs() -> dict[str, argparse.ArgumentParser]:
    [action] = [action for action in build_parser()._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(action.choices)


def wrong_commands(code: str) -> list[str]:
    """`realm-lab` commands in the code whose verb or option does not exist."""
    known = verbs()
    wrong = []
    for command in re.findall(r"\brealm-lab ([^\n|;&#)]*)", code.replace("\\\n", " ")):
        verb, *rest = command.split() or [""]
        if re.fullmatch(r"[a-z][a-z-]*", verb):
            options = known[verb]._option_string_actions if verb in known else {}
            unknown = [word for word in rest if re.match(r"--\w", word) and word.split("=")[0] not in options]
            if verb not in known or unknown:
                wrong.append(f"realm-lab {command}".strip())
    return wrong


def wrong_targets(text: str, makefile: str) -> list[str]:
    """`make` targets in the text that the Makefile does not have."""
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    named = re.findall(r"(?:^|[;&|(]|\bthen )\s*make ([a-z]+)", code_of(text), re.MULTILINE)
    return [name for name in named if name not in targets]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_says_how_it_is_tested_and_every_command_exists(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = shell_blocks(text)
    assert blocks, "no command"
    assert [f"{page}, line {block.line}" for block in blocks if block.mark is None] == []
    assert wrong_commands(code_of(text)) == []
    assert wrong_targets(text, (ROOT / "Makefile").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", sorted(page.name for page in (ROOT / "docs").glob("*.md") if page.name != "cli.md"))
def test_every_command_of_a_page_exists(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert wrong_commands(code_of(text)) == []
    assert wrong_targets(text, (ROOT / "Makefile").read_text(encoding="utf-8")) == []


OURS = "benchmarks cli contrib engine evidence examples lab realm_lab records tests".split()  # folders


def wrong_files(text: str) -> list[str]:
    """Files of Python in a text that are not in this repository, and modules of realm_lab that no one can run."""
    files = re.findall(rf"(?<![\w/.])((?:{'|'.join(OURS)})/[\w/]+\.py)", text)
    modules = re.findall(r"-m (realm_lab[\w.]*\w)", text)
    found = [file for file in files if not any((ROOT / folder / file).is_file() for folder in ("", "realm_lab"))]
    for module in modules:
        path = ROOT / module.replace(".", "/")
        if not (path / "__main__.py").is_file() and "__main__" not in path.with_suffix(".py").read_text("utf-8"):
            found.append(module)
    return found


def test_files_that_do_not_exist_are_found() -> None:
    assert wrong_files("`lab/gone.py`, `engine/masking.py`, harbour/own.py") == ["lab/gone.py"]
    assert wrong_files("python -m realm_lab.lab.workers FILE, python -m realm_lab") == ["realm_lab.lab.workers"]


def test_every_file_and_program_that_is_named_exists() -> None:
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("realm_lab/**/*.py"), *ROOT.glob("examples/*")]
    for path in pages:
        if path.is_file() and path.name != "CHANGELOG.md":
            assert wrong_files(path.read_text(encoding="utf-8")) == [], path


def test_every_command_in_the_comments_of_studies_exists() -> None:
    for path in sorted((ROOT / "experiments").glob("*.yaml")):
        comments = re.findall(r"^ *#(.*\n)", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert wrong_commands("".join(comments)) == [], path.name


def copy_of_checkout(target: Path) -> None:
    """Copy the files of a clone, with uncommitted ones, into a separate repository, which DVC needs."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)
    subprocess.run(["git", "init", "-q"], cwd=target, check=True)


def run_blocks(page: str, marks: set[str], folder: Path) -> None:
    """Run the blocks with these marks; with slow ones, trainings are shorter."""
    text = (ROOT / page).read_text(encoding="utf-8")
    if "slow" in marks:
        long, short = SHORTER[page]
        assert text.count(long) == 1, f"{page}: no {long}"
        text = text.replace(long, short)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(folder)}
    for block in shell_blocks(text):
        if block.mark not in marks:
            continue
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.code],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{page}, line {block.line}: exit code {done.returncode}\n{done.stdout[-4000:]}"


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_fast_blocks_run(page: str, tmp_path: Path) -> None:
    copy_of_checkout(tmp_path)
    run_blocks(page, {"fast"}, tmp_path)


@pytest.mark.slow
@pytest.mark.drill
@pytest.mark.parametrize("page", [page for page in PAGES if "<!-- test: slow" in (ROOT / page).read_text()])
def test_the_slow_blocks_run_too(page: str, tmp_path: Path) -> None:
    copy_of_checkout(tmp_path)
    run_blocks(page, {"fast", "slow"}, tmp_path)
