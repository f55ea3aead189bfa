"""Register the model of a study's best run, by a development measure, in MLflow."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from realm_lab.core.lease import exclusive
from realm_lab.errors import UserError, suggestion
from realm_lab.metrics import chosen_by
from realm_lab.tracking.run_dir import stage_of
from realm_lab.tracking.run_values import last_values, run_values
from realm_lab.tracking.study_record import Studies, StudyRecord
from realm_lab.tracking.tracking_store import default_uri
from realm_lab.tracking.views import Member, read_groups, trained_model


class Best(NamedTuple):
    """A complete run, its value of the measure, and the folder of its trained model."""

    member: Member
    value: float
    model: Path


def register(studies: Studies, name: str, uri: str, by: str) -> str:
    """Register the model of the best run of a study that MLflow shows, in the store `uri` ("": the usual one); returns
    a line. UserError: no such study, or no run to choose."""
    from realm_lab.tracking.mlflow_tracker import MlflowTracker

    runs = Path(studies.runs).resolve()
    study = studies.read(name)
    best = best_run(runs, study, read_groups(studies, [])[name][1], by)
    key, model = best.member.record.run_key, f"realm_lab-{name}"
    with exclusive(runs / ".mirror.lock"):
        tracker = MlflowTracker(runs, uri or default_uri(runs))
        shown, version = tracker.register(name, key, best.model, model, {f"realm.{by}": f"{best.value:.6g}"})
    return f"registered {shown} ({by} {best.value:.3f}): models:/{model}/{version}, also models:/{model}@best"


def best_run(runs: Path, study: StudyRecord, members: Sequence[Member], metric: str) -> Best:
    """Return the run with the largest value, of several the first. UserError: `metric` is not measured on development
    data, or no complete run has both a value and a model."""
    known = chosen_by()
    if metric not in known:
        raise UserError(f"--by {metric}: not measured on development data; {suggestion(metric, known)}")
    found = []
    for member in (member for member in members if member.state.state == "COMPLETE"):
        stages = {stage: run for stage in member.state.stages if (run := stage_of(runs, member.record, stage))}
        is_curve = known[metric].source == "curve"
        values = run_values(stages) if not is_curve else last_values(stages["pretrain"]) if "pretrain" in stages else {}
        model = trained_model(stages)
        if metric in values and model:
            found.append(Best(member, values[metric], model))
    if not found:
        raise UserError(f"study {study.name}: no complete run has a model and {metric}; run `{study.command}`")
    return max(found, key=lambda best: best.value)
