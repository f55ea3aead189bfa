"""The corpus side of a run at one stage: its prepared texts, its tokenizer and its folders."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from realm_lab.engine.core.process import pick_device
from realm_lab.engine.core.seeding import stream_seed
from realm_lab.engine.corpus.cutting import PARTS
from realm_lab.engine.corpus.recurring import only_recurring
from realm_lab.engine.corpus.store import Passages, PreparedCorpus, Questions, Sentences
from realm_lab.engine.corpus.vocabulary import (
    SpecialIds,
    answer_wordpieces,
    encode_batch_plain,
    encode_questions,
    load_tokenizer,
    special_ids,
)
from realm_lab.engine.params.sections import Section
from realm_lab.engine.systems.identity import DEFAULT_SYSTEMS, corpus_folder, open_stage
from realm_lab.engine.systems.registry import fixed_params, options_of, system_of, view_of
from realm_lab.errors import UserError
from realm_lab.records.run import Run, StageRun, stage_folder

Options = TypeVar("Options", bound=Section)


class CorpusContext:
    """One run at one stage, limited to its corpus. This file imports no code of retrieval, so that a stage whose
    work takes only this class is not computed again if that code changes."""

    def __init__(self, run: Run, root: Path, stage: str = ""):
        """Open a run; with `stage`, for the work of that stage, with only the parameters that it may read."""
        params = run.params
        self.params = view_of(params, run.system, stage) if stage else fixed_params(params, run.system).at_end()
        self.run, self.root, self._stage, self._seeds = run, root, stage, params.seeds
        self.runs = root / "runs"
        self.device = pick_device(params.launch.device)

    @property
    def initial_seed(self) -> int:
        """Return the seed of new weights: the run's seed, unless `streams.initialisation` asks for another draw."""
        return stream_seed(self.run.seed, "initialisation", self.params.streams.initialisation)

    def order_seed(self, stage: str) -> int:
        """Return the seed for the order of a stage's data, for its masks and for its dropout: the run's seed, unless
        `streams.order` asks for another draw for this stage."""
        return stream_seed(self.run.seed, "order", self.params.streams.order.get(stage, 0))

    def options(self, kind: type[Options]) -> Options:
        """Return `system_options` of the run's system, an instance of `kind`."""
        options = options_of(self.params, self.run.system)
        assert isinstance(options, kind)
        return options

    @cached_property
    def corpus(self) -> PreparedCorpus:
        """Return the prepared corpus with the run's corpus key. UserError: there is none, or it has pictures that the
        model or the system cannot read."""
        folder = corpus_folder(self.root, self.run)
        if self.run.seed not in self._seeds and not folder.exists():
            known = ", ".join(map(str, self._seeds))
            raise UserError(
                f"seed {self.run.seed}: no corpus is prepared for it; the parameters have the seeds {known}"
            )
        if not (folder / "manifest.json").exists():
            last = list(self.run.stages)[-1]
            run = StageRun(stage_folder(self.runs, last, self.run.key(last)), last)
            if run.is_complete():
                remedy = "run `realm-lab prepare` with its parameters (--params, --preset, --set)"
                raise UserError("the prepared corpus of this run is gone", remedy, path=folder)
            raise UserError(f"no finished run for these parameters yet; {self.to_finish}, then ask again")
        corpus = PreparedCorpus(folder)
        if corpus.pictures is not None and not self.params.model.pictures:
            raise UserError("the knowledge corpus has pictures; set model.pictures to true")
        if corpus.pictures is not None and not system_of(self.run.system).reads_pictures:
            raise UserError(f"system {self.run.system} reads text alone, and the knowledge corpus has pictures")
        return corpus

    @property
    def to_finish(self) -> str:
        """Return the remedy for a missing stage: `realm-lab run` trains only the default systems."""
        if self.run.system in DEFAULT_SYSTEMS:
            return "call `realm-lab run` with the same --params, --preset and --set"
        return f"run a study with a variant `system: {self.run.system}`"

    @property
    def vocabulary_size(self) -> int:
        """Return the number of wordpieces of the corpus's tokenizer."""
        return self.corpus.manifest.vocabulary_size

    @cached_property
    def patches(self) -> Tensor | None:
        """Return the pixels of the corpus's pictures, uint8 [patches, values]; None: there are none."""
        return None if self.corpus.pictures is None else torch.from_numpy(self.corpus.pictures.patches)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The corpus's tokenizer."""
        return load_tokenizer(self.corpus.tokenizer_folder)

    @cached_property
    def special(self) -> SpecialIds:
        """The ids of the tokenizer's special tokens."""
        return special_ids(self.tokenizer)

    @cached_property
    def passages(self) -> Passages:
        """The knowledge corpus."""
        return self.corpus.passages()

    def wordpieces(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """Return the wordpiece ids of texts, without special tokens."""
        return [tuple(encoding.ids) for encoding in encode_batch_plain(self.tokenizer, texts)]

    def answer_wordpieces(self, questions: Questions) -> list[list[np.ndarray]]:
        """Return the wordpieces of each question's answers; answers with an unknown word are left out."""
        return answer_wordpieces(self.tokenizer, self.special, questions.answers)

    def question_tokens(self, questions: Sequence[str]) -> list[np.ndarray]:
        """Return the wordpieces of questions, as those of training questions are stored."""
        encoded = encode_questions(self.tokenizer, questions, self.params.corpus.sentence_length)
        return [np.array(ids, np.int64) for ids in encoded]

    def sentences(self, name: str = "sentences") -> Sentences:
        """Return X, or the held-out sentences of that name, with the salient spans that pre-training may mask."""
        chosen, bounds = self.corpus.sentences(name), self.params.pretrain.recurring_spans
        if bounds is None:
            return chosen
        least, most = bounds
        parts = [self.corpus.sentences(part) for part in PARTS]
        return only_recurring(chosen, parts, least, most, self.special.unk)

    def stage(self, name: str) -> StageRun:
        """Return the folder of a stage of this run. UserError: its system has no such stage."""
        found = open_stage(self.runs, self.run, system_of(self.run.system).stage(name).name)
        found.launch["device"] = self.device.type
        return found
