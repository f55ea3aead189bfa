"""The prediction in the report of experiments/signals.yaml."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pandas as pd
import pytest

from experiments import signals

SIGNALS = {"marginal": (0.9, 0.8), "hard_em": (0.2, 0.3), "random": (-0.1, 0.4)}  # cosine, recall of every seed


def section(path: Path, monkeypatch: pytest.MonkeyPatch) -> signals.Prediction:
    rows = [f"{name},{seed},{cosine},{1 - cosine}" for name, (cosine, _) in SIGNALS.items() for seed in (0, 1, 2)]
    path.write_text("\n".join(["cell,seed,cosine,bias", *rows, "empty,0,1.0,0.0\n"]), encoding="utf-8")
    monkeypatch.setattr(signals, "COSINES", path)
    ends = [(name, seed, recall) for name, (_, recall) in SIGNALS.items() for seed in (0, 1, 2)]
    results = pd.DataFrame(ends, columns=["cell", "seed", "recall_at_5"])
    results.loc[(results["cell"] == "random") & (results["seed"] == 2), "recall_at_5"] = 0.1
    report = SimpleNamespace(results=results, cells=[(name, name.upper()) for name in SIGNALS])
    return signals.Prediction(cast(Any, report))


def test_the_cosine_is_ranked_against_recall_on_each_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = section(tmp_path / "cosines.csv", monkeypatch)
    # ranks of the cosines 3, 2, 1, and of recall 3, 1, 2: 1 - 6 (0 + 1 + 1) / (3 * 8); 3, 2, 1 on seed 2
    assert found.correlations["cosine"] == pytest.approx({0: 0.5, 1: 0.5, 2: 1.0})
    assert found.correlations["bias"] == pytest.approx({0: -0.5, 1: -0.5, 2: -1.0})
    assert "mean of 3 seeds: 0.67 (95 % −0.05 to 1.38, p = 0.250)" in found.note
    assert found.rows[0] == {
        "signal": "MARGINAL",
        "n": "3",
        **dict(zip(signals.COLUMNS, ("0.900", "0.100", "0.800"), strict=True)),
    }


def test_a_seed_with_fewer_than_three_signals_is_not_correlated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = section(tmp_path / "cosines.csv", monkeypatch)
    results = found.report.results
    results.loc[(results["cell"] == "random") & (results["seed"] == 1), "recall_at_5"] = None
    assert found.correlations["cosine"].keys() == {0, 2}
    found = section(tmp_path / "cosines.csv", monkeypatch)
    found.report.results["recall_at_5"] = None
    assert (found.note, found.data()) == ("", {"prediction": {"cosine": {}, "bias": {}}})
