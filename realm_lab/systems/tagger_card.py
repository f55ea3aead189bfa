"""The README.md of a trained tagger: what it was trained on, how good it is, and how far the rule tagger agrees."""

from __future__ import annotations

from typing import Any

from realm_lab.params.sections import TaggerTraining


def model_card(settings: TaggerTraining, results: dict[str, Any]) -> str:
    """Markdown of the results of train_tagger."""
    counts = results["sentences"]
    lines = [
        "# A tagger of salient spans",
        "",
        f"Trained by `realm-lab train-tagger` on {counts['train']:,} sentences for {results['steps']:,} steps of "
        f"{settings.batch_size}, learning rate {settings.optimiser.learning_rate:g}, seed {settings.seed}. Use it with "
        "`corpus.tagger: model` and `corpus.files.tagger_model`.",
        "",
        "| file | for | sentences | tokens | encoding | repaired |",
        "| --- | --- | ---: | ---: | --- | ---: |",
    ]
    for file in results["files"]:
        repaired = sum(file["repaired"].values())
        lines.append(
            f"| {file['name']} | {file['role']} | {file['sentences']:,} | {file['tokens']:,} | {file['encoding']} "
            f"| {repaired:,} |"
        )
    for name in ("dev", "test"):
        if name in results:
            lines += ["", f"## Entities of {name}: {counts[name]:,} sentences", "", *_scores(results[name])]
    if settings.held_out:
        lines += ["", f"The test holds the last {settings.held_out:.0%} of the documents of each training file."]
    if "beside_rules" in results:
        lines += ["", *_beside_rules(results)]
    return "\n".join([*lines, ""])


def _scores(scores: dict[str, dict[str, float]]) -> list[str]:
    rows = [
        f"| {label} | {score['precision']:.3f} | {score['recall']:.3f} | {score['f1']:.3f} | {score['gold']:,} |"
        for label, score in scores.items()
    ]
    return ["| label | precision | recall | F1 | entities |", "| --- | ---: | ---: | ---: | ---: |", *rows]


def _beside_rules(results: dict[str, Any]) -> list[str]:
    found = results["beside_rules"]
    rows = [
        f"| {title} | {found[name]['precision']:.3f} | {found[name]['recall']:.3f} | {found[name]['f1']:.3f} |"
        for name, title in (("tagger", "this tagger"), ("rules", "rule tagger's names"))
    ]
    names, spans = found["names"], found["spans"]
    return [
        "## Beside the rule tagger",
        "",
        "Bounds of entities on the test, whatever their labels:",
        "",
        "| | precision | recall | F1 |",
        "| --- | ---: | ---: | ---: |",
        *rows,
        "",
        f"Of the names that either marks they share {names['shared']:.1%} (F1 of one against the other "
        f"{names['f1']:.3f}); of all spans, with dates and the rule tagger's numbers, {spans['shared']:.1%} "
        f"({spans['both']:,} of {spans['tagger']:,} and {spans['rules']:,}).",
        "",
        f"Tagging speed where it was trained: {results['sentences_per_second']:,} sentences, "
        f"{results['characters_per_second']:,} characters a second.",
    ]
