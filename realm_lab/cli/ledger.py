"""The command `ledger`: check that plans came before results."""

from __future__ import annotations

import argparse
import json

from realm_lab.cli.flags import Add, add_everywhere, add_json


def add_ledger(add: Add) -> None:
    """Add `ledger` with its own commands to the command line."""
    ledger = add("ledger", _run_ledger, "check the ledger of plans, looks, changes and verdicts (runs/ledger.jsonl)")
    verbs = ledger.add_subparsers(dest="ledger_verb", metavar="COMMAND", required=True)
    summary = "check every line and compare the last ones with the studies here; exit code 1 if something does not hold"
    verify = verbs.add_parser("verify", help=summary, description=summary.capitalize(), allow_abbrev=False)
    add_json(verify)
    add_everywhere(verify)


def _run_ledger(options: argparse.Namespace) -> int:
    from realm_lab.tracking.ledger import deviations, verify

    lines, problems = verify(options.root)
    studies = dict.fromkeys(line.fields["study"] for line in lines)
    found = {study: deviations([line for line in lines if line.fields["study"] == study]) for study in studies}
    if options.json:
        told = {"lines": len(lines), "problems": [one._asdict() for one in problems]}
        told |= {"deviations": {study: [one._asdict() for one in mine] for study, mine in found.items()}}
        print(json.dumps(told, indent=2, ensure_ascii=False))
        return int(bool(problems))
    for problem in problems:
        print(f"line {problem.line}, study {problem.study}: {problem.what}")
    if not problems:
        for study, mine in found.items():
            print(f"{study}: {'; '.join(map(str, mine)) or 'as planned'}")
        print(f"{len(lines)} lines hold")
    return int(bool(problems))
