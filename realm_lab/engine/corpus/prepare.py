"""The prepare stage: read, cut, tag salient spans, tokenise, store as memory-mapped files."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from realm_lab.engine.corpus.assembly import Assembly, Progress
from realm_lab.engine.corpus.pool import ProcessLost
from realm_lab.engine.corpus.salient_spans import tagger_digest
from realm_lab.engine.corpus.sources import Source, SourceRequest, TaggerFolder, corpus_source, corpus_tagger
from realm_lab.engine.corpus.store import PATCHES_FILE, Manifest
from realm_lab.engine.corpus.text_source import TextSource
from realm_lab.engine.corpus.vocabulary import load_tokenizer, normaliser_settings, save_tokenizer, tokenizer_digest
from realm_lab.engine.params.checkpoint import hub_remedy
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.params.sections import identity_values
from realm_lab.errors import UserError
from realm_lab.records.digests import write_last
from realm_lab.records.files import DiskFull, atomic_directory, digest, digest_file

FORMAT = 2  # of a prepared folder: raised when the same text is stored in another way, so that no old folder is reused
PASSAGE_WORDPIECES = "wordpieces of passages"  # a name in Manifest.counts; only text sources count them


def corpus_inputs(params: Params, seed: int) -> dict[str, Any]:
    """Inputs that a prepared corpus depends on; their digest names the folder."""
    corpus = params.corpus
    tokenizer = params.tokenizer.model_dump(mode="json")
    described: dict[str, Any] = {"format": FORMAT, "tokenizer": tokenizer}
    if params.tokenizer.checkpoint is not None:
        tokenizer_files = _folder_digest(Path(params.tokenizer.checkpoint))
        _check_tokenizer(params.tokenizer.checkpoint, *tokenizer_files.values())
        described["tokenizer_files"] = tokenizer_files
        settings = normaliser_settings(params.tokenizer.checkpoint)
        if settings.get("strip_accents") is not None or not settings.get("handle_chinese_chars", True):
            described["normaliser"] = settings
    how = corpus.model_dump(mode="json", include={"pretrain_corpus", "passage_length", "sentence_length"})
    source, tagger = corpus_source(corpus), corpus_tagger(corpus)
    how |= {"source": source.named, "tagger": tagger.named}
    if isinstance(tagger.options, TaggerFolder):
        described["tagger_files"] = tagger_digest(tagger.options.folder)  # the files count, and not the folder's name
    elif tagger.options is not None:
        how["tagger_options"] = identity_values(tagger.options, "corpus.tagger")
    with source.running():
        own: dict[str, Any] = source.load().identity(corpus, source.options, seed)  # type: ignore[attr-defined]
    return described | own | {"corpus": how | own["corpus"]}


def prepare(
    params: Params,
    folder: Path,
    seed: int,
    progress: Progress = lambda name, count: None,
    *,
    workers: int = 1,
) -> Manifest:
    """Prepare the corpus into `folder`, which appears only when everything is written.

    Texts are cut by `workers` processes, each with a separate tagger; the bytes are the same for any number. Until the
    corpus is written, its cuts are kept in a hidden folder next to `folder`: after a stop a call resumes from them.
    """
    inputs = corpus_inputs(params, seed)
    key = digest(inputs)
    kept = folder.with_name(f".{folder.name}.{key[:12]}.cuts")
    chosen = corpus_source(params.corpus)
    request = SourceRequest(
        params.corpus,
        params.tokenizer,
        params.finetune.max_span_wordpieces,
        inputs.get("seed", 0),
        kept,
        workers,
        corpus_tagger(params.corpus),
    )
    with _kept_while_it_can_go_on(kept), atomic_directory(folder) as scratch, chosen.running():
        source: Source = chosen(request)
        made = Assembly(source, params.corpus.sentence_length, scratch, progress)
        passages = made.write()
        if not made.counts["passages"] or not made.counts["sentences"]:
            counts = f"{made.counts['passages']} passages and {made.counts['sentences']} sentences were kept"
            remedy = "check corpus.files and corpus.sentence_length"
            raise UserError(f"prepare: {counts} (dropped: {dict(made.dropped)})", remedy)
        if isinstance(source, TextSource):
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
        write_last(scratch / "manifest.json", manifest._asdict(), name=key if key.startswith(folder.name) else "")
    return manifest


@contextmanager
def _kept_while_it_can_go_on(kept: Path) -> Iterator[None]:
    """Delete the kept cuts at the end, and if the input is at fault, since a corrected input has another key."""
    try:
        yield
    except (DiskFull, ProcessLost):
        raise
    except UserError:
        shutil.rmtree(kept, ignore_errors=True)
        raise
    shutil.rmtree(kept, ignore_errors=True)


@functools.lru_cache(maxsize=8)
def _check_tokenizer(folder: str, *digests: str) -> None:
    """Raise a UserError if a folder's tokenizer cannot be read. Files with the same digests are checked once."""
    load_tokenizer(folder)


def _folder_digest(folder: Path) -> dict[str, str]:
    if not folder.is_dir():
        raise UserError("no such folder", f"set tokenizer.checkpoint to one: {hub_remedy(folder)}", path=folder)
    names = ("vocab.txt", "tokenizer.json", "tokenizer_config.json")
    return {name: digest_file(folder / name) for name in names if (folder / name).exists()}
