"""The view of a study that MLflow's interface opens by a link: runs by cell, headline columns, the curves first.

MLflow keeps such views in tags of the experiment and writes them in its own browser code; what is here was read in
version 3.17. A version that does not know it shows the plain list of runs.
"""

from __future__ import annotations

import base64
import functools
import itertools
import json
import zlib
from typing import Any

from realm_lab.tracking.study_record import StudyRecord

VIEW = "realm_lab"  # the view's id
VIEW_TAG = f"mlflow.sharedViewState.{VIEW}"
HEADLINES = ("exact_match", "recall_at_5", "retrieval_utility")
COLUMNS = 4  # at most, of parameters
# MLflow colours a group by a hash of its name, with these 29 colours (mlflow/server/js: shared/building_blocks).
PALETTE = (
    "a6630c c83243 b45091 8a63bf 434a93 137dae 04867d 308613 facb66 1f272d 445461 5f7281 8396a5 93320b be501e de7921 "
    "f2be88 115026 277c43 3ba65e 8ddda8 9e102c c82d4c e65b77 f792a6 0e538b 2272b4 4299e0 8acaff"
).split()
GROUP_TAGS = ("realm.cell", *(f"realm.cell.{number}" for number in range(2, 30)))


def link(experiment: str) -> str:
    """The path of the view in MLflow's interface."""
    return (
        f"/#/experiments/{experiment}/runs?workflowType=machine_learning&compareRunsMode=CHART&viewStateShareKey={VIEW}"
    )


def changed_parameters(study: StudyRecord) -> list[str]:
    """What the cells of a study change in the baseline, in order."""
    return list(dict.fromkeys(name for cell in study.cells for name in cell.changes))


def group_tag(study: StudyRecord) -> str:
    """The tag to group by: `realm.cell`, or a copy under a name by which MLflow's colours of the cells differ more."""
    return _group_tag(tuple(cell.name for cell in study.cells))


@functools.cache
def _group_tag(cells: tuple[str, ...]) -> str:
    def distance(tag: str) -> float:
        colors = [bytes.fromhex(color(tag, cell)[1:]) for cell in cells]
        pairs = itertools.combinations(colors, 2)
        return min((sum((a - b) ** 2 for a, b in zip(*pair, strict=True)) for pair in pairs), default=0)

    enough = 100**2
    return next(
        (tag for tag in GROUP_TAGS if distance(tag) >= enough),
        max(GROUP_TAGS, key=lambda tag: len({color(tag, cell) for cell in cells})),
    )


def color(tag: str, cell: str) -> str:
    """The colour that MLflow gives to the group of a cell, #rrggbb."""
    low = high = 0
    for character in f"tag.{tag}.{cell}":
        low = (low + ord(character)) % 255
        high = (high + low) % 255
    return "#" + PALETTE[(low | high << 8) % len(PALETTE)]


def saved_view(study: StudyRecord) -> str:
    """The value of VIEW_TAG for a study; the same for the same study."""
    section = {"uuid": VIEW, "name": "Headline metrics", "display": True, "isReordered": True}
    group = {"mode": "tag", "groupByData": group_tag(study)}
    columns = [f"metrics.`{name}`" for name in HEADLINES]
    columns += [f"params.`{name}`" for name in changed_parameters(study)[:COLUMNS]]
    columns += ["tags.`realm.seed`", "tags.`realm.changes`"]
    state = {
        "searchFilter": 'tags.realm.kind = "run"',
        "orderByKey": f"metrics.`{HEADLINES[0]}`",
        "orderByAsc": False,
        "startTime": "ALL",
        "selectedColumns": columns,
        "columnOrder": columns,  # without an order, MLflow does not look at the widths
        "columnWidths": dict.fromkeys(columns, 140) | {"tags.`realm.changes`": 300},
        "groupBy": {"aggregateFunction": "average", "groupByKeys": [group]},
        "runsHiddenMode": "SHOW_ALL",
        "isAccordionReordered": True,
        "compareRunSections": [section],
        "compareRunCharts": [
            *(_chart("LINE", f"pretrain/{name}") for name in ("retrieval_utility", "recall_at_5")),
            *(_chart("BAR", name) for name in HEADLINES),
        ],
    }
    packed = base64.b64encode(zlib.compress(json.dumps(state).encode())).decode()
    name = {"name": "by cell", "createdAt": 0, "updatedAt": 0}
    return json.dumps(name | {"state": f"deflate;{packed}"})


def _chart(kind: str, metric: str) -> dict[str, Any]:
    """A card of the chart view: a curve for each cell, or a bar."""
    card = {"type": kind, "uuid": f"{VIEW}-{metric}", "metricSectionId": VIEW, "deleted": False, "isGenerated": False}
    card |= {"metricKey": metric, "runsCountToCompare": 100}
    if kind == "LINE":
        card |= {"selectedMetricKeys": [metric], "lineSmoothness": 0, "xAxisKey": "step", "xAxisScaleType": "linear"}
        card |= {"scaleType": "linear", "yAxisKey": "metric", "yAxisExpressions": [], "range": {}}
        card |= {"useGlobalXaxisKey": True, "useGlobalLineSmoothing": True}
    return card
