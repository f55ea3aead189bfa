"""`train_tagger(params, root)`: a tagger of salient spans from CoNLL files, measured beside the rule tagger.

It runs in runs/stages/train_tagger-<key>/ with checkpoints, as the other stages, and goes on where it stopped. What it
makes lies in tagger.output: the Hugging Face folder, results.json and README.md with the figures. No run depends on it.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tokenizers import Tokenizer

from realm_lab import ENGINE_VERSION
from realm_lab.core.files import atomic_directory, digest, digest_file, read_json, write_json, write_text
from realm_lab.core.process import limit_threads, pick_device
from realm_lab.corpus.agreement import compare_with_rules, spans_in_text
from realm_lab.corpus.conll import ConllFile, TaggedSentence, one_label_set, read_conll, split_documents
from realm_lab.corpus.vocabulary import load_tokenizer, tokenizer_digest, train_wordpiece
from realm_lab.errors import UserError
from realm_lab.models.encoder import EncoderShape
from realm_lab.models.folders import config_shape, read_config
from realm_lab.models.tagger import ModelTagger, new_classifier, read_tagger, write_classifier
from realm_lab.params.parameters import Params
from realm_lab.params.sections import TaggerTraining
from realm_lab.systems.identity import digest_checkpoint
from realm_lab.systems.tagger_card import model_card
from realm_lab.tracking.run_dir import StageRun
from realm_lab.tracking.run_lease import writing
from realm_lab.training.loop import train
from realm_lab.training.tagger import TaggerTask, label_names

STAGE = "train_tagger"


class Sets(NamedTuple):
    """The sentences of a training, and what was read."""

    train: tuple[TaggedSentence, ...]
    dev: tuple[TaggedSentence, ...]
    test: tuple[TaggedSentence, ...]
    types: tuple[str, ...]  # of entities in the training sentences
    files: list[dict[str, Any]]


def train_tagger(params: Params, root: Path) -> dict[str, Any]:
    """Train the tagger that the section `tagger` asks for, unless it is there; returns its results.

    Raises:
        UserError: a file or a folder is not as it must be, or the training failed.
    """
    settings = params.tagger
    if not settings.train:
        raise UserError("tagger.train is empty: name CoNLL files to train on")
    sets = read_sets(settings)
    output = root / settings.output
    run = StageRun.open(
        root / "runs", STAGE, tagger_key(params), {"params": {"tagger": settings.model_dump(mode="json")}}
    )
    with writing(run.path):
        if run.is_complete() and _is_from(output, run.key):
            print(f"{settings.output}: is there, trained with these parameters", file=sys.stderr)
            return run.results()
        limit_threads(params.launch.threads)
        try:
            return _train(params, sets, run, output)
        except (KeyboardInterrupt, SystemExit):
            run.preempt()
            raise
        except BaseException as error:
            run.fail(f"{type(error).__name__}: {error}")
            raise


def read_sets(settings: TaggerTraining) -> Sets:
    """The files of the parameters; nothing that is trained on is in the test.

    Raises:
        UserError: a fault in a file, labels that do not go together, or a file in two places.
    """
    named = [*settings.train, *settings.dev, *settings.test]
    twice = [name for name in named if named.count(name) > 1]
    if twice:
        raise UserError(f"tagger: {twice[0]} is named twice; a file is for train, dev or test (tagger.held_out splits)")
    files = {name: read_conll(name, settings.labels) for name in named}
    one_label_set(files.values())
    parts = [split_documents(files[name], settings.held_out) for name in settings.train]
    trained = tuple(sentence for part, _ in parts for sentence in part.sentences)
    types = sorted({entity.label for sentence in trained for entity in sentence.entities})
    if not types:
        raise UserError(f"{settings.train[0]}: no entity in the sentences to train on; every tag is O")
    held_out = [sentence for _, part in parts for sentence in part.sentences]
    tested = [sentence for name in settings.test for sentence in files[name].sentences]
    for name in (*settings.dev, *settings.test):
        unknown = sorted({*files[name].labels} - {*types})
        if unknown:
            raise UserError(f"{name}: label '{unknown[0]}' is not in the training files ({', '.join(types)})")
    developed = tuple(sentence for name in settings.dev for sentence in files[name].sentences)
    described = [_described(role, files[name]) for role in ("train", "dev", "test") for name in getattr(settings, role)]
    return Sets(trained, developed, (*held_out, *tested), tuple(types), described)


def tagger_key(params: Params) -> str:
    """What the trained tagger depends on: parameters, and the content of files and checkpoint, not their places."""
    settings = params.tagger
    values = settings.model_dump(mode="json", exclude={"output", "evaluation_interval_steps"})
    for role in ("train", "dev", "test"):
        values[role] = [digest_file(Path(name)) for name in values[role]]
    if settings.checkpoint is not None:
        values["checkpoint"] = digest_checkpoint(Path(settings.checkpoint), "tagger.checkpoint")
    else:
        values["model"] = params.model.model_dump(mode="json")
        values["vocabulary_size"] = params.tokenizer.vocabulary_size
    return digest({"stage": STAGE, "engine": ENGINE_VERSION, "params": values})


def _train(params: Params, sets: Sets, run: StageRun, output: Path) -> dict[str, Any]:
    settings = params.tagger
    checkpoint = None if settings.checkpoint is None else Path(settings.checkpoint)
    if checkpoint is None:
        texts = (" ".join(sentence.tokens) for sentence in sets.train)
        tokenizer = train_wordpiece(texts, params.tokenizer.vocabulary_size)
    else:
        tokenizer = load_tokenizer(checkpoint)
    shape = _shape(params, tokenizer, checkpoint)
    device = pick_device(params.launch.device)
    model = new_classifier(shape, label_names(sets.types), settings.seed, checkpoint).to(device)
    identity: dict[str, str | int] = {"tokenizer": tokenizer_digest(tokenizer), "engine_version": ENGINE_VERSION}
    with _shown(TaggerTask(settings, model, tokenizer, sets.train, sets.dev)) as task:
        train(task, run, params.launch, device, identity)
    with atomic_directory(output) as scratch:
        write_classifier(model, tokenizer, scratch)
        results = _results(read_tagger(scratch, str(device)), sets, task)
        write_json(scratch / "results.json", {"key": run.key, **results})
        write_text(scratch / "README.md", model_card(settings, results))
    run.finish(results)
    shutil.rmtree(run.path / "checkpoints", ignore_errors=True)
    print(f"{settings.output}: {_in_short(results)}", file=sys.stderr)
    return results


def _shape(params: Params, tokenizer: Tokenizer, checkpoint: Path | None) -> EncoderShape:
    settings = params.tagger
    if checkpoint is not None:
        shape = config_shape(read_config(checkpoint), checkpoint)._replace(dropout=settings.dropout)
        if settings.max_length > shape.positions:
            raise UserError(f"tagger.max_length is {settings.max_length}, {checkpoint} has {shape.positions}; lower it")
        return shape
    model = params.model
    sizes = (model.hidden_size, model.layers, model.heads, model.intermediate_size)
    return EncoderShape(tokenizer.get_vocab_size(), *sizes, settings.max_length, settings.dropout, model.activation)


def _results(tagger: ModelTagger, sets: Sets, task: TaggerTask) -> dict[str, Any]:
    """Scores on dev and test, and the comparison with the rule tagger on the test."""
    results: dict[str, Any] = {
        "files": sets.files,
        "sentences": {"train": len(sets.train), "dev": len(sets.dev), "test": len(sets.test)},
        "steps": task.total_steps,
    }
    for name, sentences in (("dev", sets.dev), ("test", sets.test)):
        if sentences:
            results[name] = {label: score._asdict() for label, score in task.scores(sentences).items()}
    if sets.test:
        texts = [spans_in_text(sentence)[0] for sentence in sets.test]
        began = time.perf_counter()
        tagger.tag_batch(texts, texts)
        elapsed = time.perf_counter() - began
        results["characters_per_second"] = round(sum(map(len, texts)) / elapsed)
        results["sentences_per_second"] = round(len(texts) / elapsed, 1)
        results["beside_rules"] = compare_with_rules(tagger, sets.test)
    return results


@contextmanager
def _shown(task: TaggerTask) -> Iterator[TaggerTask]:
    """The task, with a bar of its steps on a terminal."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("train-tagger", total=task.total_steps)
        step_of = task.train_step

        def train_step(step: int) -> dict[str, float]:
            values = step_of(step)
            progress.update(bar, completed=step + 1)
            return values

        task.train_step = train_step  # type: ignore[method-assign]
        yield task


def _described(role: str, file: ConllFile) -> dict[str, Any]:
    return {
        "role": role,
        "name": file.path.name,
        "sentences": len(file.sentences),
        "tokens": file.tokens,
        "encoding": file.encoding,
        "labels": list(file.labels),
        "repaired": dict(file.repaired),
    }


def _is_from(folder: Path, key: str) -> bool:
    path = folder / "results.json"
    return path.exists() and read_json(path).get("key") == key


def _in_short(results: dict[str, Any]) -> str:
    parts: Sequence[str] = [
        f"F1 {results[name]['micro']['f1']:.3f} on {results['sentences'][name]:,} sentences of {name}"
        for name in ("dev", "test")
        if name in results
    ]
    return "; ".join(parts) or f"trained for {results['steps']:,} steps"
