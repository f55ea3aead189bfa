"""Search files: what they may say, and what is said of mistakes in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from realm_lab.errors import UserError
from realm_lab.runner.search_file import Pruning, Search, SearchPlan, load_search, plan_search
from realm_lab.runner.study import StudyFile
from tests import tiny
from tests.runner.made_search import PARAMETERS, SPACE, write_search

HEAD = "question: Which?\nseeds: [0]\n"
RATE = "pretrain.retriever.learning_rate"


def planned(root: Path, text: str) -> SearchPlan:
    return plan_search(write_search(root, text), root, params_path=PARAMETERS)


def space(entry: str, name: str = RATE, more: str = "") -> str:
    return f"{HEAD}space:\n  {name}: {entry}\n{more}"


def test_a_range_is_of_the_type_of_its_parameter(tmp_path: Path) -> None:
    plan = planned(tmp_path, SPACE)
    rate, interval = plan.space
    assert (rate.kind, rate.low, rate.high, rate.log) == ("float", 1e-4, 1e-2, True)
    assert (interval.kind, interval.low, interval.high) == ("int", 1, 9)
    assert type(interval.low) is int
    assert interval.points() == list(range(1, 10))
    assert plan.baseline == {RATE: 5e-4, "pretrain.refresh.interval_steps": 5}
    assert plan.base == tiny.params()
    assert plan.last_stage == "pretrain"


def test_trials_go_as_far_as_their_metric_needs(tmp_path: Path) -> None:
    for metric, until, last in [
        ("retrieval_utility", "", "pretrain"),
        ("recall_at_5", "", "pretrain"),
        ("recall_at_5", "until: evaluate\n", "evaluate"),
        ("exact_match", "", "evaluate"),
    ]:
        assert planned(tmp_path, f"{SPACE}metric: {metric}\n{until}").last_stage == last


def test_what_is_set_is_of_every_trial_and_of_the_baseline(tmp_path: Path) -> None:
    plan = planned(tmp_path, space("{low: 2, high: 8, step: 1}", "pretrain.candidates", "set: {pretrain.steps: 8}\n"))
    assert plan.base == tiny.params({"pretrain.steps": 8})
    assert plan.params({"pretrain.candidates": 3}) == tiny.params({"pretrain.steps": 8, "pretrain.candidates": 3})
    assert plan.grid() == [{"pretrain.candidates": number} for number in range(2, 9)]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        (SPACE + "trails: 3\n", 7, "unknown key 'trails'; the nearest valid one is 'trials'"),
        (HEAD, None, "'space' is missing; say which parameters to search, NAME: {low: ..., high: ...}"),
        (
            space("{low: 1.0e-4, high: 1.0e-2}", "pretrain.retreiver.learning_rate"),
            4,
            f"the nearest valid one is '{RATE}'",
        ),
        (space("{low: 1.0e-4, high: 1.0e-2}", "pretrain.retriever"), 4, "'pretrain.retriever' is a section; name"),
        (space("{low: 1, high: 2}", "launch.threads"), 4, "changes no result, so no cell may change it"),
        (space("0.1"), 4, f"'{RATE}' needs {{low: ..., high: ...}} or {{choices: [...]}}"),
        (space("{low: 1.0e-4, hihg: 1.0e-2}"), 4, "unknown key 'hihg'"),
        (space("{low: 1.0e-2, high: 1.0e-4}"), 4, "low 0.01 is not below high 0.0001"),
        (space("{low: a, high: 1.0e-4}"), 4, f"'low' of '{RATE}' is a number, not a"),
        (space("{low: 0, high: 1.0e-2, log: true}"), 4, "a log scale begins above 0; raise low"),
        (space("{low: 1.0e-4, high: 1.0e-2, log: true, step: 1.0e-4}"), 4, "has a log scale and a step; keep one"),
        (space("{low: 0.0001, high: 0.001, step: 0.0002}"), 4, "steps of 0.0002 do not lead to 0.001; change one"),
        (space("{low: -1.0, high: 1.0e-2}"), 4, "pretrain.retriever.learning_rate = -1"),
        (space("{low: 0.5, high: 9}", "pretrain.refresh.interval_steps"), 4, "valid integer"),
        (space("{low: 1, high: 9, step: 0.5}", "pretrain.refresh.interval_steps"), 4, "so must its step be"),
        (space("{low: 0, high: 1}", "pretrain.train_reader"), 4, "pretrain.train_reader"),
        (
            space("{low: 1.0e-3, high: 1.0e-2}"),
            4,
            "own value of 'pretrain.retriever.learning_rate', 0.0005, is not in it",
        ),
        (
            space("{choices: [random_span, random_token]}", "pretrain.masking"),
            4,
            "salient_span, is not in it (random_span",
        ),
        (space("{choices: [salient_span]}", "pretrain.masking"), 4, "are a list of two or more values"),
        (space("{choices: [salient_span, [1]]}", "pretrain.masking"), 4, "is one value, not [1]"),
        (space("{choices: [salient_span, salient_span]}", "pretrain.masking"), 4, "salient_span is twice"),
        (space("{choices: [stale, stael]}", "pretrain.search_query"), 4, "pretrain.search_query = stael"),
        (space("{low: 1.0e-4, high: 1.0e-2}", more=f"set: {{{RATE}: 1.0e-3}}\n"), 4, "both in 'set' and in 'space'"),
        (space("{low: 1.0e-4, high: 1.0e-2}", "finetune.reader.learning_rate"), 4, "changes nothing up to 'pretrain'"),
        (SPACE + "sampler: grid\n", 4, f"'{RATE}' has too many values for a grid; give a 'step' or 'choices'"),
        (SPACE + "sampler: tpee\n", 7, "sampler: input should be 'tpe', 'random' or 'grid' (given: 'tpee')"),
        (SPACE + "metric: utility\n", 7, "unknown metric 'utility'; the nearest valid one is 'retrieval_utility'"),
        (SPACE + "metric: exact_match\nuntil: pretrain\n", 8, "'exact_match' is known after 'evaluate' only"),
        (SPACE + "pruning: {after_steps: 12}\n", 7, "pruning.after_steps: a trial has 12 steps; give fewer"),
        (
            SPACE + "pruning: {after_step: 4}\n",
            7,
            "unknown key 'after_step' of pruning; the nearest valid one is 'after_s",
        ),
        (SPACE + "pruning: {after_steps: 4, metric: f1}\n", 7, "pruning.metric: 'f1' is no curve of pre-training"),
        (SPACE + "launcher: {cloud: {}}\n", 7, "unknown launcher 'cloud'; choose inline, local, slurm"),
        (SPACE + "preset: tony\n", 7, "preset 'tony' is not one of toy, smoke, real, paper; did you mean 'toy'?"),
        (SPACE + "set: {pretrain.steps: -1}\n", 7, "set: parameter 'pretrain.steps': input should be greater than"),
    ],
)
def test_a_mistake_is_named_with_its_line(tmp_path: Path, text: str, line: int | None, message: str) -> None:
    with pytest.raises(UserError) as error:
        planned(tmp_path, text)
    found = str(error.value).removeprefix(str(tmp_path / "experiments") + "/")
    assert found.startswith("search-mine.yaml: " if line is None else f"search-mine.yaml, line {line}: "), found
    assert message in found, found
    assert "\n" not in found


def test_a_missing_file_is_named_with_the_nearest(tmp_path: Path) -> None:
    path = write_search(tmp_path)
    with pytest.raises(UserError, match=r"search-min.yaml: no such search; did you mean .*search-mine.yaml\?"):
        load_search(path.with_name("search-min.yaml"))


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("search-retriever", {RATE, "pretrain.retriever.warmup_steps", "pretrain.refresh.interval_steps"}),
        ("search-smoke", {RATE, "pretrain.refresh.interval_steps"}),
    ],
)
def test_a_search_of_the_project_can_be_planned(name: str, values: set[str], repository: Path, tmp_path: Path) -> None:
    (tmp_path / "params.yaml").write_text("preset: paper\n", encoding="utf-8")
    plan = plan_search(repository / "experiments" / f"{name}.yaml", tmp_path)
    assert plan.search.question.endswith("?")
    assert plan.last_stage == "pretrain"
    assert plan.baseline.keys() == values
    pruning: Any = plan.search.pruning
    assert pruning.after_steps % plan.base.evaluate.interval_steps == 0


def test_all_searches_of_the_project_are_tested(repository: Path) -> None:
    names = {path.stem for path in (repository / "experiments").glob("search-*.yaml")}
    assert names == {"search-retriever", "search-smoke"}


def test_every_key_is_explained_on_the_page_in_the_words_of_the_model(repository: Path) -> None:
    page = (repository / "docs" / "studies.md").read_text(encoding="utf-8")
    for model in (Search, Pruning):
        for name, field in model.model_fields.items():
            if name not in StudyFile.model_fields:
                assert f"| `{name}` | {' '.join((field.description or '').split())} |" in page, name
