"""Notes of a report on the code that computed its runs: other code, accepted changes, a mixture of codes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from realm_lab.reporting.frames import StudyFrames
from realm_lab.tracking.code_record import CodeStates, StageCode, accepted_lines, changes_line, stages_of_record

SHOWN = 6  # modules in a sentence


def code_notes(study: StudyFrames) -> list[str]:
    """Sentences on other code and accepted changes; none if the code of today computed everything."""
    used = _used(study)
    others = {name: [one for one in found if one.changes] for name, found in used.items()}
    differing = [one for found in others.values() for one in found]
    count = sum(bool(found) for found in others.values())
    notes = [f"{changes_line(differing, count)}.".capitalize()] if differing else []
    return notes + accepted_lines(one for found in used.values() for one in found)


def mixed_code(study: StudyFrames) -> list[str]:
    """A sentence if different versions of modules computed different runs, which makes their comparison unfair."""
    used = _used(study)
    versions: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))  # module -> digest -> cells
    for run in study.runs:
        for one in used.get(run.name, ()):
            for module, found in (one.record.modules if one.record else {}).items():
                versions[module][found].add(run.cell)
    mixed = {module: digests for module, digests in versions.items() if len(digests) > 1}
    if not mixed:
        return []
    cells = sorted({", ".join(sorted(cells)) for digests in mixed.values() for cells in digests.values()})
    return [f"Confounded: different versions of {_some(mixed)} computed the runs of {' | '.join(cells)}."]


def _used(study: StudyFrames) -> dict[str, list[StageCode]]:
    """The code of each run's stages."""
    used: dict[str, list[StageCode]] = {}
    for run in study.runs:
        if run.stages:
            runs = next(iter(run.stages.values())).path.parents[1]
            used[run.name] = CodeStates(runs).of_run(stages_of_record(runs, run.record))
    return used


def _some(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:SHOWN]) + (f" and {len(found) - SHOWN} more modules" if len(found) > SHOWN else "")
