"""The commits that computed the sides of a comparison, and the patch from one to the other."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from realm_lab.core.files import write_text
from realm_lab.reporting.frames import Run, StudyFrames
from realm_lab.tracking.environment import patch_between

SHORT = 10  # characters of a commit
PATCH = "code.patch"


def commits_line(study: StudyFrames) -> str:
    """Name the commits of each cell's runs, and the patches of changes that were not committed; "" if none is known."""
    parts = []
    for cell, _ in study.cells:
        runs = study.of(cell)
        found = dict.fromkeys(commit[:SHORT] for run in runs if (commit := commit_of(run)))
        patches = [str(path) for run in runs if (path := _uncommitted(run))]
        if found:
            more = f" with uncommitted changes ({patches[0]})" if patches else ""
            parts.append(f"{cell}: {', '.join(found)}{more}")
    return f"Commits: {'; '.join(parts)}." if parts else ""


def write_patches(study: StudyFrames, folder: Path) -> list[Path]:
    """Write patches from the commit of the first cell to each other's, limited to code that affects numbers, into
    `folder`; returns the files. There is none for equal commits, or ones that this repository does not have."""
    commits = [next((commit for run in study.of(cell) if (commit := commit_of(run))), "") for cell, _ in study.cells]
    written = []
    for number, other in enumerate(commits[1:], 1):
        if commits[0] and other not in ("", commits[0]) and (patch := patch_between(commits[0], other)):
            name = PATCH if len(commits) == 2 else f"{number}-{PATCH}"
            write_text(folder / name, f"{patch}\n")
            written.append(folder / name)
    return written


def commit_of(run: Run) -> str:
    """Return the commit of the last stage that recorded one; the stages before it may be older and shared."""
    found: Sequence[str] = [env["git_commit"] for env in run.environments.values() if env.get("git_commit")]
    return found[-1] if found else ""


def _uncommitted(run: Run) -> Path | None:
    paths = [stage.path / PATCH for stage in run.stages.values()]
    return next((path for path in reversed(paths) if path.exists()), None)
