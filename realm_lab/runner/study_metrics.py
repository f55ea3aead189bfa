"""The metrics and the further figures that a study names."""

from __future__ import annotations

from realm_lab.core.plugins import Choice, import_plugins, load_object
from realm_lab.errors import UserError, suggestion
from realm_lab.metrics import METRICS, Metric, learn, metric, of_kind
from realm_lab.reporting.own_figures import known_anywhere
from realm_lab.runner.study import Study
from realm_lab.tracking.computed import COMPUTED, definition


def figures_of(study: Study) -> tuple[Choice, ...]:
    """Return the extra figures of a study. UserError: an unknown one."""
    found = []
    for place, choice in enumerate(study.figures):
        with study.at("figures", place):
            found.append(known_anywhere("figures", choice))
    return tuple(found)


def metrics_of(study: Study) -> dict[str, Metric]:
    """Return the definition of each metric of a study, by its name and as the file writes it. The modules of the
    study's systems and schemes are imported before, since they may register some. UserError: an unknown one, or one
    named twice."""
    found: list[Metric] = []
    for place, choice in enumerate(study.metrics):
        with study.at("metrics", place):
            found.append(_metric(choice))
    study.refuse_twice([metric.name for metric in found], "metrics")
    named = {choice.name: metric for choice, metric in zip(study.metrics, found, strict=True)}
    named |= {metric.name: metric for metric in found}
    for text in study.delta:
        study.choose(text, named, f"delta: '{text}' is none of the study's metrics", "delta", text)
    return named


def _metric(choice: Choice) -> Metric:
    """The metric that a study names."""
    name = choice.name
    if not choice.options and (name in METRICS or of_kind(name, "results")):
        return metric(name)
    entry = load_object("metrics", name) if ":" in name else None
    if not isinstance(entry, Metric):
        import_plugins()
        known = {*METRICS, *COMPUTED}
        if ":" not in name and name not in COMPUTED:
            raise UserError(f"metrics: unknown metric '{name}'; {suggestion(name, sorted(known))}")
        entry = definition("metrics", choice)
    elif choice.options or entry.source != "results":
        raise UserError(f"metrics: '{name}' is a realm_lab.Metric, which has no options and is of source 'results'")
    if METRICS.get(entry.name, entry) != entry:
        raise UserError(f"metrics: '{name}': another metric is called '{entry.name}'; choose another name")
    learn([entry])
    return entry
