"""What every section of the parameters is made of, and the sections of pre-training about the index and its health.

The rest, and what the sources named here are, is in parameters.py.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator

Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Dropout = Annotated[float, Field(ge=0.0, lt=1.0)]
Candidates = Annotated[int, Field(ge=1, le=1000)]


class Section(BaseModel):
    """A group of parameters: frozen, and a name it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _no_accident(cls, value: Any, info: ValidationInfo) -> Any:
        """Pydantic would take `true` for the number 1, and an infinity has no JSON and so no run_key."""
        if isinstance(value, bool) and info.field_name and cls.model_fields[info.field_name].annotation is not bool:
            raise ValueError("input should not be true or false")
        if isinstance(value, float) and math.isinf(value):
            raise ValueError("input should be a finite number")
        return value


class Watch(Section):
    """Probes and early warnings of a collapse during pre-training: p(z|x) flat, all on the null document, or a reader
    that gains nothing from the gold passage (tracking/bounds.py)."""

    interval_steps: Positive = 100
    """Steps between two looks with the probes."""
    patience_steps: Positive = 500
    """Steps a quantity must stay out of its bounds before the run is flagged."""


FAISS_OPTIONS = {
    "exact": (),
    "faiss_flat": ("overfetch",),
    "ivf_flat": ("nlist", "nprobe", "overfetch"),
    "ivf_pq": ("nlist", "nprobe", "M", "nbits", "overfetch"),
    "hnsw": ("M", "efConstruction", "efSearch", "overfetch"),
    "sq8": ("overfetch",),
}


class Search(Section):
    """How pre-training finds passages in the MIPS index. Fine-tuning, evaluation and the measures of staleness always
    search exactly."""

    backend: Literal["exact", "faiss_flat", "ivf_flat", "ivf_pq", "hnsw", "sq8"] = "exact"
    """Every passage (exact; FAISS Flat), or approximate search (Guu, section 3.3, names no method) by FAISS: inverted
    lists, these with product quantisation, a graph, or 8-bit numbers. It is built anew whenever a vector of the index
    has changed, and its recall@8 beside exact search is logged as search_recall_at_8: on 256 passages, moved by half
    the spread of all of them. What it finds is scored by the true inner products."""
    options: str = ""
    """FAISS's options as NAME=NUMBER,...: nlist and nprobe of ivf_flat and ivf_pq, M and nbits of ivf_pq, M,
    efConstruction and efSearch of hnsw; and overfetch, the passages taken from FAISS for each that is wanted. What is
    not named suits the number of passages: nlist 4 sqrt(passages), nprobe a sixteenth of it."""

    @model_validator(mode="after")
    def _consistent(self) -> Search:
        self.faiss_options()
        return self

    def faiss_options(self) -> dict[str, int]:
        """The options by name."""
        known = FAISS_OPTIONS[self.backend]
        options: dict[str, int] = {}
        for part in self.options.replace(" ", "").split(",") if self.options.strip() else ():
            name, _, number = part.partition("=")
            if name not in known:
                choice = f"choose {', '.join(known)}" if known else "leave options empty"
                raise ValueError(f"options: backend: {self.backend} has no option {name!r}; {choice}")
            if not number.isdecimal() or int(number) < 1 or name in options:
                raise ValueError(f"options: {part!r} is not NAME=NUMBER with a number from 1, each name once")
            options[name] = int(number)
        return options


class Refresh(Section):
    """When the MIPS index is embedded anew while the weights move, and how late it comes into use."""

    policy: str = "interval"
    """`interval`: every `interval_steps` (Guu, section 4.5); `schedule`; `drift`: when the index finds too little of
    the fresh top k; `budget`: whenever refreshing has cost less than its share; `never`; or `package.module:Class` of
    your own."""
    interval_steps: Positive = 500
    """Steps between two refreshes (Guu, section 4.5: about 500); of policy drift, between two checks."""
    schedule: list[Annotated[list[NonNegative], Field(min_length=2, max_length=2)]] = []
    """Of policy schedule: pairs [from_step, interval_steps], each valid until the next; the first from step 0. A
    refresh is made at each from_step above 0, then in its interval; the interval 0 makes none."""
    drift_overlap: Annotated[float, Field(gt=0.0, le=1.0)] = 0.8
    """Of policy drift: refresh when the index finds a smaller share of the fresh top k of some fixed queries. That
    share is estimated, from above, on a sample of the passages and those that the index finds."""
    budget_fraction: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.1
    """Of policy budget: the share of all floating-point operations so far that refreshing may have taken."""
    delay_steps: NonNegative = 0
    """An index of the weights after step s is searched from step s + delay_steps on, never sooner or later; 0: the
    trainer waits for it (Guu builds it beside the trainer and names no number)."""

    @model_validator(mode="after")
    def _check_schedule(self) -> Refresh:
        steps = [from_step for from_step, _ in self.schedule]
        if steps and steps[0] != 0:
            raise ValueError("schedule must begin at step 0; write it as [[0, 100], [1000, 500]]")
        if steps != sorted(set(steps)):
            raise ValueError(f"schedule has the steps {steps}, which do not ascend; put its pairs in order")
        if self.policy == "schedule" and not steps:
            raise ValueError("schedule is empty, which policy: schedule needs; write it as [[0, 100], [1000, 500]]")
        return self


class Optimiser(Section):
    """AdamW with linear warm-up and linear decay (Guu, section 4.3: BERT's default optimiser): weight decay 0.01, not
    on biases and LayerNorm; the global gradient norm is clipped at 1."""

    learning_rate: Annotated[float, Field(ge=0.0, le=1.0)] = 3e-5
    """Peak learning rate (Guu, section 4.3)."""
    warmup_steps: NonNegative = 10_000
    """Steps to reach the peak (code: a tenth of the steps, at least 100, at most 10,000)."""
    final_fraction: Fraction = 0.0
    """Share of the peak that is left at the last step (BERT: 0)."""
    recipe: Literal["bert", "short"] = "bert"
    """`bert`: the decay counts from step 0, so that the learning rate drops when the warm-up ends, Adam's beta2 is
    0.999, and its moments are not corrected for their bias (BERT, code). `short`, for runs of some hundred steps: decay
    from the end of the warm-up, beta2 0.98, moments corrected."""


class TaggerTraining(Section):
    """`realm-lab train-tagger`: a tagger of salient spans (section 3.4: BERT, fine-tuned on CoNLL-2003). No run depends
    on this section; a run names the finished folder in corpus.files.tagger_model."""

    train: list[str] = []
    """CoNLL files to train on."""
    dev: list[str] = []
    """CoNLL files measured while it trains; nothing is chosen by them."""
    test: list[str] = []
    """CoNLL files measured at the end, beside the rule tagger."""
    held_out: Annotated[float, Field(ge=0.0, le=0.9)] = 0.0
    """Share of the documents of each training file, its last ones, that go to the test (sentences where a file marks no
    documents)."""
    labels: Literal["conll", "keep"] = "conll"
    """Labels as PER, LOC, ORG and MISC (CoNLL-2003), or as the files have them."""
    checkpoint: str | None = None
    """BERT-style folder to start from (Guu: BERT); empty: from scratch, with the sizes of `model`."""
    output: str = "models/tagger"
    """Folder to write, in the layout of Hugging Face's BertForTokenClassification."""
    epochs: Positive = 4
    """Times that the sentences are gone through (Devlin et al. 2019: 2 to 4)."""
    steps: NonNegative = 0
    """Optimiser steps; 0: as many as the epochs have."""
    batch_size: Positive = 32
    """Sentences a step (Devlin et al. 2019: 16 or 32)."""
    max_length: Annotated[int, Field(ge=8, le=512)] = 128
    """Wordpieces of a training example, specials included; longer sentences are cut into several."""
    dropout: Dropout = 0.1
    """Of hidden states and attention weights, while training (BERT)."""
    evaluation_interval_steps: Positive = 100
    """Steps between two measurements on dev."""
    seed: NonNegative = 0
    """Of the classifier's first weights, the order of the sentences and dropout."""
    optimiser: Optimiser = Optimiser(learning_rate=5e-5, warmup_steps=50)
