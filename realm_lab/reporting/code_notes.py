"""What a report has to say of the code that computed its runs: other code, accepted changes, a mixture of codes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from realm_lab.reporting.frames import StudyFrames
from realm_lab.tracking.code_record import CodeStates, StageCode, accepted_lines, changes_line, stages_of_record

SHOWN = 6  # modules in a sentence


def code_notes(study: StudyFrames) -> list[str]:
    """Sentences, for a report; none if the code of today computed everything."""
    used: dict[str, list[StageCode]] = {}
    for run in study.runs:
        if run.stages:
            runs = next(iter(run.stages.values())).path.parents[1]
            used[run.name] = CodeStates(runs).of_run(stages_of_record(runs, run.record))
    others = {name: [one for one in found if one.changes] for name, found in used.items()}
    differing = [one for found in others.values() for one in found]
    count = sum(bool(found) for found in others.values())
    notes = [f"{changes_line(differing, count)}.".capitalize()] if differing else []
    notes += accepted_lines(one for found in used.values() for one in found)
    return notes + _mixture(study, used)


def _mixture(study: StudyFrames, used: dict[str, list[StageCode]]) -> list[str]:
    """The modules of which different versions computed different runs."""
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


def _some(names: Iterable[str]) -> str:
    found = list(names)
    return ", ".join(found[:SHOWN]) + (f" and {len(found) - SHOWN} more modules" if len(found) > SHOWN else "")
