"""A project made by `realm-lab init` with only the wheel, and the results of `gc` in it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from realm_lab import cli
from realm_lab.engine.params.load import flatten, load
from realm_lab.engine.params.params_yaml import render_params_yaml
from realm_lab.records.files import write_json, write_text
from realm_lab.records.run import Run, StageRun, write_run
from realm_lab.records.study import StudyCell, StudyRecord, write_study_record
from realm_lab.records.yaml_file import parse_yaml
from tests import tiny

REPOSITORY = Path(__file__).parents[1]


def test_a_project_is_made_once_and_its_parameters_are_the_preset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--root", str(tmp_path), "init", "mine", "--preset", "smoke"]) == 0
    assert "realm-lab doctor" in capsys.readouterr().out
    assert load(tmp_path / "mine" / "params.yaml").preset == "smoke"
    assert (tmp_path / "mine" / "examples" / "countries.jsonl").is_file()
    assert cli.main(["--root", str(tmp_path), "init", "mine"]) == 2
    assert "already exists; choose another folder" in capsys.readouterr().err
    assert cli.main(["--root", str(tmp_path), "init", "other", "--preset", "smoky"]) == 2
    assert not (tmp_path / "other").exists()


def recorded(runs: Path, key: str, study: str | None) -> Run:
    key = key * 12
    record = Run("realm", 0, key, f"realm-s0-{key}", None, "realm", {}, key, {"evaluate": key})
    write_run(runs, record)
    StageRun.open(runs, "evaluate", key, {})
    if study:
        cells = (StudyCell("realm", "REALM", "realm", {}),)
        write_study_record(runs, StudyRecord(study, "?", "realm", cells, (0,), (record,)))
    return record


def test_gc_deletes_what_nothing_needs_and_only_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = tmp_path / "runs"
    kept, mistaken, loose = recorded(runs, "a", "good"), recorded(runs, "b", "mistake"), recorded(runs, "c", None)
    write_json(runs / "notes" / "mine.json", {})
    for folder in ("notes", "evaluate-abcdefabcdef"):  # the user's own
        write_text(runs / "stages" / folder / "config.yaml", "stage: evaluate\nkey: ffffffffffff\n")
    reported = recorded(runs, "d", None)  # a report of reference results rests on it
    pending = recorded(runs, "e", None)  # nothing of it was started, so it can go, though a report has its key
    shutil.rmtree(pending.folders(runs)["evaluate"])
    old = tmp_path / "reports" / "reference" / "old" / "results.csv"
    write_text(old, f"run_key\n{reported.run_key}\n{pending.run_key}\n")
    write_json(tmp_path / "elsewhere" / "study.json", {})
    cuts = runs / "corpora" / ".gone.0123.cuts"  # of a preparation that was stopped
    write_text(cuts / "sentences" / "0", "")
    write_json(runs / "corpora" / ("a" * 12) / "manifest.json", {"digest": "kept"})
    write_json(runs / kept.name / "corpus_updates" / "new" / "old" / "prepared" / "manifest.json", {"digest": "put in"})
    corpora = ("kept", "kept updated", "put in", "gone")
    published = [f"{store}/{corpus}" for store in ("embeddings", "bm25") for corpus in corpora]
    for folder in published:
        write_json(runs / folder / "identity.json", {"corpus_digest": folder.rpartition("/")[2]})
        write_json(runs / folder / "manifest.json", {})
    assert cli.main(["--root", str(tmp_path), "gc", "--yes", "--forget", "../../elsewhere"]) == 2
    folders = {record.name: runs / record.name for record in (kept, mistaken, loose, pending)}
    assert cli.main(["--root", str(tmp_path), "gc"]) == 0
    said = capsys.readouterr().out
    assert "6 folders" in said
    assert "nothing is deleted without --yes" in said
    assert all(folder.exists() for folder in folders.values())
    assert cli.main(["--root", str(tmp_path), "gc", "--yes", "--forget", "mistake"]) == 0
    left = {str(path.relative_to(runs)) for path in runs.rglob("*.*") if path.is_file()}
    good = {f"{kept.name}/run.json", "stages/evaluate-aaaaaaaaaaaa/config.yaml", "studies/good/study.json"}
    good |= {f"{folder}/{name}.json" for folder in published[:3] + published[4:7] for name in ("identity", "manifest")}
    good |= {f"corpora/{'a' * 12}/manifest.json", f"{kept.name}/corpus_updates/new/old/prepared/manifest.json"}
    good |= {f"stages/{folder}/config.yaml" for folder in ("notes", "evaluate-abcdefabcdef")}
    good |= {f"{folder}/digests.json" for folder in (kept.name, reported.name, "studies/good")}
    assert left == good | {"notes/mine.json", f"{reported.name}/run.json", "stages/evaluate-dddddddddddd/config.yaml"}
    assert not cuts.exists()
    assert (tmp_path / "elsewhere" / "study.json").is_file()
    assert cli.main(["--root", str(tmp_path), "gc", "--forget", "nothing"]) == 2
    assert cli.main(["--root", str(tmp_path), "status", "--runs"]) == 0
    assert "good/realm" in capsys.readouterr().out


def test_gc_takes_a_link_away_and_nothing_that_it_points_to(tmp_path: Path) -> None:
    for key in ("a", "b"):
        StageRun.open(tmp_path / "runs", "evaluate", key * 12, {})
    stages = tmp_path / "runs" / "stages"
    linked = (stages / "evaluate-aaaaaaaaaaaa").rename(tmp_path / "elsewhere")
    (stages / "evaluate-aaaaaaaaaaaa").symlink_to(linked)
    assert cli.main(["--root", str(tmp_path), "gc", "--yes"]) == 0
    assert not list(stages.iterdir())
    assert (linked / "config.yaml").is_file()


def test_gc_names_a_report_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = StageRun.open(tmp_path / "runs", "evaluate", "a" * 12, {})
    report = tmp_path / "reports" / "mine" / "results.csv"
    report.parent.mkdir(parents=True)
    report.write_bytes(b"run_key\n\xe9\n")
    assert cli.main(["--root", str(tmp_path), "gc", "--yes"]) == 2
    assert str(report) in capsys.readouterr().err
    assert run.path.exists()


@pytest.mark.slow
def test_with_the_wheel_alone_dvc_repro_runs(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("realm_lab", "examples", "experiments"):
        shutil.copytree(REPOSITORY / name, source / name, symlinks=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "dvc.yaml", ".gitignore", ".dvcignore"):
        shutil.copy(REPOSITORY / name, source)
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--target", str(tmp_path / "site")]
    subprocess.run([*pip, "install", *options, str(source)], check=True)
    shutil.rmtree(source)
    assert (tmp_path / "site" / "realm_lab" / "py.typed").is_file()
    path = os.pathsep.join([str(tmp_path / "site" / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site"), "PATH": path}

    def shell(*command: str, folder: Path) -> str:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    shell("realm-lab", "init", "project", "--preset", "smoke", folder=tmp_path)
    project = tmp_path / "project"
    filled = flatten(parse_yaml(tiny.PARAMETERS.read_text(), "tiny.yaml"))
    (project / "params.yaml").write_text(render_params_yaml(filled))
    shell("dvc", "repro", folder=project)
    assert shell("dvc", "status", folder=project) == "parameters:\n\talways changed\n"  # and nothing else
    assert (project / "reports" / "index.html").is_file()
    assert "quick" in shell("realm-lab", "sweep", "quick", "--seeds", "1", "--dry-run", folder=project)
    assert "own_text" in shell("realm-lab", "sweep", "own_text", "--dry-run", folder=project)
    assert "runs/stages" not in shell("realm-lab", "gc", folder=project)
