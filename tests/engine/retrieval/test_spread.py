"""An index that is spread over ranks finds what one exact search finds, whichever rank asks and whenever."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from realm_lab.engine.retrieval.exact import ExactSearch
from realm_lab.engine.retrieval.search import Exclusion
from tests.factories.processes import run_ranks

pytestmark = pytest.mark.slow

PASSAGES, SIZE, COUNT, MOST_RANKS = 203, 12, 9, 4
SEARCH = """
from safetensors.torch import load_file
from realm_lab.engine.retrieval import spread
from realm_lab.engine.retrieval.search import Exclusion
given = load_file({path!r})
vectors_ND, group_N = given["vectors"], given["groups"]
mine = vectors_ND[share(len(vectors_ND))].clone()
held = spread.SpreadRows(mine, len(vectors_ND), group_N)
query_BD = given["queries"][rank : rank + 1 + rank]  # each rank asks other questions, and another number of them
def search():
    found = []
    for exclude in (None, Exclusion(given["rows"], None), Exclusion(given["articles"], group_N)):
        own = exclude and exclude._replace(forbidden_B=exclude.forbidden_B[rank : rank + 1 + rank])
        rows_BK, scores_BK = held.search(query_BD, {count}, own)
        found.append([rows_BK.tolist(), scores_BK.tolist()])
    return found
say(search())
on_first_rank(lambda: say(search()))  # while the others wait
for _ in range(rank):  # out of step
    search()
say([held[3:199].equal(vectors_ND[3:199]), held[given["rows"][:, None]].equal(vectors_ND[given["rows"]][:, None])])
del held
spread.free_shares()
say(list(spread._Here.shares))
later = spread.SpreadRows(mine + 1, len(vectors_ND), group_N)
say(sum(one.vectors_nD.nbytes for one in spread._Here.shares.values()))
say(later[:].equal(vectors_ND + 1))
disconnect()
"""


@pytest.mark.parametrize("size", [2, MOST_RANKS])
def test_ranks_that_hold_a_share_each_find_what_one_finds(tmp_path: Path, size: int) -> None:
    draw = torch.Generator().manual_seed(0)
    vectors_ND = torch.randint(-1, 2, (PASSAGES, SIZE), generator=draw).float()  # very many equal scores
    query_BD = torch.randint(-1, 2, (2 * MOST_RANKS, SIZE), generator=draw).float()
    group_N = torch.arange(PASSAGES) // 5
    best_B = ExactSearch(vectors_ND).search(query_BD, 1).rows_BK[:, 0]
    given = {"vectors": vectors_ND, "groups": group_N, "queries": query_BD, "rows": best_B, "articles": group_N[best_B]}
    save_file(given, tmp_path / "given.safetensors")
    outcomes = run_ranks(SEARCH.format(path=str(tmp_path / "given.safetensors"), count=COUNT), size)
    for rank, (code, said, errors) in enumerate(outcomes):
        assert (code, errors) == (0, "")
        part = slice(rank, rank + 1 + rank)
        wanted = []
        for exclude in (None, Exclusion(best_B[part], None), Exclusion(group_N[best_B][part], group_N)):
            rows_BK, scores_BK = ExactSearch(vectors_ND).search(query_BD[part], COUNT, exclude)
            wanted.append([rows_BK.tolist(), scores_BK.tolist()])
        assert said[0] == wanted
        assert rank > 0 or said.pop(0) == wanted
        assert said[1:] == [[True, True], [], pytest.approx(vectors_ND.nbytes / size, abs=4 * SIZE), True]
    wanted_rows = torch.tensor(outcomes[0][1][0][0][0])
    assert len(wanted_rows.unique()) == COUNT


def test_a_rank_that_is_killed_is_named(tmp_path: Path) -> None:
    outcomes = run_ranks(
        """
from realm_lab.engine.retrieval.spread import SpreadRows
held = SpreadRows(torch.ones(3, 2), 6, torch.arange(6))
if rank:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    while True:
        held[:]
except UserError as error:
    say(type(error).__name__)
os._exit(0)
"""
    )
    assert outcomes[0][:2] == (0, ["RankLost"])
