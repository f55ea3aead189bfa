"""A custom system is one file: it runs through sweep, evaluate, report, MLflow and ask."""

import copy
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from realm_lab.cli import main
from realm_lab.engine.systems import identity, registry
from realm_lab.engine.systems.context import Context
from realm_lab.engine.systems.identity import plan_run
from realm_lab.engine.systems.registry import EVALUATE, Stage, System, register_system, system_of
from realm_lab.errors import UserError
from realm_lab.evidence.report.index import write_index
from realm_lab.records.files import read_json_lines
from realm_lab.records.metrics import METRICS
from realm_lab.records.plugins import import_plugins
from realm_lab.records.study import read_study_record
from realm_lab.records.yaml_file import read_yaml
from tests import tiny

SOURCE = '''
from collections import Counter

from realm_lab import EVALUATE, Answer, Metric, Section, Stage, System

LENGTH = Metric("answer_length", "mean length of the answer", unit="words", digits=1, better="down")


class Rank(Section):
    rank: int = 0


def count(context, run):
    """Trains: remembers the most frequent answer."""
    run.start(1)
    answers = Counter(answer for answers in context.corpus.questions("train").answers for answer in answers)
    run.finish({"answers": [answer for answer, _ in answers.most_common(3)]})


class Frequent(System):
    """Answers every question alike."""

    name = "frequent"
    title = "the most frequent answer"
    options = Rank
    stages = (Stage("count", (), f"{__name__}:count", keeps=""), EVALUATE)

    def answer(self, questions, retrieved=None, k=None):
        answers = self.context.stage("count").results()["answers"]
        return [Answer(answers[self.context.options(Rank).rank]) for _ in questions]

    def measure(self):
        return {"answer_length": 1.5 + self.context.options(Rank).rank}, []
'''
WRONG = """

class Bare(System):
    name = title = "bare"


class Misspelt(System):
    name = title = "misspelt"
    stages = (Stage("count", ("finetun",), "own_systems:count"), EVALUATE)
"""
STUDY = """
question: Does reading help?
seeds: [0]
baseline: frequent
metrics: [exact_match, "own_systems:LENGTH"]
delta: {"own_systems:LENGTH": 0.5}
cells:
  frequent: {system: "own_systems:Frequent"}
  second: {system: {name: "own_systems:Frequent", rank: 1}}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A project folder with the user's module in it."""
    (tmp_path / "own_systems.py").write_text(SOURCE)
    (tmp_path / "params.yaml").write_bytes(tiny.PARAMETERS.read_bytes())
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "own.yaml").write_text(STUDY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("own_systems", None)
    METRICS.pop("answer_length", None)


@pytest.mark.slow
def test_it_goes_the_whole_way_in_one_file(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "own", "--launcher", "inline"]) == 0
    study = read_study_record(project / "runs" / "studies" / "own" / "study.json")
    first, second = (json.loads((project / "runs" / run.name / "run.json").read_text()) for run in study.runs)
    assert first["stages"]["count"] == second["stages"]["count"]
    evaluated = project / "runs" / first["stages"]["evaluate"]
    results: dict[str, Any] = json.loads((evaluated / "results.json").read_text())
    assert results["questions"] == 12
    assert 0 <= results["exact_match"] <= 1
    assert results["exact_match_span"] is None
    assert results["bm25"]["recall_at_20"] > 0
    assert "recall_at_5" not in results
    assert results["not_measured"] == {
        "retrieval": "system frequent retrieves no passages",
        "corpus update": "system frequent cannot be asked with another corpus",
    }
    rows = read_json_lines(evaluated / "eval" / "predictions.jsonl")
    assert len({row["prediction"] for row in rows}) == 1
    assert first["system"] == "frequent"
    assert all(run.name.startswith("frequent-s0-") for run in study.runs), "a legal name of a folder"
    option = "system_options.own_systems:Frequent.rank"
    assert study.cell("second").changes == {option: 1}
    assert study.cell("second").title == "the most frequent answer, rank = 1"

    del METRICS["answer_length"]  # as in another process, which imports nothing of the user's
    assert main(["report", "own"]) == 0
    table = (project / "reports" / "own" / "results.csv").read_text()
    assert table.count("COMPLETE") == 2
    summary = json.loads((project / "reports" / "own" / "summary.json").read_text())
    assert summary["confounds"] == summary["warnings"] == []
    report = (project / "reports" / "own" / "report.md").read_text()
    assert f"{option} = 1" in report
    assert "Mean length of the answer, words" in report
    assert (study.metrics, study.delta) == (("exact_match", "answer_length"), {"answer_length": 0.5})
    assert summary["cells"]["second"]["metrics"]["answer_length"]["mean"] == 2.5
    del METRICS["answer_length"]
    assert "mean length of the answer" in write_index(project / "reports").read_text()
    assert main(["mirror"]) == 0
    assert main(["compare", "own/frequent", "own/second"]) == 0
    compared = (project / "reports" / "compare" / "own.frequent-vs-own.second" / "report.md").read_text()
    assert f"{option} = 1" in compared
    assert "Confounded" not in compared
    assert "Mean length of the answer" in compared
    capsys.readouterr()
    assert main(["ask", "who ?", "--system", "own_systems:Frequent", "--json"]) == 0
    answered = json.loads(capsys.readouterr().out)
    assert (answered["answer"], answered["candidates"]) == (rows[0]["prediction"], [])
    assert main(["ask", "who ?", "--system", "own_systems:Frequent"]) == 0


OPTIONS = """
from realm_lab.engine.params.sections import Section
from realm_lab.engine.systems.realm import FINETUNE_READER
from realm_lab.engine.systems.realm import WARM_START
from realm_lab.engine.systems.registry import EVALUATE, Stage, System


class Salt(Section):
    salt: int = 0
    size: int = 1


class Reads(System):
    name, title, options = "reads", "reads", Salt
    stages = (WARM_START, FINETUNE_READER, EVALUATE)


class Answers(System):
    name, title, options = "answers", "answers", Salt
    stages = (WARM_START, EVALUATE)


class Trains(System):
    name, title, options = "trains", "trains", Salt
    stages = (WARM_START, Stage("fit", ("system_options.size",), f"{__name__}:fit"), EVALUATE)


class Ends(System):
    name, title, options = "ends", "ends", Salt
    stages = (Stage("fit", (), f"{__name__}:fit"), Stage("score", (), f"{__name__}:score"))
"""


@pytest.mark.parametrize(
    ("system", "salt", "size"),
    [
        ("Reads", {"finetune", "evaluate"}, {"finetune", "evaluate"}),
        ("Answers", {"evaluate"}, {"evaluate"}),
        ("Trains", {"evaluate"}, {"fit", "evaluate"}),
    ],
)
def test_two_values_of_an_option_never_share_a_run(project: Path, system: str, salt: set[str], size: set[str]) -> None:
    """Keys differ even if no stage names the option: stages that call the system depend on it."""
    (project / "own_systems.py").write_text(OPTIONS)
    name = f"own_systems:{system}"

    def stages(**own: int) -> dict[str, str]:
        return plan_run(tiny.params({"system_options": {name: own}}), name, 0).stages

    before = stages()
    assert stages(salt=0) == before
    assert {stage for stage, key in stages(salt=2).items() if key != before[stage]} == salt
    assert {stage for stage, key in stages(size=2).items() if key != before[stage]} == size
    assert len({stages(salt=a, size=b)[[*before][-1]] for a in range(3) for b in range(3)}) == 9


def test_an_option_that_no_stage_depends_on_is_refused(project: Path) -> None:
    (project / "own_systems.py").write_text(OPTIONS)
    with pytest.raises(UserError, match=r"no stage depends on its option 'salt'; add 'system_options\.salt' to"):
        plan_run(tiny.params(), "own_systems:Ends", 0)


FIXED = """
from realm_lab.engine.systems.reading import DenseRetriever
from realm_lab.engine.systems.realm import FINETUNE, PRETRAIN, WARM_START
from realm_lab.engine.systems.registry import EVALUATE, Stage


class Joint(DenseRetriever):
    name = title = "joint"
    stages = (WARM_START, PRETRAIN, FINETUNE, EVALUATE)
    fixed = {"finetune.softmax": "joint"}


class Reads(DenseRetriever):
    name = title = "reads"
    stages = (Stage("look", ("model.layers",), f"{__name__}:look", observes=("evaluate.questions",)), EVALUATE)


class After(Reads):
    name = title = "after"
    stages = (*Reads.stages[:1], Stage("late", ("tokenizer",), f"{__name__}:late"), EVALUATE)


class Shorter(Reads):
    name = title = "shorter"
    fixed = {"corpus.passage_length": 30}


class Calls(Reads):
    name = title = "calls"
    stages = (Stage("call", ("model",), f"{__name__}:call"), EVALUATE)


def look(context, run):
    params = context.params
    run.start(0)
    run.finish({
        "layers": params.model.layers,
        "heads": params.model.heads,
        "questions": params.evaluate.questions,
        "cut": params.corpus.sentence_length,
        "threads": params.launch.threads,
    })


def late(context, run):
    run.start(0)
    run.finish({"questions": context.params.evaluate.questions})


def call(context, run):
    context.system.answer(["who ?"])
"""


def test_a_system_with_fixed_parameters_shares_no_model_with_one_without(project: Path) -> None:
    (project / "fixed_systems.py").write_text(FIXED)
    params, joint = tiny.params(), "fixed_systems:Joint"
    plans = {name: plan_run(params, name, 0) for name in ("realm", joint)}
    shared = {stage for stage in plans["realm"].stages if plans["realm"].key(stage) == plans[joint].key(stage)}
    assert shared == {"warm_start", "pretrain"}
    tiny.prepare(params, project, "warm_start", "pretrain", "finetune")
    other = tiny.run("finetune", params, project, joint)
    assert read_yaml(other.path / "config.yaml")["params"]["finetune"]["softmax"] == "joint"
    losses = [run.metrics.rows()[0]["loss"] for run in (other, tiny.stage_run("finetune", params, project))]
    assert losses[0] != losses[1]
    system = system_of(joint)(Context(plans[joint], project))
    assert system.params.finetune.softmax == "joint"
    again = replace(plans[joint], params=system.params)
    assert system.params == Context(again, project).params


def test_a_stage_reads_only_what_it_declares(project: Path) -> None:
    (project / "fixed_systems.py").write_text(FIXED)
    tiny.prepare(tiny.params(), project, label="fixed_systems:Reads")
    message = r"stage 'look' reads 'model\.heads', which it does not declare; add the name to depends_on of the stage"
    with pytest.raises(UserError, match=message):
        tiny.run("look", tiny.params(), project, "fixed_systems:Reads")
    with pytest.raises(UserError, match=r"stage 'call' calls the system, .*; add 'system' to depends_on"):
        tiny.run("call", tiny.params(), project, "fixed_systems:Calls")
    (project / "less_systems.py").write_text(FIXED.replace('"heads": params.model.heads,', ""))
    found = tiny.run("look", tiny.params(), project, "less_systems:Reads").results()
    assert found == {"layers": 2, "questions": 12, "cut": 26, "threads": 1}


def test_models_of_a_stage_that_a_system_lacks_are_refused(project: Path) -> None:
    (project / "fixed_systems.py").write_text(FIXED)
    context = Context(plan_run(tiny.params(), "fixed_systems:Reads", 0), project)
    with pytest.raises(UserError, match="system reads has no stage 'warm_start'; its stages are prepare, look, eval"):
        context.load_reader("warm_start")
    with pytest.raises(UserError, match="no stage 'lok'"):
        context.stage("lok")


def test_what_an_earlier_stage_observes_is_no_ones_but_its_own(project: Path) -> None:
    (project / "late_systems.py").write_text(FIXED.replace('"heads": params.model.heads,', ""))
    params, name = tiny.params(), "late_systems:After"
    tiny.prepare(params, project, "look", label=name)
    with pytest.raises(UserError, match=r"stage 'late' reads 'evaluate\.questions', which it does not declare"):
        tiny.run("late", params, project, name)


def test_a_fixed_parameter_of_the_corpus_is_in_its_key(project: Path) -> None:
    (project / "fixed_systems.py").write_text(FIXED)
    key = plan_run(tiny.params(), "fixed_systems:Shorter", 0).corpus_key
    assert key == plan_run(tiny.params({"corpus.passage_length": 30}), "realm", 0).corpus_key


def test_its_source_is_in_the_keys_of_what_it_does_itself(project: Path) -> None:
    name = "own_systems:Frequent"
    before = plan_run(tiny.params(), name, 0)
    assert before.name == f"frequent-s0-{before.run_key[:12]}"
    assert list(before.stages) == ["count", "evaluate"]
    (project / "own_systems.py").write_text(SOURCE + "\n# a comment\n")
    assert plan_run(tiny.params(), name, 0) == before
    (project / "own_systems.py").write_text(SOURCE + "\nANOTHER = 1\n")
    after = plan_run(tiny.params(), name, 0)
    assert after.corpus_key == before.corpus_key
    assert not set(after.stages.values()) & set(before.stages.values())


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("reaml", "'realm'.*package.module:Class"),
        ("own_systems:Missing", "'own_systems:Missing'"),
        ("no_such_module:Class", "'no_such_module'"),
        ("own_systems:count", "realm_lab.System"),
        ("own_systems:Bare", "the class has no 'stages'"),
        ("own_systems:Misspelt", "stage 'count' .*'finetun', .*'finetune'"),
    ],
)
def test_a_name_of_no_system_is_one_line(project: Path, name: str, message: str) -> None:
    (project / "own_systems.py").write_text(SOURCE + WRONG)
    with pytest.raises(UserError, match=message):
        system_of(name)


def own_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give a test a separate register of systems."""
    systems = copy.copy(registry.SYSTEMS)
    for module in (registry, identity):
        monkeypatch.setattr(module, "SYSTEMS", systems)


def test_a_registered_one_has_the_digest_of_its_package_in_its_keys(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own_systems(monkeypatch)
    package = project / "own_lab"
    package.mkdir()
    own = SOURCE.replace("class Frequent", "from own_lab import helper\n\n@register_system\nclass Frequent")
    (package / "systems.py").write_text(f"from realm_lab import register_system\n{own}")
    (package / "helper.py").write_text("ONE = 1\n")
    (package / "__init__.py").write_text("")
    try:
        params = tiny.params({"plugins": ["own_lab.systems"]})
        before = plan_run(params, "frequent", 0)
        (package / "helper.py").write_text("ONE = 2\n")
        after = plan_run(params, "frequent", 0)
        assert after.corpus_key == before.corpus_key
        assert not set(after.stages.values()) & set(before.stages.values())
        (package / "helper.py").write_text("ONE = 1\n")
        assert plan_run(tiny.params(), "frequent", 0).stages == before.stages, "the list of plug-ins is in no key"
    finally:
        for name in ("own_lab", "own_lab.systems", "own_lab.helper"):
            sys.modules.pop(name, None)


def test_two_systems_of_equal_parameters_share_only_what_asks_neither(monkeypatch: pytest.MonkeyPatch) -> None:
    from realm_lab.engine.params.parameters import Params

    import_plugins()
    own_systems(monkeypatch)
    train = Stage("train", ("model",), "realm_lab.engine.systems.stages.warm_start:warm_start")

    def made(chosen: str, class_name: str = "") -> type[System]:
        declared = {"name": chosen, "title": chosen, "stages": (train, EVALUATE)}
        return register_system(type(class_name or chosen, (System,), declared))

    made("one"), made("other")
    one, other = (plan_run(Params(), name, 0).stages for name in ("one", "other"))
    assert one["train"] == other["train"]
    assert one["evaluate"] != other["evaluate"]
    with pytest.raises(UserError, match="'one'"):
        made("one", "Another")
