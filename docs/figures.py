"""Draw the figures of README.md and the site from the committed results: `python docs/figures.py`.

method.svg: the method. read-a-figure.png: an annotated figure of differences. results.svg: four results.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path
from statistics import mean

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot as plt
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from realm_lab.evidence.report import figures
from realm_lab.evidence.report.figures_differences import differences_figure
from realm_lab.evidence.report.report_data import load_report

ROOT = Path(__file__).resolve().parents[1]
REFERENCE = ROOT / "reports" / "reference"
BLUE, ORANGE, GREY, INK = "#0072b2", "#d55e00", "#8a949e", "#1f2933"
STYLE = {"svg.hashsalt": "realm_lab", "svg.fonttype": "path", "font.family": "sans-serif", "font.size": 10}
STYLE |= dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK)
BAR, BOX = "#b8c0c8", "#f4f6f8"
DARK = {INK: "#e6e9ed", BLUE: "#56b4e9", ORANGE: "#ff9d5c", BAR: "#55606b", BOX: "#1f2933"}  # on a dark page

# Four results: title, metric, then study, cell and label of each bar.
RESULTS = [
    (
        "The retriever carries the gain: exact match",
        "exact_match",
        [
            ("table2_robust", "realm", "REALM"),
            ("table2_robust", "realm_retriever", "warm start's reader"),
            ("table2_robust", "realm_encoder", "warm start's retriever"),
            ("table2_robust", "warm_start", "warm start"),
        ],
    ),
    (
        "Mask salient spans: exact match",
        "exact_match",
        [
            ("table2_robust", "realm", "salient spans"),
            ("table2_robust", "random_token", "random tokens"),
            ("table2_robust", "random_span", "random spans"),
        ],
    ),
    (
        "News, under other names: evidence@5",
        "evidence_at_5",
        [
            ("real_entities", "realm", "REALM"),
            ("real_entities", "containment", "no reader"),
            ("real_entities", "bm25", "BM25"),
            ("real_entities", "longer", "Inverse Cloze Task"),
            ("real_entities", "untouched", "untouched encoder"),
        ],
    ),
    (
        "SQuAD: recall@5",
        "recall_at_5",
        [
            ("real_questions", "realm_questions", "REALM"),
            ("real_questions", "containment", "no reader"),
            ("real_questions", "bm25", "BM25"),
            ("real_questions", "longer", "Inverse Cloze Task"),
            ("real_questions", "untouched", "untouched encoder"),
        ],
    ),
]


def values(study: str, cell: str, metric: str) -> list[float]:
    """Read a metric of a cell, one value per seed."""
    with open(REFERENCE / study / "results.csv", encoding="utf-8", newline="") as file:
        return [float(row[metric]) for row in csv.DictReader(file) if row["cell"] == cell and row[metric]]


def save(figure: plt.Figure, path: Path) -> None:
    """Write an SVG without a background, whose colours follow the page."""
    figure.savefig(path, metadata={"Date": None}, transparent=True)
    plt.close(figure)
    text = path.read_text(encoding="utf-8")
    rules = (
        f'[style*="{kind}: {light}"]{{{kind}:{dark}!important}}'
        for light, dark in DARK.items()
        for kind in ("fill", "stroke")
    )
    style = f"<style>@media (prefers-color-scheme: dark){{{''.join(rules)}}}</style>"
    path.write_text(re.sub("</defs>", lambda _: f" {style}\n </defs>", text, count=1), encoding="utf-8")


def draw_results(path: Path) -> None:
    """Draw four small plots: a bar for the mean of each cell, a dot per seed."""
    figure, axes = plt.subplots(2, 2, figsize=(9, 3.9), height_ratios=[4, 5], constrained_layout=True)
    for axis, (title, metric, bars) in zip(axes.flat, RESULTS, strict=True):
        for row, (study, cell, _) in enumerate(bars):
            found = values(study, cell, metric)
            axis.barh(row, mean(found), color=BLUE if row == 0 else BAR, height=0.66)
            axis.plot(found, np.full(len(found), row), ".", color=INK, markersize=4)
            axis.text(1.03, row, f"{mean(found):.3f}".lstrip("0"), va="center")
        axis.set(xlim=(0, 1), yticks=range(len(bars)), yticklabels=[label for *_, label in bars], xticks=[0, 0.5, 1])
        axis.set_title(title, fontsize=10, fontweight="bold", loc="left")
        axis.invert_yaxis()
        axis.tick_params(left=False)
        axis.spines[["top", "right", "left"]].set_visible(False)
    save(figure, path)


def _box(axis: plt.Axes, x: float, y: float, text: str, color: str = INK, width: float = 1.9) -> None:
    axis.add_patch(
        FancyBboxPatch(
            (x - width / 2, y - 0.33), width, 0.66, boxstyle="round,pad=0.06", facecolor=BOX, edgecolor=color
        )
    )
    axis.text(x, y, text, ha="center", va="center", color=INK, fontsize=9.5)


def _arrow(
    axis: plt.Axes,
    start: tuple[float, float],
    end: tuple[float, float],
    text: str = "",
    color: str = INK,
    bend: float = 0,
) -> None:
    style = f"arc3,rad={bend}"
    axis.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=12, color=color, connectionstyle=style))
    if text:
        axis.text(
            (start[0] + end[0]) / 2,
            (start[1] + end[1]) / 2 + 0.2 + 5.6 * bend,
            text,
            ha="center",
            color=color,
            fontsize=8.5,
        )


def draw_method(path: Path) -> None:
    """Draw one step of pre-training: mask, retrieve, read, marginalise, and refresh the index now and then."""
    figure, axis = plt.subplots(figsize=(10, 3.5), constrained_layout=True)
    axis.set(xlim=(-0.1, 13.1), ylim=(-1.05, 3.55))
    axis.axis("off")
    top, low = 2.1, 0.2
    _box(axis, 1.2, top, "masked sentence x\n“... mayor of [MASK] ...”", width=2.4)
    _box(axis, 4.2, top, "query tower\nEmbed_input(x)", BLUE)
    _box(axis, 7.0, top, "top k passages z\n+ null document ∅")
    _box(axis, 9.6, top, "reader\np(y|z,x)", BLUE)
    _box(axis, 12.0, top, "Σ p(y|z,x) p(z|x)\n= p(y|x)", ORANGE)
    _box(axis, 7.0, low, "index, may be stale", GREY)
    _box(axis, 4.2, low, "document tower\nEmbed_doc(z)", BLUE)
    _box(axis, 1.2, low, "knowledge corpus Z", GREY, width=2.4)
    _arrow(axis, (2.5, top), (3.15, top))
    _arrow(axis, (5.25, top), (5.95, top), "MIPS")
    _arrow(axis, (8.05, top), (8.55, top))
    _arrow(axis, (10.65, top), (10.95, top))
    _arrow(axis, (2.5, low), (3.15, low))
    _arrow(axis, (5.25, low), (5.95, low), "refresh", ORANGE)
    _arrow(axis, (7.0, low + 0.45), (7.0, top - 0.45))
    _arrow(axis, (12.0, top + 0.45), (4.2, top + 0.45), "gradient: passages that help are scored higher", ORANGE, 0.12)
    _arrow(axis, (12.0, top - 0.45), (4.2, low - 0.42), "", ORANGE, -0.24)
    save(figure, path)


def draw_reading(path: Path) -> None:
    """Draw the first figure of the report of table2, with fewer cells and with notes on its parts."""
    report = load_report(REFERENCE / "table2")
    exact_match = report.compared[0]
    chosen = ("realm", "realm_retriever", "warm_start", "stale_30x")
    cells = [cell for cell in exact_match.cells if cell.cell.name in chosen]
    figure = differences_figure([exact_match._replace(cells=cells)], has_values=True)
    axis = figure.axes[1]
    axis.set_xlim(-0.75, 0.32)
    notes = [
        ("zero: the baseline itself", (0.0, -0.35), (0.07, -0.35)),
        ("narrow interval around zero:\na large difference is unlikely", (-0.015, 1.0), (-0.5, 0.85)),
        ("dot: mean over the seeds", (-0.55, 1.93), (-0.72, 1.45)),
        ("line: 95 % interval", (-0.49, 1.98), (-0.36, 1.6)),
        ("tick: one seed, paired\nwith the same seed\nof the baseline", (-0.42, 2.24), (-0.36, 2.3)),
        ("all ticks on one side\n(p decides, not the ticks)", (-0.6, 2.3), (-0.74, 2.85)),
        ("ticks spread widely:\nan uncertain mean", (0.015, 3.24), (0.06, 3.0)),
    ]
    for text, point, corner in notes:
        arrow = {"arrowstyle": "-|>", "color": ORANGE}
        axis.annotate(text, point, corner, color=ORANGE, fontsize=8, arrowprops=arrow, va="center")
    figure.set_size_inches(12, 4.2)
    figure.savefig(path, dpi=130, bbox_inches="tight")
    plt.close(figure)


def main() -> None:
    """Write all figures next to this file."""
    folder = Path(__file__).parent
    with mpl.rc_context(STYLE):
        draw_method(folder / "method.svg")
        draw_results(folder / "results.svg")
    with mpl.rc_context(figures.STYLE):
        draw_reading(folder / "read-a-figure.png")


if __name__ == "__main__":
    main()
