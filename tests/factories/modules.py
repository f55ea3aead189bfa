"""Programs of docs/ and examples/ as modules."""

import importlib.util
from pathlib import Path
from types import ModuleType


def load_module(path: str) -> ModuleType:
    """Import a file of the checkout that is in no package."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, Path(__file__).parents[2] / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
