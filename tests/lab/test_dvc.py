"""The pipeline under DVC, in a clone, with tiny parameters: the view of a user of DVC, and of git."""

import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from ruamel.yaml import YAML

import realm_lab
from realm_lab.engine.params.load import load
from realm_lab.evidence.report.default_run import headline
from realm_lab.lab.effective import write_effective
from realm_lab.records.code_record import code_reader
from realm_lab.records.files import read_json, write_text
from realm_lab.records.run import StageRun
from realm_lab.records.study import read_study_record
from tests.evidence.report.opened_page import open_page
from tests.limits import HANG_SECONDS
from tests.slurm_cluster.project import wait_until
from tests.test_readme import copy_of_checkout

UP_TO_DATE = "parameters:\n\talways changed\n"  # and nothing else
TINY = Path(__file__).parents[1] / "tiny.yaml"
METRICS = ["Path", "bm25.R@5", "follows", "realm.EM", "realm.R@5", "realm.utility", "warm_start.EM", "warm_start.R@5"]
COMMITTED = Path(__file__).parents[2] / "reports" / "reference" / "metrics.json"
DOCUMENTED = Path(__file__).parents[2] / "docs" / "dvc.md"

Run = Callable[..., str]


def environment_of(folder: Path) -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    author = {f"GIT_{who}_{what}": "a@b.c" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    own = {"PATH": path, "PYTHONPATH": str(folder), "DVC_NO_ANALYTICS": "1", "COLUMNS": "200"}
    return os.environ | author | own


def commands_in(folder: Path) -> Run:
    """run("dvc status") -> what the command prints, in the folder; it must end well."""
    environment = environment_of(folder)

    def run(command: str) -> str:
        done = subprocess.run(
            command.split(),
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr[-3000:]}"
        return done.stdout

    return run


def complete(folder: Path) -> list[str]:
    """The keys of the runs that readers of the study `default` have, which must be complete."""
    found = realm_lab.results("default", folder)
    assert set(found["status"]) == {"COMPLETE"}
    return list(found["run_key"])


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clone after `dvc repro` and a commit."""
    folder = tmp_path_factory.mktemp("clone")
    copy_of_checkout(folder)
    shutil.copy2(TINY, folder / "params.yaml")
    (folder / "dvc.lock").unlink(missing_ok=True)  # if the checkout was run
    run = commands_in(folder)
    run("git add --all")
    run("git commit -qm tiny")
    run("dvc repro")
    assert run("git status --short") == "?? dvc.lock\n", "a run rewrites nothing that is committed"
    run("git add dvc.lock")
    run("git commit -qm run")
    return folder


def test_the_page_shows_the_headline_of_the_reference_run() -> None:
    lines = DOCUMENTED.read_text(encoding="utf-8").splitlines()
    shown = next(line.split()[1:-1] for line in lines if line.startswith("reports/headline"))  # ends with ...
    committed = read_json(COMMITTED)
    flat = pd.json_normalize(headline(committed)).iloc[0]
    assert [float(value) for value in shown] == [flat[name] for name in METRICS[1:5]]
    committed["corpus_update"] = {"changed_questions": 0.0}
    assert headline(committed)["realm"], "without a changed answer nothing follows"


@pytest.mark.filterwarnings("ignore:.*found in sys.modules:RuntimeWarning")  # to run it in this process saves imports
def test_the_first_stage_refuses_what_a_later_one_would(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "params.yaml").write_text("preset: smoke\npretrain: {masking: salient}\n")
    stages = YAML(typ="safe").load(Path(__file__).parents[2] / "dvc.yaml")["stages"]
    _, _, module, *arguments = stages["parameters"]["cmd"].split()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [module, *arguments])
    with pytest.raises(SystemExit) as ended:  # with a text: Python prints it, and the code is 1
        runpy.run_module(module, run_name="__main__")
    [line] = str(ended.value.code).splitlines()
    assert line.startswith("error: ")
    assert "'salient_span'" in line
    assert [path.name for path in tmp_path.iterdir()] == ["params.yaml"]


KEYED = ["prepare", "warm_start", "pretrain", "finetune", "evaluate"]


def test_the_password_of_a_tracking_store_is_in_no_file_that_dvc_pushes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = "postgresql://me:hunter2@host/runs"
    write_text(tmp_path / "params.yaml", f"preset: smoke\nlaunch: {{tracking_uri: '{store}'}}\n")
    write_effective(Path("params.yaml"), tmp_path / "data")
    assert not [path for path in (tmp_path / "data").rglob("*") if path.is_file() and "hunter2" in path.read_text()]
    params = load(Path("params.yaml"))
    assert params.launch.tracking_uri == store
    assert "hunter2" not in params.model_dump_json()  # the parameters of jobs


INPUTS = {
    "params.yaml": (
        "preset: mine\nstreams: {order: {pretrain: 1}}\n"
        "corpus: {source: files, tagger: rule, pretrain_corpus: same, files: {knowledge: [a.jsonl]}}\n"
    ),
    "presets/mine.yaml": "preset: smoke\nmodel: {heads: 2}\n",
    "a.jsonl": '{"text": "Kafka was born in Prague."}\n',
    "dvc_masks.py": "import dvc_helper\n\n\ndef first(request, generator):\n    return [dvc_helper.FIRST]\n",
    "dvc_helper.py": "FIRST = 0\n",
    "dvc_figures.py": "def none(study):\n    return {}\n",
    "experiments/mine.yaml": (
        "question: q\nseeds: [0]\nbaseline: realm\nfigures: ['dvc_figures:none']\n"
        "cells: {realm: {}, own: {set: {pretrain.masking: 'dvc_masks:first'}}}\n"
    ),
    "dvc.yaml": "vars:\n  - studies: [mine]\n",
}


@pytest.mark.parametrize(
    ("name", "old", "new", "first", "counts"),
    [
        ("a.jsonl", "Prague", "Praha", "prepare", True),
        ("presets/mine.yaml", "heads: 2", "heads: 4", "warm_start", True),
        ("params.yaml", "pretrain: 1", "finetune: 1, pretrain: 1", "finetune", True),
        ("dvc_helper.py", "0", "1", None, True),
        ("dvc_figures.py", "return {}", "return {'a': 1}", None, True),
        ("dvc_helper.py", "0", "0  # a comment", None, False),
        ("params.yaml", "preset: mine", "preset: mine  # a comment", None, False),
    ],
)
def test_a_stage_and_a_study_run_again_when_what_they_are_made_of_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, old: str, new: str, first: str | None, counts: bool
) -> None:
    """DVC sees neither the content of files that parameters name nor presets, custom parts and their imports."""
    pipeline = YAML(typ="safe").load(Path(__file__).parents[2] / "dvc.yaml")["stages"]
    for stage in KEYED:
        assert {"data/keys.json": [stage]} in pipeline[stage]["params"]
        assert {"data/code.json": [stage]} in pipeline[stage]["params"]
        assert pipeline[stage]["cmd"].endswith(" --fresh")
    assert pipeline["parameters"]["always_changed"]
    assert "data/studies/${item}.json" in pipeline["study"]["do"]["deps"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    keys, studies = [], []
    for text in (INPUTS[name], INPUTS[name].replace(old, new)):
        for path, content in (INPUTS | {name: text}).items():
            write_text(tmp_path / path, content)
        for module in ("dvc_masks", "dvc_helper", "dvc_figures"):
            sys.modules.pop(module, None)
        code_reader.cache_clear()
        write_effective(Path("params.yaml"), tmp_path / "data")
        keys.append(read_json(tmp_path / "data" / "keys.json"))
        studies.append((tmp_path / "data" / "studies" / "mine.json").read_bytes())
    code_reader.cache_clear()
    changed = KEYED[KEYED.index(first) :] if first else []
    assert [stage for stage in KEYED if keys[0][stage] != keys[1][stage]] == changed
    assert (studies[0] != studies[1]) == counts


@pytest.mark.slow
def test_status_metrics_and_parameters(clone: Path) -> None:
    run = commands_in(clone)
    assert run("dvc status") == UP_TO_DATE
    head, row = run("dvc metrics show").splitlines()
    assert head.split() == METRICS
    assert re.fullmatch(r"reports/headline.json( +-?[\d.]+){7} *", row)
    assert max(len(head), len(row)) <= 120
    path = clone / "params.yaml"
    before = path.read_text()
    path.write_text(before.replace(", questions: 12", ""))  # the preset's value is in use then
    run("dvc repro -q parameters")
    found = [line.split() for line in run("dvc params diff").splitlines()]
    assert found[0] == ["Path", "Param", "HEAD", "workspace"]
    assert ["data/parameters.json", "evaluate.questions", "12"] in [line[:3] for line in found if line[-1] != "12"]
    path.write_text(before)
    run("dvc repro -q parameters")
    assert run("dvc status") == UP_TO_DATE


@pytest.mark.slow
@pytest.mark.browser
def test_a_browser_draws_all_plots_without_network(tmp_path: Path, browser: Any) -> None:
    """All plots of the committed run are drawn."""
    copy_of_checkout(tmp_path)
    for part in ("curves", "default"):
        shutil.copytree(tmp_path / "reports" / "reference" / part, tmp_path / "reports" / part, dirs_exist_ok=True)
    commands_in(tmp_path)(f"{sys.executable} docs/offline_plots.py")
    plots = tmp_path / "dvc_plots" / "index.html"
    with open_page(browser, plots.as_uri(), "light", 1280) as opened:
        opened.page.wait_for_selector(".vega-embed canvas, .vega-embed svg")
        charts = opened.page.locator(".vega-embed canvas, .vega-embed svg.marks").count()
        pictures = opened.page.locator("img").evaluate_all("all => all.filter(one => one.naturalWidth > 0).length")
        assert (charts, pictures) == (plots.read_text().count("vegaEmbed('#"), 2)
        assert not [one for one in opened.messages if "rror" in one]
        assert all(one.startswith(("file:", "data:", "blob:")) for one in opened.requests)


@pytest.mark.slow
def test_an_experiment_in_a_copy_runs_what_it_changes_and_leaves_its_runs(clone: Path) -> None:
    run, complete_before = commands_in(clone), complete(clone)
    stages = clone / "runs" / "stages"
    before = {path.name for path in stages.iterdir()}
    default = (clone / "runs" / "studies" / "default" / "study.json").read_bytes()
    run("dvc exp run --temp -n short -S finetune.steps=1")
    made = {path.name.split("-")[0] for path in stages.iterdir() if path.name not in before}
    assert made == {"finetune", "evaluate"}
    assert before <= {path.name for path in stages.iterdir()}, "what is shared is not deleted with the copy"
    study = read_study_record(clone / "runs" / "studies" / "short" / "study.json")
    assert all((stages / f"evaluate-{one.run_key[:12]}" / "results.json").is_file() for one in study.runs)
    assert (clone / "runs" / "studies" / "default" / "study.json").read_bytes() == default
    table = run("dvc exp show --no-pager --only-changed --hide-workspace --drop ^(data/prepared|models|reports|params)")
    assert "[short]" in table
    assert "finetune.steps" in table
    assert complete(clone) == complete_before


@pytest.mark.slow
def test_control_c_in_an_experiment_leaves_no_reader_with_its_runs(clone: Path) -> None:
    run, before = commands_in(clone), complete(clone)
    known = {*(clone / "runs" / "stages").glob("finetune-*")}
    command = ["dvc", "exp", "run", "-n", "stopped", "-S", "finetune.steps=100000"]
    with subprocess.Popen(
        command, cwd=clone, env=environment_of(clone), stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as experiment:

        def is_training() -> bool:
            assert experiment.poll() is None, "it ended by itself"
            begun = {*(clone / "runs" / "stages").glob("finetune-*")} - known
            return any(StageRun(folder, "finetune").status().step for folder in begun)

        wait_until(is_training, "fine-tuning is under way")
        os.killpg(experiment.pid, signal.SIGINT)  # as a terminal does
        said = experiment.communicate(timeout=HANG_SECONDS)[1]
    assert experiment.returncode != 0
    assert "git checkout HEAD -- params.yaml" in said
    stopped = realm_lab.results("default", clone)
    assert "PREEMPTED" in set(stopped["status"])
    assert set(stopped["run_key"]).isdisjoint(before)
    with pytest.raises(realm_lab.UserError, match="not finished"):
        realm_lab.load_run("default/realm-s0", clone)
    run("git checkout HEAD -- params.yaml")
    assert complete(clone) == before
    run("dvc repro")
    assert run("git status --short") == ""
    assert complete(clone) == before


@pytest.mark.slow
def test_a_clone_without_runs_gets_models_and_reports_from_a_remote(clone: Path, tmp_path: Path) -> None:
    run = commands_in(clone)
    run(f"dvc remote add --default --force shared {tmp_path / 'shared'}")
    run("git add .dvc/config")
    run("git commit -qm remote")
    run("dvc push -q")
    subprocess.run(["git", "clone", "-q", str(clone), str(tmp_path / "other")], check=True)
    there = commands_in(tmp_path / "other")
    there("dvc pull -q")
    assert there("dvc status") == UP_TO_DATE
    assert there("dvc metrics show") == run("dvc metrics show")
    assert "answer" in there("realm-lab ask where?")
