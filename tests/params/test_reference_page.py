"""docs/parameters.md says everything about every parameter, and is not stale."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from realm_lab.params.load import PRESETS, flatten, preset_values
from realm_lab.params.parameters import Params
from realm_lab.params.reference_page import PAGE, in_words, render_reference, write
from realm_lab.params.sections import Candidates, Dropout, NonNegative, Positive


def fields(section: type[BaseModel] = Params, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            assert (field.annotation.__doc__ or "").strip(), f"{prefix}{name} is a section without a docstring"
            yield from fields(field.annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", field


FIELDS = dict(fields())
PAGE_TEXT = " ".join(render_reference().split())
RESOLVED = {name: flatten(Params(**preset_values(name) | {"preset": name})) for name in PRESETS}


def test_the_page_is_up_to_date(repository: Path) -> None:
    assert (repository / PAGE).read_text(encoding="utf-8") == render_reference(), "run `make params`"


def test_every_parameter_has_a_docstring_and_stands_once_with_its_values() -> None:
    lines = PAGE_TEXT.split("- `")
    for name, field in FIELDS.items():
        description = " ".join((field.description or "").split())
        assert description, f"{name} has no docstring"
        assert description in PAGE_TEXT
        [line] = [line for line in lines if line.startswith(f"{name}`:")]
        default, *others = re.split(r"[;,] (?=toy |smoke |real )", line.partition("Default ")[2])
        assert default.startswith("**")
        values = {preset: flat[name] for preset, flat in RESOLVED.items()}
        differ = {preset for preset, value in values.items() if value != values["paper"] and name != "preset"}
        assert {other.split()[0] for other in others} == differ


def test_the_page_is_the_same_every_time() -> None:
    assert render_reference() == render_reference()
    assert max(len(line) for line in render_reference().splitlines()) <= 130


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (bool, "true or false"),
        (Positive, "whole number, at least 1"),
        (Candidates, "whole number, 1 to 1,000"),
        (Dropout, "number, 0 to below 1"),
        (Annotated[float, Field(gt=0.0)], "number, above 0"),
        (Literal["a", "b"], "`a` or `b`"),
        (NonNegative | None, "whole number, at least 0, or empty"),
        (str | None, "text, or empty"),
        (list[str], "list of text"),
        (Annotated[list[NonNegative], Field(min_length=1)], "list (not empty) of whole number, at least 0"),
    ],
)
def test_types_in_words(annotation: Any, words: str) -> None:
    assert in_words(annotation, []) == words


def test_both_files_are_written(tmp_path: Path) -> None:
    write(tmp_path)
    assert (tmp_path / PAGE).read_text(encoding="utf-8") == render_reference()
    assert (tmp_path / "params.yaml").read_text(encoding="utf-8").startswith("# The parameters")
