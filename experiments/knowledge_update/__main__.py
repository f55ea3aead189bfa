"""Ask a finished run with other corpora, and write reports/knowledge-update.

    python -m experiments.knowledge_update --data FOLDER [--params FILE] [--set KEY=VALUE] [--rest N] [--only NAME]

FOLDER holds knowledge_update/: news of one year (events_Zold_2025.jsonl), the same re-edited with the following months
(events_Znew_2025-2026.jsonl), blanks that only the later one can fill (cloze_only_in_Znew) and that both can
(cloze_in_both), and encyclopedia paragraphs of which some facts were swapped (squad_dev_swapped). Every experiment is
one `realm-lab evaluate --corpus`, printed before it runs; the run must have finished fine-tuning. What has been done is
not done again: delete runs/RUN/corpus_updates/NAME to repeat it.
"""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from pathlib import Path

from realm_lab.cli import main as realm_lab
from realm_lab.core.files import read_json
from realm_lab.errors import UserError
from realm_lab.params.load import load, parse_override
from realm_lab.reporting.knowledge_update import write_knowledge_update
from realm_lab.systems.identity import plan_run, record_run

NAMES = ("news", "swapped-facts")


def commands(folder: Path, rest: int) -> dict[str, list[str]]:
    """The options of each experiment."""
    swapped = str(folder / "squad_dev_swapped.public.jsonl")
    return {
        "news": [
            *("--corpus", str(folder / "events_Znew_2025-2026.jsonl")),
            *("--corpus-old", str(folder / "events_Zold_2025.jsonl")),
            *("--cloze", f"only-in-new={folder / 'cloze_only_in_Znew.public.jsonl'}"),
            *("--cloze", f"in-both={folder / 'cloze_in_both.public.jsonl'}"),
        ],
        "swapped-facts": [
            *("--corpus", swapped, "--corpus-old", swapped, "--questions", swapped, "--rest", str(rest)),
        ],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what is missing, then write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder of the data")
    parser.add_argument("--root", type=Path, default=Path("."), help="project folder (default: .)")
    parser.add_argument("--params", type=Path, help="parameters of the run (default: ROOT/params.yaml)")
    parser.add_argument("--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE")
    parser.add_argument("--seed", type=int, help="of the run (default: the first of seeds)")
    parser.add_argument("--system", default="realm", help="of the run: realm or warm_start (default: realm)")
    parser.add_argument(
        "--rest", type=int, default=2000, help="other documents of the run beside the swapped ones (default: 2000)"
    )
    parser.add_argument("--only", choices=NAMES, action="append", help="only this experiment; may be repeated")
    parser.add_argument("--reports", type=Path, help="where to write (default: ROOT/reports/knowledge-update)")
    chosen = parser.parse_args(arguments)
    path = chosen.params or chosen.root / "params.yaml"
    try:
        params = load(path, dict(parse_override(text) for text in chosen.overrides))
        seed = params.seeds[0] if chosen.seed is None else chosen.seed
        record = record_run(chosen.root / "runs", plan_run(params, chosen.system, seed), params)
    except UserError as error:
        parser.error(str(error))
    common = ["--root", str(chosen.root), "--params", str(path), "--seed", str(seed), "--system", chosen.system]
    common += [part for text in chosen.overrides for part in ("--set", text)]
    results = []
    for name, options in commands(chosen.data / "knowledge_update", chosen.rest).items():
        if chosen.only and name not in chosen.only:
            continue
        found = chosen.root / "runs" / record.name / "corpus_updates" / name / "result.json"
        if not found.exists():
            command = ["evaluate", *common, *options, "--name", name]
            print("realm-lab", shlex.join(command), flush=True)
            code = realm_lab(command)
            if code:
                return code
        results.append(read_json(found))
    print(write_knowledge_update(results, chosen.reports or chosen.root / "reports" / "knowledge-update"))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
