"""Notes of a report on the code that computed its runs: code other than today's, accepted changes, mixed versions, and
the commits of each side of a comparison."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from realm_lab.evidence.report.frames import StudyFrames
from realm_lab.records.code_record import CodeStates, accepted_lines, changes_line
from realm_lab.records.run import Run

SHOWN = 6  # modules in a sentence
SHORT = 10  # characters of a commit
PATCH = "code.patch"


def code_notes(study: StudyFrames) -> tuple[list[str], list[str]]:
    """Return (confounds, notes). Confound: different versions of a module computed the runs, except accepted changes.
    Notes: code other than today's computed runs, or changes were accepted."""
    used = {run.name: CodeStates(run.runs).of_run(run.folders(run.runs)) for run in study.runs}
    versions: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))  # module -> digest -> cells
    for run in study.runs:
        for one in used[run.name]:
            for module, found in (one.record.known if one.record else {}).items():
                versions[module][found].add(run.cell)
    mixed = {module: digests for module, digests in versions.items() if len(digests) > 1}
    cells = sorted({", ".join(sorted(cells)) for digests in mixed.values() for cells in digests.values()})
    names = ", ".join([*mixed][:SHOWN]) + (f" and {len(mixed) - SHOWN} more modules" if len(mixed) > SHOWN else "")
    confound = f"Confounded: different versions of {names} computed the runs of {' | '.join(cells)}."
    others = {name: [one for one in found if one.changes] for name, found in used.items()}
    differing = [one for found in others.values() for one in found]
    line = changes_line(differing, sum(map(bool, others.values())))
    notes = [f"{line[0].upper()}{line[1:]}."] if differing else []
    return [confound] * bool(mixed), notes + accepted_lines(one for found in used.values() for one in found)


def commits_line(study: StudyFrames) -> str:
    """Name the commits of each cell's runs, and the patches of changes that were not committed; "" if none is known."""
    parts = []
    for cell, _ in study.cells:
        runs = study.of(cell)
        found = dict.fromkeys(commit[:SHORT] for run in runs if (commit := commit_of(run)))
        paths = [run.folder(stage).path / PATCH for run in runs for stage in reversed(run.stages)]
        patches = [str(path) for path in paths if path.exists()]
        if found:
            more = f" with uncommitted changes ({patches[0]})" if patches else ""
            parts.append(f"{cell}: {', '.join(found)}{more}")
    return f"Commits: {'; '.join(parts)}." if parts else ""


def commit_of(run: Run) -> str:
    """Return the commit of the last stage that recorded one, since stages before it may be older and shared."""
    found: Sequence[str] = [env["git_commit"] for env in run.environments.values() if env.get("git_commit")]
    return found[-1] if found else ""
