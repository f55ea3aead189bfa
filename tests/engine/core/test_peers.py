"""A rank asks the others: errors, connections from outside, and both kinds of addresses."""

import socket

import pytest

from tests.factories import processes
from tests.factories.processes import run_ranks

pytestmark = pytest.mark.slow

ASK = """
found = peers.Peers(lambda question: {"twice": 2 * question["one"]})
say([answer["twice"].item() for answer in found.ask({other: {"one": torch.tensor(other)} for other in range(size)})])
disconnect()
"""


def test_an_error_is_named_where_it_happened() -> None:
    outcomes = run_ranks("""
from realm_lab.engine.core.peers import Peers
def answer(question):
    raise RuntimeError("no memory")
peers = Peers(answer)
if rank == 0:
    for other in (0, 1):
        try:
            peers.ask({other: {"one": torch.tensor(1)}})
        except Exception as error:
            say([type(error).__name__, str(error)])
on_first_rank(lambda: None)
disconnect()
""")
    own, others = outcomes[0][1]
    assert own == ["RuntimeError", "no memory"]
    reason = "another process of this run has ended: rank 1: RuntimeError: no memory; run again to resume"
    assert others == ["UserError", reason]
    assert "RuntimeError: no memory" in outcomes[1][2]


def test_a_connection_that_says_nothing_keeps_no_rank_out() -> None:
    outcomes = run_ranks(
        """
import socket
from realm_lab.engine.core import peers
places = peers.of_all_ranks
def connected(text):
    global silent
    host, port = text.split()
    silent = socket.create_connection((host, int(port)))  # the first that is accepted
    return places(text)
peers.of_all_ranks = connected
"""
        + ASK
    )
    assert outcomes == [(0, [[0, 2]], "")] * 2


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as tried:
            tried.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_ranks_meet_over_ipv6(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "SETUP", "import os; os.environ['MASTER_ADDR'] = '::1'" + processes.SETUP)
    outcomes = run_ranks("from realm_lab.engine.core import peers" + ASK)
    assert outcomes == [(0, [[0, 2]], "")] * 2
