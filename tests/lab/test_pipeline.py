"""The default pipeline, once, with real workers: its outputs, its reuse of finished work, and its failures."""

import csv
import math
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from realm_lab.cli import main
from realm_lab.engine.corpus.store import PreparedCorpus
from realm_lab.engine.systems.context import open_run
from realm_lab.engine.systems.identity import kept_corpus_folder, plan_run
from realm_lab.errors import UserError
from realm_lab.evidence.report.report import write_study_report
from realm_lab.lab import pipeline as stages
from realm_lab.records.files import MARK, read_json, read_json_lines
from realm_lab.records.run import read_run
from realm_lab.records.state import StageStates
from realm_lab.records.study import read_study_record, study_record_paths
from tests import tiny

PARAMS = tiny.params()

pytestmark = pytest.mark.slow  # each verb of the pipeline starts processes, and each of these imports PyTorch
STAGES = ("prepare", "warm_start", "pretrain", "finetune", "evaluate")
SHARES = ("exact_match", "exact_match_span", "f1", "recall_at_1", "recall_at_5", "recall_at_20")
UTILITIES = ("retrieval_utility_start", "retrieval_utility_end")


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project where `dvc repro` would have nothing left to do."""
    root = tmp_path_factory.mktemp("done")
    for stage in STAGES:
        stages.run(stage, stages.planned(PARAMS), root)
    write_study_report(root, "default")
    return root


@pytest.fixture
def project(done: Path, tmp_path: Path) -> Path:
    """A copy of `done` that a test may change."""
    return Path(shutil.copytree(done, tmp_path / "project"))


def tree(root: Path, *folders: str) -> dict[str, int]:
    """Every file, with the time at which it was last written."""
    paths = [path for folder in folders for path in sorted((root / folder).rglob("*"))]
    return {str(path.relative_to(root)): path.stat().st_mtime_ns for path in paths}


def stage_files(root: Path) -> dict[str, bytes]:
    """Return the outputs of the training stages and the evaluation in runs/."""
    found = tiny.files(root / "runs" / "stages")
    return {name: text for name, text in found.items() if name[:7] != "prepare" and "/lease/" not in name}


def stage_folders(root: Path, stage: str) -> set[str]:
    return {path.name for path in (root / "runs" / "stages").glob(f"{stage}-*")}


def test_metrics_have_the_fixed_keys(done: Path) -> None:
    metrics = read_json(done / "reports" / "metrics.json")
    assert (metrics["preset"], metrics["seeds"]) == (PARAMS.preset, [0])
    for system in ("realm", "warm_start"):
        assert {*SHARES, *UTILITIES, "gold_recall_at_5", "questions", "seeds"} <= metrics[system].keys()
        assert all(0 <= metrics[system][name] <= 1 for name in SHARES)
        assert all(math.isfinite(metrics[system][name]) for name in UTILITIES)
        assert not {"bm25", "corpus_update"} & metrics[system].keys()
    assert {"follows", "stays", "wrong", "seeds"} <= metrics["corpus_update"].keys()
    assert {"recall_at_1", "recall_at_5", "recall_at_20", "gold_recall_at_5"} <= metrics["bm25"].keys()
    assert metrics["bm25"]["recall_at_20"] > 0.5  # the questions have the words of the passages


def test_the_baseline_starts_and_ends_at_the_warm_start(done: Path) -> None:
    metrics = read_json(done / "reports" / "metrics.json")
    baseline, realm = metrics["warm_start"], metrics["realm"]
    assert baseline["retrieval_utility_start"] == baseline["retrieval_utility_end"]
    assert realm["retrieval_utility_start"] == baseline["retrieval_utility_start"]
    assert realm["retrieval_utility_start"] != realm["retrieval_utility_end"]


def test_results_follow_from_the_scores_of_each_example(done: Path) -> None:
    for system in ("realm", "warm_start"):
        run = tiny.stage_run("evaluate", PARAMS, done, system)
        results, folder = run.results(), run.path / "eval"
        predictions = read_json_lines(folder / "predictions.jsonl")
        assert len(predictions) == results["questions"] == PARAMS.evaluate.questions
        for name in ("exact_match", "exact_match_span", "f1"):
            assert results[name] == pytest.approx(sum(row[name] for row in predictions) / len(predictions))
        assert all(row["id"].startswith(f"{row['cluster']}/") for row in predictions), "the article of the fact"
        known = [row["exact_match"] for row in predictions if row["answer_overlap"]]
        new = [row["exact_match"] for row in predictions if not row["answer_overlap"]]
        assert (results["questions_answer_overlap"], results["questions_no_overlap"]) == (len(known), len(new))
        assert results["questions_question_overlap"] == 0  # no fact of training is asked for
        assert results["exact_match_answer_overlap"] == pytest.approx(sum(known) / len(known))
        assert results["questions_dev"] == PARAMS.evaluate.questions
        assert 0 <= results["exact_match_dev"] <= 1
        swap = results["corpus_update"]
        assert swap["follows"] + swap["stays"] + swap["wrong"] == pytest.approx(1.0)
        assert 0 < swap["changed_questions"] < results["questions"]


def test_predictions_are_cut_from_the_passage_they_name(done: Path) -> None:
    [corpus] = (done / "data" / "prepared").iterdir()
    texts = PreparedCorpus(corpus).passages().text
    bodies = dict(zip(texts.column("id"), texts.column("body"), strict=True))
    rows = read_json_lines(tiny.stage_run("evaluate", PARAMS, done).path / "eval" / "predictions.jsonl")
    for row in rows:
        assert row["prediction"] in bodies[row["passage_id"]]
        assert row["passage_id"] in row["retrieved"]
        assert len(row["retrieved"]) == len(set(row["retrieved"])) == PARAMS.finetune.candidates
        rank, held = row["answer_rank"], [any(a in bodies[p] for a in row["answers"]) for p in row["retrieved"]]
        assert held.index(True) + 1 == rank if any(held) else rank is None or rank > len(held)


def test_curves_are_the_pretraining_log(done: Path) -> None:
    rows = tiny.stage_run("pretrain", PARAMS, done).metrics.rows()
    for name in ("retrieval_utility", "recall_at_5", "marginal_log_likelihood", "index_staleness_steps"):
        with open(done / "reports" / "curves" / f"{name}.csv", newline="") as file:
            found = [
                (row["system"], row["seed"], int(row["step"]), float(row["value"])) for row in csv.DictReader(file)
            ]
        assert found == [("realm", "0", row["step"], row[name]) for row in rows if name in row]
        assert found


def test_finished_models_are_exported(done: Path) -> None:
    expected = {
        "warm_start": {"s0": "realm"},
        "pretrain": {"realm-s0": "realm"},
        "finetune": {"realm-s0": "realm", "warm_start-s0": "warm_start"},
    }
    for stage, folders in expected.items():
        assert {path.name for path in (done / "models" / stage).iterdir()} == set(folders)
        for name, system in folders.items():
            source = tiny.stage_run(stage, PARAMS, done, system).path / "model"
            assert tiny.files(done / "models" / stage / name) == tiny.files(source)


def test_the_report_is_written_and_nothing_temporary_is_left(done: Path) -> None:
    assert (done / "reports" / "default" / "report.md").read_text().startswith("# ")
    assert (done / "reports" / "index.html").exists()
    names = [path.name for path in done.rglob("*")]
    assert [name for name in names if name.endswith((".tmp", ".old")) or name == "checkpoints"] == []


@pytest.mark.parametrize(("name", "is_said"), [("tryout", True), ("", False)])
def test_a_stopped_experiment_says_how_the_parameters_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, is_said: bool
) -> None:
    monkeypatch.setenv("DVC_EXP_NAME", name)
    with pytest.raises(SystemExit), stages._restorable(tmp_path):
        raise SystemExit(130)
    queued = tmp_path / ".dvc" / "tmp" / "exps" / "copy"  # has separate parameters
    with pytest.raises(SystemExit), stages._restorable(queued):
        raise SystemExit(130)
    assert capsys.readouterr().err.count("git checkout HEAD -- params.yaml") == is_said


def test_the_second_call_does_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_worker(*arguments: Any, **options: Any) -> None:
        raise AssertionError("a worker was started")

    monkeypatch.setattr("realm_lab.lab.workers.subprocess.Popen", no_worker)
    before, metrics = tree(project, "runs", "data", "models"), (project / "reports" / "metrics.json").read_bytes()
    for stage in STAGES:
        stages.run(stage, stages.planned(PARAMS), project)
    assert tree(project, "runs", "data", "models") == before
    assert (project / "reports" / "metrics.json").read_bytes() == metrics


def test_metrics_are_means_over_the_seeds(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = tiny.params({"seeds": [0, 1]})
    tiny.prepare(both, project, seed=1)
    for system in ("realm", "warm_start"):
        for stage in STAGES[1:]:
            if (system, stage) != ("warm_start", "pretrain"):
                tiny.run(stage, both, project, system, seed=1)
    monkeypatch.setattr("realm_lab.lab.workers.subprocess.Popen", None)
    for stage in STAGES:
        stages.run(stage, stages.planned(both), project)
    metrics = read_json(project / "reports" / "metrics.json")
    for part in ("realm", "warm_start", "corpus_update", "bm25"):
        seeds = metrics[part]["seeds"]
        assert list(seeds) == ["0", "1"]
        for name in seeds["0"]:
            values = [seeds[seed][name] for seed in seeds if seeds[seed][name] is not None]
            assert metrics[part][name] == (pytest.approx(sum(values) / len(values)) if values else None), (part, name)
    assert metrics["realm"]["seeds"]["0"] != metrics["realm"]["seeds"]["1"]
    with open(project / "reports" / "curves" / "recall_at_5.csv", newline="") as file:
        assert {row["seed"] for row in csv.DictReader(file)} == {"0", "1"}
    assert {path.name for path in (project / "models" / "warm_start").iterdir()} == {"s0", "s1"}


def test_a_changed_parameter_redoes_what_is_downstream_and_one_failure_spares_the_others(project: Path) -> None:
    changed = tiny.params({"finetune.steps": 3})
    before = {stage: stage_folders(project, stage) for stage in STAGES}
    broken = tiny.stage_run("pretrain", PARAMS, project).path / "model" / "reader" / "model.safetensors"
    whole = broken.read_bytes()
    broken.write_bytes(whole[:-10])
    with pytest.raises(UserError) as caught:
        stages.run("finetune", stages.planned(changed), project)
    message = str(caught.value)
    assert message.startswith(f"realm seed 0: finetune: {broken}: ")
    assert "\n" not in message
    failed = tiny.stage_run("finetune", changed, project)
    kept = tiny.stage_run("finetune", changed, project, "warm_start")
    assert (failed.status().state, kept.status().state) == ("FAILED", "COMPLETE")
    assert failed.status().error == message.removeprefix("realm seed 0: finetune: ")
    assert not (failed.path / "model").exists()

    broken.write_bytes(whole)
    at = kept.status().finished_at
    tiny.run("finetune", changed, project)
    stages.run("finetune", stages.planned(changed), project)
    assert failed.status().state == "COMPLETE"
    assert failed.status().error is None
    assert (kept.status().attempt, kept.status().finished_at) == (1, at)
    new = {stage: stage_folders(project, stage) - before[stage] for stage in STAGES}
    assert {stage: len(found) for stage, found in new.items() if found} == {"finetune": 2}
    manifest = read_json(project / "models" / "finetune" / "realm-s0" / "manifest.json")
    assert manifest["key"] == failed.key


def test_runs_that_were_deleted_come_back_from_what_dvc_keeps(project: Path) -> None:
    """As after a checkout on another machine: there are data/ and models/, and no runs/."""
    before, report = stage_files(project), tiny.files(project / "reports")
    shutil.rmtree(project / "runs")
    shutil.rmtree(project / "reports" / "default")
    shutil.copy(tiny.PARAMETERS, project / "params.yaml")
    assert main(["--root", str(project), "report", "default"]) == 0
    assert tiny.files(project / "reports") == report
    assert stage_files(project) == before
    stages.run("finetune", stages.planned(tiny.params({"finetune.steps": 2})), project)
    assert {path.split("-")[0] for path in stage_files(project).keys() - before.keys()} == {"finetune"}


def test_a_missing_model_names_what_a_finished_run_has_instead(done: Path) -> None:
    for changed, seed, said in (({"pretrain.steps": 77}, 0, r"pretrain\.steps = \d+$"), ({}, 7, "seed = 0$")):
        context = open_run(tiny.params(changed), done, seed, "realm")
        with pytest.raises(UserError, match=r"call `realm-lab run` .*\. A finished run has " + said):
            context.model_folder("pretrain")


def test_one_corpus_serves_all_other_ones_are_removed_and_a_lost_one_is_linked_again(done: Path, project: Path) -> None:
    [folder] = (project / "data" / "prepared").iterdir()
    kept = kept_corpus_folder(project, plan_run(PARAMS, "realm", 0))
    assert tiny.files(folder) == tiny.files(kept)
    assert (done / "data" / "prepared" / folder.name / "manifest.json").stat().st_nlink == 2
    for gone in (folder, kept):
        shutil.rmtree(gone)
        (project / "data" / "prepared" / "other").mkdir(exist_ok=True)
        (project / "data" / "prepared" / "other" / MARK).touch()
        (project / "data" / "prepared" / "not_ours").mkdir(exist_ok=True)
        stages.run("prepare", stages.planned(PARAMS), project)
        assert {path.name for path in (project / "data" / "prepared").iterdir()} == {folder.name, "not_ours"}
        assert tiny.files(folder) == tiny.files(kept)
    [prepare] = stage_folders(project, "prepare")
    assert read_json(project / "runs" / "stages" / prepare / "status.json")["attempt"] == 1


def test_a_verb_does_what_is_missing_before_it_and_fails_nothing(tmp_path: Path) -> None:
    short = {f"{name}.steps": 1 for name in ("warm_start.reader", "warm_start.embedder", "pretrain")}
    stages.run("pretrain", stages.planned(tiny.params(short)), tmp_path)
    [study] = study_record_paths(tmp_path / "runs")
    states = [
        StageStates(tmp_path / "runs").look(read_run(tmp_path / "runs" / run.name / "run.json"))
        for run in read_study_record(study).runs
    ]
    assert [(state.state, state.stage) for state in states] == [("PENDING", "finetune"), ("PENDING", "finetune")]
    assert [path.name for path in (tmp_path / "models" / "pretrain").iterdir()] == ["realm-s0"]


def test_other_parameters_are_a_study_of_their_own_and_export_nothing(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = tree(project, "data", "models", "reports", "runs/studies/default")
    known = set((project / "runs" / "stages").glob("warm_start-*/model"))
    stages.run("warm_start", stages.planned(tiny.params({"warm_start.reader.steps": 1}), "scratch"), project)
    [models] = set((project / "runs" / "stages").glob("warm_start-*/model")) - known
    assert str(models) in capsys.readouterr().err, "another run may start from them"
    assert tree(project, "data", "models", "reports", "runs/studies/default") == before
    for name in ("scratch", "reference"):
        monkeypatch.setenv("DVC_EXP_NAME", name)
        with pytest.raises(UserError, match=f"DVC experiment '{name}': .*; choose another"):
            stages.run("warm_start", stages.planned(PARAMS), project)
    monkeypatch.delenv("DVC_EXP_NAME")
    records = {path.parent.name: read_study_record(path) for path in study_record_paths(project / "runs")}
    assert records["scratch"].common["warm_start.reader.steps"] == 1
    report = write_study_report(project, "scratch") / "report.md"
    assert re.search(r"realm-lab run --preset \w+ .*--set warm_start.reader.steps=1\b", report.read_text("utf-8"))
    assert {run.name for run in records["scratch"].runs}.isdisjoint(run.name for run in records["default"].runs)
    capsys.readouterr()
    stages.run("warm_start", stages.planned(PARAMS), project)
    assert capsys.readouterr().err == "study default: warm-start is complete\n"
