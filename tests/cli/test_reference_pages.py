"""docs/cli.md and docs/metrics.md agree with the parser and the registry of metrics."""

import argparse
import json
import re
from pathlib import Path
from typing import Any

import pytest

from docs.json_fields import JSON_FIELDS
from docs.parameters_page import render_reference
from docs.reference_pages import options_of_sources, render_cli, render_llms, render_metrics
from realm_lab import __all__ as public
from realm_lab.cli import build_parser, main
from realm_lab.engine.models.objectives import OBJECTIVES
from realm_lab.engine.params.load import flatten, is_section, parameter_fields
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.params.params_yaml import renewed_params_yaml
from realm_lab.engine.retrieval.candidate_sources import CANDIDATE_SOURCES
from realm_lab.records.defaults import defaults
from realm_lab.records.plugins import Plugin, import_plugins


def test_the_pages_are_up_to_date(repository: Path) -> None:
    assert (repository / "docs" / "cli.md").read_text(encoding="utf-8") == render_cli(), "run `make pages`"
    assert (repository / "docs" / "metrics.md").read_text(encoding="utf-8") == render_metrics(), "run `make pages`"
    parameters = (repository / "docs" / "parameters.md").read_text(encoding="utf-8")
    assert parameters == render_reference(options_of_sources()), "run `make pages`"
    assert defaults() == flatten(Params()), "run `make pages`"
    written = (repository / "params.yaml").read_text(encoding="utf-8")
    assert written == renewed_params_yaml(written), "run `make pages`"
    fields = parameter_fields().items()
    assert [name for name, field in fields if not is_section(name) and not field.description] == [], "no docstring"


def test_the_index_for_programs_is_up_to_date(repository: Path) -> None:
    text = (repository / "docs" / "llms.txt").read_text(encoding="utf-8")
    assert text == render_llms(repository), "run `make pages`"
    for page in (repository / "docs").glob("*.md"):
        assert page.stem == "index" or f"(./{page.stem}/)" in text


def test_each_json_output_is_documented() -> None:
    with_json = set()
    for name, verb in build_parser().verbs().items():
        inner = [action.choices for action in verb._actions if isinstance(action, argparse._SubParsersAction)]
        parts = {f"{name} {word}": part for word, part in inner[0].items()} if inner else {name: verb}
        with_json |= {word for word, part in parts.items() if "--json" in part._option_string_actions}
    assert with_json == set(JSON_FIELDS)


@pytest.mark.parametrize(
    "words",
    [
        "doctor",
        "status",
        "verdict --calibrate table2",
        "reproduce masking",
        "claims README.md",
        "plan --passages 9 --device H100",
    ],
)
def test_json_has_the_documented_fields(repository: Path, capsys: pytest.CaptureFixture[str], words: str) -> None:
    main(["--root", str(repository), *words.split(), "--json"])
    printed = json.loads(capsys.readouterr().out)
    found = set(printed[0] if isinstance(printed, list) else printed)
    documented = set(re.findall(r"`(\w+)`", JSON_FIELDS[words.split()[0]].partition("--measure")[0]))
    assert documented <= found if words.startswith("plan") else found <= documented


def test_concepts_explains_every_objective_and_candidate_source(repository: Path) -> None:
    import_plugins()
    registered: dict[str, Plugin[Any]] = {**OBJECTIVES, **CANDIDATE_SOURCES}
    built_in = [name for name, part in registered.items() if part.target.startswith("realm_lab.")]
    page = (repository / "docs" / "concepts.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(?:\{name: )?(\w+).*?` \|", page, re.MULTILINE)
    assert sorted(rows) == sorted(built_in)


def test_every_public_name_is_in_the_python_reference(repository: Path) -> None:
    page = (repository / "docs" / "api.md").read_text(encoding="utf-8")
    assert [name for name in public if not re.search(rf"^(:::|`)\s*realm_lab\S*\.{name}`?$", page, re.MULTILINE)] == []
