"""on_device.py on a GPU: every stage, system, resume and search, and the lines at which the host waits."""

from collections.abc import Mapping

import pytest

from tests.device.outcomes import NAMES, outcomes

PRETEND = {  # about the pretend accelerator itself, or about errors that are planted on it
    "test_it_refuses_what_a_real_one_refuses",
    "test_copies_that_do_not_block_are_there_when_the_host_has_waited",
    "test_the_doctor_tries_the_device",
    "test_nothing_is_wrong_with_what_errors_are_planted_in",
    "test_a_planted_error_is_caught",
}
REAL = [name for name in NAMES if name not in PRETEND]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, list[str]]:
    """Return the text of each failed test."""
    return outcomes("cuda", REAL, tmp_path_factory.mktemp("device"), ("failure", "error"))


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("name", REAL)
def test_on_a_gpu(found: Mapping[str, list[str]], name: str) -> None:
    assert not found[name], "\n".join(found[name])
