"""One run at one stage: its corpus, its models, its index."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from realm_lab.engine.core.process import limit_threads
from realm_lab.engine.corpus.store import Passages
from realm_lab.engine.corpus.vocabulary import wordpieces_by_id
from realm_lab.engine.masking import AskedForm, asked_form
from realm_lab.engine.models.candidate_reader import AnyReader
from realm_lab.engine.models.embedder import Embedder
from realm_lab.engine.models.encoder import show
from realm_lab.engine.models.initial import read_initial_embedder, read_initial_reader
from realm_lab.engine.models.reader import Reader
from realm_lab.engine.params.frozen import causal
from realm_lab.engine.params.load import flatten
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.retrieval.embeddings import Embeddings, EmbeddingStore
from realm_lab.engine.retrieval.index import Inputs
from realm_lab.engine.retrieval.retriever import Retriever
from realm_lab.engine.retrieval.search import IndexGeneration
from realm_lab.engine.systems.corpus_context import CorpusContext
from realm_lab.engine.systems.identity import DEFAULT_SYSTEMS, plan_run
from realm_lab.engine.systems.registry import System, system_of, with_options
from realm_lab.errors import UserError
from realm_lab.records.digests import check_folder
from realm_lab.records.files import read_json
from realm_lab.records.parameters import show as shown
from realm_lab.records.run import StageRun, read_runs, stage_folder

if TYPE_CHECKING:
    from realm_lab.engine.systems.bm25 import Bm25


class Knowledge(NamedTuple):
    """A knowledge corpus. Passages that are also in `previous`, the corpus that it updates, are not embedded again."""

    passages: Passages
    digest: str  # different for every list of passages
    previous: Knowledge | None = None


class Context(CorpusContext):
    """One run at one stage, with its models and index in addition to its corpus."""

    @cached_property
    def system(self) -> System:
        """Return the finished run's system. UserError: `depends_on` of the stage lacks "system"."""
        if self._stage and not system_of(self.run.system).stage(self._stage).calls_system:
            remedy = "add 'system' to depends_on of the stage, so that it is part of the key"
            raise UserError(f"stage '{self._stage}' calls the system, which it does not declare", remedy)
        return system_of(self.run.system)(self)

    @cached_property
    def bm25(self) -> Bm25:
        """Return BM25 over the knowledge corpus, with the default options."""
        return self.bm25_over(self.knowledge)

    def bm25_over(self, knowledge: Knowledge) -> Bm25:
        """Return BM25 over the knowledge corpus or another one: from the store, or computed now."""
        from realm_lab.engine.systems.bm25 import Bm25Store

        return Bm25Store(self.runs / "bm25").index(knowledge.passages, knowledge.digest)

    @cached_property
    def knowledge(self) -> Knowledge:
        """Return the knowledge corpus with its digest."""
        return Knowledge(self.passages, self.corpus.manifest.digest)

    def model_folder(self, stage: str) -> Path:
        """Return the folder of a finished stage's models: in its run folder, or DVC's copy in models/. UserError: there
        is none, or its files are not those that were written."""
        key = self.run.key(system_of(self.run.system).stage(stage).name)
        folder = stage_folder(self.runs, stage, key) / "model"
        copies = sorted((self.root / "models" / stage).glob("*/manifest.json"))
        same = [manifest.parent for manifest in copies if read_json(manifest).get("key") == key]
        for found in (folder, *same):
            if (found / "manifest.json").exists():
                StageRun(folder.parent, stage).check()
                check_folder(found)
                return found
        raise UserError(
            f"the {stage} stage has not finished for these parameters",
            f"{self.to_finish}{self._nearest_finished(stage)}",
            path=folder,
        )

    def _nearest_finished(self, stage: str) -> str:
        """Describe how the most similar finished run of this system differs; "" if there is none."""
        found, given = [], {"seed": self.run.seed, **flatten(self.run.params)}
        for record in read_runs(self.runs):
            key = record.stages.get(stage, "")
            folder = stage_folder(self.runs, stage, key) / "model" / "manifest.json"
            if record.system == self.run.system and folder.exists():
                theirs = {"seed": record.seed, **flatten(record.params)}
                mine = with_options(given, theirs)
                differs = [key for key, value in theirs.items() if mine.get(key, value) != value and key != "preset"]
                found.append((len(differs), [f"{key} = {shown(theirs[key])}" for key in differs]))
        return f". A finished run has {', '.join(min(found)[1][:5])}" if found and min(found)[0] else ""

    def trained(self) -> str:
        """Return the name of the last stage before fine-tuning that keeps models."""
        stages = system_of(self.run.system).stages
        return ["warm_start", *(s.name for s in stages if s.keeps == "model" and s.name != "finetune")][-1]

    def load_reader(self, stage: str) -> Reader:
        """Return the reader of a stage, on the CPU; only fine-tuning keeps a span head."""
        folder = self.model_folder(stage) / "reader"
        reader = read_initial_reader(folder, self.params, self.vocabulary_size, self.initial_seed)
        show(reader, self.patches)
        return reader

    def load_embedder(self, stage: str) -> tuple[Embedder, float]:
        """Return the embedder of a stage, on the CPU, and its null document's score offset."""
        folder = self.model_folder(stage) / "embedder"
        embedder, null_offset = read_initial_embedder(folder, self.params, self.vocabulary_size, self.initial_seed)
        show(embedder, self.patches)
        return embedder, null_offset

    def pretraining_reader(self, reader: Reader, knowledge: Knowledge | None = None) -> AnyReader:
        """Return the reader that pre-training and its measurements use: `reader`, or the causal language model that the
        parameters name, for passages of the knowledge corpus or another one."""
        if self.params.pretrain.causal_checkpoint is None:
            return reader
        found: AnyReader = causal().load().reader(self, (knowledge or self.knowledge).passages)
        return found

    @cached_property
    def asked(self) -> AskedForm:
        """Return the function that makes queries of masked sentences (`pretrain.query_form`)."""
        return asked_form(self.params.pretrain, wordpieces_by_id(self.tokenizer))

    @property
    def inputs(self) -> Inputs:
        """Return the settings of a pass through the embedder."""
        return Inputs.of(self.params, self.special)

    def embeddings(self, embedder: Embedder, knowledge: Knowledge | None = None) -> Embeddings:
        """Return Embed_doc of every passage of the knowledge corpus, or of another one: from the store, or embedded
        now."""
        passages, corpus_digest, previous = knowledge or self.knowledge
        reuse_from = (self.embeddings(embedder, previous), previous.passages) if previous else None
        store = embedding_store(self.root)
        accepts = self.params.launch.other_code == "accept"
        texts = passages, self.inputs, corpus_digest
        return store.embeddings(embedder, *texts, reuse_from=reuse_from, accepts_other_code=accepts)

    def retriever(self, embedder: Embedder, null_offset: float = 0.0, knowledge: Knowledge | None = None) -> Retriever:
        """Return a retriever that searches the store's embeddings exactly; a large matrix on the CPU stays in its
        file."""
        retriever = Retriever(embedder, (knowledge or self.knowledge).passages, self.inputs)
        retriever.null_offset = null_offset
        vectors_ND = self.embeddings(embedder, knowledge).for_search(self.device)
        retriever.adopt(IndexGeneration(vectors_ND, 0))
        return retriever


def embedding_store(root: Path) -> EmbeddingStore:
    """Return the store of all runs' document embeddings; its folder may be deleted, and is filled again when needed."""
    return EmbeddingStore(root / "runs" / "embeddings")


def open_run(params: Params, root: Path, seed: int | None, system: str | None) -> Context:
    """Open a run by its system and seed, by default REALM and the first seed of the parameters."""
    limit_threads(params.launch.threads)
    seed = params.seeds[0] if seed is None else seed
    return Context(plan_run(params, system or DEFAULT_SYSTEMS[-1], seed), root)
