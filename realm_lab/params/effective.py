"""`python -m realm_lab.params.effective FILE`: params.yaml with its preset filled in, as JSON, for DVC to compare."""

import sys
from pathlib import Path

from realm_lab.core.files import write_json
from realm_lab.params.load import load


def write_effective(params: Path, target: Path) -> None:
    """Write every parameter with the value that it has."""
    write_json(target, load(params).model_dump(mode="json"))


if __name__ == "__main__":
    write_effective(Path("params.yaml"), Path(sys.argv[1]))
