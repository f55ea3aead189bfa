"""The chapters of tables on what came out: all measures over seeds, and the edition swap."""

from __future__ import annotations

import pandas as pd

from realm_lab.reporting.document import NOTHING, Block, Section, Table, Text, mean_sd, number
from realm_lab.reporting.table import BM25, Collection, column, results_table
from realm_lab.reporting.verdict import change_of

MEASURES = {
    "exact_match": "exact match",
    "exact_match_span": "exact match, span",
    "f1": "F1",
    "recall_at_1": "recall@1, zero-shot",
    "recall_at_5": "recall@5, zero-shot",
    "recall_at_20": "recall@20, zero-shot",
    "recall_at_5_finetuned": "recall@5, fine-tuned",
}
UTILITY = "retrieval utility, start → end"
# Guu et al. 2020, Table 2, development set of Natural Questions: (system, exact match, zero-shot recall@5).
PAPER = (("paper: baseline", 0.313, 0.139), ("paper: REALM", 0.382, 0.385))
PAPER_NOTE = (
    "The rows of the paper (Guu et al. 2020, Table 2) are another data set: Natural Questions, development set, "
    "BERT-base, 13 million passages. They are here for orientation and cannot be compared with the rows above."
)
MEASURE_NOTE = (
    "Exact match and F1 are after fine-tuning: official answer normalisation; the span column asks for the exact span. "
    "Zero-shot recall@k: the share of questions with the answer in the k passages found before any question was "
    "trained on. Retrieval utility: log p(y|z,x) − log p(y|∅,x), nats per masked span, weighted by p(z|x), held-out "
    "sentences; a system that is not pre-trained ends where it starts."
)


def main_section(collection: Collection) -> Section:
    """The main table over seeds, the same per seed, and the paper's own values as another data set."""
    rows = results_table(collection)
    if not any(run.results for run in collection.runs):
        missing = Text("No numbers yet: no run has a complete evaluate stage.", missing=True)
        return Section("results", "Results", [missing, _paper_alone()])
    measures = {name: title for name, title in MEASURES.items() if name in rows}
    summary = []
    for label in collection.labels:
        cells = {"system": label} | {
            title: mean_sd(column(rows, label, name).values()) for name, title in measures.items()
        }
        cells[UTILITY] = _utility(rows, label)
        evaluated = [run for run in collection.of(label) if run.results]
        flagged = sum(bool(run.flags) for run in collection.of(label))
        seeds_cell = {"seeds": f"{len(evaluated)} of {len(collection.seeds)}"}
        summary.append(cells | seeds_cell | {"flagged": f"{flagged} of {len(collection.of(label))}"})
    blocks: list[Block] = []
    bm25 = bm25_values(rows)
    if bm25:
        cells = {"system": "BM25"} | {title: mean_sd(bm25.get(name, {}).values()) for name, title in measures.items()}
        seeds = max(len(values) for values in bm25.values())
        summary.append(cells | {UTILITY: NOTHING, "seeds": f"{seeds} of {len(collection.seeds)}"})
    any_flag = any(run.flags for run in collection.runs)
    columns = ["system", *measures.values(), UTILITY, "seeds", *(["flagged"] if any_flag else [])]
    reference = pd.DataFrame(
        [
            {"system": name, MEASURES["exact_match"]: number(match), MEASURES["recall_at_5"]: number(recall)}
            for name, match, recall in PAPER
        ],
        columns=columns,
    )
    caption = "Mean ± standard deviation over seeds (ddof = 1); no ± where there is one seed. No test, no stars."
    frame = _filled(pd.DataFrame(summary, columns=columns))
    blocks.append(Table(caption, frame, _filled(reference), notes=(MEASURE_NOTE, PAPER_NOTE)))
    if not bm25:
        blocks.append(Text("BM25: no run measured it.", missing=True))
    blocks.append(_each_seed(collection, rows, measures))
    return Section("results", "Results", blocks)


def edition_section(collection: Collection) -> Section:
    """Per seed: what the answers do when the corpus is replaced by its updated edition."""
    swaps = swap_rows(collection)
    blocks: list[Block] = []
    if not swaps:
        text = (
            "No edition swap: no run measured it. It needs an updated edition of the corpus "
            "(for real text: corpus.files.knowledge_updated)."
        )
        return Section("edition-swap", "Edition swap", [Text(text, missing=True)])
    rows = [
        {
            "system": swap["system"],
            "seed": str(swap["seed"]),
            "follows": number(swap["shares"][0]),
            "stays": number(swap["shares"][1]),
            "wrong": number(swap["shares"][2]),
            "changed questions": number(swap["changed_questions"], 0),
            "exact match, unchanged, before": number(swap["unchanged_exact_match_before"]),
            "after": number(swap["unchanged_exact_match_after"]),
        }
        for swap in swaps
    ]
    note = (
        "follows: answers as the new edition says; stays: as the old one. "
        "Unchanged questions are the control: a swap should not hurt them."
    )
    blocks.append(
        Table(
            "The corpus and its index are replaced, no weight is trained (paper, Table 4).",
            pd.DataFrame(rows),
            notes=(note,),
        )
    )
    return Section("edition-swap", "Edition swap", blocks)


def _each_seed(collection: Collection, rows: pd.DataFrame, measures: dict[str, str]) -> Table:
    each = []
    for label in collection.labels:
        for run in collection.of(label):
            seed = run.record.seed
            cells = {"system": label, "seed": str(seed)}
            cells |= {title: number(column(rows, label, name).get(seed)) for name, title in measures.items()}
            start, end = (column(rows, label, f"retrieval_utility_{when}").get(seed) for when in ("start", "end"))
            cells[UTILITY] = change_of(
                {seed: start} if start is not None else {}, {seed: end} if end is not None else {}
            )
            cells["questions"] = number(run.results.get("questions"), 0)
            if any(other.flags for other in collection.runs):
                cells["flags"] = "; ".join(flag for flags in run.flags.values() for flag in flags) or NOTHING
            each.append(cells)
    return Table("Each seed.", _filled(pd.DataFrame(each)))


def _filled(frame: pd.DataFrame) -> pd.DataFrame:
    """A dash in every empty cell."""
    return frame.astype(object).where(frame.notna(), NOTHING)


def _utility(rows: pd.DataFrame, label: str) -> str:
    return change_of(column(rows, label, "retrieval_utility_start"), column(rows, label, "retrieval_utility_end"))


def bm25_values(rows: pd.DataFrame) -> dict[str, dict[int, float]]:
    """metric -> seed -> value; BM25 knows no label, so each seed counts once."""
    found: dict[str, dict[int, float]] = {}
    for name in rows.columns:
        if str(name).startswith(f"{BM25}."):
            values = rows[rows[name].notna()].drop_duplicates("seed")
            if len(values):
                found[str(name).removeprefix(f"{BM25}.")] = dict(zip(values["seed"], values[name], strict=True))
    return found


def swap_rows(collection: Collection) -> list[dict]:
    rows = []
    for label in collection.labels:
        for run in collection.of(label):
            swap = run.results.get("edition_swap")
            if isinstance(swap, dict) and all(
                isinstance(swap.get(part), int | float) for part in ("follows", "stays", "wrong")
            ):
                shares = tuple(float(swap[part]) for part in ("follows", "stays", "wrong"))
                rest = {
                    key: swap.get(key)
                    for key in ("changed_questions", "unchanged_exact_match_before", "unchanged_exact_match_after")
                }
                rows.append({"system": label, "seed": run.record.seed, "shares": shares, **rest})
    return rows


def _paper_alone() -> Table:
    rows = [
        {"system": name, "exact match": number(match), "recall@5, zero-shot": number(recall)}
        for name, match, recall in PAPER
    ]
    return Table("The paper's values.", pd.DataFrame(rows), notes=(PAPER_NOTE,))
