"""Reading every candidate of every query, however they are grouped."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from realm_lab.engine.masking import MaskedSentence
from realm_lab.engine.models.candidate_reader import ABSENT_NATS, CandidateReader, RewardReader
from realm_lab.engine.models.inputs import Batch
from realm_lab.engine.models.reader import Reader
from realm_lab.engine.models.rewards import RewardRequest, training_reward
from realm_lab.engine.retrieval.rows import ABSENT, NULL
from realm_lab.records.plugins import Choice
from tests.factories.errors import refused
from tests.tiny_system import Reference, TinySystem, build_system

# Shapes: B queries, K candidates, M masked positions

ROWS_BK = np.array([[-1, 12, 3, 200], [7, 7, -1, 0], [-2, 319, 18, 1]])
POSITIONS = [np.array([2, 5, 6]), np.array([0]), np.array([3, 4])]


def queries(system: TinySystem) -> list[np.ndarray]:
    sentences = system.corpus.sentences()
    tokens = [np.array(sentences.tokens[row], np.int64)[: 15 - row] for row in (0, 3, 6)]
    for query, positions in zip(tokens, POSITIONS, strict=True):
        query[positions] = system.special.mask
    return tokens


def targets() -> list[np.ndarray]:
    return [np.array([50, 60, 70]), np.array([80]), np.array([90, 100])]


def sentences(system: TinySystem) -> list[MaskedSentence]:
    return [MaskedSentence(*parts) for parts in zip(queries(system), POSITIONS, targets(), strict=True)]


def read(system: TinySystem, token_budget: int = 4096, passage_length: int = 38, recompute: bool = False) -> Tensor:
    params = system.params
    corpus = params.corpus.model_copy(update={"passage_length": passage_length})
    launch = params.launch.model_copy(update={"token_budget": token_budget, "recompute": recompute})
    params = params.model_copy(update={"corpus": corpus, "launch": launch})
    reader = CandidateReader(params, system.reader, system.passages, system.special)
    return reader.read(sentences(system), ROWS_BK).token_log_probs_BKM


@torch.no_grad()
def test_candidates_are_read_as_one_by_one(system: TinySystem, reference: Reference) -> None:
    token_BKM = read(system)
    assert token_BKM.shape == (3, 4, 3)
    for b, query in enumerate(queries(system)):
        for k, row in enumerate(ROWS_BK[b].tolist()):
            # the body without its title; a negative row is [CLS] x [SEP][SEP]
            body = system.passages.bodies[row] if row >= 0 else np.empty(0, np.int64)
            words_MV = reference.masked_words(query, body, POSITIONS[b])
            for m, target in enumerate(targets()[b].tolist()):
                assert token_BKM[b, k, m].item() == pytest.approx(words_MV[m, target].item(), abs=2e-5), (b, k, m)
            assert not token_BKM[b, k, len(targets()[b]) :].any()  # nothing is masked there


def gradients(system: TinySystem, recompute: bool) -> list[Tensor]:
    """Log-probabilities, then the gradient of a weighted sum in every weight; dropout from one seed."""
    named = dict(system.reader.named_parameters())
    weights = [weight for name, weight in named.items() if not name.startswith("span_")]
    torch.manual_seed(3)
    token_BKM = read(system, 100, recompute=recompute)
    weight_BKM = torch.randn(3, 4, 3, generator=torch.Generator().manual_seed(0))
    found = torch.autograd.grad((token_BKM * weight_BKM).sum(), weights)
    return [token_BKM.detach(), *found, torch.rand(4)]  # the next draws are the same too


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_recomputing_changes_no_bit(system: TinySystem, dropout: float) -> None:
    dropping = build_system(system.corpus, model={"dropout": dropout})
    dropping.reader.train()
    held, again = gradients(dropping, False), gradients(dropping, True)
    assert all(torch.equal(one, other) for one, other in zip(held, again, strict=True))
    dropping.reader.eval()
    with torch.no_grad():
        as_without_BKM = read(dropping, 100)
    assert torch.allclose(as_without_BKM, held[0], atol=1e-4) == (dropout == 0.0)  # dropout was on if asked for


def test_recomputing_holds_no_activations(system: TinySystem, monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    original = Reader.masked_hidden

    def counted(self: Reader, batch: Batch, at_NM: Tensor) -> Tensor:
        reads.append(len(batch.tokens_BL))
        return original(self, batch, at_NM)

    monkeypatch.setattr(Reader, "masked_hidden", counted)

    def held_values(recompute: bool) -> int:
        sizes: list[int] = []
        weights = {weight.data_ptr() for weight in system.reader.parameters()}

        def note(tensor: Tensor) -> Tensor:
            sizes.append(0 if tensor.data_ptr() in weights else tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            token_BKM = read(system, 100, recompute=recompute)
        forward = len(reads)
        token_BKM.sum().backward()
        assert len(reads) == forward * (2 if recompute else 1)  # every group once more
        reads.clear()
        system.reader.zero_grad()
        return sum(sizes)

    assert held_values(True) < 0.01 * held_values(False)
    with torch.no_grad():
        read(system, 4096, recompute=True)
    assert len(reads) == 1


@torch.no_grad()
def test_every_masked_word_must_be_restored(system: TinySystem, reference: Reference) -> None:
    # Targets that the reader guesses: all of them, or all except the last.
    query = np.array(system.corpus.sentences("cloze_dev").tokens[0], np.int64)
    positions = np.array([2, 5, 6])
    query[positions] = system.special.mask
    guessed = reference.masked_words(query, system.passages.bodies[12], positions).argmax(1).numpy()
    wrong = np.array([*guessed[:2], (guessed[2] + 1) % 600])
    one = MaskedSentence(query, positions[:1], guessed[:1])
    masked = [MaskedSentence(query, positions, guessed), MaskedSentence(query, positions, wrong), one]
    reader = CandidateReader(system.params, system.reader, system.passages, system.special)
    assert reader.restores(masked, np.array([12, 12, 12])).tolist() == [True, False, True]
    unknown = CandidateReader(
        system.params, system.reader, system.passages, system.special._replace(unk=int(guessed[0]))
    )
    assert unknown.restores(masked, np.array([12, 12, 12])).tolist() == [False, False, False]
    words_KMV = reader.word_log_probs(query, positions, [12, -1])
    assert words_KMV[0].argmax(-1).tolist() == guessed.tolist()
    nothing = reference.masked_words(query, np.empty(0, np.int64), positions)
    torch.testing.assert_close(words_KMV[1].double(), nothing, atol=1e-4, rtol=0)


def test_containment_is_of_each_run_of_masked_wordpieces(system: TinySystem) -> None:
    body = np.asarray(system.passages.bodies[3])
    query = np.full(9, system.special.mask)
    one = MaskedSentence(query, np.array([1, 2]), body[1:3])
    reversed_ = MaskedSentence(query, np.array([1, 2]), body[1:3][::-1])
    apart = MaskedSentence(query, np.array([1, 4, 5]), np.array([body[0], *body[2:4]]))
    contained = training_reward(Choice("containment"))
    reader = RewardReader(contained, system.passages, system.special, torch.device("cpu"))
    rows = np.array([[3, NULL, ABSENT]] * 3)
    expected = [[0.0, ABSENT_NATS, ABSENT_NATS], [ABSENT_NATS] * 3, [0.0, ABSENT_NATS, ABSENT_NATS]]
    assert body[1] != body[2]
    assert reader.read([one, reversed_, apart], rows).log_probs_BK.tolist() == expected
    assert reader.restores([one, reversed_], np.array([3, 3])).tolist() == [True, False]
    other = system.special._replace(unk=int(body[1]))
    unknown = RewardReader(contained, system.passages, other, torch.device("cpu"))
    assert unknown.read([one], rows[:1]).log_probs_BK.tolist() == [[ABSENT_NATS] * 3], "it may be any other word"


def test_the_reward_of_evidence_is_for_the_documents_that_a_file_names(
    system: TinySystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[3])
    document = system.passages.text.row(3)["document"]
    table = tmp_path / "evidence.jsonl"
    table.write_text(json.dumps({"sentence": "Anna left.", "evidence_ids": [document, "gone"]}) + "\n")
    choice = Choice("experiments.evidence:evidence", {"file": str(table)})
    reader = RewardReader(training_reward(choice), system.passages, system.special, torch.device("cpu"))
    sentence = MaskedSentence(np.full(4, system.special.mask), np.array([1]), np.array([50]), "Anna left.")
    rows = np.array([[3, NULL, 12, ABSENT]])
    is_same = system.passages.text.row(12)["document"] == document
    expected = [0.0, ABSENT_NATS, 0.0 if is_same else ABSENT_NATS, ABSENT_NATS]
    assert reader.read([sentence], rows).log_probs_BK.tolist() == [expected]
    with refused("is missing", path=str(table), remedy="make it again"):
        reader.read([sentence._replace(text="Bert left.")], rows)


def test_the_reward_of_the_guide_works_and_a_wrong_one_is_refused(
    system: TinySystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[3] / "docs/extending.md").read_text()
    code = next(block for block in text.split("```python\n") if "my_reward" in block).partition("```")[0]
    (tmp_path / "my_reward.py").write_text(f"{code}\n\ndef wrong(request):\n    return request.rows_K\n")
    monkeypatch.syspath_prepend(tmp_path)
    sentence = MaskedSentence(np.full(4, system.special.mask), np.array([1]), np.array([50]))
    request = RewardRequest(sentence, system.passages, np.array([3, 12]), system.special.unk)
    titles = system.passages.text.taken("title", request.rows_K)
    named = request._replace(sentence=sentence._replace(text=f"{titles[0]} left."))
    same_title = training_reward(Choice("my_reward:same_title"))
    assert titles[0] not in titles[1]
    assert titles[1] not in titles[0]
    assert same_title(named).tolist() == [True, False]
    with refused("'my_reward:wrong' returned int64 [2]", remedy="return bool [2]"):
        training_reward(Choice("my_reward:wrong"))(request)
