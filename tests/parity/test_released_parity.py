"""Released REALM weights: numbers of transformers 4.40.2, which still supports REALM, from its folders and converted.

tests/parity/data was written by that release (`released_program.py data 0`). With REALM_LAB_HF440 set to the
Python of an environment that has transformers 4.40.2, new models are drawn there.
"""

# Shapes: B queries, K candidates, L positions, M masked words, N pairs or passages, D embedding size, S spans, W widths

import os
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from realm_lab.engine.models.embedder import Embedder
from realm_lab.engine.models.initial import (
    ReaderWeights,
    is_released,
    load_reader,
    read_reader_weights,
    read_released_embedder,
)
from realm_lab.engine.models.inputs import Batch
from realm_lab.engine.models.reader import Reader
from realm_lab.engine.models.realm import (
    candidate_log_probs,
    marginal_log_likelihood,
    marginal_log_likelihood_per_token,
)
from realm_lab.engine.models.realm import retrieval_score as scores_of
from realm_lab.engine.models.spans import (
    answer_log_probs,
    early_log_likelihood,
    passage_log_probs,
    span_log_probs,
    span_logit_sums,
)
from realm_lab.errors import UserError

HERE = Path(__file__).parent
WIDTH, CANDIDATES, SPAN_HIDDEN = 4, 3, 5
MASKED_AT = (2, 5)


def assert_close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0.0)


def run_release(*arguments: str) -> None:
    """Run released_program.py under transformers 4.40.2."""
    python = os.environ.get("REALM_LAB_HF440")
    if not python:
        pytest.skip("REALM_LAB_HF440 does not name the Python of an environment with transformers 4.40.2")
    command = [python, str(HERE / "released_program.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module", params=["kept", "drawn"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, inputs and outputs of transformers 4.40.2."""
    if request.param == "kept":
        return HERE / "data"
    drawn = tmp_path_factory.mktemp("released")
    run_release(str(drawn), "1")
    return drawn


@pytest.fixture
def inputs(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "inputs.safetensors")


@pytest.fixture
def expected(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "outputs.safetensors")


def batch(inputs: dict[str, Tensor], name: str) -> Batch:
    return Batch(inputs[f"{name}.tokens"], inputs[f"{name}.types"], inputs[f"{name}.mask"].bool())


@torch.no_grad()
def embedder_outputs(embedder: Embedder, inputs: dict[str, Tensor]) -> SimpleNamespace:
    embedder.eval()
    query_BD = embedder.embed_queries(batch(inputs, "queries"))
    document_ND = embedder.embed_documents(batch(inputs, "documents"))
    relevance = scores_of(query_BD, document_ND.view(len(query_BD), CANDIDATES, -1))
    return SimpleNamespace(queries=query_BD, documents=document_ND, relevance=relevance)


@torch.no_grad()
def word_outputs(reader: Reader, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """log p(w|z,x) at the masked positions [N, M, V], and the code's loss: the mean over the masked words."""
    reader.eval()
    at_NM = torch.tensor([MASKED_AT]).expand(len(inputs["pairs.tokens"]), -1)
    log_probs_NMV = reader.word_log_probs(reader.masked_hidden(batch(inputs, "pairs"), at_NM))
    labels_BM = inputs["labels"][:, list(MASKED_AT)]
    is_masked_BM = labels_BM != -100
    targets_BKM = labels_BM.clamp(min=0)[:, None].expand(-1, CANDIDATES, -1)
    log_probs_BKMV = log_probs_NMV.view(*targets_BKM.shape, -1)
    token_BKM = log_probs_BKMV.gather(-1, targets_BKM[..., None])[..., 0]
    likelihood_B = marginal_log_likelihood_per_token(candidate_log_probs(inputs["relevance"]), token_BKM, is_masked_BM)
    return log_probs_NMV, -likelihood_B.sum() / is_masked_BM.sum()


@torch.no_grad()
def span_outputs(reader: Reader, inputs: dict[str, Tensor], expected: dict[str, Tensor], name: str) -> SimpleNamespace:
    """Span logits in the release's order, the loss of its joint softmax with several gold spans, Lee's early loss."""
    reader.eval()
    logits_NLW = reader.span_logits(batch(inputs, "spans"), WIDTH)
    starts_S, ends_S = expected[f"{name}.span_starts"], expected[f"{name}.span_ends"]
    gold_NLW = torch.zeros(logits_NLW.shape, dtype=torch.bool)
    for number, (starts, ends) in enumerate(zip(inputs["starts"].tolist(), inputs["ends"].tolist(), strict=True)):
        for start, end in zip(starts, ends, strict=True):
            if start >= 0:
                gold_NLW[number, start, end - start] = True
    score_BC = inputs["span_relevance"][None]
    score_BK = score_BC[:, :CANDIDATES]
    passage_BK = passage_log_probs(score_BK, span_logit_sums(logits_NLW)[None], "joint")
    answer_BK = answer_log_probs(span_log_probs(logits_NLW), gold_NLW)[None]
    return SimpleNamespace(
        logits=logits_NLW[:, starts_S, ends_S - starts_S],
        reader_loss=-marginal_log_likelihood(passage_BK, answer_BK)[0],
        retriever_loss=-early_log_likelihood(score_BC, inputs["has_answers"][None])[0],
    )


def assert_spans(found: SimpleNamespace, expected: dict[str, Tensor], name: str) -> None:
    theirs_NS = expected[f"{name}.span_logits"]
    inside_NS = theirs_NS > -1e30
    assert torch.equal(found.logits > -1e3, inside_NS)
    assert_close(found.logits[inside_NS], theirs_NS[inside_NS])
    assert_close(found.reader_loss, expected[f"{name}.reader_loss"])
    assert_close(found.retriever_loss, expected[f"{name}.retriever_loss"])


def loaded(weights: ReaderWeights, folder: Path) -> Reader:
    reader = Reader(weights.shape, SPAN_HIDDEN)
    load_reader(reader, weights, folder)
    return reader


@pytest.mark.parametrize("name", ["embedder", "open_qa"])
def test_projected_scores(folder: Path, inputs: dict[str, Tensor], expected: dict[str, Tensor], name: str) -> None:
    assert is_released(folder / name)
    embedder = read_released_embedder(folder / name)
    assert embedder.query_projection is embedder.document_projection
    assert embedder.share_towers
    found = embedder_outputs(embedder, inputs)
    ours = found.documents if name == "embedder" else found.queries
    assert_close(ours, expected[f"{name}.projected"])


@pytest.mark.parametrize(("name", "shared"), [("scorer", True), ("scorer_of_two", False)])
def test_relevance_scores(
    folder: Path, inputs: dict[str, Tensor], expected: dict[str, Tensor], name: str, shared: bool
) -> None:
    embedder = read_released_embedder(folder / name)
    assert embedder.share_towers == shared
    found = embedder_outputs(embedder, inputs)
    assert_close(found.relevance, expected[f"{name}.relevance"])


def test_masked_words_and_their_loss(folder: Path, inputs: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    log_probs, loss = word_outputs(loaded(read_reader_weights(folder / "encoder"), folder), inputs)
    assert_close(log_probs, expected["encoder.log_probs"])
    assert_close(loss, expected["encoder.loss"])


@pytest.mark.parametrize("name", ["reader", "open_qa"])
def test_spans_and_their_losses(
    folder: Path, inputs: dict[str, Tensor], expected: dict[str, Tensor], name: str
) -> None:
    reader = loaded(read_reader_weights(folder / name), folder)
    assert_spans(span_outputs(reader, inputs, expected, name), expected, name)


def test_an_encoder_holds_no_retriever() -> None:
    with pytest.raises(UserError, match=r"no tensor 'cls\.dense\.weight'; it holds no retriever"):
        read_released_embedder(HERE / "data" / "encoder")
