"""The prepare stage: read, cut, tag salient spans, tokenise, store memory-mapped."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from realm_lab.core.files import DiskFull, atomic_directory, digest, digest_file, write_json
from realm_lab.corpus.assembly import Assembly, Progress
from realm_lab.corpus.files_corpus import FilesCorpus
from realm_lab.corpus.pool import ProcessLost
from realm_lab.corpus.readers import digest_input, input_files
from realm_lab.corpus.salient_spans import MakeTagger, RuleTagger, tagger_digest
from realm_lab.corpus.store import PATCHES_FILE, Manifest
from realm_lab.corpus.toy_source import ToySource
from realm_lab.corpus.vocabulary import (
    load_tokenizer,
    normaliser_settings,
    save_tokenizer,
    tokenizer_digest,
    train_wordpiece,
)
from realm_lab.errors import UserError
from realm_lab.params.checkpoint import hub_remedy
from realm_lab.params.corpus import EASY_WORLD
from realm_lab.params.parameters import Params

FORMAT = 2  # of a prepared folder: raised when the same text is stored in another way, so that no old folder is taken
# At these values a corpus is what it was before the parameter existed, so it keeps its key.
NEUTRAL: dict[str, dict[str, object]] = {
    "toy": {
        "restate_facts": False,
        "hops": 1,
        "triples": "none",
        "triple_cards": False,
        "bystanders": 0.0,
        "second_language": "none",
        "knowledge_language": "first",
        "sentence_fraction": 1.0,
        "pictures": "none",
        **EASY_WORLD,
    },
    "files": {"drop_pages": [], "picture_size": 64},
}
CUTTING_VERSION = 2  # raised when the same files yield other passages, sentences or spans
PASSAGE_WORDPIECES = "wordpieces of passages"  # counted of file corpora
FILE_ROLES = ("knowledge", "knowledge_updated", "pretrain", "questions_train", "questions_dev", "questions_test")


def corpus_inputs(params: Params, seed: int) -> dict[str, object]:
    """What a prepared corpus depends on; its digest names the folder. File corpora do not depend on the seed."""
    corpus = params.corpus.model_dump(mode="json")
    tokenizer = params.tokenizer.model_dump(mode="json")
    described: dict[str, object] = {"format": FORMAT, "corpus": corpus, "tokenizer": tokenizer}
    if params.tokenizer.checkpoint is not None:
        tokenizer_files = _folder_digest(Path(params.tokenizer.checkpoint))
        _check_tokenizer(params.tokenizer.checkpoint, *tokenizer_files.values())
        described["tokenizer_files"] = tokenizer_files
        settings = normaliser_settings(params.tokenizer.checkpoint)
        if settings.get("strip_accents") is not None or not settings.get("handle_chinese_chars", True):
            described["normaliser"] = settings
    source = params.corpus.source
    del corpus["files" if source == "toy" else "toy"]
    for name, neutral in NEUTRAL[source].items():
        if corpus[source][name] == neutral:
            del corpus[source][name]
    if source == "toy":
        del corpus["toy"]["world"]  # the knobs that it sets count
        world_seed = params.corpus.toy.world_seed
        described["seed"] = seed if world_seed is None else world_seed
    else:
        files = params.corpus.files
        del corpus["files"]["tagger_model"]  # its content counts instead
        if not files.holds_out_dev:
            del corpus["files"]["dev_split"]  # it splits nothing
        roles = {path: role for role in FILE_ROLES for path in getattr(files, role)}
        for path, role in roles.items():
            if not Path(path).exists():
                raise UserError(f"corpus.files.{role}: {path}: no such file; check the path")
        described["files"] = {path: digest_input(path) for path in sorted(roles)}
        if any(file.is_renamed for role in FILE_ROLES for file in input_files(*getattr(files, role))):
            described["ids"] = "of files that share a name"
        described["cutting"] = [CUTTING_VERSION, version("sentencex")]
        if params.corpus.tagger == "model":
            described["tagger_files"] = tagger_digest(files.tagger_model)
    return described


def prepare(
    params: Params,
    folder: Path,
    seed: int,
    progress: Progress = lambda name, count: None,
    *,
    workers: int = 1,
    make_tagger: MakeTagger = RuleTagger,
) -> Manifest:
    """Prepare the corpus into `folder`, which appears only when everything is written.

    File corpora are cut by `workers` processes, each with a tagger of its own; the bytes are the same for any number.
    What is cut is kept in a hidden neighbour until then: if this is stopped, the next call goes on from there.
    """
    inputs = corpus_inputs(params, seed)
    key = digest(inputs)
    kept = folder.with_name(f".{folder.name}.{key[:12]}.cuts")
    with _kept_while_it_can_go_on(kept), atomic_directory(folder) as scratch:
        is_toy = params.corpus.source == "toy"
        toy = ToySource(params, int(str(inputs["seed"]))) if is_toy else None
        source = toy or _files_source(params, kept, workers, make_tagger)
        made = Assembly(source, scratch, progress)
        passages = made.write()
        if not made.counts["passages"] or not made.counts["sentences"]:
            raise UserError(
                f"prepare: {made.counts['passages']} passages and {made.counts['sentences']} sentences were kept "
                f"(dropped: {dict(made.dropped)}); check corpus.files and corpus.sentence_length"
            )
        if not is_toy:
            made.counts[PASSAGE_WORDPIECES] = int(passages.bodies.offsets[-1])
        save_tokenizer(source.tokenizer, scratch / "tokenizer")
        tokens = tokenizer_digest(source.tokenizer)
        bodies = digest_file(scratch / "passages" / "bodies.bin")
        content = {"key": key, "bodies": bodies, "tokenizer": tokens}
        if (patches := scratch / PATCHES_FILE).exists():
            content["patches"] = digest_file(patches)
        manifest = Manifest(
            key=key,
            digest=digest(content),
            tokenizer_digest=tokens,
            vocabulary_size=source.tokenizer.get_vocab_size(),
            counts=dict(sorted((+made.counts).items())),
            dropped=dict(sorted((+made.dropped).items())),
        )
        write_json(scratch / "manifest.json", manifest._asdict())
    return manifest


@contextmanager
def _kept_while_it_can_go_on(kept: Path) -> Iterator[None]:
    """Delete what is kept at the end, and where the input is at fault: another one has another key."""
    try:
        yield
    except (DiskFull, ProcessLost):
        raise
    except UserError:
        shutil.rmtree(kept, ignore_errors=True)
        raise
    shutil.rmtree(kept, ignore_errors=True)


def _files_source(params: Params, kept: Path, workers: int, make_tagger: MakeTagger) -> FilesCorpus:
    source = FilesCorpus(params.corpus, kept, workers, make_tagger)
    if params.tokenizer.checkpoint is not None:
        source.tokenizer = load_tokenizer(Path(params.tokenizer.checkpoint))
    else:
        texts = (document.text for document in source.documents())
        source.tokenizer = train_wordpiece(texts, params.tokenizer.vocabulary_size)
    return source


@functools.lru_cache(maxsize=8)
def _check_tokenizer(folder: str, *digests: str) -> None:
    """UserError: a folder's tokenizer cannot be read. Done once for files with these digests."""
    load_tokenizer(folder)


def _folder_digest(folder: Path) -> dict[str, str]:
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; set tokenizer.checkpoint to one: {hub_remedy(folder)}")
    names = ("vocab.txt", "tokenizer.json", "tokenizer_config.json")
    return {name: digest_file(folder / name) for name in names if (folder / name).exists()}
