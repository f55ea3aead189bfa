"""A package outside realm_lab, made only from docs/extending.md: installed, used in a study, and used wrongly."""

import csv
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

PACKAGE = Path(__file__).with_name("outside_package")
STUDY = """
question: Do the parts of the package work?
seeds: [0]
baseline: realm
metrics: [exact_match, {name: answer_length, unit: letters}]
set: {corpus.source: {name: towns, towns: 30}, corpus.tagger: rule, corpus.pretrain_corpus: same}
cells:
  realm: {}
  parts:
    set:
      pretrain.masking: {name: endings, share: 0.3, also: [mayor]}
      pretrain.refresh.policy: {name: doubling, first: 4}
  random: {system: {name: random_reader, salt: 1}}
"""
LENGTH = "answer_length_unit_letters"
COMPARE = ["compare", "own/realm", "own/random"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which pip has installed the package."""
    source, target = tmp_path_factory.mktemp("source") / "package", tmp_path_factory.mktemp("installed")
    shutil.copytree(PACKAGE, source)  # pip builds in the folder
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", target, source], check=True)
    return target


@pytest.fixture
def project(tmp_path: Path, repository: Path) -> Path:
    """A project with a preset and a study."""
    (tmp_path / "params.yaml").write_text("preset: small\n")
    (tmp_path / "presets").mkdir()
    small = (repository / "tests" / "tiny.yaml").read_text() + "tokenizer: {vocabulary_size: 200}\n"
    (tmp_path / "presets" / "small.yaml").write_text(small)
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "own.yaml").write_text(STUDY)
    return tmp_path


def run(project: Path, installed: Path, *commands: list[str]) -> list[tuple[int, str, str]]:
    """Run verbs in one process. Returns the exit code, the output and the errors of each."""
    code = (
        "import contextlib, io, json, sys\n"
        "from realm_lab.cli import main\n"
        "found = []\n"
        "for command in json.loads(sys.argv[1]):\n"
        "    out, errors = io.StringIO(), io.StringIO()\n"
        "    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):\n"
        "        code = main(command)\n"
        "    found.append((code, out.getvalue(), errors.getvalue()))\n"
        "print(json.dumps(found))\n"
    )
    path = os.pathsep.join([str(installed), os.environ.get("PYTHONPATH", str(PACKAGE.parents[1]))])
    done = subprocess.run(
        [sys.executable, "-c", code, json.dumps(commands)],
        cwd=project,
        env=os.environ | {"PYTHONPATH": path},
        text=True,
        stdout=subprocess.PIPE,
        check=True,
    )
    return [tuple(one) for one in json.loads(done.stdout.splitlines()[-1])]


def keys(project: Path, installed: Path) -> dict[str, str]:
    ((code, out, errors),) = run(project, installed, ["sweep", "own", "--dry-run", "--json"])
    assert code == 0, errors
    return {row["cell"]: row["run_key"] for row in json.loads(out)}


@pytest.mark.slow
def test_all_of_its_parts_are_run_reported_tracked_and_compared(project: Path, installed: Path) -> None:
    uri = f"sqlite:///{project / 'mlflow.db'}"
    track = ["mirror", "--tracker", "{name: lines, folder: lines}"]
    sweep = ["sweep", "own", "--launcher", "{name: commands, before: [nice]}"]
    for code, _, errors in run(project, installed, sweep, ["mirror", "--uri", uri], track, COMPARE):
        assert code == 0, errors
    with (project / "reports" / "own" / "results.csv").open() as file:
        rows = {row["cell"]: row for row in csv.DictReader(file)}
    assert {row["status"] for row in rows.values()} == {"COMPLETE"}
    lengths = {cell: float(row[LENGTH]) for cell, row in rows.items()}
    assert all(length > 0 for length in lengths.values())
    summary = json.loads((project / "reports" / "own" / "summary.json").read_text())
    assert summary["cells"]["random"]["metrics"][LENGTH]["mean"] == pytest.approx(lengths["random"])
    assert summary["warnings"] == []
    title = "ean length of the answer (unit = letters)"
    assert title in (project / "reports" / "own" / "report.md").read_text()
    assert title in (project / "reports" / "compare" / "own.realm-vs-own.random" / "report.md").read_text()

    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("realm_lab/own")
    assert experiment is not None
    shown = {found.data.tags["realm.variant"]: found for found in client.search_runs([experiment.experiment_id])
             if found.data.tags["realm.kind"] == "run"}  # fmt: skip
    assert {cell: found.data.metrics[LENGTH] for cell, found in shown.items()} == pytest.approx(lengths)
    assert shown["random"].data.params["system_options.random_reader.salt"] == "1"
    lines = [json.loads(line) for line in (project / "lines" / "own.jsonl").read_text().splitlines()]
    tracked = {line["name"]: line["points"].get(LENGTH) for line in lines}
    assert {f"{cell}-s0": length for cell, length in lengths.items()}.items() <= tracked.items()

    record = json.loads((project / "runs" / "studies" / "own" / "study.json").read_text())
    (name,) = (found["run"] for found in record["runs"] if found["cell"] == "parts")
    stage = json.loads((project / "runs" / name / "run.json").read_text())["stages"]["pretrain"]
    steps = [json.loads(line) for line in (project / "runs" / stage / "metrics.jsonl").read_text().splitlines()]
    assert max(row.get("refreshes", 0) for row in steps) == 2, "at steps 4 and 8 of 12"


@pytest.mark.slow
def test_a_metric_is_added_to_finished_runs(project: Path, installed: Path) -> None:
    path = project / "experiments" / "own.yaml"
    short = STUDY.partition("  parts:")[0]
    path.write_text(short.replace(", {name: answer_length, unit: letters}", ""))
    sweep = ["sweep", "own", "--launcher", "inline"]
    ((code, _, errors),) = run(project, installed, sweep)
    assert code == 0, errors
    before = sorted(found.stat().st_mtime_ns for found in project.glob("runs/stages/*/results.json"))
    path.write_text(short)
    ((code, _, errors),) = run(project, installed, sweep)
    assert code == 0, errors
    assert before == sorted(found.stat().st_mtime_ns for found in project.glob("runs/stages/*/results.json"))
    with (project / "reports" / "own" / "results.csv").open() as file:
        assert all(float(row[LENGTH]) > 0 for row in csv.DictReader(file))


CHANGED: dict[str, set[str]] = {
    "lengths.py": {"parts"},  # a module that the masking scheme imports
    "towns.py": {"realm", "parts", "random"},
}


@pytest.mark.slow
def test_the_code_of_a_part_is_in_the_keys_of_its_runs(project: Path, installed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(installed, copy)
    before = keys(project, copy)
    for file, changed in CHANGED.items():
        path = copy / "harbour" / file
        text = path.read_text()
        path.write_text(f"{text}\nADDED = 1\n")
        after = keys(project, copy)
        path.write_text(text)
        assert {cell for cell in before if before[cell] != after[cell]} == changed, file


@pytest.mark.slow
def test_it_has_options_of_its_system_in_a_preset(project: Path, installed: Path, tmp_path: Path) -> None:
    path = project / "experiments" / "own.yaml"
    lines = "question: Which?\npreset: smoke\nseeds: [0]\nbaseline: random\ncells: {random: {system: %s}}\n"
    path.write_text(lines % "{name: random_reader, salt: 3}")
    given = keys(project, installed)
    path.write_text(lines % "random_reader")
    assert keys(project, installed) == given
    path.write_text(lines.replace("smoke", "toy") % "random_reader")
    assert keys(project, installed) != given

    copy = tmp_path / "copy"
    shutil.copytree(installed, copy)
    (copy / "harbour" / "presets" / "toy.yaml").write_text("\nrandom_reader: {sault: 3}\n")
    ((code, _, errors),) = run(project, copy, ["sweep", "own", "--dry-run"])
    assert (code, errors.count("\n")) == (2, 1)
    assert "harbour/presets/toy.yaml, line 2" in errors
    assert "no option 'sault' of 'random_reader'; did you mean 'salt'?" in errors


@pytest.mark.slow
def test_one_that_fails_is_named_in_a_line(project: Path, installed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(installed, copy)
    (copy / "harbour" / "plugin.py").write_text("1 / 0\n")
    for code, _, errors in run(project, copy, ["run", "--dry-run"], ["sweep", "own", "--dry-run"]):
        assert (code, errors.count("\n")) == (2, 1), errors
        assert "entry point harbour of realm_lab.plugins" in errors
        assert "ZeroDivisionError in plugin.py, line 1" in errors


WRONG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown option": (
        {"share: 0.3": "shore: 0.3"},
        ["own.yaml, line 11", "pretrain.masking", "no option 'shore' of 'endings'; did you mean 'share'?"],
    ),
    "wrong type": ({"salt: 1": "salt: one"}, ["own.yaml, line 13", "salt must be a whole number, got 'one'"]),
    "wrong option of a metric": ({"unit: letters": "unit: lines"}, ["own.yaml, line 5", "'answer_length'", "unit"]),
    "wrong type of a source": ({"towns: 30": "towns: many"}, ["own.yaml, line 6", "'towns'", "whole number"]),
    "unknown option of a launcher": (
        {"seeds: [0]": "seeds: [0]\nlauncher: {default: {name: commands, after: [nice]}}"},
        ["own.yaml, line 4", "'launcher.default'", "no option 'after' of 'commands'; choose from: before"],
    ),
}


@pytest.mark.slow
def test_each_wrong_use_is_one_line_that_names_file_and_line(project: Path, installed: Path) -> None:
    for number, (replaced, _) in enumerate(WRONG.values()):
        folder = project / "experiments" / str(number)
        folder.mkdir()
        ((old, new),) = replaced.items()
        assert old in STUDY
        (folder / "own.yaml").write_text(STUDY.replace(old, new))
    commands = [["sweep", f"experiments/{number}/own.yaml", "--dry-run"] for number in range(len(WRONG))]
    for name, (code, _, errors) in zip(WRONG, run(project, installed, *commands), strict=True):
        assert code == 2, name
        assert errors.count("\n") == 1, errors
        for part in WRONG[name][1]:
            assert part in errors, errors
