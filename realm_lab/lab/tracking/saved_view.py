"""The views of a study that MLflow's interface opens by a link: its runs by variant, and by the changes of variants.

MLflow keeps such views in tags of the experiment, in a format of its browser code; this is the format of
version 3.17. A version that does not support it shows the plain list of runs.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

from realm_lab.records.study import StudyRecord

BY_CELL, BY_PARAMETER = "realm_lab", "realm_lab_parameters"  # ids of the two views
RUN_NAME = "attributes.`Run Name`"  # column of the names of runs
SHARED = "mlflow.sharedViewState."  # start of the tag of a view, before its id
HEADLINES = ("exact_match", "recall_at_5", "retrieval_utility")
COLUMNS = 4  # at most, of parameters
AXES = 8  # at most, of parameters in parallel coordinates


def link(experiment: str, view: str = BY_CELL) -> str:
    """The path of a view in MLflow's interface."""
    return (
        f"/#/experiments/{experiment}/runs?workflowType=machine_learning&compareRunsMode=CHART&viewStateShareKey={view}"
    )


def saved_views(study: StudyRecord) -> dict[str, str]:
    """Tags of an experiment with the views of a study; equal studies give equal tags."""
    changed = list(dict.fromkeys(name for cell in study.cells for name in cell.changes))
    metrics, longest = [f"metrics.`{name}`" for name in HEADLINES], max(len(cell.name) for cell in study.cells)
    curves = [_chart("LINE", f"pretrain/{name}") for name in ("retrieval_utility", "recall_at_5")]
    by_cell = _view(
        "by variant",
        [*metrics, *(f"params.`{name}`" for name in changed[:COLUMNS]), "tags.`realm.seed`", "tags.`realm.changes`"],
        [*curves, *(_chart("BAR", name) for name in HEADLINES)],
        {"aggregateFunction": "average", "groupByKeys": [{"mode": "param", "groupByData": "variant"}]},
        longest,
    )
    axes = changed[:AXES] or ["variant"]
    parallel = _chart("PARALLEL", HEADLINES[0]) | {
        "selectedParams": axes,
        "selectedMetrics": list(HEADLINES),
        "showAllRuns": False,
    }
    by_parameter = _view(
        "by parameter",
        ["attributes.`Dataset`", *metrics, *(f"params.`{name}`" for name in dict.fromkeys(("variant", "seed", *axes)))],
        [parallel, *curves],
        None,
        longest,
    )
    return {f"{SHARED}{BY_CELL}": by_cell, f"{SHARED}{BY_PARAMETER}": by_parameter}


def _view(
    name: str, columns: list[str], charts: list[dict[str, Any]], group: dict[str, Any] | None, characters: int
) -> str:
    """A view as MLflow keeps it: the columns of its table, wide enough for names of cells of this many characters, and
    the cards of its charts."""
    section: dict[str, Any] = {"uuid": BY_CELL, "name": "Headline metrics", "display": True, "isReordered": True}
    section |= {"columns": 2, "cardHeight": 280}  # with MLflow's three, a small window cuts the titles
    state = {
        "searchFilter": 'tags.realm.kind = "run"',
        "orderByKey": f"metrics.`{HEADLINES[0]}`",
        "orderByAsc": False,
        "startTime": "ALL",
        "selectedColumns": columns,
        "columnOrder": [RUN_NAME, *columns],  # without an order, MLflow does not look at the widths
        "columnWidths": dict.fromkeys(columns, 140)
        | {"tags.`realm.changes`": 300, RUN_NAME: min(max(190, 100 + 7 * characters), 520)},
        "groupBy": group,
        "runsHiddenMode": "SHOW_ALL",
        "isAccordionReordered": True,
        "compareRunSections": [section],
        "compareRunCharts": charts,
    }
    packed = base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()
    return json.dumps({"name": name, "createdAt": 0, "updatedAt": 0, "state": f"deflate;{packed}"})


def _chart(kind: str, metric: str) -> dict[str, Any]:
    """A card of the chart view: a curve, a bar, or parallel coordinates."""
    card: dict[str, Any] = {"type": kind, "uuid": f"{BY_CELL}-{kind}-{metric}", "metricSectionId": BY_CELL}
    card |= {"deleted": False, "isGenerated": False, "metricKey": metric, "runsCountToCompare": 100}
    if kind == "LINE":
        card |= {"selectedMetricKeys": [metric], "lineSmoothness": 0, "xAxisKey": "step", "xAxisScaleType": "linear"}
        card |= {"scaleType": "linear", "yAxisKey": "metric", "yAxisExpressions": [], "range": {}}
        card |= {"useGlobalXaxisKey": True, "useGlobalLineSmoothing": True}
    return card
