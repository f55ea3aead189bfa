"""The pretend accelerator: on_device.py in a separate process, each of its tests under the same name here."""

from collections.abc import Mapping

import pytest

from tests.device import pretend
from tests.device.outcomes import NAMES, outcomes

pytestmark = [
    pytest.mark.slow,
    pytest.mark.drill,
    pytest.mark.skipif(not pretend.has_compiler(), reason=f"no C++ compiler: {pretend.COMPILER} is not on PATH"),
]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[str]]:
    """Return the text of each failed or skipped test."""
    pretend.compiled()
    return outcomes("realm", NAMES, tmp_path_factory.mktemp("device"), ("failure", "error", "skipped"))


@pytest.mark.parametrize("name", NAMES)
def test_on_the_pretend_accelerator(found: Mapping[str, list[str]], name: str) -> None:
    assert not found[name], "\n".join(found[name])
