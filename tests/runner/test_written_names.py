"""Names in study files are used as written, or refused: YAML reads some as dates, numbers or true."""

import pytest

from tests.runner.test_study import GOOD, Planned, Write, refusal

REFUSALS: list[tuple[str, int, str]] = [
    ("baseline: 2024-01-01\ncells:\n  2024-01-01:\n", 5, "'2024-01-01' is read as a date; put it in quotes"),
    ("baseline: a\ncells:\n  a:\n  8:\n", 6, "'8' is read as a number; put it in quotes"),
    ("baseline: a\ncells:\n  a:\n  1.10: {}\n", 6, "is read as a number; put it in quotes"),
    ("baseline: a\ncells:\n  a:\n  true: {}\n", 6, "is read as true or false; put it in quotes"),
    ("baseline: a\ncells:\n  a:\n  ~: {}\n", 6, "put it in quotes"),
    ("baseline: {w: a}\naxes:\n  w:\n    a: {pretrain.steps: 5}\n    8: {pretrain.steps: 6}\n", 7, "put it in quotes"),
    ("baseline: a\ncells:\n  a: {title: 2024-01-01T10:00:00Z}\n", 5, "put it in quotes"),
    (
        'baseline: 8\ncells: {"8": {}}\n',
        3,
        "baseline must be a string or a section of names and values, got 8; put it in quotes",
    ),
    (GOOD + "metrics: [8]\n", 7, "write NAME, or {name: NAME, OPTION: VALUE}"),
    (GOOD + "not_run: {8: no time}\n", 7, "put it in quotes"),
    (GOOD + "launcher: {slurm: {partition: 2024}}\n", 7, "put it in quotes"),
]


@pytest.mark.parametrize(("text", "line", "message"), REFUSALS)
def test_what_yaml_reads_as_no_text_is_refused(write: Write, text: str, line: int, message: str) -> None:
    found = refusal(write(text))
    assert found.startswith(f"study.yaml, line {line}: "), found
    assert message in found


def test_names_in_quotes_are_what_is_written(planned: Planned) -> None:
    cells = 'cells:\n  "2024-01-01":\n  "1.10": {set: {pretrain.steps: 3}}\n  "8": {set: {pretrain.steps: 4}}\n'
    assert [cell.name for cell in planned('baseline: "1.10"\n' + cells).cells] == ["1.10", "2024-01-01", "8"]
