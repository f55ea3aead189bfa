"""The prepare stage: read, cut, tag salient spans, tokenise, store memory-mapped."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

from realm_lab.core.files import atomic_directory, digest, digest_file, write_json
from realm_lab.corpus.prepare_files import ShardPlace, prepare_files
from realm_lab.corpus.prepare_toy import prepare_toy
from realm_lab.corpus.readers import digest_input
from realm_lab.corpus.salient_spans import tagger_digest
from realm_lab.corpus.store import Manifest
from realm_lab.corpus.vocabulary import save_tokenizer, tokenizer_digest
from realm_lab.corpus.writers import Progress
from realm_lab.errors import UserError
from realm_lab.params.parameters import Params

FORMAT = 2  # of a prepared folder: raised when the same text is stored in another way, so that no old folder is taken
# At these values a corpus is what it was before the parameter existed, so it keeps its key.
NEUTRAL: dict[str, dict[str, object]] = {
    "toy": {"restate_facts": False},
    "files": {"dev_split": "none", "drop_pages": [], "drop_duplicate_passages": False},
}
# Of corpus.files: what refuses a file and changes nothing that is read, and a folder whose content counts instead.
NOT_COUNTED = ("max_line_mb", "max_expansion", "tagger_model")
FILE_ROLES = ("knowledge", "knowledge_updated", "pretrain", "questions_train", "questions_dev", "questions_test")


def corpus_inputs(params: Params, seed: int) -> dict[str, object]:
    """What a prepared corpus depends on; its digest names the folder. File corpora do not depend on the seed."""
    corpus = params.corpus.model_dump(mode="json")
    tokenizer = params.tokenizer.model_dump(mode="json")
    described: dict[str, object] = {"format": FORMAT, "corpus": corpus, "tokenizer": tokenizer}
    if params.tokenizer.checkpoint is not None:
        described["tokenizer_files"] = _folder_digest(Path(params.tokenizer.checkpoint))
    source = params.corpus.source
    del corpus["files" if source == "toy" else "toy"]
    for name, neutral in NEUTRAL[source].items():
        if corpus[source][name] == neutral:
            del corpus[source][name]
    if source == "toy":
        world_seed = params.corpus.toy.world_seed
        described["seed"] = seed if world_seed is None else world_seed
    else:
        files = params.corpus.files
        for name in NOT_COUNTED:
            del corpus["files"][name]
        paths = sorted({path for role in FILE_ROLES for path in getattr(files, role)})
        described["files"] = {path: digest_input(path) for path in paths}
        if params.corpus.pretrain_corpus == "separate":
            described["held_out"] = "by text"
        if params.corpus.tagger == "model":
            described["tagger_files"] = tagger_digest(files.tagger_model)
    return described


def prepare(
    params: Params,
    folder: Path,
    seed: int,
    progress: Progress = lambda name, count: None,
    *,
    shards: Path | None = None,
    workers: int = 1,
    shard_counts: Counter[str] | None = None,
) -> Manifest:
    """Prepare the corpus into `folder`, which appears only when everything is written.

    File corpora are made by `workers` processes in shards, which are kept in the folder `shards` (None: not kept), so
    that an interrupted preparation goes on and one of changed files does again only what changed. The bytes are the
    same whatever the number of processes and whatever was reused. `shard_counts` is told how many were.
    """
    inputs = corpus_inputs(params, seed)
    key = digest(inputs)
    with atomic_directory(folder) as scratch:
        if params.corpus.source == "toy":
            writer = prepare_toy(params, scratch, int(str(inputs["seed"])), progress)
        else:
            tagger = inputs.get("tagger_files", params.corpus.tagger)
            place = ShardPlace(shards or scratch / "shards", workers, shard_counts)
            writer = prepare_files(params, scratch, tagger, place, progress)
            shutil.rmtree(scratch / "shards", ignore_errors=True)
        if not writer.counts["passages"] or not writer.counts["sentences"]:
            raise UserError(
                f"prepare: {writer.counts['passages']} passages and {writer.counts['sentences']} sentences were kept "
                f"(dropped: {dict(writer.dropped)}); check corpus.files and corpus.sentence_length"
            )
        save_tokenizer(writer.tokenizer, scratch / "tokenizer")
        tokens = tokenizer_digest(writer.tokenizer)
        bodies = digest_file(scratch / "passages" / "bodies.bin")
        manifest = Manifest(
            key=key,
            digest=digest({"key": key, "bodies": bodies, "tokenizer": tokens}),
            tokenizer_digest=tokens,
            vocabulary_size=writer.tokenizer.get_vocab_size(),
            counts=dict(sorted(writer.counts.items())),
            dropped=dict(sorted(writer.dropped.items())),
        )
        write_json(scratch / "manifest.json", manifest._asdict())
    return manifest


def _folder_digest(folder: Path) -> dict[str, str]:
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; set tokenizer.checkpoint to a Hugging Face folder")
    names = ("vocab.txt", "tokenizer.json", "tokenizer_config.json")
    return {name: digest_file(folder / name) for name in names if (folder / name).exists()}
