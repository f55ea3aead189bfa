"""The view of a study that MLflow's interface opens by a link: its runs by variant.

MLflow keeps such a view in a tag of the experiment, in a format of its browser code; this is the format of
version 3.17. A version that does not support it shows the plain list of runs.
"""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

from realm_lab.records.study import StudyRecord

VIEW = "realm_lab"  # its id
RUN_NAME = "attributes.`Run Name`"  # column of the names of runs
HEADLINES = ("exact_match", "recall_at_5", "retrieval_utility")
COLUMNS = 4  # at most, of parameters


def link(experiment: str) -> str:
    """The path of the view in MLflow's interface."""
    return (
        f"/#/experiments/{experiment}/runs?workflowType=machine_learning&compareRunsMode=CHART&viewStateShareKey={VIEW}"
    )


def view_tag(study: StudyRecord) -> dict[str, str]:
    """The tag of an experiment with the view of a study; equal studies give equal tags."""
    changed = list(dict.fromkeys(name for cell in study.cells for name in cell.changes))
    metrics, longest = [f"metrics.`{name}`" for name in HEADLINES], max(len(cell.name) for cell in study.cells)
    curves = [_chart("LINE", f"pretrain/{name}") for name in ("retrieval_utility", "recall_at_5")]
    columns = [
        *metrics,
        *(f"params.`{name}`" for name in changed[:COLUMNS]),
        "tags.`realm.seed`",
        "tags.`realm.changes`",
    ]
    section: dict[str, Any] = {"uuid": VIEW, "name": "Headline metrics", "display": True, "isReordered": True}
    section |= {"columns": 2, "cardHeight": 280}  # with MLflow's three, a small window cuts the titles
    state = {
        "searchFilter": 'tags.realm.kind = "run"',
        "orderByKey": f"metrics.`{HEADLINES[0]}`",
        "orderByAsc": False,
        "startTime": "ALL",
        "selectedColumns": columns,
        "columnOrder": [RUN_NAME, *columns],  # without an order, MLflow does not look at the widths
        "columnWidths": dict.fromkeys(columns, 140)
        | {"tags.`realm.changes`": 300, RUN_NAME: min(max(190, 100 + 7 * longest), 520)},
        "groupBy": {"aggregateFunction": "average", "groupByKeys": [{"mode": "param", "groupByData": "variant"}]},
        "runsHiddenMode": "SHOW_ALL",
        "isAccordionReordered": True,
        "compareRunSections": [section],
        "compareRunCharts": [*curves, *(_chart("BAR", name) for name in HEADLINES)],
    }
    packed = base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()
    view = {"name": "by variant", "createdAt": 0, "updatedAt": 0, "state": f"deflate;{packed}"}
    return {f"mlflow.sharedViewState.{VIEW}": json.dumps(view)}


def _chart(kind: str, metric: str) -> dict[str, Any]:
    """A card of the chart view: a curve or a bar."""
    card: dict[str, Any] = {"type": kind, "uuid": f"{VIEW}-{kind}-{metric}", "metricSectionId": VIEW}
    card |= {"deleted": False, "isGenerated": False, "metricKey": metric, "runsCountToCompare": 100}
    if kind == "LINE":
        card |= {"selectedMetricKeys": [metric], "lineSmoothness": 0, "xAxisKey": "step", "xAxisScaleType": "linear"}
        card |= {"scaleType": "linear", "yAxisKey": "metric", "yAxisExpressions": [], "range": {}}
        card |= {"useGlobalXaxisKey": True, "useGlobalLineSmoothing": True}
    return card
