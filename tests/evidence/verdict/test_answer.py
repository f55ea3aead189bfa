"""Verdicts on tables of runs: the digits of our reports, what cannot be paired, and bad tables."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import realm_lab
from realm_lab import cli
from realm_lab.evidence.report.report_data import plain
from realm_lab.evidence.statistics.family import Finding, Kind
from realm_lab.evidence.verdict.answer import Gap
from tests.factories.errors import refused

REPORTS = Path(__file__).parents[3] / "reports" / "reference"


def table(**cells: tuple[float | None, ...]) -> list[dict[str, Any]]:
    """Return a row for each value; the index of a value is its seed."""
    return [
        {"cell": cell, "seed": seed, "acc": value}
        for cell, values in cells.items()
        for seed, value in enumerate(values)
    ]


def finding_of(rows: Any, metric: Any = "acc", baseline: str = "base", place: int = 1, **more: Any) -> Finding:
    """The finding of one cell in the first metric."""
    found = realm_lab.verdict(rows, metric=metric, baseline=baseline, **more).metrics[0].cells[place].finding
    assert found is not None
    return found


OVER_QUESTIONS = ("per_example_interval", "seeds_and_questions_interval")  # a table of runs has no questions
BASE = (0.50, 0.61, 0.57, 0.66, 0.48, 0.59, 0.62, 0.55)
BETTER = tuple(value + 0.1 + seed / 1000 for seed, value in enumerate(BASE))


@pytest.mark.parametrize("study", ["masking", "null_document"])
def test_a_committed_study_has_the_digits_of_its_report(study: str) -> None:
    summary = json.loads((REPORTS / study / "summary.json").read_text(encoding="utf-8"))
    comparisons, design = summary["comparisons"], summary["design"]
    family = [name for name, cells in comparisons.items() if not any(one["exploratory"] for one in cells.values())]
    delta = {name: size for name, size in design["delta"].items() if name in family}
    found = realm_lab.verdict(
        REPORTS / study / "results.csv", metric=family, baseline=design["baseline"], delta=delta
    ).as_json()["metrics"]
    compared = 0
    for name in family:
        for cell, told in comparisons[name].items():
            mine = plain(found[name][cell])
            told = {key: value for key, value in told.items() if key not in OVER_QUESTIONS}
            assert {key: mine[key] for key in told} == told
            compared += 1
    assert compared >= 4


def test_what_cannot_be_paired_is_named() -> None:
    other = [{"cell": "other seeds", "seed": 100 + seed, "acc": value} for seed, value in enumerate(BETTER)]
    part = [{"cell": "more seeds", "seed": 4 + seed, "acc": value} for seed, value in enumerate(BETTER)]
    answer = realm_lab.verdict(
        table(base=BASE, better=BETTER, failed=(None, float("nan"))) + other + part, metric="acc", baseline="base"
    )
    base, better, failed, unpaired, more = answer.metrics[0].cells
    assert (base.finding, base.gap) == (None, None)
    assert (better.finding and better.finding.kind, better.gap) == (Kind.HIGHER, None)
    assert (failed.gap, failed.missing) == (Gap.NO_VALUE, (0, 1))
    assert (unpaired.gap, unpaired.finding) == (Gap.CANNOT_BE_PAIRED, None)
    assert (more.finding and more.finding.seeds, more.unpaired) == (4, (8, 9, 10, 11))
    json.dumps(answer.as_json(), allow_nan=False)
    assert all(cell.cell in answer.markdown() for cell in answer.metrics[0].cells)


def test_names_may_be_words_for_no_value() -> None:
    rows = [row | {"country": "NA" if row["seed"] == 0 else "DE"} for row in table(none=BASE, nan=BETTER)]
    found = realm_lab.verdict(rows, metric="acc", baseline="none", cluster="country")
    assert [(cell.cell, len(cell.values)) for cell in found.metrics[0].cells] == [("none", 8), ("nan", 8)]


def test_a_column_of_states_that_is_not_named_is_told() -> None:
    rows = [row | {"State": "crashed" if row["seed"] == 2 else "finished"} for row in table(base=BASE, better=BETTER)]
    unused = realm_lab.verdict(rows, metric="acc", baseline="base")
    assert [len(cell.values) for cell in unused.metrics[0].cells] == [8, 8], "a column is a state only if it is named"
    assert unused.other_status == {"State": ["crashed"]}
    assert "--state State" in unused.markdown()


@pytest.mark.parametrize(
    ("done", "other"), [("OK", "failed"), (0.0, "exit 1"), ("exit 0", "crashed"), ("Completed", "OUT_OF_MEMORY")]
)
def test_words_of_a_status_column(done: Any, other: str) -> None:
    rows = [row | {"run status": other if row["seed"] == 2 else done} for row in table(base=BASE, better=BETTER)]
    answer = realm_lab.verdict(rows, metric="acc", baseline="base", state="run status")
    assert [cell.missing for cell in answer.metrics[0].cells] == [(2,), (2,)]


def test_a_run_that_is_absent_is_noted_as_one_that_failed() -> None:
    rows = [row for row in table(base=BASE, better=BETTER) if (row["cell"], row["seed"]) != ("better", 2)]
    answer = realm_lab.verdict(rows, metric="acc", baseline="base")
    assert [cell.missing for cell in answer.metrics[0].cells] == [(), (2,)]
    assert "better: no value for seed 2" in answer.markdown()


def test_a_column_of_other_words_is_no_status() -> None:
    rows = [row | {"State": ("Texas", "Ohio", None)[row["seed"] % 3]} for row in table(base=BASE, better=BETTER)]
    answer = realm_lab.verdict(pd.DataFrame(rows), metric="acc", baseline="base")
    assert [len(cell.values) for cell in answer.metrics[0].cells] == [8, 8]
    assert answer.other_status == {}
    rows[3]["State"] = "finished"
    with refused("'Texas'", "row 0", "--state"):
        realm_lab.verdict(rows, metric="acc", baseline="base", state="State")


def test_no_status_is_like_a_blank_one() -> None:
    rows = [row | {"status": math.nan if row["seed"] == 2 else "finished"} for row in table(base=BASE, better=BETTER)]
    cells = realm_lab.verdict(pd.DataFrame(rows), metric="acc", baseline="base", state="status").metrics[0].cells
    assert [cell.missing for cell in cells] == [(), ()]


@pytest.mark.parametrize("more", [{"State": "crashed"}, {"State": "running", "acc": None}])
def test_a_run_that_was_repeated_counts_once(more: dict[str, Any]) -> None:
    rows = [row | {"State": "finished"} for row in table(base=BASE, better=BETTER)]
    crashed = rows[2] | {"acc": 0.1} | more
    answer = realm_lab.verdict([crashed, *rows], metric="acc", baseline="base", state="State")
    assert answer.baseline.values[2] == BASE[2]
    assert [one.run for one in answer.left_out] == ["row 0"]
    assert "row 0" in answer.markdown()
    again = [*rows, crashed | {"seed": 8}, crashed | {"seed": 8}]
    twice = realm_lab.verdict(again, metric="acc", baseline="base", state="State")
    assert twice.baseline.missing == (8,)


def test_a_run_without_cell_and_value_is_left_out_and_named() -> None:
    rows = [*table(base=BASE, better=BETTER), {"cell": None, "seed": None, "acc": None}]
    answer = realm_lab.verdict(rows, metric="acc", baseline="base")
    assert [one.run for one in answer.left_out] == ["row 16"]


def test_names_of_cells_may_be_numbers() -> None:
    rows = [row | {"cell": 1 if row["cell"] == "base" else 2} for row in table(base=BASE, better=BETTER)]
    assert realm_lab.verdict(rows, metric="acc", baseline=1).baseline.cell == "1"


def test_every_kind_of_table_gives_the_same() -> None:
    rows = table(base=BASE, better=BETTER)
    frame = pd.DataFrame(rows)
    tables = (rows, frame, {name: list(frame[name]) for name in frame})
    found = [realm_lab.verdict(one, metric="acc", baseline="base").as_json() for one in tables]
    assert found[0] == found[1] == found[2]
    folds = [row | {"seed": f"fold {row['seed']}"} for row in rows]
    named = realm_lab.verdict(folds, metric="acc", baseline="base").as_json()["metrics"]["acc"]["better"]
    assert named["corrected_p"] == found[0]["metrics"]["acc"]["better"]["corrected_p"]
    assert next(iter(named["deltas"])) == "fold 0"


def test_a_percentage_is_not_cut_to_our_bounds() -> None:
    """realm_lab's `f1` is from 0 to 1; another's may be a percentage."""
    wide = [40.0, 90.0, 55.0]
    rows = [{"cell": c, "seed": s, "f1": v * k} for c, k in (("a", 1.0), ("b", 0.2)) for s, v in enumerate(wide)]
    finding = finding_of(rows, "f1", "a")
    assert finding.interval == finding.comparison.interval
    assert math.isinf(finding.span)


def test_seeds_beyond_the_digits_of_a_float_differ() -> None:
    """Seeds of 64 bits, as numpy's SeedSequence gives them."""
    seeds = {"a": (2**60, 2**60 + 300), "b": (2**60 + 1, f"{2**60 + 300}.0")}
    rows = [{"cell": c, "seed": seed, "acc": 0.5} for c, given in seeds.items() for seed in given]
    assert finding_of(rows, baseline="a").comparison.seeds == (2**60 + 300,)


@pytest.mark.parametrize(("metric", "scale"), [("loss", 1.0), ("loss", 1e-9), ("wall_seconds", 0.1)])
def test_a_significant_difference_is_printed(metric: str, scale: float) -> None:
    """Also if a run diverged, if the unit is small, or if the difference is below realm_lab's digits of this metric."""
    values = {"a": BASE, "b": BETTER, "c": (1e7, *BETTER[1:])}
    rows = [
        {"cell": c, "seed": seed, metric: value * scale}
        for c, given in values.items()
        for seed, value in enumerate(given)
    ]
    answer = realm_lab.verdict(rows, metric=metric, baseline="a")
    row = answer.rows(answer.metrics[0])[1]
    assert row["finding"] == "higher"
    assert float(row["difference"]) == pytest.approx(0.1035 * scale, rel=0.1)


@pytest.mark.parametrize(
    ("rows", "more", "words"),
    [
        ([{"cell": "a", "acc": 1.0}], {}, ("seed", "--pair")),
        ([{"variant": "a", "seed": 1, "acc": 1.0}], {}, ("--cell",)),
        ([{"cell": "a", "seed": 1, "accuracy": 1.0}], {}, ("--metric", "accuracy")),
        ([{"cell": "a", "seed": 1, "acc": 1.0, "f1": 1.0}], {"delta": {"f1": 0.1}}, ("none of the metrics",)),
        ([{"cell": "a", "seed": 1, "acc": 1.0}], {"delta": {"f1": 0.1}}, ("--delta", "'f1'")),
        ([{"cell": "a", "seed": 1, "acc": "good"}], {}, ("row 0", "'good'")),
        ([{"cell": "a", "seed": 1, "acc": 1.0}] * 2, {}, ("row 1", "row 0")),
        ([{"cell": "a", "seed": None, "acc": 1.0}], {}, ("row 0", "seed")),
        ([{"cell": "b", "seed": 1, "acc": 1.0}], {}, ("--baseline", "'a'")),
        ([{"cell": "a", "seed": 1, "acc": "nan"}], {}, ("'a'", "acc")),
        ([{"cell": "a", "seed": 1, "acc": 1.0}], {"cluster": "doc"}, ("--cluster", "'doc'")),
        ([{"cell": "a", "seed": 1, "acc": 1.0, "doc": None}], {"cluster": "doc"}, ("row 0", "doc")),
        ([{"cell": c, "seed": 1, "acc": 1.0, "doc": c} for c in "ab"], {"cluster": "doc"}, ("row 1", "doc")),
        ([{"cell": "a", "seed": 1, "acc": 1.0}], {"control": "b"}, ("--control", "'b'")),
        ([], {}, ("no runs",)),
        (7, {}, ("no table",)),
        ({"cell": ["a"], "seed": [1, 2], "acc": [1.0]}, {}, ("same length",)),
    ],
)
def test_a_bad_table_is_one_line(rows: Any, more: dict[str, Any], words: tuple[str, ...]) -> None:
    with refused(*words) as error:
        realm_lab.verdict(rows, metric="acc", baseline="a", **more)
    assert error.value.remedy


DRIFTED = tuple(value + 0.03 - seed / 1000 for seed, value in enumerate(BETTER))
ONE_SPIKE = tuple(value + 0.3 * (seed == 2) for seed, value in enumerate(BASE))
RERUNS = {f"rerun-{n}": tuple(np.random.default_rng([7, n]).normal(0.55, 0.05, 8).round(3).tolist()) for n in range(12)}
# Gates of public trackers that take noise for an effect: each must stay undecided.
GATES: dict[str, tuple[dict[str, tuple[float | None, ...]], list[str]]] = {
    "cap-evolve#317: the stored baseline is older than all else": (
        {"base": BASE, "again": BETTER, "new": DRIFTED},
        ["--control", "again"],
    ),
    "dos-kernel#34: one run of each, and the new one has a spike": ({"base": (0.5,), "new": (0.9,)}, []),
    "dos-kernel#34: a spike has become the baseline": ({"base": ONE_SPIKE, "new": BASE}, []),
    "senpai#898: single reruns": ({"base": (2.2068,), "a": (2.26,), "b": (2.2565,), "c": (2.31,)}, []),
    "senpai#898: the best of many reruns of the same code": ({"base": BASE, **RERUNS}, []),
    "pi-autoresearch#22: one run, eight median deviations above": (
        {"base": (0.5,), **{f"try-{n}": (0.5 + n / 100,) for n in range(-2, 3)}, "new": (0.58,)},
        [],
    ),
}


@pytest.mark.parametrize("gate", GATES)
def test_a_gate_keeps_no_noise(gate: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cells, more = GATES[gate]
    pd.DataFrame(table(**cells)).to_csv(tmp_path / "runs.csv")
    given = ["verdict", str(tmp_path / "runs.csv"), "--metric", "acc=up", "--baseline", "base", "--gate", *more]
    assert cli.main(given) == 3
    assert capsys.readouterr().out.startswith("**Undecided.**")


@pytest.mark.parametrize(
    ("values", "metric", "delta", "code"),
    [
        (BETTER, "acc=up", [], 0),
        (BETTER, "acc=down", [], 1),
        (BETTER, "acc", [], 3),
        (BETTER, "acc=down", ["--delta", "acc=0.2"], 0),
        ((*BETTER[:-1], None), "acc=up", [], 3),
        ((*BETTER[:-1], None), "acc=down", [], 1),
        (BASE, "acc=up", [], 3),
        (BASE, "acc", ["--delta", "0.01"], 0),
    ],
)
def test_exit_codes_of_a_gate(
    values: tuple[float | None, ...], metric: str, delta: list[str], code: int, tmp_path: Path
) -> None:
    pd.DataFrame(table(base=BASE, new=values)).to_csv(tmp_path / "runs.csv")
    given = ["verdict", str(tmp_path / "runs.csv"), "--metric", metric, "--baseline", "base", *delta]
    assert cli.main(given) == 0
    assert cli.main([*given, "--gate"]) == code


def test_a_terminal_shows_a_table_without_details(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pd.DataFrame(table(base=BASE, new=BETTER)).to_csv(tmp_path / "runs.csv")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["verdict", str(tmp_path / "runs.csv"), "--metric", "acc", "--baseline", "base"]) == 0
    header = next(line for line in capsys.readouterr().out.splitlines() if "mean ± sd" in line)
    assert "|" not in header


@pytest.mark.parametrize(
    ("again", "kind", "decision"),
    [
        (tuple(value + 0.01 * (-1) ** seed for seed, value in enumerate(BASE)), Kind.HIGHER, "not worse"),
        (BETTER, Kind.REFUSED, "undecided"),
        (BASE[:5], Kind.REFUSED, "undecided"),
        ((None,) * 8, Kind.REFUSED, "undecided"),
    ],
)
def test_a_cell_is_better_only_next_to_a_control(again: tuple[float | None, ...], kind: Kind, decision: str) -> None:
    rows = table(base=BASE, again=again, new=DRIFTED)
    answer = realm_lab.verdict(rows, metric={"acc": "up"}, baseline="base", control="again")
    finding = answer.metrics[0].cells[2].finding
    assert finding is not None
    assert (finding.kind, finding.tests, answer.decision) == (kind, 1, decision)
    assert answer.calibration is not None
    assert answer.calibration.tests == 1


def test_questions_of_a_document_change_sign_together() -> None:
    """Six documents, each better in all questions, are six pairs; the mean is over all questions."""
    sizes = (1, 2, 3, 4, 5, 40)
    questions = [(document, number) for document, size in enumerate(sizes) for number in range(size)]
    rows = [
        {"cell": cell, "question": f"{document}-{number}", "document": document, "acc": value}
        for document, number in questions
        for cell, value in (("base", 0.0), ("new", 0.1 * (document + 1)))
    ]
    by_question, by_document = (finding_of(rows, pair="question", cluster=cluster) for cluster in ("", "document"))
    assert by_document.size == pytest.approx(by_question.size)
    assert (by_document.seeds, by_question.seeds) == (6, 55)
    assert (by_document.corrected_p, by_question.corrected_p) == (2 / 2**6, 1 / 10_000)
    sums = [size * 0.1 * (document + 1) for document, size in enumerate(sizes)]
    assert by_document.comparison.deltas == pytest.approx([one * 6 / 55 for one in sums])


def test_names_have_no_meaning_in_markdown() -> None:
    rows = [row | {"cell": "<img src=x>|**b**\n# c" if row["cell"] == "b" else "a"} for row in table(a=BASE, b=BETTER)]
    text = realm_lab.verdict(rows, metric="acc", baseline="a").comment()
    assert text.count(r"\<img src=x>\|\*\*b\*\* # c") == 2
    assert "<img" not in text.replace(r"\<", "")
