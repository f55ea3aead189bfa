"""A frozen sentence-embedding folder as the retriever (Reimers and Gurevych 2019, and later models), and the span
reader, fine-tuned on the retrieved passages. Nothing of the folder is trained.

Simplified: a passage is its prefix, title and body as one text, whatever the folder's authors did with titles.
"""

# Shapes: N passages, Q questions, R rows, D hidden size

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, model_validator

from realm_lab.engine.params.sections import FOLDER, Section
from realm_lab.engine.systems.reading import SpanReader
from realm_lab.engine.systems.realm import FINETUNE_READER, WARM_START
from realm_lab.engine.systems.registry import EVALUATE, Retrieved
from realm_lab.records.files import read_json, read_object

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor, nn

    from realm_lab.contrib.rivals.models.sentence import SentenceEncoder
    from realm_lab.engine.retrieval.embeddings import Embeddings
    from realm_lab.engine.retrieval.exact import ExactSearch


MODULES = ("Transformer", "Pooling", "Normalize")  # of sentence-transformers that are supported
POOLINGS = {"mean": "mean", "cls": "cls", "pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}


class EmbeddingOptions(Section):
    """`system_options.embedding`."""

    folder: Annotated[str, FOLDER]
    """Hugging Face folder of a BERT with WordPiece."""
    pooling: Literal["mean", "cls"] = "mean"
    """Mean of the last hidden states, [CLS] and [SEP] included, or the state of [CLS]. Default: the folder's
    setting."""
    query_prefix: str = ""
    """Text before each question, such as "query: " (E5)."""
    passage_prefix: str = ""
    """Text before each passage, such as "passage: " (E5)."""
    normalise: bool = True
    """Scale vectors to length 1: the cosine, not the inner product. Default: the folder's setting."""
    temperature: Annotated[float, Field(gt=0.0)] = 0.05
    """p(z|x) is the softmax of the scores divided by the temperature (Sentence-BERT trains with 0.05)."""

    @model_validator(mode="before")
    @classmethod
    def _as_in_the_folder(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Fill in the folder's settings, so that the key is the same whether the parameters or the folder set them."""
        return folder_settings(Path(str(given.get("folder"))), given) | given


def folder_settings(folder: Path, given: Mapping[str, Any]) -> dict[str, Any]:
    """Read pooling and normalisation from sentence-transformers' files in a folder; empty without such files.

    ValueError: the files need an unsupported module or setting that `given` does not replace.
    """
    path = folder / "modules.json"
    modules = read_json(path) if path.is_file() else []
    try:
        kinds = {module["type"].rpartition(".")[2]: folder / module["path"] for module in modules}
    except (KeyError, TypeError, AttributeError):
        raise ValueError(f"{path}: no list of modules with type and path; copy the folder again") from None
    for kind in kinds:
        if kind not in MODULES:
            raise ValueError(f"{path}: a module {kind}, which is not supported ({', '.join(MODULES)} are)")
    settings: dict[str, Any] = {}
    if "Pooling" in kinds:
        path = kinds["Pooling"] / "config.json"
        config = read_object(path)
        old = [name for name, is_on in config.items() if name.startswith("pooling_mode_") and is_on]
        modes = [str(config["pooling_mode"])] if config.get("pooling_mode") else old
        if "pooling" not in given and modes:
            settings["pooling"] = POOLINGS.get(" and ".join(modes))
            if settings["pooling"] is None:
                raise ValueError(f"{path}: {' and '.join(modes)} is not supported; set pooling to mean or cls")
        if config.get("include_prompt") is False and (given.get("query_prefix") or given.get("passage_prefix")):
            raise ValueError(f"{path}: include_prompt false is not supported; leave out the prefixes")
    path = folder / "config_sentence_transformers.json"
    similarity = read_object(path).get("similarity_fn_name") if path.is_file() else None
    if "Normalize" not in kinds and similarity in ("dot", "dot_product"):
        settings["normalise"] = False
    return settings


class Embedding(SpanReader):
    """Retrieves the passages of largest inner product with the question, both embedded by the folder's model."""

    name = "embedding"
    title = "sentence embeddings with a reader"
    options = EmbeddingOptions
    stages = (WARM_START, FINETUNE_READER, EVALUATE)

    @cached_property
    def _encoder(self) -> SentenceEncoder:
        from realm_lab.contrib.rivals.models.sentence import SentenceEncoder

        return SentenceEncoder(Path(self.own.folder), self.own.pooling, self.own.normalise, self.context.device)

    @cached_property
    def vectors_ND(self) -> Embeddings:
        """Return the passages' vectors: from the store, or embedded now."""
        from realm_lab.contrib.rivals.models.sentence import passage_text
        from realm_lab.engine.params.checkpoint import digest_checkpoint
        from realm_lab.engine.retrieval.embeddings import Identity, embedding_code
        from realm_lab.engine.systems.context import embedding_store
        from realm_lab.records.files import digest

        own, text = self.own, self.passages.text
        weights = digest_checkpoint(Path(own.folder), f"system_options.{self.name}.folder")
        tower = digest([weights, own.pooling, own.normalise, own.passage_prefix, self._encoder.tokenizer_digest])
        positions = self._encoder.encoder.shape.positions
        corpus = (self._knowledge or self.context.knowledge).digest
        described = (positions, "float32", "float32", len(self.passages), self._encoder.size)
        code, launch = embedding_code(self.context.runs, type(self._encoder).__module__), self.context.params.launch
        identity = Identity(corpus, tower, *described, code=code)

        def embed(rows_R: np.ndarray) -> Tensor:
            texts = [passage_text(own.passage_prefix, text.row(row)) for row in rows_R]
            return self._encoder.encode(texts, launch.token_budget).cpu()

        store = embedding_store(self.context.root)
        return store.find(identity, launch.other_code == "accept") or store.build(identity, embed)

    @cached_property
    def _search(self) -> ExactSearch:
        from realm_lab.engine.retrieval.exact import ExactSearch

        return ExactSearch(self.vectors_ND.for_search(self.context.device))

    def modules(self) -> Sequence[nn.Module]:
        return [self.models.reader, self._encoder.encoder]

    def retrieve(self, questions: Sequence[str], k: int) -> Retrieved:
        texts = [f"{self.own.query_prefix}{question}" for question in questions]
        query_QD = self._encoder.encode(texts, self.context.params.launch.token_budget)
        rows_QK, scores_QK = self._search.search(query_QD, k)
        return Retrieved(rows_QK.cpu().numpy(), (scores_QK / self.own.temperature).cpu().numpy())
