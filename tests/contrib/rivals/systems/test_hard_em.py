"""Hard EM as a whole, and its variants in the key."""

from typing import Any

import pytest

from realm_lab.engine.systems.identity import plan_run
from realm_lab.errors import UserError
from tests import tiny
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


def test_a_variant_is_another_run() -> None:
    def stages(**own: Any) -> dict[str, str]:
        return plan_run(tiny.params({"system_options": {"hard_em": own}}), "hard_em", 0).stages

    plain = stages()
    assert stages(variant="hard_em", negatives=1) == plain  # spelled out
    for other in (stages(variant="mml"), stages(tau_steps=7)):
        assert [name for name in plain if plain[name] == other[name]] == ["warm_start"]
    with pytest.raises(UserError, match=r"variant must be 'hard_em', 'first_only' or 'mml', got 'soft'"):
        stages(variant="soft")
