"""`realm-lab train-tagger`: from CoNLL files to a folder that tags a corpus; resumed, not done twice, refused."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from realm_lab.cli import main
from realm_lab.core.files import digest, read_json, write_text
from realm_lab.corpus import salient_spans
from realm_lab.corpus.prepare import corpus_inputs, prepare
from realm_lab.corpus.salient_spans import find_tagger
from realm_lab.corpus.store import PreparedCorpus
from realm_lab.errors import UserError
from realm_lab.models.tagger import read_tagger
from realm_lab.params.load import load
from realm_lab.params.parameters import Params
from realm_lab.systems.prepare import offer_tagger
from realm_lab.systems.train_tagger import read_sets, tagger_key, train_tagger
from realm_lab.training.tagger import TaggerTask

PERSONS = "Ann Bob Carla Dov Eve Finn Gil Hana".split()
PLACES = "Rome Oslo Lima Kyiv Cairo Perth".split()


def conll_text(documents: int, seed: int) -> str:
    rng = np.random.default_rng(seed)
    lines = []
    for _ in range(documents):
        lines += ["-DOCSTART- O", ""]
        for _ in range(4):
            person, place = rng.choice(PERSONS), rng.choice(PLACES)
            lines += ["so O"] * int(rng.integers(0, 2)) + [
                f"{person} I-PER",
                "went O",
                "to O",
                f"{place} I-LOC",
                ". O",
                "",
            ]
    return "\n".join(lines)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("conll")
    write_text(folder / "train.conll", conll_text(30, 0))
    write_text(folder / "dev.conll", conll_text(8, 1))
    return folder


def settings(files: Path, **changes: Any) -> dict[str, Any]:
    return {
        "preset": "smoke",
        "tagger.train": [str(files / "train.conll")],
        "tagger.dev": [str(files / "dev.conll")],
        "tagger.held_out": 0.2,
        "tagger.max_length": 16,
        "tagger.batch_size": 8,
        "tagger.epochs": 10,
        "tagger.optimiser.learning_rate": 5e-3,
        "tagger.optimiser.warmup_steps": 5,
        "tagger.optimiser.bias_correction": True,
        "launch.device": "cpu",
        **{f"tagger.{name}": value for name, value in changes.items()},
    }


def params_of(files: Path, **changes: Any) -> Params:
    return load(_empty(files), settings(files, **changes))


def _empty(files: Path) -> Path:
    path = files / "params.yaml"
    if not path.exists():
        write_text(path, "preset: smoke\n")
    return path


@pytest.fixture(scope="module")
def trained(files: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a trained tagger, made by the verb."""
    root = tmp_path_factory.mktemp("root")
    sets = [f"--set={name}={value}" for name, value in settings(files).items() if name != "preset"]
    assert main(["train-tagger", "--root", str(root), "--params", str(_empty(files)), *sets]) == 0
    return root


def test_what_it_makes(trained: Path, files: Path) -> None:
    folder = trained / "models" / "tagger"
    names = {path.name for path in folder.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "vocab.txt", "results.json", "README.md"} <= names
    results = read_json(folder / "results.json")
    assert results["test"]["micro"]["f1"] > 0.9
    assert results["dev"]["PER"]["f1"] > 0.9
    assert results["sentences"] == {"train": 96, "dev": 32, "test": 24}
    assert [file["encoding"] for file in results["files"]] == ["IO", "IO"]
    beside = results["beside_rules"]
    assert beside["tagger"]["f1"] == results["test"]["micro"]["f1"]
    assert 0.3 < beside["rules"]["f1"] < 1.0  # single first words are no names to the rules
    assert 0.3 < beside["names"]["shared"] < 1.0
    card = (folder / "README.md").read_text()
    assert f"| micro | {results['test']['micro']['precision']:.3f}" in card
    assert f"they share {beside['names']['shared']:.1%}" in card
    [run] = (trained / "runs" / "stages").iterdir()
    assert read_json(run / "status.json")["state"] == "COMPLETE"
    assert not (run / "checkpoints").exists()


def test_it_is_not_done_twice(trained: Path, files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = trained / "models" / "tagger" / "model.safetensors"
    before = file.stat().st_mtime_ns
    train_tagger(params_of(files), trained)
    assert file.stat().st_mtime_ns == before
    assert "is there" in capsys.readouterr().err


def test_a_killed_training_goes_on_to_the_same_bits(
    trained: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    train_step = TaggerTask.train_step

    def killed(self: TaggerTask, step: int) -> dict[str, float]:
        steps.append(step)
        if step == 40 and steps.count(40) == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return train_step(self, step)

    monkeypatch.setattr(TaggerTask, "train_step", killed)
    with pytest.raises(SystemExit):
        train_tagger(params_of(files), tmp_path)
    assert not (tmp_path / "models").exists()
    train_tagger(params_of(files), tmp_path)
    assert steps == list(range(120))
    name = Path("models") / "tagger" / "model.safetensors"
    assert (tmp_path / name).read_bytes() == (trained / name).read_bytes()


def test_the_key_is_of_content_and_not_of_places(files: Path, tmp_path: Path) -> None:
    key = tagger_key(params_of(files))
    for name in ("train.conll", "dev.conll"):
        write_text(tmp_path / name, (files / name).read_text())
    assert tagger_key(params_of(tmp_path)) == key
    assert tagger_key(params_of(files, output="elsewhere", evaluation_interval_steps=7)) == key
    for change in ({"seed": 1}, {"labels": "keep"}, {"held_out": 0.1}, {"epochs": 3}, {"optimiser.beta2": 0.9}):
        assert tagger_key(params_of(files, **change)) != key
    write_text(tmp_path / "dev.conll", (files / "dev.conll").read_text() + "x O\n")
    assert tagger_key(params_of(tmp_path)) != key


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"train": []}, "tagger.train is empty"),
    ({"dev": ["train.conll"]}, "train.conll is named twice"),
    ({"test": ["gene.conll"], "labels": "keep"}, "none in common"),
    ({"test": ["misc.conll"]}, "misc.conll: label 'MISC' is not in the training files"),
    ({"train": ["nothing.conll"]}, "no entity in the sentences to train on"),
    ({"checkpoint": "nowhere"}, "nowhere"),
]


@pytest.mark.parametrize(("change", "said"), REFUSED)
def test_what_it_refuses(files: Path, tmp_path: Path, change: dict[str, Any], said: str) -> None:
    texts = {"gene": "a B-GENE\n", "misc": "a B-MISC\nb B-PER\n", "nothing": "a O\n"}
    for name, text in texts.items():
        write_text(files / f"{name}.conll", text)
    found = {
        name: [str(files / item) for item in value] if isinstance(value, list) else value
        for name, value in change.items()
    }
    with pytest.raises(UserError, match=said):
        train_tagger(params_of(files, **found), tmp_path)
    assert not (tmp_path / "models").exists()


def test_nothing_that_is_trained_on_is_in_the_test(files: Path) -> None:
    sets = read_sets(params_of(files).tagger)
    assert not {id(sentence) for sentence in sets.train} & {id(sentence) for sentence in sets.test}
    assert max(sentence.document for sentence in sets.train) < min(sentence.document for sentence in sets.test)


def test_a_corpus_is_tagged_by_it(trained: Path, files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(salient_spans, "TAGGERS", dict(salient_spans.TAGGERS))
    text = tmp_path / "text.jsonl"
    write_text(
        text, '{"id": "a", "title": "t", "text": "Ann went to Rome in July 1969. So Bob went to Oslo with Eve."}\n'
    )
    folder = trained / "models" / "tagger"
    corpus = {"corpus.source": "files", "corpus.pretrain_corpus": "same", "corpus.files.knowledge": [str(text)]}

    def with_tagger(tagger: str, model: Path | None = folder) -> Params:
        named = {"corpus.tagger": tagger, "corpus.files.tagger_model": None if model is None else str(model)}
        return load(_empty(files), {"preset": "smoke", **corpus, **named})

    params = with_tagger("model")
    offer_tagger(params)
    sentence = "So Bob went to Oslo in July 1969 ."
    [spans] = find_tagger("model")().tag_batch([sentence], [""])
    found = {(sentence[start:end], label) for start, end, label in spans}
    assert {("Bob", "PER"), ("Oslo", "LOC"), ("July 1969", "date")} <= found
    prepare(params, tmp_path / "prepared", 0)
    stored = PreparedCorpus(tmp_path / "prepared").sentences()
    assert stored.span_count() >= 5
    # The folder's content is in the key of the corpus where it tags, its place is not.
    key = digest(corpus_inputs(params, 0))
    assert digest(corpus_inputs(with_tagger("rule"), 0)) == digest(corpus_inputs(with_tagger("rule", None), 0)) != key
    other = tmp_path / "other"
    other.mkdir()
    for path in folder.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    assert digest(corpus_inputs(with_tagger("model", other), 0)) == key
    write_text(other / "vocab.txt", "changed")
    assert digest(corpus_inputs(with_tagger("model", other), 0)) != key
    with pytest.raises(UserError, match=r"tagger: model needs files.tagger_model"):
        with_tagger("model", None)


def test_the_folder_is_read_as_it_was_measured(trained: Path, files: Path) -> None:
    sets = read_sets(params_of(files).tagger)
    tagger = read_tagger(trained / "models" / "tagger")
    found = tagger.token_entities([sentence.tokens for sentence in sets.test])
    right = sum(len({*one} & {*other.entities}) for one, other in zip(found, sets.test, strict=True))
    assert right == read_json(trained / "models" / "tagger" / "results.json")["test"]["micro"]["right"]
