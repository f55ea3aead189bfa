"""Call what a study names in `on_finish` when it ends: a command, or the URL of a webhook."""

from __future__ import annotations

import json
import subprocess
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from realm_lab.records.files import read_json

TIMEOUT_SECONDS = 60


def message(study: str, folder: Path, states: Mapping[str, int]) -> dict[str, Any]:
    """Return the end of a study as data, from the summary of its report in `folder` and the states of its runs. `text`
    is a line for a chat."""
    summary = read_json(folder / "summary.json")
    counts = ", ".join(f"{count} {state.lower()}" for state, count in states.items())
    return {
        "text": f"study {study}: {counts}. {summary['verdict']}".strip(),
        "study": study,
        "question": summary["question"],
        "verdict": summary["verdict"],
        "states": dict(states),
        "report": str((folder / "report.md").resolve()),
    }


def call(target: str, content: Mapping[str, Any], root: Path) -> str:
    """Send a message to a URL (POST, JSON), or to the standard input of a shell command in the project; returns what
    went wrong in a line, "" if nothing did."""
    data = json.dumps(content, ensure_ascii=False).encode()
    try:
        if target.startswith(("http://", "https://")):
            headers = {"Content-Type": "application/json"}
            with urllib.request.urlopen(urllib.request.Request(target, data, headers), timeout=TIMEOUT_SECONDS):
                return ""
        done = subprocess.run(target, shell=True, cwd=root, input=data, timeout=TIMEOUT_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:  # a URLError is an OSError
        return f"on_finish: {' '.join(str(error).split())}"
    return f"on_finish: the command ended with code {done.returncode}" if done.returncode else ""
