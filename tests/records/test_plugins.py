"""Plug-ins: entry points, and custom code that is refused in one line."""

from __future__ import annotations

import importlib.metadata
import json
from types import SimpleNamespace
from typing import Any

import pytest

from realm_lab.records import plugins
from realm_lab.records.plugins import GROUP, Kind
from tests.factories.errors import refused


def misspelt(options: json.Missing) -> None:  # type: ignore[name-defined]
    """Take options of a type that does not exist."""


def test_options_of_a_type_that_does_not_exist_are_refused() -> None:
    kind: Kind[Any] = Kind("metric", "function")
    with refused("'options' has no type that declares options", parameter="metrics"):
        kind.find("metrics", f"{__name__}:misspelt")


def test_an_entry_point_may_name_an_object_of_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = importlib.metadata.EntryPoint("mine", "package.module:object", GROUP)
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: [SimpleNamespace(entry_points=[entry])])
    assert plugins._entry_points.__wrapped__() == {"package.module": "mine"}
