"""The command `claims`: numbers and verdicts in texts, checked against results."""

from __future__ import annotations

import argparse
import json

from realm_lab.cli.flags import Add, add_json


def add_claims(add: Add) -> None:
    """Add `claims` to the command line."""
    summary = "check the numbers and verdicts in texts against results; exit code 1 if one does not hold"
    verb = add("claims", _run_claims, summary)
    text = "a text of claims.yaml, or LaTeX with \\claim{QUERY}{TEXT} (default: all of ROOT/claims.yaml)"
    verb.add_argument("files", nargs="*", metavar="FILE", help=text)
    form = verb.add_mutually_exclusive_group()
    form.add_argument("--markdown", action="store_true", help="print Markdown, for a comment on a pull request")
    add_json(form)


def _run_claims(options: argparse.Namespace) -> int:
    from realm_lab.reporting.claims import check, markdown

    checked = check(options.root, options.files)
    if options.json:
        shown = checked._asdict() | {"problems": [one._asdict() for one in checked.problems]}
        print(json.dumps(shown, indent=2, ensure_ascii=False))
    elif options.markdown:
        print(markdown(checked), end="")
    else:
        for one in checked.problems:
            print(f"{one.path}:{one.line}: '{one.says}': {one.found}; {one.remedy}")
        outcome = f"{len(checked.problems)} problems" if checked.problems else "all hold"
        print(f"{checked.bound} numbers and verdicts in {', '.join(checked.files)}: {outcome}")
    return int(bool(checked.problems))
