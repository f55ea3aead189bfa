"""The report of `realm-lab evaluate --corpus`: a corpus that was replaced without training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from realm_lab.core.files import write_json, write_text
from realm_lab.reporting.figures import draw, shares_figure
from realm_lab.reporting.rendering import NOTHING, number, render, signed
from realm_lab.reporting.report import write_figures

MEASURES = {
    "exact_match": "exact match",
    "log_likelihood": "log-likelihood of the answer, nats",
    "utility": "retrieval utility, nats",
    "answer_retrieved": "answer among the passages read",
}
PARTS = {"follows": "follows the new version", "stays": "stays with the old", "wrong": "wrong"}
ASKED = {
    "old_corpus": "old corpus",
    "new_corpus": "new corpus",
    "new_corpus_of_known": "new corpus, of those right with the old",
}
OLDER = {"corpora": "editions", "system": "label"}  # keys of results that were written before


def write_knowledge_update(results: Sequence[dict[str, Any]], folder: Path) -> Path:
    """Write the report of one or several experiments into `folder`; returns report.md."""
    shown = [_experiment(result) for result in results]
    bars = [bar for experiment in shown for bar in experiment["bars"]]
    drawing = draw(
        "knowledge_update_questions",
        "Questions whose answer changed, asked with the old corpus and with the new one.",
        lambda: shares_figure(bars, [*PARTS.values()], "share of the questions whose answer changed"),
    )
    figures = [drawing] if drawing else []
    write_figures(folder, figures)
    write_json(folder / "results.json", list(results))
    text = render("knowledge_update.md.j2", experiments=shown, figures=[drawing.entry for drawing in figures])
    write_text(folder / "report.md", text)
    return folder / "report.md"


def _get(values: Mapping[str, Any], key: str) -> Any:
    return values.get(key, values.get(OLDER[key]))


def _experiment(result: dict[str, Any]) -> dict[str, Any]:
    """What the template says of one experiment."""
    run, questions = result["run"], result.get("questions")
    questions = questions or {}
    shares = {name: questions[name] for name in ASKED if questions.get(name)}
    counts = {"new_corpus_of_known": "known_questions"}
    return {
        "name": result["name"],
        "system": _get(run, "system"),
        "run": run,
        "settings": result["settings"],
        "seconds": f"{result['seconds']:.0f}",
        "versions": [
            {
                "version": name,
                "from": version["source"],
                "passages": f"{version['passages']:,}",
                "embedded": f"{version.get('embedded', 0):,}",
            }
            for name, version in _get(result, "corpora").items()
        ],
        "questions": questions,
        "asked": [
            {
                "changed answers, asked with": ASKED[name],
                "questions": str(questions[counts.get(name, "changed_questions")]),
            }
            | {title: number(found[part]) for part, title in PARTS.items()}
            for name, found in shares.items()
        ],
        "follows": {part: f"{shares['new_corpus'][part]:.1%}" for part in PARTS} if "new_corpus" in shares else {},
        "bars": [
            (f"{result['name']}, {ASKED[name]}", [shares[name][part] for part in PARTS])
            for name in ("old_corpus", "new_corpus")
            if name in shares
        ],
        "groups": [_group(result["name"], name, blanks) for name, blanks in (result.get("clozes") or {}).items()],
    }


def _group(experiment: str, name: str, blanks: dict[str, Any]) -> dict[str, Any]:
    old, new, change = blanks["old"], blanks["new"], blanks["difference"]
    return blanks | {
        "name": f"{experiment}, {name}",
        "rows": [
            {
                "measure": title,
                "old corpus": number(old[key]),
                "new corpus": number(new[key]),
                "new − old": _change(change[key]),
            }
            for key, title in MEASURES.items()
        ],
        "exact_match": [f"{old['exact_match']:.1%}", f"{new['exact_match']:.1%}", _change(change["exact_match"])],
    }


def _change(change: Mapping[str, float | None]) -> str:
    """ "+0.369 (+0.329 to +0.411)", the interval where there is one."""
    low, high = (NOTHING if change[end] is None else signed(change[end] or 0.0) for end in ("low", "high"))
    return f"{signed(change['mean'] or 0.0)} ({low} to {high})"
