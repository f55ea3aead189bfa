"""`python -m realm_lab.runner.effective FILE`: params.yaml with its preset filled in, as JSON, for DVC to compare. The
first stage of DVC: it refuses what a later one would refuse after work."""

import sys
from pathlib import Path

from realm_lab.core.files import write_json
from realm_lab.errors import UserError
from realm_lab.params.load import load
from realm_lab.runner.plan import check_names


def write_effective(source: Path, target: Path) -> None:
    """Write every parameter with the value that it has. UserError: a wrong parameter, or a name that there is not."""
    params = load(source)
    check_names(params)
    write_json(target, params.model_dump(mode="json"))


if __name__ == "__main__":
    try:
        write_effective(Path("params.yaml"), Path(sys.argv[1]))
    except UserError as error:
        sys.exit(f"error: {error}")
