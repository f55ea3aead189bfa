"""What one stage of one run needs: its corpus, its models, its folders."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer

from realm_lab.core.files import read_json
from realm_lab.core.process import pick_device
from realm_lab.corpus.store import Passages, PreparedCorpus
from realm_lab.corpus.vocabulary import SpecialIds, load_tokenizer, special_ids
from realm_lab.errors import UserError
from realm_lab.models.embedder import Embedder
from realm_lab.models.folders import read_embedder, read_reader
from realm_lab.models.reader import Reader
from realm_lab.params.parameters import Params
from realm_lab.retrieval.faiss_backends import FaissSettings
from realm_lab.retrieval.retriever import Inputs, Retriever
from realm_lab.systems.identity import Plan, corpus_folder, open_stage
from realm_lab.tracking.run_dir import StageRun


class Context:
    """One run at one stage."""

    def __init__(self, params: Params, plan: Plan, root: Path):
        self.params, self.plan, self.root = params, plan, root
        self.runs = root / "runs"
        self.device = pick_device(params.launch.device)

    @cached_property
    def corpus(self) -> PreparedCorpus:
        """The prepared corpus; one of other parameters is refused by its key."""
        return PreparedCorpus(corpus_folder(self.root, self.plan))

    @property
    def vocabulary_size(self) -> int:
        """Wordpieces of the corpus's tokenizer."""
        return self.corpus.manifest.vocabulary_size

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

    def stage(self, name: str) -> StageRun:
        """The folder of a stage of this run."""
        return open_stage(self.runs, self.plan, name, self.params)

    def model_folder(self, stage: str) -> Path:
        """Where a finished stage left its models: its run folder, or the copy that DVC keeps in models/."""
        folder = self.stage(stage).path / "model"
        if (folder / "manifest.json").exists():
            return folder
        for manifest in sorted((self.root / "models" / stage).glob("*/manifest.json")):
            if read_json(manifest).get("key") == self.plan.stages[stage]:
                return manifest.parent
        verb = stage.replace("_", "-")
        raise UserError(f"{folder}: the {stage} stage has not finished for these parameters; run `realm-lab {verb}`")

    def trained(self) -> str:
        """The last stage before fine-tuning: pretrain, or warm_start in the baseline."""
        return "pretrain" if "pretrain" in self.plan.stages else "warm_start"

    def load_models(self, stage: str) -> tuple[Reader, Embedder, float]:
        """Reader, embedder and null offset that a stage left."""
        reader = self.load_reader(stage)
        embedder, null_offset = self.load_embedder(stage)
        return reader.to(self.device), embedder.to(self.device), null_offset

    def load_reader(self, stage: str) -> Reader:
        """The reader that a stage left, on the CPU; only fine-tuning leaves a span head."""
        folder = self.model_folder(stage)
        reader = read_reader(folder / "reader", self.params.finetune.span_hidden_size, span_head=stage == "finetune")
        self._check_vocabulary(folder, reader.encoder.shape.vocabulary_size)
        return reader

    def load_embedder(self, stage: str) -> tuple[Embedder, float]:
        """The embedder that a stage left, on the CPU, and its null document's score offset."""
        folder = self.model_folder(stage)
        embedder, null_offset = read_embedder(folder / "embedder")
        self._check_vocabulary(folder, embedder.query_encoder.shape.vocabulary_size)
        return embedder, null_offset

    def _check_vocabulary(self, folder: Path, size: int) -> None:
        if size != self.vocabulary_size:
            raise UserError(
                f"{folder}: a vocabulary of {size} wordpieces, the corpus has {self.vocabulary_size}; "
                "train on this corpus again"
            )

    def retriever(
        self,
        embedder: Embedder,
        *,
        null_offset: float = 0.0,
        passages: Passages | None = None,
        stale_queries: bool = False,
        backend: str = "exact",
        settings: FaissSettings | None = None,
    ) -> Retriever:
        """A retriever over the knowledge corpus (or another edition), its index not yet built; see Retriever."""
        inputs = Inputs.of(self.params, self.special)
        retriever = Retriever(
            embedder,
            passages or self.passages,
            inputs,
            self.corpus.manifest.digest,
            stale_queries=stale_queries,
            backend=backend,
            settings=settings,
        )
        retriever.null_offset = null_offset
        return retriever
