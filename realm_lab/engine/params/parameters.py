"""The typed parameters, each with the paper's value as its default and its source in its docstring.

Sources: "Guu" is Guu et al. 2020 (REALM), "Lee" is Lee et al. 2019 (ORQA, whose hyper-parameters Guu reuses for
fine-tuning), "code" is the code released with REALM, for questions that the papers leave open. If paper and code
differ, both are values of one parameter and the paper is the default. `docs/parameters.md` is generated from this file
and corpus.py (the corpus) and sections.py (IndexSearch, Refresh, Watch, Optimiser and Streams).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, PlainSerializer, field_validator, model_validator

from realm_lab.engine.params.changes import checked_changes, phases
from realm_lab.engine.params.corpus import Corpus
from realm_lab.engine.params.sections import (
    FOLDER,
    OBSERVES,
    Candidates,
    Dropout,
    Fraction,
    IndexSearch,
    NonNegative,
    Optimiser,
    Options,
    Positive,
    Processes,
    Refresh,
    Section,
    Streams,
    Watch,
    content,
)
from realm_lab.records.plugins import Choice, ChoiceField, import_modules
from realm_lab.records.validation import Contradiction


class Tokenizer(Section):
    """Tokenizer of a checkpoint folder, or WordPiece learned from the corpus (the toy world: fixed)."""

    checkpoint: str | None = None
    """Hugging Face folder, or hf://ORG/NAME, whose tokenizer is used (Guu: BERT's uncased WordPiece)."""
    vocabulary_size: Annotated[int, Field(ge=100, le=200_000)] = 30_522
    """Size of a learned vocabulary (Guu: BERT's)."""


class Model(Section):
    """BERT-style towers and reader (paper section 3.2; the paper's encoder is BERT-base)."""

    checkpoint: Annotated[str | None, FOLDER] = None
    """Hugging Face folder, or hf://ORG/NAME, with the initial Transformer (Guu, section 3.4: BERT-base uncased); empty:
    from scratch."""
    hidden_size: Positive = 768
    """Width (BERT-base)."""
    layers: Positive = 12
    """Depth (BERT-base)."""
    heads: Positive = 12
    """Attention heads (BERT-base)."""
    intermediate_size: Positive = 3072
    """Width of the feed-forward layers (BERT-base)."""
    dropout: Dropout = 0.1
    """Dropout of hidden states and attention weights, while training (BERT)."""
    projection_size: Positive = 128
    """Size of query and document vectors (Lee; code)."""
    pooling: Literal["cls", "tanh", "mean"] = "cls"
    """Vector that is projected: the last hidden state of [CLS] (Guu, section 3.2), BERT's tanh pooler over it (code),
    or the mean over all wordpieces, read as one segment (Reimers and Gurevych 2019, Sentence-BERT)."""
    projection: Literal["drawn", "identity", "released"] = "drawn"
    """W_input and W_doc (Guu, section 3.2): initially random (`drawn`), the identity, which needs projection_size equal
    to hidden_size, or as in the code (`released`), without bias: one random projection for both towers if they are
    shared, then LayerNorm and a dropout of 0.1."""
    share_towers: bool = True
    """One Transformer for queries and passages (code), or two (Lee's text)."""
    score_scale: Literal["none", "inverse_sqrt", "cosine"] = "none"
    """f(x,z) is the inner product (Guu, section 3.2; code), that product divided by the root of projection_size, or the
    cosine divided by 0.05 (Sentence-BERT, so that f(x,z) is within 20)."""
    pictures: bool = False
    """Allow passages that are pictures: a patch of 16 x 16 pixels is projected to a vector in place of a wordpiece's,
    with its position (Guu, section 6; Dosovitskiy et al. 2021)."""
    train_word_embeddings: bool = True
    """Train the embeddings of words, positions and segments (Guu: everything is trained)."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of matrix products; weights, scores, log-probabilities and losses are always float32."""

    def contradictions(self) -> Iterator[Contradiction]:
        if self.hidden_size % self.heads:
            yield Contradiction(
                f"hidden_size {self.hidden_size} is not a multiple of heads {self.heads}; change either",
                "hidden_size",
                "heads",
            )
        if self.projection == "identity" and self.projection_size != self.hidden_size:
            yield Contradiction(
                f"projection: identity needs projection_size {self.hidden_size}, the hidden_size, not "
                f"{self.projection_size}; set it",
                "projection",
                "projection_size",
            )


class MaskedLanguageModel(Section):
    """Warm start of the reader: BERT training on pairs of segments (section 3.4), half of them with a salient span
    masked, the others with 15 % of the words (BERT)."""

    steps: NonNegative = 0
    """Optimiser steps (Guu starts from finished BERT weights)."""
    batch_size: Positive = 256
    """Pairs of segments per step (BERT)."""
    optimiser: Optimiser = Optimiser(learning_rate=1e-4)
    related_fraction: Fraction = 0.5
    """Share of pairs whose second segment belongs to the first (BERT: half)."""
    related_only_fraction: Fraction = 0.0
    """Share of the steps, at the start, in which every pair is related."""


class InverseCloze(Section):
    """Warm start of the embedder: the Inverse Cloze Task (Lee et al. 2019); the query is removed from its passage in
    nine of ten cases."""

    steps: NonNegative = 100_000
    """Optimiser steps (Lee); 0: a cold start."""
    attempts: Positive = 1
    """Random projections to try during the first quarter of the steps; the most accurate one continues (not in the
    paper)."""
    batch_size: Positive = 4096
    """Sentences per step, which are each other's negatives (Lee)."""
    optimiser: Optimiser = Optimiser(learning_rate=1e-4)
    initial_encoder: Literal["reader", "checkpoint", "scratch"] = "checkpoint"
    """Initial Transformers of the towers (Lee: BERT)."""
    query_scale: Annotated[float, Field(gt=0.0)] = 1.0
    """Factor on f(x, z) after the Inverse Cloze Task, applied to W_input. Cosine scores ignore it."""


class WarmStart(Section):
    """Training before REALM pre-training (section 3.4, Initialization)."""

    reader: MaskedLanguageModel = MaskedLanguageModel()
    embedder: InverseCloze = InverseCloze()
    ict_cut: Literal["sentence", "halves"] = "sentence"
    """Query of the Inverse Cloze Task: a sentence of a passage with two or more (Lee), or one part of any passage, cut
    in two at a word between 30 and 70 % of it."""


class Pretrain(Section):
    """REALM pre-training (sections 3.3 and 3.4)."""

    masking: ChoiceField = Choice("salient_span")
    """`salient_span` (Guu, section 3.4: one), `random_token` (BERT) or `random_span` (SpanBERT). All mask the
    sentences that have a salient span, equally often."""
    mask_rate: Fraction = 0.15
    """Share of wordpieces that random schemes mask, at least one per sentence (BERT, SpanBERT); `salient_span` ignores
    it."""
    recurring_spans: Annotated[list[Positive] | None, Field(min_length=2, max_length=2)] = None
    """If X is Z, mask only salient spans that are salient in this many other passages, [at least, at most] (Ram et al.
    2022: recurring spans); empty: any."""
    candidates: Candidates = 8
    """k: documents read for each query, the null document included (Guu, section 4.3)."""
    candidate_source: ChoiceField = Choice("index")
    """Source of the passages that a training step considers: `index` (Guu, section 3.3), `batch`, `random`, `oracle`,
    `empty`, `{name: mixed, index: 4, batch: 3}` (in all `candidates`, less the null), or custom code,
    `package.module:function`, with its options. See docs/concepts.md."""
    null_document: Literal["off", "encoded", "learned"] = "encoded"
    """The empty document among the candidates (Guu, section 3.4): encoded as [CLS][SEP][SEP] (code), a learned vector,
    or no such document (`off`)."""
    calibrate_null: bool = False
    """Shift the null document's score once so that the mean p(null|x) of 64 training queries is 1/candidates (neither
    paper nor code). Held-out sentences may start at another mean."""
    exclude_trivial: Literal["off", "passage", "article"] = "passage"
    """Never retrieve the passage that a query comes from (Guu, section 3.4; code), or any passage of its article."""
    marginal: Literal["example", "token"] = "example"
    """Marginalise the likelihood of the whole answer (Guu, Eq. 1), or that of each masked token (code)."""
    query_form: Literal["masked", "question"] = "masked"
    """Text that the query tower reads: the sentence with [MASK] (Guu, section 3.2), or a question for the masked span
    (Lewis et al. 2019: cloze translation): who, when or another word for its label, then the rest."""
    objective: ChoiceField = Choice("marginal")
    """Objective, which defines the retriever's training signal: `marginal` (Guu, Eq. 1), `emdr2`,
    `perplexity_distillation`, `leave_one_out`, `hard_em`, `reinforce`, `jsa` or `gated`. See
    docs/concepts.md."""
    causal_checkpoint: Annotated[str | None, content("causal")] = None
    """Hugging Face folder, hf://ORG/NAME or GGUF file of a causal language model that replaces the reader in
    pre-training and in its measures on masked sentences, untrained (Shi et al. 2023, REPLUG)."""
    causal_form: Literal["left", "infill"] = "left"
    """Prompt of the causal language model: the passage and the sentence up to the masked words, or the whole sentence
    with blanks before them."""
    reward: ChoiceField = Choice("reader")
    """p(y|z,x) in training: the reader's, or that of a control without a reader, 1 for some passages and near 0 for
    others: `containment` (1 if a passage contains the masked wordpieces; Ram et al. 2022) or custom code,
    `package.module:function`. The reader measures held-out sentences."""
    train_reader: bool = True
    """Train the reader (Guu: everything is trained)."""
    train_query_tower: bool = True
    """Train Embed_input. Shared towers become separate if only one of them is trained."""
    train_document_tower: bool = True
    """Train Embed_doc; if false, the index never ages."""
    initial_reader: Annotated[str, content("weights", "warm_start", "scratch")] = "warm_start"
    """`warm_start`, `scratch`, or a folder (Hugging Face BERT, released REALM, or `model/reader` of a run)."""
    initial_retriever: Annotated[str, content("weights", "warm_start", "scratch", "encoder")] = "warm_start"
    """`warm_start` (the Inverse Cloze Task; Guu, section 3.4), `scratch`, `encoder` (the reader's Transformer, new
    projections), or a folder (Hugging Face BERT, released REALM, or `model/embedder` of a run)."""
    steps: NonNegative = 200_000
    """Optimiser steps (Guu, section 4.3)."""
    batch_size: Positive = 512
    """Queries per step, over all devices (Guu, section 4.3)."""
    search_query: Literal["stale", "fresh"] = "stale"
    """Query tower that searches: the one stored with the index (`stale`, code), or the current one (`fresh`)."""
    search: IndexSearch = IndexSearch()
    refresh: Refresh = Refresh()
    reader: Optimiser = Optimiser()
    retriever: Optimiser = Optimiser()
    watch: Annotated[Watch, OBSERVES] = Watch()
    changes: dict[Positive, Options] = {}
    """Changes during pre-training: `{150: {masking: random_token, refresh.policy: never}}` has random masks and no
    refresh after the first 150 steps. Names are parameters of `pretrain`. Steps, batch size, initial models and
    readers, the towers that are trained, `search_query`, `reward` and `recurring_spans` cannot change."""

    def contradictions(self) -> Iterator[Contradiction]:
        least, most = self.recurring_spans or (0, 0)
        if least > most:
            yield Contradiction(f"recurring_spans: at least {least} and at most {most}; swap them", "recurring_spans")
        if self.null_document != "off" and self.candidates < 2:
            yield Contradiction(
                "candidates: 1 leaves room for the null document alone; raise it, or set null_document to off",
                "candidates",
                "null_document",
            )
        trains_retriever = self.train_query_tower or self.train_document_tower
        if not (self.train_reader or trains_retriever) and self.steps:
            yield Contradiction(
                "train_reader and both towers are false: nothing is trained; set one to true, or steps to 0",
                "train_reader",
                "train_query_tower",
                "train_document_tower",
                "steps",
            )
        if self.causal_checkpoint is not None and self.train_reader:
            yield Contradiction(
                "causal_checkpoint: a causal language model is not trained; set train_reader to false",
                "causal_checkpoint",
                "train_reader",
            )
        if self.reward.name != "reader" and (self.train_reader or self.marginal == "token"):
            yield Contradiction(
                f"reward: {self.reward.name}: no reader reads; set train_reader to false and marginal to example",
                "reward",
                "train_reader",
                "marginal",
            )
        if self.causal_checkpoint is not None and self.marginal == "token":
            yield Contradiction(
                "causal_checkpoint: it reads whole answers; set marginal to example", "causal_checkpoint", "marginal"
            )
        if self.null_document == "learned" and not trains_retriever:
            yield Contradiction(
                "null_document: learned needs a tower that trains; a frozen retriever learns no vector",
                "null_document",
                "train_query_tower",
                "train_document_tower",
            )
        source = self.candidate_source
        if source.name == "empty" and self.null_document == "off":
            yield Contradiction(
                "candidate_source: empty leaves only the null document; set null_document to encoded",
                "candidate_source",
                "null_document",
            )
        passages = self.candidates - int(self.null_document != "off")
        shares = source.options.values() if source.name == "mixed" else [passages]
        if all(isinstance(share, int) for share in shares) and sum(shares) != passages:
            yield Contradiction(
                f"candidate_source: mixed has {sum(shares)} passages, and {passages} are read; correct its numbers",
                "candidate_source",
                "candidates",
                "null_document",
            )
        if self.marginal == "token" and self.objective.name != "marginal":
            yield Contradiction(
                f"objective: {self.objective.name} needs whole answers; set marginal to example",
                "objective",
                "marginal",
            )

    @field_validator("changes")
    @classmethod
    def _can_change(cls, changes: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
        return checked_changes(cls, changes)

    @model_validator(mode="after")
    def _changes_fit(self) -> Pretrain:
        phases(self)
        return self


class Finetune(Section):
    """Open-QA fine-tuning (section 3.2): marginal over the top passages, index frozen."""

    steps: NonNegative = 300_000
    """Optimiser steps (code: the released Natural Questions weights)."""
    batch_size: Positive = 1
    """Questions per step (Lee)."""
    candidates: Candidates = 5
    """Passages read for each question (Guu, section 4.3; Lee)."""
    max_span_wordpieces: Annotated[int, Field(ge=1, le=50)] = 10
    """Longest answer (Lee)."""
    span_hidden_size: Positive = 256
    """Hidden units of the span head (code)."""
    softmax: Literal["factored", "joint", "selected"] = "factored"
    """p(z|x) times p(span|z,x) (Guu, section 3.2), one softmax over the spans of all passages (Lee; code), or p(z|x) by
    a head of the reader over [CLS] instead of the retriever (Karpukhin et al. 2020, section 6.1)."""
    objective: ChoiceField = Choice("marginal")
    """Objective, as in pretrain except `gated`. The early loss is added to any."""
    answer_by: Literal["span", "string"] = "span"
    """Answer: the best span of the best passage (code), or the text of largest p(y|x), summed over the passages and
    over the spans with its wordpieces (Guu, Eq. 1 and section 3.2)."""
    early_loss_candidates: NonNegative = 5000
    """Passages of Lee's early loss, -log p(a passage with an answer | x), added to the loss; 0: without it."""
    train_query_tower: bool = True
    """Train Embed_input; the document vectors stay fixed (Guu, section 3.3)."""
    initial_reader: Annotated[str, content("weights", "previous", "warm_start", "scratch")] = "previous"
    """`previous` (pre-training, or the warm start if there is none), `warm_start`, `scratch`, or a folder. With
    initial_retriever this is the ablation of encoder and retriever (Guu, Table 2)."""
    initial_retriever: Annotated[str, content("weights", "previous", "warm_start", "scratch")] = "previous"
    """As initial_reader."""
    reader: Optimiser = Optimiser(learning_rate=1e-5)
    retriever: Optimiser = Optimiser(learning_rate=1e-5)

    def contradictions(self) -> Iterator[Contradiction]:
        if self.objective.name == "gated":
            yield Contradiction(
                "objective: gated compares with the null document, which fine-tuning never reads; choose another",
                "objective",
            )
        if self.softmax != "factored" and self.objective.name != "marginal":
            yield Contradiction(
                f"objective: {self.objective.name} needs a p(z|x) of the retriever; set softmax to factored",
                "objective",
                "softmax",
            )
        if self.softmax == "selected" and self.train_query_tower and not self.early_loss_candidates and self.steps:
            yield Contradiction(
                "softmax: selected leaves the query tower without a loss; set train_query_tower to false",
                "softmax",
                "train_query_tower",
                "early_loss_candidates",
            )


class Evaluate(Section):
    """Size and interval of measurements."""

    interval_steps: Annotated[Positive, OBSERVES] = 1000
    """Steps of pre-training between two measurements on held-out text."""
    cloze_sentences: Positive = 400
    """Held-out sentences for utility and likelihood."""
    questions: Positive | None = None
    """Questions to measure on; empty: all."""


# Marks a parameter that may hold a password: no file and no command line gets its value.
NEVER_WRITTEN = PlainSerializer(lambda value: None, when_used="json")

OtherCodePolicy = Literal["stop", "fresh", "accept"]


class Launch(Section):
    """Distribution of work over this machine. Never part of a run's identity."""

    device: str = "auto"
    """`auto` (a CUDA device if there is one), `cpu`, `cuda`, or the name of another torch device."""
    processes: Processes = 0
    """Runs side by side; 0: as many as there are cores, or GPUs, for their ranks."""
    threads: Processes = 0
    """Cores per process; 0: an equal share of those that affinity, a container's quota and SLURM allow."""
    builder: str = "inline"
    """Process that embeds the passages of a refresh, with the same numbers: the trainer itself (`inline`), a second one
    on its machine (`process`), or one started by a command where the same files are, such as `srun --nodes=1`. A
    second one helps if an index may be late (pretrain.refresh.delay_steps)."""
    ranks: Positive = 1
    """Processes of one run, each with a share of every batch (data parallel)."""
    spread_index: bool = False
    """Spread the index of pre-training over the ranks: each holds and searches a share, with the same numbers."""
    micro_batch: NonNegative = 0
    """Queries whose gradients are held in memory at once; 0: all of a step."""
    recompute: bool = False
    """Read candidates a second time in the backward pass: less memory, more time."""
    compile: bool = False
    """Compile the encoders with torch.compile (needs a C++ compiler on CPUs)."""
    checkpoint_interval_seconds: Positive = 60
    """Seconds between two checkpoints."""
    log_interval_steps: Positive = 10
    """Steps between two lines of metrics."""
    token_budget: Positive = 8192
    """Wordpieces, padding included, that go through an encoder at once."""
    other_code: OtherCodePolicy = "stop"
    """Treatment of a finished stage that other code computed: `stop` names it, `fresh` computes it again, `accept`
    records that the change is harmless. --fresh and --accept override it."""
    tracking_uri: Annotated[str | None, NEVER_WRITTEN] = None
    """MLflow server to mirror to; empty: SQLite in this folder."""

    @field_validator("builder")
    @classmethod
    def _is_builder(cls, value: str) -> str:
        if value not in ("inline", "process") and len(shlex.split(value)) < 2:
            raise ValueError(
                f"'{value}' starts no builder; write inline, process, or a command such as 'srun --nodes=1'"
            )
        return value


class Params(Section):
    """All parameters, resolved."""

    _options: Section | None = None  # of a view: the options of the run's system that the stage may read

    preset: str = "paper"
    """Preset that fills all empty parameters."""
    seeds: Annotated[list[NonNegative], Field(min_length=1)] = [0]
    """Seeds, one run each; the paper reports one."""
    plugins: Annotated[list[str], OBSERVES] = []
    """Your modules that register plug-ins, `[mylab.parts]`. A study may list more. An installed package needs no entry
    if it has an entry point of the group `realm_lab.plugins`."""
    corpus: Corpus = Corpus()
    tokenizer: Tokenizer = Tokenizer()
    model: Model = Model()
    warm_start: WarmStart = WarmStart()
    pretrain: Pretrain = Pretrain()
    finetune: Finetune = Finetune()
    evaluate: Evaluate = Evaluate()
    streams: Streams = Streams()
    system_options: dict[str, Options] = {}
    """Parameters that only one system has, {SYSTEM: {NAME: VALUE, ...}, ...}; listed in docs/systems.md. A
    preset and params.yaml are merged option by option."""
    launch: Launch = Launch()

    def phases(self) -> dict[int, Params]:
        """Return step of pre-training -> parameters from that step on, for step 0 and each step with a change."""
        return {step: self.model_copy(update={"pretrain": one}) for step, one in phases(self.pretrain).items()}

    def at_end(self) -> Params:
        """Return the parameters at the end of pre-training; later stages read these."""
        return list(self.phases().values())[-1]

    @field_validator("plugins")
    @classmethod
    def _are_imported(cls, names: list[str]) -> list[str]:
        import_modules("plugins", names)
        return names

    def contradictions(self) -> Iterator[Contradiction]:
        if len(set(self.seeds)) != len(self.seeds):
            yield Contradiction("seeds: one is listed twice; list each once", "seeds")
        if self.corpus.source.name == "files" and not self.corpus.files.knowledge and self.preset != "paper":
            yield Contradiction(
                "corpus.files.knowledge is empty: name at least one file of passages",
                "corpus.files.knowledge",
                "corpus.source",
            )
        if self.corpus.source.name == "toy" and self.corpus.files.knowledge:
            yield Contradiction(
                "corpus.files.knowledge is named, but corpus.source is toy; set corpus.source to files",
                "corpus.files.knowledge",
                "corpus.source",
            )
        if self.pretrain.recurring_spans and self.corpus.pretrain_corpus == "separate":
            yield Contradiction(
                "pretrain.recurring_spans: no span recurs if corpus.pretrain_corpus is separate; set it to same",
                "pretrain.recurring_spans",
                "corpus.pretrain_corpus",
            )
        backends = {phase.pretrain.search.backend.name for phase in self.phases().values()}
        if self.launch.spread_index and backends != {"exact"}:
            yield Contradiction(
                "launch.spread_index: only pretrain.search.backend: exact is spread over ranks; set one or the other",
                "launch.spread_index",
                "pretrain.search.backend",
            )
        unresolved = self.preset == "paper" and not self.corpus.files.knowledge  # the bare defaults
        if self.warm_start.embedder.initial_encoder == "checkpoint" and not (self.model.checkpoint or unresolved):
            yield Contradiction(
                "warm_start.embedder.initial_encoder: checkpoint needs model.checkpoint; name a folder there",
                "warm_start.embedder.initial_encoder",
                "model.checkpoint",
            )
