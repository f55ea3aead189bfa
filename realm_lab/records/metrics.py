"""The registry of metrics: their source, their format, and the data split that they are measured on.

Studies, reports, MLflow, `compare` and search read this registry, and nothing else lists metrics. Adding one
takes an entry here and the computation that writes it under the same name, either into the results of a system's
evaluate stage (`source="results"`) or into the metrics of its pre-training (`source="curve"`). A value without an entry
is still collected and shown under its name. A study names a custom metric as `package.module:NAME`;
one that a function computes from predictions is in records/computed.py.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

from realm_lab.errors import UserError

Source = Literal["results", "curve", "run"]
Split = Literal["test", "dev", "train", ""]
Part = Literal["retrieval", "own measurements", "answers", "corpus update", "BM25"]  # parts of evaluate, in order
Better = Literal["up", "down", ""]
ROUNDING = 1e-6
FLOOR = 0.02  # share of the scale at its bad end: a value in it counts as nothing learned


@dataclass(frozen=True)
class Metric:
    """A measure of a run, or a curve of its pre-training.

    `source` is where its value comes from: the results of the evaluate stage, the curves of pre-training (logged over
    steps), or the run itself (age of the index, time). `split` is the data that it is measured on: only a
    metric of split "dev" may choose a learning rate or reward a search. `better` is the direction of an improvement,
    "" if neither is. `headline` metrics are shown first everywhere. `low` and `high` bound its values; None: no
    bound. `part` is the part of the evaluate stage that measures it; a system without that part has no value.
    """

    name: str
    title: str
    source: Source = "results"
    split: Split = "test"
    unit: str = ""
    digits: int = 3
    better: Better = "up"
    headline: bool = False
    result: str = ""  # the name in the results, if it differs from `name`
    low: float | None = None
    high: float | None = None
    part: Part = "own measurements"
    choice: str | dict[str, Any] | None = None  # the code that computes it from predictions (records/computed.py)

    def __post_init__(self) -> None:
        """Raise a UserError for a wrong value of `better`, `source`, `split` or `part`."""
        for field, words in (("better", Better), ("source", Source), ("split", Split), ("part", Part)):
            if (word := getattr(self, field)) not in (known := get_args(words)):
                choices = ", ".join(map(repr, known))
                raise UserError(f"metric '{self.name}': {field}={word!r}", remedy=f"choose from: {choices}")

    @property
    def key(self) -> str:
        """Key of its value in results and curves."""
        return self.result or self.name

    @property
    def span(self) -> float:
        """The largest difference that two values can have; infinite without bounds."""
        return math.inf if self.low is None or self.high is None else self.high - self.low

    def is_at_floor(self, value: float) -> bool:
        """True within 2 % of the bad end of the scale; False for a metric without bounds or direction."""
        if self.low is None or self.high is None or not self.better:
            return False
        return (value - self.low if self.better == "up" else self.high - value) <= FLOOR * self.span

    def is_within(self, value: float) -> bool:
        """True for a value within the bounds, rounding aside."""
        low, high = -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high
        return low - ROUNDING <= value <= high + ROUNDING

    def check_delta(self, largest: float) -> None:
        """Check the largest difference that does not matter. UserError: it is not a number between 0 and the range."""
        if isinstance(largest, bool) or not 0 < largest < math.inf:
            problem = f"delta of {self.name}: {largest} is no finite number above 0"
            raise UserError(problem, "correct it", value=largest)
        if largest >= self.span:
            problem = f"delta of {self.name}: {largest:g} is not below its range, {self.low:g} to {self.high:g}"
            raise UserError(problem, "lower it", value=largest)


_share = partial(Metric, low=0.0, high=1.0)
_answers = partial(_share, part="answers")
_recall = partial(_share, part="retrieval")


def _start_and_end(name: str, title: str, **more: Any) -> list[Metric]:
    """A metric measured with the weights before and after pre-training; `title` has {when} for the moment."""
    when = {"start": "before pre-training", "end": "after pre-training"}
    return [Metric(f"{name}_{end}", title.replace("{when}", words), **more) for end, words in when.items()]


_ENTRIES = (
    _answers("exact_match", "exact match", headline=True),
    _recall("recall_at_1", "recall@1, zero-shot", headline=True),
    _recall("recall_at_5", "recall@5, zero-shot", headline=True),
    Metric(
        "retrieval_utility", "retrieval utility", unit="nats", digits=2, headline=True, result="retrieval_utility_end"
    ),
    Metric("index_staleness_steps", "mean age of the index", "run", "", "steps", 1, "", headline=True),
    Metric("wall_seconds", "wall-clock time", "run", "", "s", 0, "down", headline=True),
    Metric("device_hours", "device hours", "run", "", "h", 3, "down"),
    Metric("training_teraflop", "floating-point operations of training", "run", "", "10¹²", 2, "down"),
    Metric("peak_memory_gibibytes", "most memory of a process", "run", "", "GiB", 2, "down"),
    Metric("parameters", "weights that retrieve and answer", digits=0, better="down", part="answers"),
    _answers("exact_match_dev", "exact match, development questions", split="dev"),
    _answers("exact_match_span", "exact match of the span (released code)"),
    _answers("f1", "F1"),
    _answers("exact_match_relation_asked", "exact match, relations that training asks for"),
    _answers("exact_match_relation_held_out", "exact match, held-out relations"),
    _recall("recall_at_5_wording_encyclopedia", "recall@5, zero-shot, questions in the words of Z"),
    _recall("recall_at_5_wording_news", "recall@5, zero-shot, questions in other words"),
    _recall("recall_at_20", "recall@20, zero-shot"),
    _recall("recall_at_1_finetuned", "recall@1, fine-tuned"),
    _recall("recall_at_5_finetuned", "recall@5, fine-tuned"),
    _recall("recall_at_20_finetuned", "recall@20, fine-tuned"),
    _recall("gold_recall_at_1", "recall@1 of the gold passage"),
    _recall("gold_recall_at_5", "recall@5 of the gold passage"),
    _recall("gold_recall_at_20", "recall@20 of the gold passage"),
    _recall("evidence_at_1", "evidence@1, zero-shot"),
    _recall("evidence_at_5", "evidence@5, zero-shot"),
    _recall("evidence_at_20", "evidence@20, zero-shot"),
    _recall("ndcg_at_10", "nDCG@10 of judged documents, zero-shot"),
    _recall("judged_recall_at_100", "recall@100 of judged documents, zero-shot"),
    _recall("ndcg_at_10_finetuned", "nDCG@10 of judged documents, fine-tuned"),
    _recall("judged_recall_at_100_finetuned", "recall@100 of judged documents, fine-tuned"),
    _recall("path_recall_at_5", "recall@5 of every passage of the path"),
    _recall("path_recall_at_20", "recall@20 of every passage of the path"),
    *_start_and_end("passage_utility", "utility of passages, without the null document, {when}", unit="nats", digits=2),
    *_start_and_end("retrieval_utility", "retrieval utility {when}", unit="nats", digits=2),
    *_start_and_end("retrieval_utility_top1", "utility of the top passage {when}", unit="nats", digits=2),
    *_start_and_end("retrieval_utility_best", "utility of the best candidate {when}", unit="nats", digits=2),
    *_start_and_end("cloze_null_probability", "p(null document) {when}", better="", low=0.0, high=1.0),
    *_start_and_end("cloze_log_likelihood", "log-likelihood of masked spans {when}", unit="nats", digits=2),
    *_start_and_end("cloze_gold_log_likelihood", "log p(y|gold,x) {when}", unit="nats", digits=2),
    *_start_and_end("cloze_null_log_likelihood", "log p(y|null,x) {when}", unit="nats", digits=2, better=""),
    *_start_and_end("cloze_gold_rank", "median rank of the gold passage {when}", digits=1, better="down"),
    *_start_and_end("cloze_exact_match", "cloze exact match {when}", low=0.0, high=1.0),
    *_start_and_end("cloze_top1_subject", "top passage about the entity asked about, {when}", low=0.0, high=1.0),
    *_start_and_end(
        "cloze_top1_bystander", "top passage about another entity named, {when}", better="down", low=0.0, high=1.0
    ),
)

_CURVES = (
    Metric("passage_utility", "utility of passages, without the null document", "curve", "dev", "nats", 2),
    Metric("retrieval_utility", "retrieval utility", "curve", "dev", "nats", 2, headline=True),
    Metric("retrieval_utility_top1", "utility of the top passage", "curve", "dev", "nats", 2),
    Metric("retrieval_utility_best", "utility of the best candidate", "curve", "dev", "nats", 2),
    _recall("recall_at_1", "zero-shot recall@1", "curve", "dev"),
    _recall("recall_at_5", "zero-shot recall@5", "curve", "dev", headline=True),
    _recall("recall_at_20", "zero-shot recall@20", "curve", "dev"),
    _share("cloze_null_probability", "p(null document), held-out sentences", "curve", "dev", better=""),
    Metric("cloze_log_likelihood", "log-likelihood of masked spans", "curve", "dev", "nats", 2),
    Metric("cloze_gold_log_likelihood", "log p(y|gold,x)", "curve", "dev", "nats", 2),
    Metric("cloze_null_log_likelihood", "log p(y|null,x)", "curve", "dev", "nats", 2, ""),
    Metric("cloze_gold_rank", "median rank of the gold passage", "curve", "dev", "", 1, "down"),
    _share("cloze_exact_match", "cloze exact match", "curve", "dev"),
    Metric("candidate_entropy", "entropy of p(z|x)", "curve", "train", "nats", 2, ""),
    _share("null_probability", "p(null document)", "curve", "train", "", 3, ""),
    Metric("score_spread", "spread of the top scores", "curve", "train", "", 2, ""),
    _share("gold_among_candidates", "gold passage among the candidates", "curve", "train"),
    Metric("index_staleness_steps", "age of the index", "curve", "", "steps", 1, "", low=0.0),
    _share("index_overlap", "overlap of stale and fresh top k", "curve", "train", "", 3, ""),
    _share("index_overlap_sampled", "overlap of stale and fresh top k, sampled", "curve", "train", "", 3, ""),
    _share("prior_shift", "shift of p(z|x) by staleness", "curve", "train", "", 3, "down"),
    _share("prior_shift_sampled", "shift of p(z|x) by staleness, sampled", "curve", "train", "", 3, "down"),
    Metric("marginal_log_likelihood", "marginal log-likelihood", "curve", "train", "nats", 2, headline=True),
)

# Each entry stands for several metrics: {kind} is the label of a masked span, or the form of a passage.
BY_KIND = (
    _share("gold_among_candidates_{kind}", "gold passage among the candidates, {kind} masked", "curve", "train"),
    _share("null_probability_{kind}", "p(null document), {kind} masked", "curve", "train", better=""),
    _recall("retrieved_at_5_{kind}", "share of {kind} in the first five passages, zero-shot", better=""),
    _recall("gold_recall_at_5_{kind}", "recall@5 of the gold passage, {kind}"),
    _recall("evidence_at_5_{kind}", "evidence@5, {kind}"),
    _recall("gold_first_{kind}", "{kind} first, where gold passages are in several forms", better=""),
    _share("cloze_probability_{kind}_start", "p(z|x) of {kind} before pre-training", better=""),
    _share("cloze_probability_{kind}_end", "p(z|x) of {kind} after pre-training", better=""),
    _share("cloze_gold_among_candidates_{kind}", "gold passage among the candidates, {kind} clozes", "curve", "dev"),
    _share("cloze_gold_among_candidates_{kind}_start", "gold passage among the candidates before, {kind} clozes"),
    _share("cloze_gold_among_candidates_{kind}_end", "gold passage among the candidates after, {kind} clozes"),
    _share("cloze_null_probability_{kind}", "p(null document), {kind} clozes", "curve", "dev", better=""),
    _share("cloze_null_probability_{kind}_start", "p(null document) before, {kind} clozes", better=""),
    _share("cloze_null_probability_{kind}_end", "p(null document) after, {kind} clozes", better=""),
)

METRICS: dict[str, Metric] = {metric.name: metric for metric in _ENTRIES}
"""Metrics of a run, one number each, by name; `results.csv` has a column for each that a study knows."""

BUILT_IN = frozenset(METRICS)

CURVES: dict[str, Metric] = {metric.name: metric for metric in _CURVES}
"""Metrics of pre-training over steps, by name."""


def metric(name: str) -> Metric:
    """Return the metric of that name; for a name that is not registered, a metric with this title and no direction."""
    return METRICS.get(name) or of_kind(name, "results") or Metric(name, name.replace("_", " "), better="")


def curve(name: str) -> Metric:
    """Return the curve of that name; a name that is not registered is handled as in `metric`."""
    return CURVES.get(name) or of_kind(name, "curve") or Metric(name, name.replace("_", " "), "curve", "", better="")


def one_name(name: str) -> str:
    """Return the name that a metric has in significance tests: `retrieval_utility` becomes `retrieval_utility_end`."""
    return METRICS[name].key if name in METRICS and METRICS[name].key in METRICS else name


@functools.cache  # a report asks for each value of each run
def of_kind(name: str, source: Source) -> Metric | None:
    """Return the metric of that name, made from the entry of BY_KIND that fits it; None: no entry fits."""
    for pattern in BY_KIND:
        before, after = pattern.name.split("{kind}")
        kind = name[len(before) : len(name) - len(after)]
        if pattern.source == source and kind and name == pattern.name.format(kind=kind):
            return replace(pattern, name=name, title=pattern.title.format(kind=kind))
    return None


def chosen_by() -> dict[str, Metric]:
    """Return the metrics that a choice may depend on: measured on development data, and larger is better."""
    entries = (*CURVES.values(), *METRICS.values())
    return {entry.name: entry for entry in entries if entry.split == "dev" and entry.better == "up"}


def learn(entries: Iterable[Metric]) -> None:
    """Register the custom metrics of a study from its record, in place of those of the same name in another study."""
    METRICS.update({entry.name: entry for entry in entries if entry.name not in BUILT_IN})


def register_metric(entry: Metric) -> Metric:
    """Add a custom metric or curve. ValueError: the name is taken."""
    registry = CURVES if entry.source == "curve" else METRICS
    if entry.name in registry:
        raise ValueError(f"metric '{entry.name}' is registered already; choose another name")
    registry[entry.name] = entry
    return entry
