"""`realm-lab doctor` finds every fault, names missing things, and always gives the remedy."""

import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from realm_lab import cli
from realm_lab.cli import doctor
from realm_lab.cli.doctor import Diagnosis, examine
from realm_lab.engine.params.load import load
from realm_lab.engine.params.parameters import Params


def params(folder: Path, text: str = "preset: smoke\n") -> Params:
    (folder / "params.yaml").write_text(text)
    return load(folder / "params.yaml")


def diagnoses(folder: Path, text: str = "preset: smoke\n") -> dict[str, Diagnosis]:
    return {diagnosis.subject: diagnosis for diagnosis in examine(params(folder, text), folder)}


def program(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with only git and the programs of the test."""
    folder = tmp_path / "bin"
    folder.mkdir()
    git = shutil.which("git")
    assert git is not None
    program(folder, "git", f'exec {git} "$@"')
    monkeypatch.setenv("PATH", str(folder))
    return folder


def test_it_looks_at_everything(tmp_path: Path) -> None:
    found = diagnoses(tmp_path)
    assert {*"Python processor memory PyTorch FAISS SLURM MLflow DVC disk load".split(), "tracking store"} <= set(found)
    assert found["Python"].state == found["PyTorch"].state == found["FAISS"].state == "OK"
    assert found["parameters"] == Diagnosis("OK", "parameters", "preset smoke, seeds [0]")
    assert found["corpus"].state == "OK"


def test_what_is_missing_comes_with_a_remedy(tmp_path: Path, commands: Path) -> None:
    found = diagnoses(tmp_path, "preset: real\n")
    missing = [diagnosis for diagnosis in found.values() if diagnosis.state == "missing"]
    assert {diagnosis.subject for diagnosis in missing} >= {"model.checkpoint", "corpus.files.knowledge", "dvc"}
    assert [diagnosis for diagnosis in missing if not diagnosis.remedy] == []
    assert found["SLURM"] == Diagnosis("note", "SLURM", "not installed; runs stay on this machine")


def test_a_package_that_fails_to_import_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise OSError(f"lib{name}.so: cannot open shared object file")

    monkeypatch.setattr("importlib.import_module", fail)
    found = {diagnosis.subject: diagnosis for diagnosis in doctor._packages()}
    assert found["FAISS"] == Diagnosis("missing", "FAISS", "libfaiss.so: cannot open shared object file", "make setup")
    assert found["MLflow"].state == "OK"


def test_files_of_the_parameters_are_looked_for_from_the_root(tmp_path: Path) -> None:
    (tmp_path / "encoder").mkdir()
    (tmp_path / "encoder" / "config.json").write_text('{"model_type": "bert"}')
    (tmp_path / "encoder" / "model.safetensors").write_bytes(b"")
    (tmp_path / "wiki.jsonl").write_text("{}\n")
    files = "{knowledge: [wiki.jsonl], questions_test: [absent.json]}"
    found = diagnoses(tmp_path, f"preset: real\nmodel: {{checkpoint: encoder}}\ncorpus:\n  files: {files}\n")
    assert found["model.checkpoint"] == Diagnosis("OK", "model.checkpoint", "encoder")
    assert found["corpus.files.knowledge"] == Diagnosis("OK", "corpus.files.knowledge", "wiki.jsonl")
    assert found["corpus.files.questions_test"].state == "missing"
    assert found["corpus.files.questions_test"].found == "absent.json: no such file or folder"
    assert found["tokenizer.checkpoint"].found == "models/checkpoint: no such file or folder"


def test_checkpoints_that_cannot_be_used_are_wrong(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text('{"model_type": "mpnet"}')
    (tmp_path / "other" / "tokenizer.json").write_text('{"model": {"type": "BPE"}}')
    (tmp_path / "causal").mkdir()
    text = "preset: smoke\nmodel: {checkpoint: other}\ntokenizer: {checkpoint: other}\n"
    text += "pretrain: {causal_checkpoint: causal, train_reader: false}\n"
    found = diagnoses(tmp_path, text)
    assert found["pretrain.causal_checkpoint"].state == "wrong"
    assert [found[f"{name}.checkpoint"].state for name in ("model", "tokenizer")] == ["wrong", "wrong"]


def test_all_contradictions_are_listed_as_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pretrain = "{candidates: 1, null_document: encoded, train_reader: true, reward: containment}"
    text = f"preset: toy\nmodel: {{heads: 5}}\npretrain: {pretrain}\nfinetune: {{objective: gated}}\n"
    (tmp_path / "params.yaml").write_text(text)
    (tmp_path / "experiments").mkdir()
    changes = "model.projection: identity, model.projection_size: 8"
    changes += ", pretrain.candidates: 1, pretrain.null_document: encoded"
    cells = f"baseline: a\ncells:\n  a:\n  b: {{set: {{{changes}}}}}\n"
    (tmp_path / "experiments" / "two.yaml").write_text(f"question: Why?\npreset: toy\nseeds: [0]\n{cells}")

    def listed(subject: str, *words: str) -> list[str]:
        assert cli.main(["doctor", *words, "--root", str(tmp_path), "--json"]) == 1
        found = [one for one in json.loads(capsys.readouterr().out) if one["subject"] == subject]
        assert {one["state"] for one in found} == {"wrong"}
        return [one["found"] for one in found]

    found = listed("parameters")
    names = ["model.hidden_size", "pretrain.candidates", "pretrain.reward", "finetune.objective"]
    assert [next(name for name in names if name in one) for one in found] == names
    assert all(line in one for one, line in zip(found, ("line 2", "line 3", "line 3", "line 4"), strict=True))
    (tmp_path / "params.yaml").write_text("preset: toy\n")
    found = listed("study two", "two")
    assert ["projection: identity" in found[0], "candidates: 1" in found[1], len(found)] == [True, True, 2]


@pytest.mark.parametrize(("step", "state"), [("steps: 3", "OK"), ("stepz: 3", "wrong")])
def test_a_study_is_planned_and_what_its_cells_name_is_looked_for(
    step: str, state: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    params(tmp_path)
    (tmp_path / "experiments").mkdir()
    cells = f"baseline: a\ncells:\n  a:\n  b: {{set: {{pretrain: {{{step}}}}}}}\n"
    (tmp_path / "experiments" / "two.yaml").write_text(f"question: Why?\nseeds: [0]\n{cells}")
    assert cli.main(["doctor", "two", "--root", str(tmp_path), "--json"]) == (state == "wrong")
    found = [diagnosis for diagnosis in json.loads(capsys.readouterr().out) if diagnosis["subject"] == "study two"]
    assert [diagnosis["state"] for diagnosis in found] == [state]
    assert ("line 6" in found[0]["found"]) == (state == "wrong")
    assert cli.main(["doctor", "twp", "--root", str(tmp_path)]) == 2
    assert "'two'" in capsys.readouterr().err


def test_a_search_is_planned_by_its_trials(tmp_path: Path) -> None:
    params(tmp_path)
    path = tmp_path / "search-mine.yaml"
    space = "{finetune.steps: {low: 1, high: 99}}"
    path.write_text(f"question: Why?\nseeds: [0]\nspace: {space}\nmetric: exact_match_dev\n")
    found = {one.subject: one.found for one in doctor.examine_study(path, tmp_path, tmp_path / "params.yaml", {})}
    assert found["study search-mine"] == "its trials can be planned"


def test_broken_digests_count_as_a_damaged_file(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "stages" / "prepare-abc"
    folder.mkdir(parents=True)
    (folder / "digests.json").write_text("[]")
    found = {one.subject: one.found for one in doctor.verify(tmp_path)}
    assert found["finished files"] == "0 of 1 files in 1 folders are as they were written"
    assert "files without a digest" not in found


@pytest.mark.parametrize(
    ("idle", "steal", "state", "text"),
    [
        (50.0, 0.0, "note", "other programs use 2.0 of 4 cores"),
        (100.0, 0.0, "OK", "other programs use 0.0 of 4 cores"),
        (75.0, 25.0, "note", "other programs use 0.0 of 4 cores, the host takes 1.0"),
    ],
)
def test_cores_that_others_take_are_measured(
    monkeypatch: pytest.MonkeyPatch, idle: float, steal: float, state: str, text: str
) -> None:
    times = SimpleNamespace(idle=idle, iowait=0.0, steal=steal)
    monkeypatch.setattr("psutil.cpu_times_percent", lambda seconds: times)
    monkeypatch.setattr("psutil.cpu_count", lambda: 4)
    found = doctor._others()
    assert (found.state, found.subject, found.found) == (state, "load", text)
    assert bool(found.remedy) == (state == "note")


@pytest.mark.parametrize(
    ("scontrol", "state", "said"),
    [
        ('echo "Slurmctld(primary) at head is UP"', "OK", "Slurmctld(primary) at head is UP"),
        ('echo "Slurmctld(primary) at head is DOWN"', "note", "is DOWN"),
        ('echo "slurm_load_ctl_conf error: Unable to contact" >&2; exit 1', "note", "Unable to contact"),
        ("read line < held", "note", "timed out after 0.2 seconds"),
    ],
)
def test_slurm_is_there_when_its_controller_answers(
    scontrol: str, state: str, said: str, tmp_path: Path, commands: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "held")  # reading from it waits for a writer that never comes
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "SLURM_TIMEOUT_SECONDS", 0.2)
    program(commands, "scontrol", scontrol)
    slurm = doctor._slurm()
    assert slurm.state == state
    assert said in slurm.found
    assert bool(slurm.remedy) == (state != "OK")


def test_the_tracking_uri_in_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor._store(None, tmp_path).found == f"sqlite:///{tmp_path}/mlflow.db"
    named = params(tmp_path, "preset: smoke\nlaunch: {tracking_uri: 'http://me:secret@here:1'}\n")
    assert doctor._store(named, tmp_path).found == "http://me:***@here:1"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://there:2")
    assert doctor._store(named, tmp_path).found == "http://there:2"


@pytest.mark.parametrize(("text", "code"), [("preset: smoke\n", 0), (None, 1)])
def test_the_exit_code_says_whether_something_is_missing(
    text: str | None, code: int, tmp_path: Path, commands: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program(commands, "dvc", "exit 0")
    if text is not None:
        (tmp_path / "params.yaml").write_text(text)
    assert cli.main(["doctor", "--root", str(tmp_path)]) == code
    printed = capsys.readouterr()
    assert printed.err == ""
    assert "PyTorch" in printed.out
    assert ("missing" in printed.out) == bool(code)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_nothing_to_try(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--gpu", "--preset", "smoke", "--root", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("realm-lab: error: no GPU: torch ")


def test_a_preset_that_names_no_corpus_is_refused_where_a_run_would_fail(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--root", str(tmp_path), "doctor", "--preset", "paper"]) == 1
    assert "corpus.files.knowledge" in capsys.readouterr().out
    for flags in ([], ["--dry-run"]):
        assert cli.main(["--root", str(tmp_path), "prepare", "--preset", "paper", *flags]) == 2
        assert "'corpus.files.knowledge'" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
