"""A study in MLflow: its experiment, the saved view, and the models of its runs."""

import json
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from transformers import AutoModel, BertConfig, BertModel

from realm_lab.cli import main
from realm_lab.errors import UserError
from realm_lab.lab.tracking import saved_view
from realm_lab.lab.tracking.mirror import Mirror, Tracker, mirror
from realm_lab.lab.tracking.mlflow_tracker import register
from realm_lab.lab.tracking.views import View
from realm_lab.records.run import StageRun
from realm_lab.records.study import Studies, write_study_record
from realm_lab.records.tracking_store import default_uri
from tests.factories.finished import edit_finished
from tests.lab.tracking import made_runs, shown


def test_a_study_is_an_experiment_with_its_question_and_report_above_its_runs(runs: Path) -> None:
    made_runs.make_runs(runs)
    figures = runs.parent / "reports" / "default" / "figures"
    figures.mkdir(parents=True)
    (figures / "utility.png").write_bytes(b"png")
    (figures.parent / "report.md").write_text("# Masks")
    summary = mirror(runs, page=lambda report: f"<h1>{report.read_text()}</h1>")
    assert (summary.studies, summary.created, summary.problems) == (1, 6, ())
    (study,) = shown.content(runs, kind="study").values()
    assert study["status"] == "FINISHED"
    told = {"question": "Which spans should be masked?", "baseline": "realm", "progress": "6 of 6 runs complete"}
    assert {f"realm.{name}": text for name, text in told.items()}.items() <= study["tags"].items()
    assert set(study["files"]) == {"study.json", "report.html", "report.md", "figures/utility.png"}
    assert set(study["points"]) == {f"{cell}/{name}" for cell in made_runs.SYSTEMS for name in saved_view.HEADLINES}
    scores = [run["points"]["exact_match"][0][2] for name, run in shown.content(runs).items() if "realm-" in name]
    assert study["points"]["realm/exact_match"][0][2] == pytest.approx(sum(scores) / 2)
    masked = shown.content(runs)["random_mask-s1"]
    assert "mlflow.parentRunId" not in masked["tags"]  # MLflow's table hides what is below a run
    assert masked["tags"]["realm.changes"] == "pretrain.masking = random_token"
    assert masked["params"]["pretrain.masking"] == "random_token"


def test_the_saved_view_of_a_study_is_linked(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_runs.make_run(runs, "realm", 0)
    summary = mirror(runs)
    experiment = shown.client_of(runs).get_experiment_by_name("realm_lab/default")
    assert experiment is not None
    assert summary.links == {"default": saved_view.link(experiment.experiment_id)}
    assert main(["mirror", "--root", str(runs.parent), "--uri", summary.uri, "--address", "http://10.0.0.1:7/"]) == 0
    assert f"  default: http://10.0.0.1:7{summary.links['default']}\n" in capsys.readouterr().out
    assert f"mlflow.sharedViewState.{saved_view.VIEW}" in experiment.tags


class Linked(Tracker):
    """A custom tracker with a page for each study."""

    def __init__(self, runs: Path) -> None:
        self.links = {"default": "pages/default"}

    def show(self, study: str, view: View) -> str:
        return "created"


def test_links_of_a_custom_tracker_do_not_lead_to_mlflow(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_runs.make_run(runs, "realm", 0)
    assert main(["mirror", "--root", str(runs.parent), "--tracker", f"{__name__}:Linked"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == ["  default: pages/default"]


@pytest.mark.slow
def test_tags_and_the_note_of_a_study_are_those_of_its_runs_until_it_has_others(runs: Path) -> None:
    made_runs.make_runs(runs, systems=("realm",), seeds=(0,))
    study = Studies(runs).read("default")
    write_study_record(runs, replace(study, tags={"project": "masks", "who": "ada"}, note="Begun in *May*."))
    mirror(runs)
    client, run = shown.client_of(runs), shown.run_ids(runs)["realm-s0"]
    client.set_tag(run, "mine", "kept")
    for kind in ("run", "study"):
        [found] = shown.content(runs, kind=kind).values()
        assert {"project": "masks", "who": "ada"}.items() <= found["tags"].items()
    assert "Begun in *May*." in found["tags"]["mlflow.note.content"]
    write_study_record(runs, replace(study, tags={"project": "spans"}))
    mirror(runs)
    [found] = shown.content(runs).values()
    assert (found["tags"]["project"], found["tags"]["mine"], "who" in found["tags"]) == ("spans", "kept", False)
    assert shown.run_ids(runs)["realm-s0"] == run


def test_the_trained_model_is_a_logged_model_that_transformers_opens(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = made_runs.make_run(runs, "realm", 0)
    finetune = StageRun(record.folders(runs)["finetune"], "finetune")
    assert finetune is not None
    config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=9)
    BertModel(config).save_pretrained(finetune.path / "model" / "reader")
    with monkeypatch.context() as patch:
        patch.setattr("realm_lab.lab.tracking.views.MODEL_BYTES", 10)
        mirror(runs)
        assert shown.logged_models(runs) == []
    Mirror(runs, shown.opener(runs, default_uri(runs))).update()
    (model,) = shown.logged_models(runs)
    assert (model.name, model.source_run_id) == ("realm-s0", shown.run_ids(runs)["realm-s0"])
    folder = Path(urlsplit(model.artifact_location).path) / "reader"
    assert AutoModel.from_pretrained(folder).config.hidden_size == 8
    assert mirror(runs).updated == 0
    assert len(shown.logged_models(runs)) == 1


@pytest.mark.slow
def test_the_model_of_the_best_run_by_a_development_measure_is_registered_once(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    records = made_runs.make_runs(runs, systems=("realm",), seeds=(0, 1, 2))
    for record, value in zip(records, (0.3, 0.6, 0.5), strict=True):
        finetune, evaluate = (StageRun(record.folders(runs)[stage], stage) for stage in ("finetune", "evaluate"))
        assert finetune is not None
        assert evaluate is not None
        (finetune.path / "model" / "reader").mkdir(parents=True)
        (finetune.path / "model" / "reader" / "config.json").write_text(json.dumps({"seed": record.seed}))
        edit_finished(evaluate.path / "results.json", exact_match_dev=value)
    monkeypatch.setattr("realm_lab.lab.tracking.views.MODEL_BYTES", 10)  # sent, although too large for a mirror
    command = ["mirror", "--root", str(runs.parent), "--register", "default"]
    for _ in range(2):
        assert main(command) == 0
        assert "registered realm-s1 (exact_match_dev 0.600): models:/realm_lab-default/1" in capsys.readouterr().out
    client = shown.client_of(runs)
    [version] = client.search_model_versions("name = 'realm_lab-default'")
    assert client.get_model_version_by_alias("realm_lab-default", "best").version == version.version
    assert (version.run_id, version.tags["realm.exact_match_dev"]) == (shown.run_ids(runs)["realm-s1"], "0.6")
    [model] = shown.logged_models(runs)
    sent = Path(urlsplit(model.artifact_location).path) / "reader" / "config.json"
    assert json.loads(sent.read_text()) == {"seed": 1}
    (runs / ".mirror.json").unlink()
    assert mirror(runs).updated == 0
    assert main([*command[:3], "--by", "exact_match_dev"]) == 2
    assert "--register" in capsys.readouterr().err
    problems = {"exact_match": "not measured on development data", "cloze_exact_match": "no complete run has a model"}
    for metric, message in problems.items():
        with pytest.raises(UserError, match=message):
            register(Studies(runs), "default", "", metric)
