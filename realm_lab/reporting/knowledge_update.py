"""The page on a corpus that was replaced without training: report.md, results.json and its figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from realm_lab.core.files import atomic_write, write_json, write_text
from realm_lab.reporting.document import Figure
from realm_lab.reporting.figures import render, shares_figure
from realm_lab.reporting.markdown import escape
from realm_lab.reporting.palette import BLUE, INK, MUTED, ORANGE

MEASURES = {
    "exact_match": "exact match",
    "log_likelihood": "log-likelihood of the answer, nats",
    "utility": "retrieval utility, nats",
    "answer_retrieved": "answer among the passages read",
}
PARTS = ("follows the new corpus", "stays with the old", "wrong")
INTRODUCTION = (
    "The knowledge corpus is replaced and the index built again; no weight changes (the experiment of Table 4 of the "
    "paper). A blank is as many [MASK] as its answer has wordpieces, so the length is given away; the document that a "
    "sentence was taken from is never retrieved. Intervals: 95 %, paired bootstrap over the items, of this one model."
)


def write_knowledge_update(results: Sequence[dict[str, Any]], folder: Path) -> Path:
    """Write the page of one or several experiments into `folder`; returns report.md."""
    figures = [figure for figure in (_shares(results), _blanks(results)) if figure is not None]
    for figure in figures:
        write_text(folder / "figures" / f"{figure.name}.svg", figure.svg)
        with atomic_write(folder / "figures" / f"{figure.name}.png", "wb") as file:
            file.write(figure.png)
    parts = ["# Knowledge update", INTRODUCTION, _verdict(results)]
    parts += [f"![{escape(figure.alt)}](figures/{figure.name}.png)\n\n*{escape(figure.caption)}*" for figure in figures]
    for result in results:
        parts += _experiment(result)
    write_json(folder / "results.json", list(results))
    write_text(folder / "report.md", "\n\n".join(parts) + "\n")
    return folder / "report.md"


def _verdict(results: Sequence[dict[str, Any]]) -> str:
    """The headline figures in words."""
    said = []
    for result in results:
        found = result.get("questions")
        if found and found["new_corpus"]:
            shares = found["new_corpus"]
            said.append(
                f"{result['name']}: of {found['changed_questions']} changed answers {shares['follows']:.1%} follow the "
                f"new corpus, {shares['stays']:.1%} stay with the old, {shares['wrong']:.1%} are wrong"
            )
        for group, blanks in (result.get("clozes") or {}).items():
            change = blanks["difference"]["exact_match"]
            said.append(
                f"{result['name']}, {group}: exact match {blanks['old']['exact_match']:.1%} with the old corpus, "
                f"{blanks['new']['exact_match']:.1%} with the new ({_interval(change, 100)} points)"
            )
    return f"**{escape('. '.join(said) or 'Nothing was asked')}.**"


def _experiment(result: dict[str, Any]) -> list[str]:
    run, settings = result["run"], result["settings"]
    rows = [
        [name, corpus["source"], f"{corpus['passages']:,}", f"{corpus.get('embedded', 0):,}"]
        for name, corpus in result["corpora"].items()
    ]
    parts = [
        f"## {escape(result['name'])}",
        f"Run {escape(run['system'])}, seed {run['seed']}, key {run['run_key'][:12]}; {settings['candidates']} "
        f"candidates for a blank, {settings['passages_read']} passages for a question; {result['seconds']:.0f} s.",
        _table(["corpus", "from", "passages", "embedded"], rows),
    ]
    if result.get("questions"):
        parts += _questions(result["questions"])
    for group, blanks in (result.get("clozes") or {}).items():
        parts += _group(group, blanks)
    return parts


def _questions(found: dict[str, Any]) -> list[str]:
    rows = [
        [title, str(count), *(_share(shares, name) for name in ("follows", "stays", "wrong"))]
        for title, count, shares in (
            ("old corpus", found["changed_questions"], found["old_corpus"]),
            ("new corpus", found["changed_questions"], found["new_corpus"]),
            ("new corpus, of those right with the old", found["known_questions"], found["new_corpus_of_known"]),
        )
    ]
    before, after = found["unchanged_exact_match_before"], found["unchanged_exact_match_after"]
    parts = [
        "### Questions",
        _table(["changed answers, asked with", "questions", "new answer", "old answer", "wrong"], rows),
    ]
    if before is not None and after is not None:
        parts.append(
            f"{found['unchanged_questions']} questions whose answer did not change: exact match {before:.3f} with the "
            f"old corpus, {after:.3f} with the new."
        )
    return parts


def _group(group: str, blanks: dict[str, Any]) -> list[str]:
    rows = [
        [title, f"{blanks['old'][name]:.3f}", f"{blanks['new'][name]:.3f}", _interval(blanks["difference"][name])]
        for name, title in MEASURES.items()
    ]
    note = f"{blanks['items']} items, {blanks['wordpieces']} masked wordpieces; {blanks['shortened']} texts shortened"
    if blanks["skipped"]:
        more = ", ..." if len(blanks["skipped"]) > 1 else ""
        note += f"; {len(blanks['skipped'])} left out ({blanks['skipped'][0]}{more})"
    return [
        f"### Blanks: {escape(group)}",
        _table(["measure", "old corpus", "new corpus", "new - old [95 %]"], rows),
        escape(note) + ".",
    ]


def _share(shares: dict[str, float] | None, name: str) -> str:
    return "-" if shares is None else f"{shares[name]:.3f}"


def _interval(change: dict[str, Any], factor: float = 1.0) -> str:
    low, high = ("?" if change[end] is None else f"{factor * change[end]:+.3g}" for end in ("low", "high"))
    return f"{factor * change['mean']:+.3g} [{low}, {high}]"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *[[escape(cell) for cell in row] for row in rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _shares(results: Sequence[dict[str, Any]]) -> Figure | None:
    """What happens to the changed answers."""
    rows = []
    for result in results:
        found = result.get("questions") or {}
        for name in ("old_corpus", "new_corpus"):
            shares = found.get(name)
            if shares:
                bars = [shares[part] for part in ("follows", "stays", "wrong")]
                rows.append((f"{result['name']}, {name.replace('_', ' ')}", bars))
    caption = "Questions whose answer changed, asked with the old corpus and with the new one."
    return shares_figure("knowledge_update_questions", caption, rows, PARTS)


def _blanks(results: Sequence[dict[str, Any]]) -> Figure | None:
    """Exact match and likelihood of each group of blanks, from the old corpus to the new one."""
    groups = [
        (group if len(results) == 1 else f"{result['name']}, {group}", blanks)
        for result in results
        for group, blanks in (result.get("clozes") or {}).items()
    ]
    if not groups:
        return None
    panels = {name: MEASURES[name] for name in ("exact_match", "log_likelihood")}

    def draw(figure: Any) -> None:
        for place, (name, title) in zip(figure.subplots(1, 2, squeeze=False).flat, panels.items(), strict=True):
            for height, (_, blanks) in enumerate(groups):
                ends = [blanks["old"][name], blanks["new"][name]]
                place.plot(ends, [height, height], color=MUTED, linewidth=1.4, zorder=2)
                place.plot(ends[:1], [height], "o", color=ORANGE, markersize=6.5, zorder=3, label="old corpus")
                place.plot(ends[1:], [height], "o", color=BLUE, markersize=6.5, zorder=3, label="new corpus")
            names = [group for group, _ in groups] if name == "exact_match" else [""] * len(groups)
            place.set_yticks(range(len(groups)), names)
            place.tick_params(axis="y", labelcolor=INK)
            place.set(ylim=(len(groups) - 0.5, -0.5), title=title)
            place.margins(x=0.15)
            if name == "exact_match":  # a share: from nothing on
                highest = max(max(blanks["old"][name], blanks["new"][name]) for _, blanks in groups)
                place.set_xlim(-0.02 * max(highest, 0.05), max(1.15 * highest, 0.05))
        handles, labels = place.get_legend_handles_labels()
        figure.legend(handles[:2], labels[:2], loc="outside upper left", ncols=2)

    details = "; ".join(
        f"{group}: " + ", ".join(f"{MEASURES[n]} {b['old'][n]:.3f} to {b['new'][n]:.3f}" for n in panels)
        for group, b in groups
    )
    caption = "Blanks filled with the old corpus and with the new one."
    return render("knowledge_update_blanks", caption, f"{caption} {details}.", draw, 1.1 + 0.35 * len(groups))
