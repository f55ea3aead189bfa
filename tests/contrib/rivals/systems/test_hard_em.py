"""Hard EM as a whole."""

import pytest

from tests.whole import Whole


@pytest.mark.slow
def test_it_goes_the_whole_way(whole: Whole, capsys: pytest.CaptureFixture[str]) -> None:
    results = whole.results("hard_em")
    assert results["questions"] == 12
    assert results["recall_at_20"] == results["bm25"]["recall_at_20"]
    assert results["not_measured"].keys() == {"own measurements"}
    logged = [row["hard_update"] for row in whole.context("hard_em").stage("finetune").metrics.rows()]
    assert set(logged) == {0.0, 1.0}
    assert len(whole.ask("hard_em", capsys)["candidates"]) == 5
