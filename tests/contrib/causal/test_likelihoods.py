"""The table of a causal language model's log-likelihoods: each pair is read once, by any run."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from realm_lab.contrib.causal import likelihoods
from realm_lab.contrib.causal.likelihoods import PAIR, CausalReader, Found, Identity, Likelihoods
from realm_lab.contrib.causal.model import CausalModel, left_prompt
from realm_lab.engine.corpus.records import text_hash
from realm_lab.engine.corpus.vocabulary import encode_batch_plain, train_wordpiece
from realm_lab.engine.masking import MaskedSentence, mask
from realm_lab.engine.retrieval.rows import ABSENT, NULL
from tests.contrib.causal.causal_folder import write_causal_folder
from tests.engine.corpus.preparing import write_passages

TEXTS = [("Ankara", "The talks take place in Ankara, Türkiye."), ("Lima", "Lima hosts the games."), ("", "None.")]
SENTENCES = ["Talks in Ankara, Türkiye, fail after a day.", "Lima, Peru: the games end."]
IDENTITY = Identity("model", "left", "float32", "code")
CPU = torch.device("cpu")


def never() -> CausalModel:
    raise AssertionError("nothing is left to read")


class Made:
    def __init__(self, root: Path):
        texts = [text for _, text in TEXTS] + SENTENCES
        self.folder, self.store = write_causal_folder(root / "model", texts), root / "likelihoods"
        self.passages = write_passages(root / "passages", TEXTS)
        self.tokenizer = train_wordpiece(texts, 200)
        self.loads = 0

    def load(self) -> CausalModel:
        self.loads += 1
        return CausalModel(self.folder, "float32", CPU)

    def reader(self, load: Any = None, identity: Identity = IDENTITY, **accepts: bool) -> CausalReader:
        table = Likelihoods(self.store, identity, **accepts)
        return CausalReader(self.passages, self.tokenizer, "left", table, load or self.load, CPU)

    def masked(self, number: int, *words: str) -> MaskedSentence:
        """A sentence with all wordpieces of some words masked."""
        text = SENTENCES[number]
        encoding = encode_batch_plain(self.tokenizer, [text])[0]
        inside = [(text.index(word), text.index(word) + len(word)) for word in words]
        places = [n for n, (s, e) in enumerate(encoding.offsets) if any(f <= s and e <= u for f, u in inside)]
        return mask(np.array(encoding.ids), np.array(places), 4, text)


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


ROWS = np.array([[NULL, 0, 2], [NULL, 1, ABSENT]])


def test_a_pair_is_read_as_its_prompt(made: Made) -> None:
    sentences = [made.masked(0, "Ankara", "Türkiye"), made.masked(1, "Lima")]
    reading = made.reader().read(sentences, ROWS)
    bodies = [["", TEXTS[0][1], TEXTS[2][1]], ["", TEXTS[1][1], ""]]
    spans = [[(9, 15), (17, 24)], [(0, 4)]]
    prompts = [left_prompt(body, SENTENCES[n], spans[n]) for n in (0, 1) for body in bodies[n]]
    alone = [float(made.load().score([prompt])[0]) for prompt in prompts]
    assert reading.log_probs_BK.flatten().tolist() == pytest.approx(alone, rel=1e-5)
    assert reading.token_log_probs_BKM.shape == (2, 3, 1)
    assert reading.is_masked_BM.all()


def test_each_pair_is_read_once_by_whoever_asks_first(made: Made) -> None:
    sentences = [made.masked(0, "Ankara"), made.masked(1, "Lima")]
    first = made.reader().read(sentences, ROWS).log_probs_BK
    assert made.loads == 1
    again = made.reader(never)
    assert torch.equal(again.read(sentences, ROWS).log_probs_BK, first)
    assert again.restores(sentences, np.array([0, 1])).shape == (2,)
    assert (made.store / IDENTITY.key[:12] / "pairs.bin").stat().st_size == 5 * PAIR.itemsize  # ABSENT is read as null
    with pytest.raises(AssertionError):
        again.read([made.masked(0, "Türkiye")], ROWS[:1])


def test_a_pair_of_another_corpus_is_known_by_its_texts(made: Made) -> None:
    sentences = [made.masked(0, "Ankara"), made.masked(1, "Lima")]
    first = made.reader().read(sentences, np.array([[0, 1], [1, 2]])).log_probs_BK
    made.passages = write_passages(made.folder.parent / "updated", [("", "New."), *TEXTS[::-1]])
    again = made.reader(never).read(sentences, np.array([[3, 2], [2, 1]])).log_probs_BK
    assert torch.equal(again, first)
    with pytest.raises(AssertionError):
        made.reader(never).read(sentences[:1], np.array([[0]]))


def test_states_of_passages_are_stored_while_the_disk_has_room(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(likelihoods, "SPARED", 0)
    sentences = [made.masked(0, "Ankara"), made.masked(1, "Lima")]
    first = made.reader().read(sentences, ROWS).log_probs_BK
    folder = made.store / IDENTITY.key[:12]
    names = {f"{text_hash(text):016x}.safetensors" for _, text in TEXTS}
    assert {path.name for path in (folder / "states").iterdir()} == names
    folder.joinpath("pairs.bin").unlink()
    assert torch.equal(made.reader().read(sentences, ROWS).log_probs_BK, first), "as stored"
    monkeypatch.setattr(likelihoods, "SPARED", float("inf"))
    shutil.rmtree(made.store)
    torch.testing.assert_close(made.reader().read(sentences, ROWS).log_probs_BK, first, rtol=1e-5, atol=0)
    assert not (folder / "states").exists()


@pytest.mark.parametrize("name", ["checkpoint", "form", "precision", "code"])
def test_another_table_for_whatever_moves_a_number(made: Made, name: str) -> None:
    sentences = [made.masked(0, "Ankara")]
    made.reader().read(sentences, ROWS[:1])
    other = Identity(**{**IDENTITY.__dict__, name: "other"})
    with pytest.raises(AssertionError):
        made.reader(never, other).read(sentences, ROWS[:1])
    if name == "code":
        made.store.joinpath(other.key[:12], "identity.json").unlink()
        made.reader(never, other, accepts_other_code=True).read(sentences, ROWS[:1])


def test_the_first_number_of_a_pair_counts(tmp_path: Path) -> None:
    one, two = Likelihoods(tmp_path, IDENTITY), Likelihoods(tmp_path, IDENTITY)
    assert two.find([(7, 1)]) == {}
    one.add({(7, 1): Found(-1.0, True)})
    two.add({(7, 1): Found(-2.0, False), (7, 2): Found(-3.0, False)})
    for table in (one, two, Likelihoods(tmp_path, IDENTITY)):
        assert table.find([(7, 1), (7, 2), (8, 1)]) == {(7, 1): Found(-1.0, True), (7, 2): Found(-3.0, False)}


def test_what_a_killed_writer_left_is_dropped(tmp_path: Path) -> None:
    Likelihoods(tmp_path, IDENTITY).add({(1, 1): Found(-1.0, True)})
    with open(tmp_path / IDENTITY.key[:12] / "pairs.bin", "ab") as file:
        file.write(b"\1" * (PAIR.itemsize - 3))
    table = Likelihoods(tmp_path, IDENTITY)
    table.add({(2, 2): Found(-2.0, False)})
    expected = {(1, 1): Found(-1.0, True), (2, 2): Found(-2.0, False)}
    assert table.find(list(expected)) == Likelihoods(tmp_path, IDENTITY).find(list(expected)) == expected
