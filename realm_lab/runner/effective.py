"""`python -m realm_lab.runner.effective FOLDER`: write files that DVC compares before each stage of the default
pipeline.

parameters.json has params.yaml with its preset filled in. keys.json has a digest of the keys of each stage, which also
change with the content of files. code.json has one of the code of each stage and of the stages before it. The first
stage of DVC: it refuses what a later one would refuse after work.
"""

import sys
from pathlib import Path

from realm_lab.core.code import package_modules
from realm_lab.core.files import digest, write_json
from realm_lab.errors import UserError
from realm_lab.params.load import load
from realm_lab.params.parameters import Params
from realm_lab.runner.plan import check_parts
from realm_lab.systems.identity import DEFAULT_SYSTEMS, code_roots, plan_run
from realm_lab.systems.registry import options_of
from realm_lab.tracking.code_record import code_reader

AFTER = {"evaluate": ("realm_lab.reporting.default_run",), "report": ("realm_lab.reporting.report",)}


def write_effective(source: Path, folder: Path) -> None:
    """Write every parameter with its value, and digests of keys and code. UserError: a wrong parameter, or an unknown
    name."""
    params = load(source)
    check_parts(params)
    options_of(params, DEFAULT_SYSTEMS[-1])
    write_json(folder / "parameters.json", params.model_dump(mode="json"))
    write_json(folder / "keys.json", stage_keys(params))
    write_json(folder / "code.json", stage_digests(params, source.parent / "runs"))


def stage_keys(params: Params) -> dict[str, str]:
    """Return stage -> digest of its keys in all runs of the default pipeline."""
    plans = [plan_run(params, system, seed) for system in DEFAULT_SYSTEMS for seed in params.seeds]
    stages = ("prepare", *plans[-1].stages)
    return {
        stage: digest([plan.key(stage) for plan in plans if stage in ("prepare", *plan.stages)]) for stage in stages
    }


def stage_digests(params: Params, runs: Path) -> dict[str, str]:
    """Return stage -> digest of the code that it and the stages before it reach, for every system of the default
    pipeline; and of `report` and of the whole `package`."""
    reader, found = code_reader(runs), {}
    above: list[str] = []
    by_system = [code_roots(params, system) for system in DEFAULT_SYSTEMS]
    for stage in by_system[-1]:
        roots = [*AFTER.get(stage, ()), *(root for each in by_system for root in each.get(stage, ()))]
        above.append(digest(reader.reached(roots)))
        found[stage] = digest(above)
    found["report"] = digest(reader.reached(AFTER["report"]))
    found["package"] = digest(reader.reached(package_modules()))
    reader.save()
    return found


if __name__ == "__main__":
    try:
        write_effective(Path("params.yaml"), Path(sys.argv[1]))
    except UserError as error:
        sys.exit(f"error: {error}")
