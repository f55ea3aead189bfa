"""What one stage of one run needs: its corpus, its models, its folders."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from realm_lab.core.files import read_json
from realm_lab.core.process import limit_threads, pick_device
from realm_lab.corpus.cutting import PARTS
from realm_lab.corpus.recurring import only_recurring
from realm_lab.corpus.store import Passages, PreparedCorpus, Questions, Sentences
from realm_lab.corpus.vocabulary import SpecialIds, encode_batch_plain, load_tokenizer, special_ids
from realm_lab.errors import UserError
from realm_lab.models.embedder import Embedder
from realm_lab.models.encoder import show
from realm_lab.models.initial import read_initial_embedder, read_initial_reader
from realm_lab.models.reader import Reader
from realm_lab.params.load import flatten
from realm_lab.params.load import show as shown
from realm_lab.params.parameters import Params
from realm_lab.params.sections import Section
from realm_lab.retrieval.embeddings import Embeddings, EmbeddingStore
from realm_lab.retrieval.index import Inputs
from realm_lab.retrieval.retriever import Retriever
from realm_lab.retrieval.search import IndexGeneration
from realm_lab.systems.identity import DEFAULT_SYSTEMS, Plan, corpus_folder, open_stage, plan_run
from realm_lab.systems.registry import System, options_of, system_of
from realm_lab.tracking.run_dir import KEY_LENGTH, StageRun, read_run_records

if TYPE_CHECKING:
    from realm_lab.systems.bm25 import Bm25


class Knowledge(NamedTuple):
    """A knowledge corpus. Passages that are in the `previous` one too, which it updates, are not embedded again."""

    passages: Passages
    digest: str  # different for every list of passages
    previous: Knowledge | None = None


Options = TypeVar("Options", bound=Section)


class Context:
    """One run at one stage."""

    def __init__(self, params: Params, plan: Plan, root: Path):
        self.params, self.plan, self.root = params, plan, root
        self.runs = root / "runs"
        self.device = pick_device(params.launch.device)

    def options(self, kind: type[Options]) -> Options:
        """`system_options` of the run's system, which are of this kind."""
        options = options_of(self.params, self.plan.system)
        assert isinstance(options, kind)
        return options

    @cached_property
    def corpus(self) -> PreparedCorpus:
        """The prepared corpus; one of other parameters is refused by its key. UserError: there is none, or it has
        pictures, and the model or the system reads none."""
        folder = corpus_folder(self.root, self.plan)
        if self.plan.seed not in self.params.seeds and not folder.exists():
            known = ", ".join(map(str, self.params.seeds))
            raise UserError(
                f"seed {self.plan.seed}: no corpus is prepared for it; the parameters have the seeds {known}"
            )
        corpus = PreparedCorpus(folder)
        if corpus.pictures is not None and not self.params.model.pictures:
            raise UserError("the knowledge corpus has pictures; set model.pictures to true")
        if corpus.pictures is not None and not system_of(self.plan.system).reads_pictures:
            raise UserError(f"system {self.plan.system} reads text alone, and the knowledge corpus has pictures")
        return corpus

    @property
    def vocabulary_size(self) -> int:
        """Wordpieces of the corpus's tokenizer."""
        return self.corpus.manifest.vocabulary_size

    @cached_property
    def patches(self) -> Tensor | None:
        """The pixels of its pictures, uint8 [patches, values]; None: there are none."""
        return None if self.corpus.pictures is None else torch.from_numpy(self.corpus.pictures.patches)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The corpus's tokenizer."""
        return load_tokenizer(self.corpus.tokenizer_folder)

    @cached_property
    def special(self) -> SpecialIds:
        """Its special tokens."""
        return special_ids(self.tokenizer)

    @cached_property
    def passages(self) -> Passages:
        """The knowledge corpus."""
        return self.corpus.passages()

    @cached_property
    def system(self) -> System:
        """The finished run's system."""
        return system_of(self.plan.system)(self)

    @cached_property
    def bm25(self) -> Bm25:
        """BM25 over the knowledge corpus."""
        return self.bm25_over(self.knowledge)

    def bm25_over(self, knowledge: Knowledge) -> Bm25:
        """BM25 over the knowledge corpus or another one: from the store, or computed now."""
        from realm_lab.systems.bm25 import Bm25Store

        return Bm25Store(self.runs / "bm25").index(knowledge.passages, knowledge.digest)

    def wordpieces(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Ids of texts, without special tokens."""
        return [tuple(encoding.ids) for encoding in encode_batch_plain(self.tokenizer, texts)]

    def answer_wordpieces(self, questions: Questions) -> list[list[np.ndarray]]:
        """Of each question the wordpieces of each of its answers."""
        return [[np.array(ids, np.int64) for ids in self.wordpieces(texts)] for texts in questions.answers]

    def question_tokens(self, questions: Sequence[str]) -> list[np.ndarray]:
        """Questions as a query tower reads them, cut to its length; its two special tokens are added later."""
        longest = self.params.corpus.sentence_length - 2
        return [np.array(ids[:longest], np.int64) for ids in self.wordpieces(questions)]

    def sentences(self, name: str = "sentences") -> Sentences:
        """X, or the held-out sentences of that name, with the salient spans that pre-training may mask."""
        chosen, bounds = self.corpus.sentences(name), self.params.pretrain.recurring_spans
        if bounds is None:
            return chosen
        return only_recurring(chosen, [self.corpus.sentences(part) for part in PARTS], *bounds)

    @cached_property
    def knowledge(self) -> Knowledge:
        """The knowledge corpus with its digest."""
        return Knowledge(self.passages, self.corpus.manifest.digest)

    def stage(self, name: str) -> StageRun:
        """The folder of a stage of this run."""
        run = open_stage(self.runs, self.plan, name, self.params)
        run.launch["device"] = self.device.type
        return run

    def model_folder(self, stage: str) -> Path:
        """Where a finished stage left its models: its run folder, or the copy that DVC keeps in models/."""
        key = self.plan.key(stage)
        folder = self.runs / "stages" / f"{stage}-{key[:KEY_LENGTH]}" / "model"
        if (folder / "manifest.json").exists():
            return folder
        for manifest in sorted((self.root / "models" / stage).glob("*/manifest.json")):
            if read_json(manifest).get("key") == key:
                return manifest.parent
        remedy = f"run `realm-lab {stage.replace('_', '-')}`"
        if self.plan.system not in DEFAULT_SYSTEMS:  # the verbs of stages do those alone
            remedy = f"run a study with a cell `system: {self.plan.system}`"
        raise UserError(
            f"{folder}: the {stage} stage has not finished for these parameters; {remedy}"
            f"{self._nearest_finished(stage)}"
        )

    def _nearest_finished(self, stage: str) -> str:
        """How a finished run of this system differs that differs least; "" where there is none."""
        found, mine = [], {"seed": self.plan.seed, **flatten(self.params)}
        for record in read_run_records(self.runs):
            folder = self.runs / record.stages.get(stage, "") / "model" / "manifest.json"
            if record.system == self.plan.system and folder.exists():
                theirs = {"seed": record.seed, **flatten(record.params)}
                differs = [key for key, value in theirs.items() if mine.get(key) != value and key != "preset"]
                found.append((len(differs), [f"{key} = {shown(theirs[key])}" for key in differs]))
        return f". A finished run has {', '.join(min(found)[1][:5])}" if found and min(found)[0] else ""

    def trained(self) -> str:
        """The last stage before fine-tuning that leaves models."""
        stages = system_of(self.plan.system).stages
        return ["warm_start", *(s.name for s in stages if s.keeps == "model" and s.name != "finetune")][-1]

    def load_reader(self, stage: str) -> Reader:
        """The reader that a stage left, on the CPU; only fine-tuning leaves a span head."""
        folder = self.model_folder(stage) / "reader"
        reader = read_initial_reader(folder, self.params, self.vocabulary_size, self.plan.seed)
        show(reader, self.patches)
        return reader

    def load_embedder(self, stage: str) -> tuple[Embedder, float]:
        """The embedder that a stage left, on the CPU, and its null document's score offset."""
        folder = self.model_folder(stage) / "embedder"
        embedder, null_offset = read_initial_embedder(folder, self.params, self.vocabulary_size, self.plan.seed)
        show(embedder, self.patches)
        return embedder, null_offset

    @property
    def inputs(self) -> Inputs:
        """How texts go through the embedder."""
        return Inputs.of(self.params, self.special)

    def embeddings(self, embedder: Embedder, knowledge: Knowledge | None = None) -> Embeddings:
        """Embed_doc of every passage of the knowledge corpus, or of another one: from the store, or embedded now."""
        passages, corpus_digest, previous = knowledge or self.knowledge
        reuse_from = (self.embeddings(embedder, previous), previous.passages) if previous else None
        store = embedding_store(self.root)
        return store.embeddings(embedder, passages, self.inputs, corpus_digest, reuse_from=reuse_from)

    def retriever(self, embedder: Embedder, null_offset: float = 0.0, knowledge: Knowledge | None = None) -> Retriever:
        """A retriever that searches the embeddings of the store exactly; a large matrix on the CPU in its file."""
        retriever = Retriever(embedder, (knowledge or self.knowledge).passages, self.inputs)
        retriever.null_offset = null_offset
        vectors_ND = self.embeddings(embedder, knowledge).for_search(self.device)
        retriever.adopt(IndexGeneration(vectors_ND, 0))
        return retriever


def embedding_store(root: Path) -> EmbeddingStore:
    """The document embeddings of all runs; the folder may be deleted, and is filled again when needed."""
    return EmbeddingStore(root / "runs" / "embeddings")


def open_run(params: Params, root: Path, seed: int | None, system: str) -> Context:
    """A run by its system and seed, by default the first of the parameters."""
    limit_threads(params.launch.threads)
    return Context(params, plan_run(params, system, params.seeds[0] if seed is None else seed), root)
