"""docs/cli.md and docs/metrics.md agree with the parser and the registry of metrics."""

import argparse
import re
from pathlib import Path

from realm_lab import __all__ as public
from realm_lab.cli import build_parser
from realm_lab.cli.reference_pages import options_of_sources, render_cli, render_metrics
from realm_lab.metrics import BUILT_IN, CURVES
from realm_lab.params.reference_page import render_reference


def test_the_pages_are_up_to_date(repository: Path) -> None:
    assert (repository / "docs" / "cli.md").read_text(encoding="utf-8") == render_cli(), "run `make pages`"
    assert (repository / "docs" / "metrics.md").read_text(encoding="utf-8") == render_metrics(), "run `make pages`"
    parameters = (repository / "docs" / "parameters.md").read_text(encoding="utf-8")
    assert parameters == render_reference(options_of_sources()), "run `make pages`"


def test_every_verb_and_flag_is_on_the_page() -> None:
    page = render_cli()
    for name, verb in build_parser().verbs().items():
        section = re.split(r"^## ", page.partition(f"\n## {name}\n")[2], flags=re.MULTILINE)[0]
        for action in verb._actions:
            for option in [] if isinstance(action, argparse._HelpAction) else action.option_strings[-1:]:
                assert f"`{option}`" in section, f"{name} {option}"


def test_every_metric_is_on_the_page() -> None:
    rows = re.findall(r"^\| `(\w+)`", render_metrics(), re.MULTILINE)
    assert set(rows) >= BUILT_IN | set(CURVES)


def test_every_public_name_is_in_the_python_reference(repository: Path) -> None:
    page = (repository / "docs" / "python.md").read_text(encoding="utf-8")
    assert [name for name in public if not re.search(rf"^(:::|`)\s*realm_lab\S*\.{name}`?$", page, re.MULTILINE)] == []
