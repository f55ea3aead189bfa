"""The defaults of parameters, which also hold for records that are older than a parameter."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

from realm_lab.records.files import read_json

DEFAULTS = Path(__file__).with_name("defaults.json")  # written by `make pages` from engine/params/


@functools.cache
def defaults() -> dict[str, Any]:
    """Return the default of every parameter by dotted name."""
    return dict(read_json(DEFAULTS))
