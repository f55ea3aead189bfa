"""`python -m realm_lab.lab.effective FOLDER`: write files that DVC compares before each of its other stages.

parameters.json has params.yaml with its preset filled in. keys.json has a digest of the keys of each stage of the
default pipeline, which also change with the content of input files. code.json has, for each stage, a digest of its code
and of the code of the stages before it. studies/NAME.json has such digests for a study that dvc.yaml names, and the
changes of its code. DVC runs this module first, so that wrong parameters are refused before any work.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from realm_lab.engine.params.load import load
from realm_lab.engine.systems.identity import code_roots
from realm_lab.errors import UserError
from realm_lab.lab.other_code import other_code
from realm_lab.lab.plan import default_plan, plan_study
from realm_lab.lab.results import Results
from realm_lab.lab.rules.seeds import options_of as seed_options
from realm_lab.lab.wanted import wanted
from realm_lab.records.code_record import CodeStates, code_reader
from realm_lab.records.files import digest, write_json
from realm_lab.records.plugins import Choice
from realm_lab.records.run import Run
from realm_lab.records.yaml_file import read_yaml

AFTER = {"evaluate": ("realm_lab.evidence.report.default_run",), "report": ("realm_lab.evidence.report.report",)}


def write_effective(source: Path, folder: Path) -> None:
    """Write every parameter with its value, and digests of keys and code. UserError: a parameter or a
    study is wrong."""
    params = load(source)
    runs = default_plan(params).runs
    write_json(folder / "parameters.json", params.model_dump(mode="json"))
    stages = ("prepare", *runs[-1].stages)
    keys = {stage: digest([run.key(stage) for run in runs if stage in ("prepare", *run.stages)]) for stage in stages}
    write_json(folder / "keys.json", keys)
    write_json(folder / "code.json", stage_digests(runs, source.parent / "runs"))
    (folder / "studies").mkdir(parents=True, exist_ok=True)
    pipeline = source.with_name("dvc.yaml")
    variables = read_yaml(pipeline).get("vars", []) if pipeline.exists() else []
    for name in (name for one in variables if isinstance(one, dict) for name in one.get("studies", [])):
        study = study_digests(source.parent / "experiments" / f"{name}.yaml", source.parent)
        write_json(folder / "studies" / f"{name}.json", study)


def stage_digests(runs: Sequence[Run], folder: Path) -> dict[str, str]:
    """Return stage -> digest of the code of that stage and the stages before it, in all runs of the default pipeline,
    and of the files that their custom code has opened so far. The digest of `report` has only the code of reports.
    `folder`: the folder of the runs."""
    reader, states, found = code_reader(folder), CodeStates(folder), dict[str, str]()
    roots = {run.system: code_roots(run.params, run.system) for run in runs}
    above: list[str] = []
    for stage in ("prepare", *runs[-1].stages):
        reached = [*AFTER.get(stage, ()), *(root for each in roots.values() for root in each.get(stage, ()))]
        opened: dict[str, str] = {}
        for path in (run.folders(folder).get(stage) for run in runs):
            opened |= states.files(path) if path else {}
        above.append(digest([reader.reached(reached), opened]))
        found[stage] = digest(above)
    found["report"] = digest(reader.reached(AFTER["report"]))
    reader.save()
    return found


def study_digests(path: Path, root: Path) -> dict[str, Any]:
    """Return the digest of a study's `keys` (of the runs that it takes whatever the results are), the digest of all its
    `code`, and the `changes` of code since its stages finished. UserError: the study cannot be planned."""
    plan, reader = plan_study(path, root), code_reader(root / "runs")
    least = len(plan.seeds) if plan.rule is None else seed_options(plan.rule).at_least
    runs = [run for run in plan.runs if run.seed in plan.seeds[:least]]
    named = [choice.name for choice in plan.design.figures]
    named += [Choice.read(metric.choice).name for metric in plan.design.own_metrics if metric.choice]
    roots = {*AFTER["report"], *(name.partition(":")[0] for name in named if ":" in name)}
    for run in runs:
        roots |= {one for modules in code_roots(run.params, run.system).values() for one in modules}
    now = wanted(plan, Results(root)) if plan.search is None else runs  # only the sweep of a search chooses trials
    changes = {change for one, _ in other_code(now, root) for change in one.changes}
    keys, code = [run.run_key for run in runs], reader.reached(sorted(roots))
    reader.save()
    return {"keys": digest(keys), "code": digest(code), "changes": sorted(changes)}


if __name__ == "__main__":
    try:
        write_effective(Path("params.yaml"), Path(sys.argv[1]))
    except UserError as error:
        sys.exit(f"error: {error}")
