"""Figures of training in detail, and of how fresh the index is. A study names them in its file; the default run has all
but the last two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from realm_lab.evidence.report.figures import Panel, bands, bands_figure, plane_figure, shares_figure
from realm_lab.evidence.report.frames import StudyFrames, column
from realm_lab.evidence.report.sections.curves import even_ages, panel_of
from realm_lab.evidence.report.sections.step_changes import lines_of
from realm_lab.records.bounds import BOUNDS
from realm_lab.records.metrics import metric

if TYPE_CHECKING:
    import pandas as pd


def retrieval_utility(study: StudyFrames) -> Any:
    """Retrieval utility RU(z|x) = log p(y|z,x) − log p(y|∅,x) on held-out masked sentences over pre-training, as in
    Figure 4 of the paper: weighted by p(z|x) over the passages, of the top passage, and of the best candidate. Runs
    that were measured before `passage_utility` show it weighted by p(z|x) with the null document, whose RU is 0. If the
    null document's score is calibrated, step 0 is measured after that."""
    is_measured = (study.curves["metric"] == "passage_utility").any()
    first = "passage_utility" if is_measured else "retrieval_utility"
    names = (first, "retrieval_utility_top1", "retrieval_utility_best")
    return _curves(study, [panel_of(name) for name in names])


def recall(study: StudyFrames) -> Any:
    """Zero-shot recall on development questions over pre-training; no question is trained on."""
    return _curves(study, [panel_of(f"recall_at_{k}") for k in (1, 5, 20)])


def early_warnings(study: StudyFrames) -> Any:
    """Early warnings of a collapse, on training batches and (probe of the reader) on held-out sentences; dotted lines
    are the bounds at which a run is flagged."""
    lines = {bound.metric: [(bound.limit, f"flag {bound.crossed}")] for bound in BOUNDS}
    probes = [
        Panel(f"probe_{what}_utility", f"probe of the reader: {title}", "nats per masked token", lines=bounds)
        for what, title, bounds in (
            ("gold", "gold passage", lines["probe_gold_utility"]),
            ("same_article", "same article", ()),
            ("random", "random passage", ()),
        )
    ]
    panels = [
        panel_of("candidate_entropy", low=0.0),
        panel_of("null_probability", lines=lines["null_probability"]),
        panel_of("gold_among_candidates"),
        *probes,
        panel_of("score_spread", low=0.0),
        Panel("gradient_norm_reader", "gradient norm, reader", "L2 norm", 0.0),
        Panel("gradient_norm_retriever", "gradient norm, retriever", "L2 norm", 0.0),
    ]
    return _curves(study, panels)


def by_kind(study: StudyFrames) -> Any:
    """Held-out sentences by kind of mask: p(null document), and how often the passage that holds the answer is a
    candidate. `unknown` and `unnamed` masks have no such passage, `word` masks need none."""
    names = ("cloze_null_probability_", "cloze_gold_among_candidates_")
    found = sorted(set(study.curves["metric"]))
    panels = [panel_of(metric, low=0.0, high=1.03) for name in names for metric in found if metric.startswith(name)]
    return _curves(study, panels)


def index_freshness(study: StudyFrames) -> Any:
    """The index that training searches compared with a fresh one: its mean age, the share of the fresh top k that it
    finds, and how far that moves p(z|x) (total variation), exact at the evaluations and sampled between them."""
    names = ("index_staleness_steps", "index_overlap", "prior_shift", "index_overlap_sampled", "prior_shift_sampled")
    panels = [panel_of(name, low=0.0) for name in names]
    return bands_figure(even_ages(bands(study.curves_once)), panels, study.cells, columns=3)


def warm_start(study: StudyFrames) -> Any:
    """The warm start: the reader as masked language model (MLM), the embedder on the inverse cloze task (ICT)."""
    panels = [
        Panel("loss_mlm", "MLM loss", "nats per mask", 0.0),
        Panel("accuracy_mlm", "MLM accuracy", "share of masks", 0.0, 1.03),
        Panel("loss_ict", "ICT loss", "nats per query", 0.0),
        Panel("accuracy_ict", "ICT accuracy", "share of batch", 0.0, 1.03),
    ]
    first = next((stage for run in study.runs for stage in run.stages), "")
    baseline = study.cells[:1]  # the other cells share it
    return bands_figure(bands(study.curves_of(first)), panels, baseline, columns=4, step="warm-start step")


def corpus_update(study: StudyFrames) -> Any:
    """Answers to questions whose fact changed, after the corpus was replaced and nothing was trained (the paper's
    Table 4)."""
    rows = []
    for name, title in study.cells:
        parts = [column(study.results, name, f"corpus_update.{part}") for part in ("follows", "stays", "wrong")]
        for seed in sorted(set.intersection(*map(set, parts))):
            rows.append((f"{title}, seed {seed}", [part[seed] for part in parts]))
    names = ("follows the new version", "stays with the old", "wrong")
    return shares_figure(rows, names, "share of the questions whose answer changed")


def quality_over_drift(study: StudyFrames) -> Any:
    """Quality against what staleness does: drift is the share of a fresh index's top k that the searched index misses,
    mean over the evaluations of pre-training (1 − index_overlap). Light dots are runs, heavy ones the means of
    variants.
    """
    measured = study.curves[(study.curves["metric"] == "index_overlap") & (study.curves["step"] > 0)]
    drift = 1.0 - measured.groupby(["cell", "seed"])["value"].mean()
    return _quality_over(study, drift, "drift: share of the fresh top k missed")


def quality_over_refreshing(study: StudyFrames) -> Any:
    """Quality against the operations of the index in pre-training: embedding passages to refresh it or to map queries
    into it. Light dots are runs, heavy ones the means of variants.
    """
    spent = study.curves[study.curves["metric"] == "refresh_operations"].sort_values("step")
    last = spent.groupby(["cell", "seed"])["value"].last() / 1e12
    return _quality_over(study, last, "10¹² operations of the index", is_log=True)


def _curves(study: StudyFrames, panels: Sequence[Panel]) -> Any:
    return bands_figure(bands(study.curves_once), panels, study.cells, columns=3)


def _quality_over(study: StudyFrames, x: pd.Series[float], title: str, *, is_log: bool = False) -> Any:
    """Draw the first metric of a study over `x`, which has a value for each run by (cell, seed)."""
    quality = metric(next(iter(study.record.metrics), "exact_match"))
    if x.empty or quality.name not in study.results:
        return None
    spots = study.results[["cell", "seed", quality.name]].merge(x.rename("x").reset_index(), on=["cell", "seed"])
    spots = spots.rename(columns={quality.name: "y"})
    axes, lines = (title, quality.title), lines_of(study.record)
    return plane_figure(spots, study.cells, axes, lines=lines, metric=quality, is_log=is_log)
