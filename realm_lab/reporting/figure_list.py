"""Which figures the report has, from which numbers, in which order."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Any

import pandas as pd

from realm_lab.reporting import figures
from realm_lab.reporting.document import Figure
from realm_lab.reporting.figures import Panel
from realm_lab.reporting.results_sections import bm25_values, swap_rows
from realm_lab.reporting.table import Collection, column, results_table, summarise
from realm_lab.tracking.bounds import BOUNDS

COMPARED = {"exact_match": "exact match after fine-tuning", "recall_at_5": "recall@5, zero-shot"}

PROBES = (
    ("probe_gold_utility", "gold passage"),
    ("probe_same_article_utility", "same article"),
    ("probe_random_utility", "random passage"),
)
OVERLAPS = (("index_overlap", "all passages"), ("index_overlap_sampled", "estimate from a sample"))
SHIFTS = (("prior_shift", "all passages"), ("prior_shift_sampled", "estimate from a sample"))
NORMS = (("gradient_norm_reader", "reader"), ("gradient_norm_retriever", "retriever"))


def curve_figures(collection: Collection, points: pd.DataFrame) -> list[Figure | str]:
    """Every drawing, in the order of the report; a sentence in the place of one that has no data."""
    rows = results_table(collection)
    pretrain = points[points["stage"] == "pretrain"]
    warm = points[points["stage"] == "warm_start"]
    treatment, baseline = collection.treatment, collection.baseline
    bm25 = {name: summarise(values.values()) for name, values in bm25_values(rows).items()}
    references = {name: summary.mean for name, summary in bm25.items() if summary}
    recall = [
        Panel(
            f"recall_at_{k}",
            f"recall@{k}",
            "share of dev questions",
            0.0,
            1.03,
            references.get(f"recall_at_{k}"),
            "BM25",
        )
        for k in (1, 5, 20)
    ]
    step = "pre-training step"
    drawn: list[tuple[str, Figure | None]] = [
        (
            "retrieval utility",
            figures.curves_figure(
                "retrieval_utility",
                "Retrieval utility on held-out masked sentences over pre-training, as in Figure 4 of the paper.",
                pretrain,
                [
                    Panel("retrieval_utility", "weighted by p(z|x)", "nats per span"),
                    Panel("retrieval_utility_top1", "top passage", "nats per span"),
                    Panel("retrieval_utility_best", "best candidate", "nats per span"),
                ],
                columns=3,
                step_name=step,
                share_y=True,
            ),
        ),
        (
            "zero-shot recall",
            figures.curves_figure(
                "recall",
                "Zero-shot recall on development questions over pre-training; no question is trained on.",
                pretrain,
                recall,
                columns=3,
                step_name=step,
                share_y=True,
            ),
        ),
        (
            "likelihood and cloze exact match",
            figures.curves_figure(
                "cloze",
                "Filling in the masked span of held-out sentences over pre-training.",
                pretrain,
                [
                    Panel("cloze_log_likelihood", "log p(y|x)", "nats per span", None, 0.0),
                    Panel("cloze_exact_match", "cloze exact match", "share of sentences", 0.0, 1.03),
                ],
                columns=2,
                step_name=step,
            ),
        ),
        (
            "early warnings of a collapse",
            figures.curves_figure(
                "early_warnings",
                "Early warnings of a collapse, on training batches and (reader probe) on held-out sentences.",
                pretrain,
                _early_warnings(collection, pretrain),
                columns=3,
                step_name=step,
                legend_in_panel=True,
            ),
        ),
        (
            "the index and how fresh it is",
            figures.curves_figure(
                "index_freshness",
                "The index that training searches, beside a fresh one: how old it is, how much of what a fresh index "
                "would find it still finds, and how far that moves p(z|x).",
                pretrain,
                _freshness(pretrain),
                columns=3,
                step_name=step,
            ),
        ),
        (
            "warm start",
            figures.curves_figure(
                "warm_start",
                "Warm start: the reader as a masked language model (MLM), "
                "then the embedder on the Inverse Cloze Task (ICT).",
                warm,
                [
                    Panel("loss_mlm", "MLM loss", "nats per mask", 0.0),
                    Panel("accuracy_mlm", "MLM accuracy", "share of masks", 0.0, 1.03),
                    Panel("loss_ict", "ICT loss", "nats per query", 0.0),
                    Panel("accuracy_ict", "ICT accuracy", "share of batch", 0.0, 1.03),
                ],
                columns=4,
                step_name="warm-start step",
            ),
        ),
        (
            "warm start against REALM",
            figures.slopes_figure(
                "comparison",
                "What pre-training changes, seed by seed.",
                [
                    (title, column(rows, baseline, name), column(rows, treatment, name))
                    for name, title in COMPARED.items()
                ],
                (str(baseline).replace("_", " "), "REALM" if treatment == "realm" else str(treatment)),
            ),
        ),
        (
            "edition swap",
            figures.shares_figure(
                "edition_swap",
                "Answers to questions whose fact changed, after swapping the corpus and training nothing "
                "(paper, Table 4).",
                [(f"{row['system']}, seed {row['seed']}", row["shares"]) for row in swap_rows(collection)],
                ("follows the new edition", "stays with the old", "wrong"),
            ),
        ),
    ]
    return [figure if figure else f"No figure of {what}: the runs hold no data for it." for what, figure in drawn]


def _early_warnings(collection: Collection, pretrain: pd.DataFrame) -> list[Panel]:
    """What moves first when a run collapses, with the bounds at which it is flagged."""
    largest, bounds = _largest_entropy(collection), _bounds(collection)
    entropy = Panel(
        "candidate_entropy", "entropy of p(z|x)", "nats", 0.0, None, largest, "uniform", bounds["candidate_entropy"]
    )
    if (pretrain["metric"] == "candidate_entropy_fraction").any():
        nats = [(height / largest, f"{name} nats") for height, name in bounds["candidate_entropy"] if largest]
        both = (*bounds["candidate_entropy_fraction"], *nats)
        entropy = Panel("candidate_entropy_fraction", "entropy of p(z|x)", "share of log k", 0.0, 1.03, bounds=both)
    probe_bounds, utility, norm = bounds["probe_gold_utility"], "nats per masked token", "L2 norm, log scale"
    if pretrain["label"].nunique() <= 1:
        probes = [Panel("", "reader probe: utility", utility, bounds=probe_bounds, series=PROBES)]
        norms = [Panel("", "gradient norms", norm, series=NORMS, is_log=True)]
    else:  # colours are labels: a panel for each, those of the probe with the same axis
        measured = pretrain[pretrain["metric"].isin([metric for metric, _ in PROBES])]["value"]
        low, high = measured.min(), measured.max()
        margin = 0.05 * (high - low)
        ends = (float(low - margin), float(high + margin))
        probes = [Panel(metric, f"probe: {name}", utility, *ends, bounds=bounds[metric]) for metric, name in PROBES]
        norms = [Panel(metric, f"gradient norm, {name}", norm, is_log=True) for metric, name in NORMS]
    return [
        entropy,
        Panel("null_probability", "p(null document)", "probability", 0.0, 1.03, bounds=bounds["null_probability"]),
        Panel("gold_among_candidates", "gold among candidates", "share of sentences", 0.0, 1.03),
        *probes,
        Panel("score_spread", "spread of retrieval scores", "standard deviation of f(x,z)", 0.0),
        *norms,
    ]


def _freshness(pretrain: pd.DataFrame) -> list[Panel]:
    """Age and drift of the index; colours are labels where there are several, so that the estimates have no place."""
    overlap, shift = "share of the fresh top k", "total variation"
    age = Panel("index_staleness_steps", "age of the index", "steps", 0.0, is_age=True)
    if pretrain["label"].nunique() <= 1:
        return [
            age,
            Panel("", "stale top k in the fresh one", overlap, 0.0, series=OVERLAPS),
            Panel("", "shift of p(z|x)", shift, 0.0, series=SHIFTS),
        ]
    return [
        age,
        Panel(OVERLAPS[0][0], "stale top k in the fresh one", overlap, 0.0, 1.03),
        Panel(SHIFTS[0][0], "shift of p(z|x)", shift, 0.0),
    ]


def _pretrain_params(collection: Collection) -> list[dict[str, Any]]:
    """pretrain.* of the runs that have the stage."""
    return [run.record.params.get("pretrain", {}) for run in collection.runs if "pretrain" in run.record.stages]


def _bounds(collection: Collection) -> defaultdict[str, tuple[tuple[float, str], ...]]:
    """metric -> (height, name) of the bounds that pre-training watches; empty for any other metric."""
    found: defaultdict[str, tuple[tuple[float, str], ...]] = defaultdict(tuple)
    if _pretrain_params(collection):
        for bound in BOUNDS:
            found[bound.metric] += ((bound.limit, f"flag {'above' if bound.is_upper else 'below'} {bound.limit:g}"),)
    return found


def _largest_entropy(collection: Collection) -> float | None:
    """log k when all runs that pre-train have the same number of candidates k."""
    counts = {params.get("candidates") for params in _pretrain_params(collection)}
    count = counts.pop() if len(counts) == 1 else None
    return math.log(count) if isinstance(count, int) and count > 1 else None
