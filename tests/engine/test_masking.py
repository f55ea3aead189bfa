"""Masking schemes against their definitions."""

import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats

from realm_lab.engine.masking import (
    SPAN_MAX_LENGTH,
    MaskRequest,
    QuestionForm,
    check_masking,
    mask,
    masking_scheme,
    random_span,
    random_token,
    salient_span,
)
from realm_lab.engine.params.parameters import Pretrain
from realm_lab.errors import UserError
from realm_lab.records.plugins import Choice
from tests.factories.errors import refused

SPANS = np.array([[0, 2], [3, 4], [6, 9]], np.int32)
NO_SPANS = np.empty((0, 2), np.int32)
BUILT_IN = ("salient_span", "random_token", "random_span")


def asked(length: int = 10, spans: np.ndarray = SPANS, rate: float = 0.15) -> MaskRequest:
    return MaskRequest(length, spans, rate)


@pytest.mark.parametrize("name", BUILT_IN)
@given(length=st.integers(9, 60), rate=st.floats(0.0, 1.0), seed=st.integers(0, 2**32))
def test_positions_are_distinct_and_inside_the_sentence(name: str, length: int, rate: float, seed: int) -> None:
    positions = masking_scheme(Choice(name))(asked(length, SPANS, rate), np.random.default_rng(seed))
    assert len(positions) >= 1
    assert len(set(positions.tolist())) == len(positions)
    assert positions.min() >= 0
    assert positions.max() < length


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_generator_decides_everything(name: str) -> None:
    scheme, request = masking_scheme(Choice(name)), asked(40, rate=0.3)
    draws = [[scheme(request, rng).tolist() for _ in range(30)] for rng in map(np.random.default_rng, (5, 5, 6))]
    assert draws[0] == draws[1]
    assert draws[0] != draws[2]


def test_a_span_takes_one_uniform_number() -> None:
    # All earlier results were made with these draws: another use of the generator would change their masks.
    ours, plain = np.random.default_rng(7), np.random.default_rng(7)
    for _ in range(50):
        first, end = SPANS[plain.integers(len(SPANS))]
        assert salient_span(asked(), ours).tolist() == list(range(first, end))
    assert ours.bit_generator.state == plain.bit_generator.state


@pytest.mark.parametrize("name", ["random_token", "random_span"])
def test_the_mean_rate_is_exact(name: str) -> None:
    generator = np.random.default_rng(1)
    counts = [len(masking_scheme(Choice(name))(asked(25, NO_SPANS), generator)) for _ in range(4000)]
    assert set(counts) == {3, 4}
    assert np.mean(counts) == pytest.approx(3.75, abs=4 * np.std(counts) / 4000**0.5)


def test_random_tokens_are_uniform_over_the_sentence() -> None:
    generator = np.random.default_rng(2)
    counts = np.bincount(np.concatenate([random_token(asked(20, NO_SPANS), generator) for _ in range(4000)]))
    assert len(counts) == 20
    assert stats.chisquare(counts).pvalue > 1e-3


def test_random_spans_are_of_geometric_length() -> None:
    # Joshi et al. 2019, section 3.1: l ~ Geo(0.2), at most 10: "this yields a mean span length of 3.8".
    # In a sentence so long that two spans hardly ever meet.
    positions = np.sort(random_span(asked(10**9, NO_SPANS, 2e-5), np.random.default_rng(4)))
    lengths = [len(run) for run in np.split(positions, np.flatnonzero(np.diff(positions) > 1) + 1)]
    counts = Counter(lengths)
    assert max(counts) == SPAN_MAX_LENGTH == 10
    observed = np.array([counts[length] for length in range(1, SPAN_MAX_LENGTH + 1)])
    weights = 0.2 * 0.8 ** np.arange(SPAN_MAX_LENGTH)
    assert stats.chisquare(observed, weights / weights.sum() * observed.sum()).pvalue > 1e-3
    assert np.mean(lengths) == pytest.approx(3.797, abs=4 * np.std(lengths) / len(lengths) ** 0.5)


# --- a user's own function

OWN = """
import numpy as np

def every_other(request, generator):
    return np.arange(0, request.length, 2)

def by_lot(request, generator):
    return [int(generator.integers(request.length))]

def nothing(request, generator): return np.empty(0, np.int64)
def none(request, generator): return None
def beyond(request, generator): return np.array([0, request.length])
def twice(request, generator): return np.array([3, 1, 3])
def truths(request, generator): return np.arange(request.length) < 2
def ragged(request, generator): return [[1], [2, 3]]
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of a module in the working folder, which is on no path yet."""
    name = "own_masks_for_this_test"
    (tmp_path / f"{name}.py").write_text(OWN)
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.chdir(tmp_path)
    importlib.invalidate_caches()
    yield name
    sys.modules.pop(name, None)


def test_a_function_of_a_module_is_a_scheme(own: str) -> None:
    generator = np.random.default_rng(0)
    assert masking_scheme(Choice(f"{own}:every_other"))(asked(7), generator).tolist() == [0, 2, 4, 6]
    draws = [masking_scheme(Choice(f"{own}:by_lot"))(asked(7), generator) for _ in range(100)]
    assert {int(place) for (place,) in draws} == set(range(7))


@pytest.mark.parametrize("function", ["nothing", "none", "beyond", "twice", "truths", "ragged"])
def test_what_a_function_returns_is_checked(own: str, function: str) -> None:
    scheme = masking_scheme(Choice(f"{own}:{function}"))
    with refused(f"'pretrain.masking': '{own}:{function}' returned ", "7 wordpieces", "positions from 0 to 6"):
        scheme(asked(7), np.random.default_rng(0))


SHARE = "tests.tiny_masks:first_words"


@pytest.mark.parametrize(
    ("scheme", "options", "named"),
    [
        (SHARE, {"shares": 0.3}, ["'shares'", "'share'"]),
        (SHARE, {"share": "a"}, ["share must be a number, got 'a'"]),
        ("salient_span", {"share": 1.0}, ["'share'", "none"]),
    ],
)
def test_a_wrong_option_is_refused(scheme: str, options: dict[str, object], named: list[str]) -> None:
    with refused(f"'{scheme}'", *named) as caught:
        check_masking(Pretrain(masking={"name": scheme, **options}))
    assert caught.value.parameter.startswith("pretrain.masking.")


@pytest.mark.parametrize("value", [3, {"share": 1.0}, {"name": ["a"]}, ["salient_span"]])
def test_what_names_no_scheme_is_refused(value: object) -> None:
    with pytest.raises(ValidationError, match="masking"):
        Pretrain(masking=value)


@pytest.mark.parametrize(
    ("module", "source", "reason"),
    [
        ("", "", "that is no name of a module"),
        ("masks_that_need_more", "import no_such_module_here", "No module named 'no_such_module_here'"),
        ("broken_masks", "def f(:\n", "failed with SyntaxError (invalid syntax (broken_masks.py, line 1"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named(
    own: str, module: str, source: str, reason: str, tmp_path: Path
) -> None:
    (tmp_path / f"{module}.py").write_text(source)
    importlib.invalidate_caches()
    with refused(f"'{module}:f'", reason, parameter="pretrain.masking"):
        masking_scheme(Choice(f"{module}:f"))


def test_the_scheme_of_the_docs_masks_the_last_words_and_those_named() -> None:
    text = (Path(__file__).parents[2] / "docs/extending.md").read_text()
    code = next(block for block in text.split("```python\n") if "last_words" in block).partition("```")[0]
    docs: dict[str, Any] = {"__name__": "docs"}
    exec(code, docs)
    pieces = "zov ##zen met ada love ##lace in paris .".split()
    spans = np.array([[0, 2], [3, 6], [7, 8]], np.int32)
    request = MaskRequest(9, spans, 0.3, np.arange(9), pieces, ["LOC", "PER", "LOC"])
    assert [text for _, _, text in request.words] == "zovzen met ada lovelace in paris .".split()
    options = docs["LastWords"](share=0.3, also=["lovelace"])
    assert docs["last_words"](request, np.random.default_rng(0), options).tolist() == [4, 5, 6, 7, 8]
    assert request.spans_labelled("PER", "PERSON").tolist() == [[3, 6]]


WORDS = "[MASK] who when where how many what ? . the city of ankara was founded in 1356 by two men , he said".split()


@pytest.mark.parametrize(
    ("sentence", "answer", "label", "question"),
    [
        ("ankara was founded in 1356 .", "1356", "date", "when ankara was founded in ?"),
        ("ankara was founded by two men .", "ankara", "name", "who was founded by two men ?"),
        ("ankara was founded by two men .", "ankara", "LOC", "where was founded by two men ?"),
        ("two men founded ankara", "two", "number", "how many men founded ankara ?"),
        ("the city of ankara , he said .", "the city of ankara", "object", "what , he said ?"),
        ("1356 .", "1356 .", "none", "what ?"),
    ],
)
def test_a_question_asks_for_the_masked_span_and_the_reader_reads_the_sentence(
    sentence: str, answer: str, label: str, question: str
) -> None:
    words = sentence.split()
    first = words.index(answer.split()[0])
    masked = mask(np.array([WORDS.index(word) for word in words]), np.arange(first, first + len(answer.split())), 0)
    asked = QuestionForm(WORDS)(masked, label)
    assert [WORDS[token] for token in asked.query] == question.split()
    assert all(mine is given for mine, given in zip(asked._replace(question=None), masked, strict=True))
    assert masked.query is masked.tokens


def test_a_vocabulary_without_the_words_of_questions_is_refused() -> None:
    with pytest.raises(UserError, match=r"pretrain\.query_form.*what"):
        QuestionForm(["[MASK]", "was", "?"])
