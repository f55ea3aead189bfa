"""What every section of the parameters is made of, and the sections of pre-training about the index and its health.

The rest, and what the sources named here are, is in parameters.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator, model_validator
from pydantic.fields import FieldInfo

Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
Fraction = Annotated[float, Field(ge=0.0, le=1.0)]
Rate = Annotated[float, Field(ge=0.0, le=1.0)]
Dropout = Annotated[float, Field(ge=0.0, lt=1.0)]
Candidates = Annotated[int, Field(ge=1, le=1000)]

NO_UTILITY_BOUND = -100.0  # nats a token that no reader loses

_NEVER = object()  # equal to no value: of a parameter without a neutral one

# Marks a parameter that changes what is logged or shown and nothing that is computed: it is not part of a run's key.
OBSERVES = Field(json_schema_extra={"observes": True})


def neutral(value: Any) -> Any:
    """Marks a parameter that was added later: at `value` everything is as it was before the parameter existed.

    `restate_facts: Annotated[bool, neutral(False)] = False`. Runs made before keep their keys, because a parameter at
    its neutral value is left out of them. The neutral value is the old behaviour, whatever the default becomes.
    """
    return Field(json_schema_extra={"neutral": value})


class Section(BaseModel):
    """A group of parameters: frozen, and a name it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=False, use_attribute_docstrings=True)

    def observing(self) -> set[str]:
        """Names of the parameters that only observe, given the values of the others."""
        return {name for name, field in type(self).model_fields.items() if "observes" in _marks(field)}

    @field_validator("*", mode="before")
    @classmethod
    def _no_accident(cls, value: Any, info: ValidationInfo) -> Any:
        """Pydantic would take `true` for the number 1, and an infinity has no JSON and so no run_key."""
        if isinstance(value, bool) and info.field_name and cls.model_fields[info.field_name].annotation is not bool:
            raise ValueError("input should not be true or false")
        if isinstance(value, float) and math.isinf(value):
            raise ValueError("input should be a finite number")
        return value


def identity_values(params: Section, sections: Sequence[str] | None = None) -> dict[str, Any]:
    """The values that tell two runs apart, as plain JSON types: `sections` of `params` (None: all of them).

    Left out are parameters at their neutral value, parameters that only observe, and sections of nothing else. So a new
    parameter that is marked `neutral(OLD BEHAVIOUR)` re-keys no finished run.
    """
    observing = params.observing()
    values: dict[str, Any] = {}
    plain = params.model_dump(mode="json")
    for name, field in type(params).model_fields.items():
        if name in observing or (sections is not None and name not in sections):
            continue
        value = getattr(params, name)
        if isinstance(value, Section):
            if inside := identity_values(value):
                values[name] = inside
        elif _marks(field).get("neutral", _NEVER) != value:
            values[name] = plain[name]
    return values


def _marks(field: FieldInfo) -> dict[str, Any]:
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


class Watch(Section):
    """Early warnings of a collapse during pre-training; a run is flagged after `patience_steps` out of bounds."""

    interval_steps: Positive = 100
    """Steps between two looks with the probe set."""
    sentences: NonNegative = 32
    """Held-out sentences of the probe set; 0: no reader probe."""
    patience_steps: Positive = 500
    """Steps a quantity must stay out of its bounds."""
    min_entropy: Annotated[float, Field(ge=0.0)] = 0.0
    """Nats; below it p(z|x) has become one-hot. 0: no bound."""
    max_entropy_fraction: Fraction = 0.999
    """Share of log(candidates); above it p(z|x) no longer depends on z. 1: no bound."""
    max_null_probability: Fraction = 0.99
    """Above it the retriever has given up on passages. 1: no bound."""
    min_gold_utility: float = 0.0
    """Nats a token; below it the reader no longer gains from the passage that helps most. -100: no bound."""
    stop: bool = False
    """Whether a flagged run stops, or goes on with its flag."""

    @model_validator(mode="after")
    def _bounded(self) -> Watch:
        bounds = (self.min_entropy > 0, self.max_entropy_fraction < 1, self.max_null_probability < 1)
        if self.stop and not any((*bounds, self.min_gold_utility > NO_UTILITY_BOUND)):
            raise ValueError("stop: true asks for a bound and none is set; set one, or stop to false")
        return self


class Search(Section):
    """How pre-training finds passages in the MIPS index. Fine-tuning, evaluation and the measures of staleness always
    search exactly. The settings below count for the backends they name; 0 takes what suits the number of passages."""

    backend: Literal["exact", "faiss_flat", "ivf_flat", "ivf_pq", "hnsw", "sq8"] = "exact"
    """Every passage (exact; FAISS Flat), or approximate search (Guu, section 3.3, names no method) by FAISS: inverted
    lists, these with product quantisation, a graph, or 8-bit numbers. It is built anew whenever a vector of the index
    has changed, and its recall@8 beside exact search is logged as search_recall_at_8: on 256 passages, moved by half
    the spread of all of them."""
    lists: NonNegative = 0
    """Of ivf_flat and ivf_pq: inverted lists (clusters of passages); 0: 4 sqrt(passages), at least 39 passages each."""
    probes: NonNegative = 0
    """Of ivf_flat and ivf_pq: lists that a query looks into; 0: a sixteenth of them, 8 at least."""
    parts: NonNegative = 0
    """Of ivf_pq: parts that a vector is cut into, each with a code; 0: the most that divide it, up to a quarter of
    model.projection_size."""
    bits: Annotated[int, Field(ge=0, le=16)] = 0
    """Of ivf_pq: bits of a part's code; 0: 8, fewer for few passages."""
    links: NonNegative = 0
    """Of hnsw: links of a passage to its neighbours; 0: 32."""
    neighbours: NonNegative = 0
    """Of hnsw: neighbours that are weighed for a query; 0: 128."""
    overfetch: NonNegative = 0
    """Of all but exact: passages taken from FAISS for each that is wanted; 0: 2, sq8 4, ivf_pq 16."""
    rescore: bool = True
    """Of all but exact: choose among what FAISS found by the true inner products; else by FAISS's own numbers."""

    @model_validator(mode="after")
    def _consistent(self) -> Search:
        owners = {
            "lists": ("ivf_flat", "ivf_pq"),
            "probes": ("ivf_flat", "ivf_pq"),
            "parts": ("ivf_pq",),
            "bits": ("ivf_pq",),
            "links": ("hnsw",),
            "neighbours": ("hnsw",),
        }
        for name, backends in owners.items():
            if getattr(self, name) and self.backend not in backends:
                raise ValueError(
                    f"{name} is a setting of {' and '.join(backends)}, not of backend: {self.backend}; set it to 0"
                )
        if self.backend == "exact" and self.overfetch:
            raise ValueError("overfetch takes more from FAISS, which backend: exact does not ask; set it to 0")
        if self.backend == "exact" and not self.rescore:
            raise ValueError("rescore: false keeps the scores of FAISS, which backend: exact does not ask; set true")
        if self.lists and self.probes > self.lists:
            raise ValueError(f"probes {self.probes} is more than lists {self.lists}; lower it")
        return self


class Refresh(Section):
    """When the MIPS index is embedded anew while the weights move, how much of it, and how old it is kept."""

    policy: Literal["interval", "schedule", "drift", "staggered", "never"] = "interval"
    """A refresh every `interval_steps` (Guu, section 4.5); by `schedule`; when a check finds that the index has drifted
    (`drift_overlap`); a few passages at every step (`budget_fraction`); or never."""
    interval_steps: Positive = 500
    """Steps between two refreshes of policy interval (Guu, section 4.5: about 500)."""
    schedule: list[Annotated[list[NonNegative], Field(min_length=2, max_length=2)]] = []
    """Of policy schedule: pairs [from_step, interval_steps], each valid until the next; the first from step 0. A
    refresh is made at each from_step above 0, then in its interval; the interval 0 makes none."""
    delay_steps: NonNegative = 0
    """An index of the weights after step s is searched from step s + delay_steps on; 0: the trainer waits for it (Guu
    builds it beside the trainer and names no number)."""
    hold_generations: NonNegative = 0
    """Search the index that is so many refreshes older than the newest one."""
    swap: Literal["fixed", "ready"] = "fixed"
    """Search a new index at its predetermined step, the trainer waiting if it is late, or as soon as it is there, which
    depends on the machine (Guu, code); `ready` needs launch.builder: process, and takes one index after the other."""
    scope: Literal["all", "round_robin", "retrieved"] = "all"
    """A refresh embeds every passage (Guu, code), or a share of them: in turn, or those that were retrieved most often
    since they were last embedded. With stale search, queries are embedded as of the newest refresh."""
    scope_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    """The share of the passages that a partial refresh embeds."""
    drift_overlap: Annotated[float, Field(gt=0.0, le=1.0)] = 0.8
    """Policy drift refreshes when the index finds a smaller share of the fresh top k of some fixed queries. That share
    is estimated, from above, on a sample of the passages and those that the index finds."""
    drift_interval_steps: Positive = 50
    """Steps between two checks of policy drift."""
    budget_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 0.1
    """Policy staggered spends so much of a step's floating-point operations on embedding; when all passages are
    embedded with the same weights they are searched, and it begins anew."""

    @model_validator(mode="after")
    def _consistent(self) -> Refresh:
        self._check_schedule()
        timed = self.policy in ("interval", "schedule")
        if self.delay_steps and self.policy in ("never", "staggered"):
            raise ValueError(f"delay_steps has no meaning for policy: {self.policy}; set it to 0")
        if self.hold_generations and not timed:
            raise ValueError(
                f"hold_generations counts the refreshes of interval or schedule, not of policy: {self.policy}; "
                "set it to 0"
            )
        if self.scope != "all":
            if self.policy in ("never", "staggered"):
                raise ValueError(f"scope: {self.scope} shares out refreshes, policy: {self.policy} has none; set all")
            if self.delay_steps or self.hold_generations:
                raise ValueError(
                    f"scope: {self.scope} puts its passages into the index at once; set delay_steps and "
                    "hold_generations to 0"
                )
        if self.swap == "ready":
            if self.scope != "all" or self.policy in ("never", "staggered"):
                raise ValueError(
                    "swap: ready needs whole generations of a builder: policy interval, schedule or drift with scope: "
                    "all; set swap to fixed"
                )
            if self.delay_steps or self.hold_generations:
                raise ValueError(
                    "swap: ready takes an index when it is there; set delay_steps and hold_generations to 0"
                )
        return self

    def _check_schedule(self) -> None:
        if self.policy != "schedule":
            if self.schedule:
                raise ValueError(f"schedule is for policy: schedule, not {self.policy}; change one of them")
            return
        steps = [from_step for from_step, _ in self.schedule]
        if not steps or steps[0] != 0:
            raise ValueError("schedule must begin at step 0; write it as [[0, 100], [1000, 500]]")
        if steps != sorted(set(steps)):
            raise ValueError(f"schedule has the steps {steps}, which do not ascend; put its pairs in order")


class Optimiser(Section):
    """AdamW with linear warm-up and linear decay (Guu, section 4.3: BERT's default optimiser)."""

    learning_rate: Rate = 3e-5
    """Peak rate (Guu, section 4.3)."""
    warmup_steps: NonNegative = 10_000
    """Steps to reach the peak (code: a tenth of the steps, at least 100, at most 10,000)."""
    final_fraction: Fraction = 0.0
    """Share of the peak that is left at the last step (BERT: 0)."""
    decay_from: Literal["start", "warmup"] = "start"
    """Where the linear decay counts from: step 0 (BERT, code: the rate drops when the warm-up ends), or the end of
    the warm-up."""
    weight_decay: Fraction = 0.01
    """Decoupled; not on biases and LayerNorm (BERT)."""
    clip_norm: Annotated[float, Field(gt=0.0)] = 1.0
    """Bound of the global gradient norm (BERT)."""
    beta1: Fraction = 0.9
    """BERT's."""
    beta2: Fraction = 0.999
    """BERT's."""
    bias_correction: bool = False
    """Adam's correction of both moments, felt in the first steps: BERT's optimiser has none."""


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
