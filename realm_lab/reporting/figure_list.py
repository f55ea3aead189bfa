"""Which figures the report has, from which numbers, in which order."""

from __future__ import annotations

import math

import pandas as pd

from realm_lab.reporting import figures
from realm_lab.reporting.document import Figure
from realm_lab.reporting.figures import Panel
from realm_lab.reporting.results_sections import bm25_values, swap_rows
from realm_lab.reporting.table import Collection, column, results_table, summarise

COMPARED = {"exact_match": "exact match after fine-tuning", "recall_at_5": "recall@5, zero-shot"}


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
    uniform = _uniform_entropy(collection)
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
            "health of pre-training",
            figures.curves_figure(
                "health",
                "Health of pre-training on training batches: what collapses first when it collapses.",
                pretrain,
                [
                    Panel("candidate_entropy", "entropy of p(z|x)", "nats", 0.0, None, uniform, "uniform"),
                    Panel("null_probability", "p(null document)", "probability", 0.0, 1.03),
                    Panel("gold_among_candidates", "gold among candidates", "share of spans", 0.0, 1.03),
                    Panel("score_spread", "spread of retrieval scores", "standard deviation", 0.0),
                    Panel("index_staleness_steps", "age of the index", "steps", 0.0, is_age=True),
                ],
                columns=3,
                step_name=step,
                legend_in_panel=True,
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


def _uniform_entropy(collection: Collection) -> float | None:
    """log K when all runs of the treatment have the same number of candidates K."""
    counts = {run.record.params.get("pretrain", {}).get("candidates") for run in collection.of(collection.treatment)}
    count = counts.pop() if len(counts) == 1 else None
    return math.log(count) if isinstance(count, int) and count > 1 else None
