"""The name of a processor has the instruction sets that decide the speed of bfloat16, if it has them."""

import pytest

from realm_lab.engine.core.device import processor


@pytest.mark.parametrize(
    ("flags", "shown"), [({"avx2"}, "EPYC"), ({"amx_bf16", "avx512f"}, "EPYC (avx512f, amx_bf16)")]
)
def test_the_name_of_a_processor(monkeypatch: pytest.MonkeyPatch, flags: set[str], shown: str) -> None:
    monkeypatch.setattr("realm_lab.records.environment.processor", lambda: ("EPYC", flags))
    assert processor() == shown
