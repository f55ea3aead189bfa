"""Examples at the end of the help of each command; docs/cli.md has them too, and a test parses every one."""

from __future__ import annotations

import argparse
import re

PROGRAM = "realm-lab"
WIDTH = 80
EXAMPLES: dict[str, dict[str, str]] = {
    "init": {
        "init my_project": "a folder with parameters, pipeline, study and sample text",
    },
    "demo": {
        "demo": "a finished run answers a question",
    },
    "prepare": {
        "prepare": "the corpus of params.yaml",
        "prepare --count data/raw": "only count what is in your files",
    },
    "run": {
        "run": "train and evaluate what params.yaml describes",
        "run --preset smoke": "the whole pipeline, as a quick check",
        "run --until pretrain --set pretrain.masking=random_span": "mask random spans, and do not fine-tune",
    },
    "evaluate": {
        "evaluate --predictions mine.jsonl --questions test.jsonl": "score another program's answers",
        "evaluate --corpus new.jsonl --name june": "ask a finished run with another corpus",
    },
    "mine": {
        "mine mined.json": "training questions with hard negatives of BM25",
    },
    "report": {
        "report": "every study, and reports/index.html",
        "report masking --paper": "with LaTeX tables, and figures as PDF and SVG",
    },
    "sweep": {
        "sweep masking --dry-run": "print the plan without running",
        "sweep masking --power": "what numbers of seeds will detect, and what they cost",
        "sweep masking": "run what is missing, then write the report",
        "sweep --axis pretrain.refresh.interval_steps=3,30 --name refresh": "a study without a file",
    },
    "status": {
        "status": "all studies",
        "status masking": "every run of one study",
        "status masking/random_span-s0": "what this run did",
    },
    "compare": {
        "compare masking/salient_span masking/random_span": "two variants, over all seeds",
    },
    "claims": {
        "claims": "every text of claims.yaml",
        "claims paper.tex --markdown": "a paper, as a comment on a pull request",
    },
    "verdict": {
        "verdict runs.csv --cell variant --metric accuracy --baseline sgd": "a table with a row for each run",
        "verdict sqlite:///mlflow.db --experiment mine --cell variant --metric accuracy --baseline sgd": "MLflow",
        "verdict logs --name '{cell}/seed_{seed}' --metric test/accuracy --baseline sgd": "TensorBoard",
        "verdict runs.csv --metric accuracy=up --baseline main --control main-again --delta accuracy=0.01 --gate": (
            "a gate of CI, printed as a comment on a pull request"
        ),
        "verdict --page verdict.html": "a page that judges a CSV in the browser",
    },
    "reproduce": {
        "reproduce": "compare every report with the runs that are here",
        "reproduce masking/random_span --rerun": "run one variant again and compare",
    },
    "ask": {
        'ask "who is the mayor of nirter ?"': "the run of params.yaml",
        'ask "the mayor of nirter is [MASK] ."': "fill in a blank",
        'ask "who is the mayor of nirter ?" --system realm,bm25_reader': "two systems, one after the other",
    },
    "gradients": {
        "gradients --run demo/realm-s50": "weights after pre-training",
    },
    "serve": {
        "serve demo/realm-s50": "POST /ask and /retrieve at http://127.0.0.1:8000",
        "serve demo/realm-s50 --mcp": "the command that an agent starts",
    },
    "mirror": {
        "mirror": "into mlflow.db",
        "mirror --uri http://server:5000 --follow": "to a server, until all runs have finished",
    },
    "gc": {"gc": "only list", "gc --forget masking --yes": "delete, also what only one study needs"},
    "index": {"index build": "with the embedder of the run of params.yaml"},
    "plan": {
        "plan --measure": "measure this machine; writes runs/bench.json",
        "plan --preset paper --passages 13353718 --device H100 --trainers 64 --builders 16 --price 2.5": "paper scale",
    },
    "doctor": {
        "doctor": "this machine and params.yaml",
        "doctor --preset real": "what real text needs",
    },
}  # fmt: skip


def examples(name: str) -> list[str]:
    """Write the examples of a command as lines of a shell, each under its purpose; a custom command has none."""
    lines = []
    for command, meaning in EXAMPLES.get(name, {}).items():
        lines += [f"# {meaning}", PROGRAM]
        for part in re.split(r" (?=-)", command):
            if len(f"{lines[-1]} {part} \\") > WIDTH:
                lines[-1] += " \\"
                lines.append("   ")
            lines[-1] += f" {part}"
    return lines


def add_examples(name: str, verb: argparse.ArgumentParser) -> None:
    """Add the examples to the end of a command's help."""
    if lines := examples(name):
        verb.formatter_class = argparse.RawDescriptionHelpFormatter
        verb.epilog = "\n".join(["examples:", *(f"  {line}" for line in lines)])
