"""The page of `verdict --page` in Chromium: the text of the command, without a network, and for hands and eyes."""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from realm_lab import cli
from realm_lab.evidence.verdict.answer import Answer, verdict
from realm_lab.evidence.verdict.tables import read_csv
from tests.evidence.report.opened_page import Opened, open_page

VERDICT = """([text, choices]) => {
  const delta = new Map(Object.entries(choices.delta));
  const answer = verdict(readCsv(text, "runs.csv"), { ...choices, delta });
  const findings = answer.answers.flatMap((one) => one.cells.map((cell) => cell.finding)).filter(Boolean);
  return { text: markdownOf(answer), ps: findings.map((one) => one.correctedP) };
}"""
NAMES = ("base", "again", "`a|b`", "ä*[x]", "10", "<b>")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "verdict.html"
    assert cli.main(["verdict", "--page", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def opened(browser: Any, page: Path) -> Iterator[Opened]:
    with open_page(browser, page.as_uri(), "light", 1200) as found:
        yield found


def random_values(generator: np.random.Generator, count: int) -> np.ndarray:
    """Values of any kind: rounded or not, shares, right or wrong, skewed, all equal."""
    kind = generator.integers(7)
    if kind == 0:
        return (generator.random(count) < 0.6).astype(float)
    if kind == 1:
        return np.full(count, 0.25)
    if kind == 2:
        return np.round(generator.random(count), int(generator.integers(1, 4)))
    if kind == 3:
        return generator.exponential(size=count) ** 2
    return generator.normal(50, 10.0 ** generator.integers(-3, 3), count)


def random_table(generator: np.random.Generator) -> tuple[str, dict[str, Any]]:
    """A CSV and the choices to judge it."""
    many = generator.random() < 0.1
    pairs = (
        int(generator.integers(17, 300)) if many else int(generator.integers(1, 13 if generator.random() < 0.8 else 20))
    )
    names = NAMES[: generator.integers(2, 4 if many else 7)]
    metrics = [
        str(one)
        for one in generator.choice(["exact_match", "a", "loss", "mrr"], generator.integers(1, 3), replace=False)
    ]
    word = generator.random() < 0.2
    rows = []
    bases = {metric: random_values(generator, pairs) for metric in metrics}
    for name in names:
        is_alike = generator.random() < 0.3
        values = {}
        for metric in metrics:
            noise = random_values(generator, pairs)
            values[metric] = bases[metric] + (noise - noise.mean()) * generator.choice([0.01, 0.1, 1])
            values[metric] += float(generator.choice([0, 0, 0.05, -0.2]))
            if is_alike:
                values[metric] = bases[metric] + np.round(generator.random(pairs) - 0.5, 1) * generator.integers(2)
        for pair in range(pairs):
            chance = generator.random()
            if chance < 0.02 and name != "base":
                continue
            written = [
                generator.choice(["", "nan", "inf"]) if chance > 0.97 and pair else values[one][pair] for one in metrics
            ]
            shared = f"fold {pair}" if word else pair + 7
            rows.append(
                [
                    f"{name}{' ' * (pair % 2)}",
                    shared,
                    f"d{pair // 3}",
                    "failed" if 0.5 < chance < 0.52 and pair else "done",
                    *written,
                ]
            )
    file = io.StringIO()
    csv.writer(file).writerows([["cell", "seed", "document", "status", *metrics], *rows])
    deltas = {one: float(generator.choice([0.01, 0.1, 0.5])) for one in metrics if generator.random() < 0.3}
    return file.getvalue(), {
        "metrics": metrics,
        "baseline": "base",
        "cell": "cell",
        "pair": "seed",
        "delta": deltas,
        "cluster": "document" if generator.random() < 0.2 else "",
        "control": "again" if generator.random() < 0.2 else "",
        "state": "status" if generator.random() < 0.5 else "",
    }


def answer_of(text: str, choices: dict[str, Any], folder: Path) -> Answer:
    """Return the answer of `realm-lab verdict`."""
    path = folder / "runs.csv"
    path.write_text(text, encoding="utf-8", newline="")
    rows = [row._replace(where=row.where.replace(str(path), path.name)) for row in read_csv(path)]
    names = {name: choices[name] for name in ("baseline", "cell", "pair", "delta", "cluster", "control", "state")}
    return verdict(rows, metric=choices["metrics"], **names)


@pytest.mark.browser
@pytest.mark.parametrize("tables", [8, pytest.param(200, marks=pytest.mark.slow)])
def test_the_page_has_the_text_of_the_command(tables: int, opened: Opened, tmp_path: Path) -> None:
    for seed in range(tables):
        text, choices = random_table(np.random.default_rng(seed))
        told, answer = opened.page.evaluate(VERDICT, [text, choices]), answer_of(text, choices, tmp_path)
        assert told["text"] == answer.markdown(), (seed, choices)
        ps = [cell.finding.corrected_p for one in answer.metrics for cell in one.cells if cell.finding]
        assert told["ps"] == pytest.approx(ps, abs=1e-12)
    assert opened.messages == []


RUNS = "variant,seed,accuracy,<b>\n" + "".join(
    f"{name},{seed},{0.7 + shift + 0.01 * (seed * seed % 5)},{seed}\n"
    for name, shift in (("sgd", 0), ("<img src=x onerror=alert(1)>", 0.02), ("</script>", -0.003))
    for seed in range(8)
)
DROP = """([text, name]) => {
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([text], name));
  document.body.dispatchEvent(new DragEvent("drop", { dataTransfer, bubbles: true, cancelable: true }));
}"""


@pytest.mark.browser
def test_a_file_is_dropped_and_judged_offline(browser: Any, page: Path, tmp_path: Path) -> None:
    with open_page(browser, page.as_uri(), "dark", width=390) as opened:
        view = opened.page
        view.context.set_offline(True)
        view.evaluate(DROP, [RUNS, "runs.csv"])
        view.get_by_label("accuracy", exact=True).check()
        view.get_by_label("delta of accuracy").fill("0.01")
        view.get_by_label("Baseline", exact=True).select_option("sgd")
        view.locator("#answer table").wait_for()
        choices: dict[str, Any] = {"metrics": ["accuracy"], "baseline": "sgd", "cell": "variant", "pair": "seed"}
        choices |= {"delta": {"accuracy": 0.01}, "cluster": "", "control": "", "state": ""}
        expected = answer_of(RUNS, choices, tmp_path).markdown()
        view.get_by_role("button", name="Copy as Markdown").click()
        assert view.get_by_label("The verdict as Markdown").input_value() == expected
        rows = [line.strip("| ").split(" | ") for line in expected.splitlines() if line.startswith("| ")]
        shown = [row.locator("th, td").all_text_contents() for row in view.locator("#answer tr").all()]
        assert shown == [[text.replace("\\", "") for text in row] for row in rows]
        assert view.evaluate("document.documentElement.scrollWidth") <= 390, "nothing is wider than the window"
        assert opened.messages == []
        assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []
    assert page.stat().st_size < 20e6


@pytest.mark.browser
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cell,seed,acc\na,0,1\na,1,x\nb,0,2\n", ("runs.csv, line 3", "'x'")),
        ("cell,seed,acc\na,0\n", ("line 2", "2 values")),
        ("cell,seed,acc\na,0,1\na,0,2\n", ("line 3", "line 2")),
        ("cell,seed,acc,config\na,0,1,{'steps': 1}\n", ("'config'", "realm-lab verdict")),
        (
            "\n".join(["cell,seed,acc", *(f"{cell},{n},{n % 7}" for n in range(5000) for cell in "ab")]),
            ("5000", "realm-lab verdict"),
        ),
        (
            "\n".join(["cell,seed,acc", *(f"{cell},{n},{n % 7}" for n in range(6) for cell in range(70))]),
            ("69 tests", "realm-lab verdict"),
        ),
    ],
)
def test_what_the_page_cannot_judge_is_one_line(opened: Opened, text: str, words: tuple[str, ...]) -> None:
    view = opened.page
    view.evaluate(DROP, [text, "runs.csv"])
    if view.locator("[value=acc]").is_visible():
        view.locator("[value=acc]").check()
    view.wait_for_function("document.getElementById('fault').textContent")
    told = view.get_by_role("alert").inner_text()
    assert all(word in told for word in words), told
    assert not view.locator("#answer *").count()


@pytest.mark.parametrize("given", [["runs.csv"], ["--page", "a.html", "--gate"], ["--page", "runs.csv"]])
def test_it_is_either_a_page_or_a_verdict(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verdict", *given]) == 2
    assert "--page" in capsys.readouterr().err
