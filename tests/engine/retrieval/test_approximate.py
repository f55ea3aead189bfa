"""A custom search backend: its proposals are searched as FAISS's are, or refused in a line."""

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from realm_lab.engine.params.sections import IndexSearch
from realm_lab.engine.retrieval.approximate import ApproximateSearch, approximate_search
from realm_lab.engine.retrieval.exact import ExactSearch
from realm_lab.engine.retrieval.search import Exclusion
from tests.factories.errors import refused

OWN = """
import torch
from realm_lab.engine.params.sections import Section
class Share(Section):
    share: float = 1.0
class Sampled:
    def __init__(self, embeddings_ND, seed, options: Share):
        rows = round(options.share * len(embeddings_ND))
        generator = torch.Generator().manual_seed(seed)
        self.rows = torch.randperm(len(embeddings_ND), generator=generator)[:rows]
        self.part = embeddings_ND[self.rows]
    def propose(self, query_BD, count):
        return self.rows[(query_BD @ self.part.T).topk(min(count, len(self.rows))).indices]
class Twice:
    def __init__(self, embeddings_ND, seed): ...
    def propose(self, query_BD, count):
        return torch.ones(len(query_BD), count, dtype=torch.int64)
class Beyond(Twice):
    def propose(self, query_BD, count):
        return 90 + torch.arange(count).expand(len(query_BD), -1)
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_search.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_search", raising=False)


def build(name: str, **options: Any) -> ApproximateSearch:
    make = approximate_search(IndexSearch(backend={"name": f"my_search:{name}", **options}), 3)
    assert make is not None
    rows_ND = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
    search = make(rows_ND, ExactSearch(rows_ND))
    assert isinstance(search, ApproximateSearch)
    return search


def test_what_it_proposes_is_scored_truly_and_measured() -> None:
    whole, half = build("Sampled"), build("Sampled", share=0.5)
    query_BD = torch.randn(5, 8, generator=torch.Generator().manual_seed(1))
    exclude = Exclusion(torch.tensor([3, -1, 7, 9, 99]), None)
    found, expected = (one.search(query_BD, 4, exclude) for one in (whole, ExactSearch(whole.embeddings_ND)))
    assert torch.equal(found.rows_BK, expected.rows_BK)
    assert torch.equal(found.scores_BK, expected.scores_BK)
    assert whole.recall_at_8 == 1.0
    assert half.recall_at_8 is not None
    assert 0.3 < half.recall_at_8 < 0.7


@pytest.mark.parametrize(("name", "said"), [("Twice", "a row twice"), ("Beyond", "of 100 passages")])
def test_a_wrong_proposal_is_refused_in_a_line(name: str, said: str) -> None:
    with refused(said, parameter="pretrain.search.backend"):
        build(name)
