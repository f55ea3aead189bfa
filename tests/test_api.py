"""The Python interface on a study of one tiny run, which it makes itself."""

import json
import re
import shutil
from pathlib import Path

import pytest

import realm_lab
from docs.json_fields import JSON_FIELDS
from realm_lab.cli import main
from tests import tiny
from tests.factories.errors import refused

DOCS = Path(__file__).parents[1] / "docs"
QUESTION = "who is the mayor of zovzen ?"
STUDY = """question: Does it learn?
seeds: [0]
baseline: realm
cells:
  realm: {title: REALM}
  other: {set: {pretrain.candidates: 4, pretrain.masking: random_token}}
metrics: [exact_match]
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with one finished study, `trial`."""
    root = tmp_path_factory.mktemp("api")
    shutil.copy(tiny.PARAMETERS, root / "params.yaml")
    (root / "experiments").mkdir()
    (root / "experiments" / "trial.yaml").write_text(STUDY)
    results = realm_lab.sweep("trial", root, launcher="inline", cells=["realm"], set={"launch.log_interval_steps": 4})
    assert results[["cell", "status"]].to_numpy().tolist() == [["realm", "COMPLETE"], ["other", "PENDING"]]
    return root


def test_a_run_answers_fills_and_retrieves(project: Path) -> None:
    run = realm_lab.load_run("trial/realm-s0", project)
    assert run == realm_lab.load_run(project / "runs" / run.name, project)
    hits = run.retrieve(QUESTION, k=3)
    assert [hit.score for hit in hits] == sorted((hit.score for hit in hits), reverse=True)
    reply = run.ask(QUESTION, k=3)
    assert [candidate.passage and candidate.passage["id"] for candidate in reply.candidates] == [hit.id for hit in hits]
    assert run.fill("the mayor of zovzen is [MASK] .", k=2).answer
    frame = realm_lab.results("trial", project)
    assert 0 <= frame["exact_match"][0] <= 1
    assert len(realm_lab.results("real_text", Path(__file__).parents[1])) == 4  # the committed reference results


@pytest.mark.parametrize(
    "words",
    [
        ["status", "--runs"],
        ["status", "trial/realm-s0"],
        ["gc", "--forget", "trial"],
        ["status", "trial"],
        ["sweep", "trial", "--dry-run"],
        ["index", "list"],
        ["ask", "--run", "trial/realm-s0", QUESTION],
        ["ask", "--run", "trial/realm-s0", "the mayor of zovzen is [MASK] ."],
    ],
)
def test_the_command_line_prints_the_documented_fields(
    project: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    capsys.readouterr()
    assert main(["--root", str(project), *words, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    if words == ["status", "trial/realm-s0"]:
        printed = printed["pretrain"]
    found = printed[0] if isinstance(printed, list) else printed
    assert set(found) <= set(
        re.findall(r"`(\w+)`", JSON_FIELDS[" ".join(words[:2]) if words[0] == "index" else words[0]])
    )


@pytest.mark.filterwarnings("error")
def test_the_tables_of_a_study_name_what_its_cells_change(project: Path) -> None:
    frame = realm_lab.results("trial", project)
    frame["mine"] = 1  # pandas warns of a frame in many pieces
    columns = list(frame.columns)
    first = ["study", "cell", "seed", "run_key", "status", "system", "pretrain.masking", "pretrain.candidates"]
    assert columns[: len(first)] == first
    values = frame[["pretrain.masking", "pretrain.candidates", "status"]].to_numpy().tolist()
    assert values == [["salient_span", 6, "COMPLETE"], ["random_token", 4, "PENDING"]]
    points = realm_lab.curves("trial", project)
    assert list(points.columns) == ["cell", "seed", "metric", "step", "value"]
    assert points[points["metric"] == "loss"]["step"].tolist() == [4, 8, 12]
    tuned = realm_lab.curves("trial", project, stage="finetune")
    assert tuned[tuned["metric"] == "loss"]["step"].tolist() == [4, 8, 12]
    answers = realm_lab.predictions("trial", project)
    assert answers["exact_match"].mean() == pytest.approx(frame["exact_match"][0])
    assert len(answers) == 12
    committed = realm_lab.results("staleness_by_rate", Path(__file__).parents[1])
    assert sorted(committed["pretrain.retriever.learning_rate"].unique()) == [0.0006, 0.0012]
    assert committed["refresh"].tolist()[0] == "every_3"


def test_dir_has_the_public_names_alone() -> None:
    assert set(dir(realm_lab)) == {*realm_lab.__all__, "__version__"}
    assert all(getattr(realm_lab, name) for name in realm_lab.__all__)


def test_names_that_mean_no_run_are_refused(project: Path) -> None:
    with pytest.raises(realm_lab.UserError, match="no run and no study 'nothing'"):
        realm_lab.load_run("nothing", project)
    with pytest.raises(realm_lab.UserError, match="no runs of study 'nothing' here"):
        realm_lab.results("nothing", project)
    with refused("no run of study 'trial' has a stage 'finetun'", remedy="did you mean 'finetune'?"):
        realm_lab.curves("trial", project, stage="finetun")


def test_wrong_arguments_of_a_run_are_refused(project: Path) -> None:
    run = realm_lab.load_run("trial/realm-s0", project)
    with refused("no retriever 'bm52'", parameter="retriever"):
        run.ask(QUESTION, retriever="bm52")
    for call in (run.ask, run.retrieve, run.fill):
        with refused("k is 0", parameter="k"):
            call(f"{QUESTION} [MASK]", k=0)


@pytest.mark.slow
def test_the_notebook_runs(project: Path) -> None:
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient").NotebookClient
    text = (DOCS / "tour.ipynb").read_text().replace("demo/realm-s50", "trial/realm-s0")
    text = text.replace('\\"demo\\"', '\\"trial\\"')
    done = client(nbformat.reads(text, as_version=4), resources={"metadata": {"path": str(project)}}).execute()
    assert "exact_match" in done.cells[7]["outputs"][0]["data"]["text/html"]
