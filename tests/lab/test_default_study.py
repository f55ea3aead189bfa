"""The study `default` follows the present params.yaml, for every reader, and readers write nothing."""

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import realm_lab
from realm_lab.cli import main
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.systems.identity import DEFAULT_SYSTEMS, plan_run
from realm_lab.evidence.compare import find_side
from realm_lab.lab import pipeline
from realm_lab.lab.housekeeping import list_runs, unneeded
from realm_lab.lab.launchers import InlineLauncher
from realm_lab.lab.plan import default_plan
from realm_lab.lab.project import studies_of
from realm_lab.lab.tracking.views import read_groups
from realm_lab.lab.wanted import record_study
from realm_lab.records.digests import DIGESTS
from realm_lab.records.study import read_study_record, study_folder
from tests import tiny

QUESTION = "who is the mayor of zovzen ?"
EXPERIMENT = {"finetune.steps": 1}
Snapshot = dict[str, tuple[int, bytes]]


@pytest.fixture(scope="module")
def after_an_experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project after its default pipeline, an experiment, and `git checkout params.yaml; dvc repro`: DVC takes every
    stage from its cache, so no realm-lab command runs."""
    root = tmp_path_factory.mktemp("project")
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(pipeline, "LocalLauncher", InlineLauncher)
        for changes, stage in itertools.product(({}, EXPERIMENT), ("prepare", *tiny.STAGES)):
            pipeline.run(stage, pipeline.planned(tiny.params(changes)), root)
    shutil.copy(tiny.PARAMETERS, root / "params.yaml")
    return root


@pytest.fixture
def root(after_an_experiment: Path, tmp_path: Path) -> Path:
    """A copy of `after_an_experiment`."""
    return Path(shutil.copytree(after_an_experiment, tmp_path / "project", symlinks=True))


def keys_of(params: Params) -> list[str]:
    return [plan_run(params, system, 0).run_key for system in DEFAULT_SYSTEMS]


def files(root: Path) -> Snapshot:
    """Everything under runs/ and data/, with times."""
    paths = [path for folder in ("runs", "data") for path in (root / folder).rglob("*") if path.is_file()]
    return {str(path.relative_to(root)): (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


def run_keys_in_mlflow(root: Path) -> list[str]:
    members = read_groups(studies_of(root), [])["default"][1]
    return [member.run_key for member in members]


READERS: dict[str, Callable[[Path], list[str]]] = {
    "results": lambda root: list(realm_lab.results("default", root)["run_key"]),
    "load_run": lambda root: [
        realm_lab.load_run(f"default/{system}-s0", root).record.run_key for system in DEFAULT_SYSTEMS
    ],
    "compare": lambda root: [
        json.loads((root / "runs" / run / "run.json").read_text())["run_key"]
        for system in DEFAULT_SYSTEMS
        for run in find_side(studies_of(root), f"default/{system}").runs
    ],
    "mirror": run_keys_in_mlflow,
    "runs": lambda root: sorted(
        next(one.run_key for one in studies_of(root).read("default").runs if one.name == run["run"])
        for run in list_runs(root)
        if any(study.startswith("default/") for study in run["studies"])
    ),
}


@pytest.mark.parametrize(
    "command",
    [
        ["status"],
        ["status", "default", "--json"],
        ["compare", "default/warm_start", "default/realm"],
        ["evaluate", "--dry-run"],
        ["ask", QUESTION, "--run", "default/realm-s0"],
    ],
    ids=" ".join,
)
def test_a_verb_that_reads_writes_nothing_into_runs(
    root: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = files(root)
    assert main(["--root", str(root), *command]) == 0
    after = files(root)
    assert {name: after[name] for name in before} == before
    new = {name for name in after if name not in before}
    assert {name.split("/")[1] for name in new} <= {"embeddings", "bm25"}, "what `ask` computes for the next question"
    printed = capsys.readouterr().out
    if command[:1] == ["ask"]:
        assert plan_run(tiny.params(), "realm", 0).name in printed
    if command == ["status", "default", "--json"]:
        assert [run["run_key"] for run in json.loads(printed)["runs"]] == keys_of(tiny.params())


@pytest.mark.slow
def test_the_report_is_that_of_params_yaml(root: Path) -> None:
    before = files(root)
    assert main(["--root", str(root), "report", "default"]) == 0
    assert files(root) == before
    table = (root / "reports" / "default" / "results.csv").read_text()
    assert all(key in table for key in keys_of(tiny.params()))


def test_parameters_that_have_not_run_have_no_results(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Readers never get the results of other parameters, and nothing that ran is deleted."""
    text = (root / "params.yaml").read_text()
    (root / "params.yaml").write_text(text.replace("seeds: [0]", "seeds: [7]"))
    found = realm_lab.results("default", root)
    assert (set(found["status"]), found["exact_match"].notna().any()) == ({"PENDING"}, False)
    for use in (lambda: realm_lab.load_run("default/realm-s7", root), lambda: READERS["compare"](root)):
        with pytest.raises(realm_lab.UserError, match="as it is now; run `realm-lab run`"):
            use()
    with pytest.raises(realm_lab.UserError, match="no such variant or run"):
        realm_lab.load_run("default/realm-s0", root)
    assert run_keys_in_mlflow(root) == []
    assert main(["--root", str(root), "status", "default", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["counts"] == {"PENDING": 2}
    assert all("realm-lab run" in run["reason"] for run in shown["runs"])
    recorded = read_study_record(study_folder(root / "runs", "default") / "study.json")
    assert not {run.name for run in recorded.runs} & {path.name for path in unneeded(root)}


def test_a_run_that_has_not_finished_is_refused_with_the_command_of_its_study(root: Path) -> None:
    record = realm_lab.load_run("default/realm-s0", root).record
    status = record.folders(root / "runs")["evaluate"] / "status.json"
    status.write_text(json.dumps(json.loads(status.read_text()) | {"state": "PREEMPTED"}))
    status.with_name(DIGESTS).unlink()
    with pytest.raises(realm_lab.UserError, match=r"not finished \(PREEMPTED at evaluate\); run `realm-lab run`"):
        realm_lab.load_run(record.name, root)


def set_steps(root: Path, steps: int) -> None:
    """Change params.yaml as `dvc exp run -S finetune.steps=N` or `dvc exp apply` does."""
    path = root / "params.yaml"
    path.write_text(path.read_text().replace("finetune:\n  steps: 12", f"finetune:\n  steps: {steps}"))


@pytest.mark.parametrize("recorded", ["experiment", "default", "nothing"])
def test_an_applied_experiment_is_what_readers_have(root: Path, recorded: str) -> None:
    """The record may name any runs: `dvc exp apply` and a checkout of an old commit change only params.yaml."""
    path = study_folder(root / "runs", "default") / "study.json"
    if recorded == "default":
        record_study(default_plan(tiny.params()), root)
    elif recorded == "nothing":  # of an experiment with --temp, which recorded a study of another name
        path.write_text(json.dumps(json.loads(path.read_text()) | {"runs": []}))
    set_steps(root, 1)
    wanted = keys_of(tiny.params(EXPERIMENT))
    before = files(root)
    for reader, read in READERS.items():
        assert sorted(read(root)) == sorted(wanted), reader
    assert files(root) == before


def test_where_runs_was_deleted_only_report_puts_back_what_dvc_keeps(root: Path) -> None:
    """DVC keeps the experiment's stages here: no `dvc repro` took the others from its cache."""
    set_steps(root, 1)
    shutil.rmtree(root / "runs")
    (root / "runs").mkdir()
    assert main(["--root", str(root), "status", "default"]) == 2
    with pytest.raises(realm_lab.UserError, match="`realm-lab report` puts back what DVC keeps"):
        realm_lab.load_run("default/realm-s0", root)
    assert list((root / "runs").iterdir()) == []
    (root / "models" / "mine" / "reader").mkdir(parents=True)
    (root / "models" / "mine" / "reader" / "manifest.json").write_text("{}")  # of the user, without a key
    record = next((root / "data" / "records").glob("evaluate/*/results.json"))
    kept = record.rename(root / "results.json")
    record.symlink_to(root / "nowhere")
    with pytest.raises(OSError, match="results"):  # stopped in the middle
        pipeline.put_back(root)
    kept.replace(record)
    pipeline.put_back(root)
    assert list(realm_lab.results("default", root)["status"]) == ["COMPLETE"] * 2
