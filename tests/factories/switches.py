"""Another valid value of every parameter of model, warm_start, pretrain and finetune, and its effect.

Table of tests/test_switches.py; tests/engine/systems/test_identity.py takes the values for its keys.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests import tiny
from tests.contrib.causal.causal_folder import write_causal_folder

BOTH = ("reader", "embedder")
# Shorter than the tiny pipeline; the towers do not start from the reader, so that a change can move only one of them.
SHORT: dict[str, Any] = {
    "warm_start.reader.steps": 4,
    "warm_start.embedder.steps": 4,
    "warm_start.embedder.initial_encoder": "scratch",
    "pretrain.steps": 6,
    "pretrain.refresh.interval_steps": 3,
    "pretrain.retriever.warmup_steps": 2,
    "finetune.steps": 6,
    "evaluate.interval_steps": 1000,
    "evaluate.cloze_sentences": 2,
    "evaluate.questions": 2,
    "launch.checkpoint_interval_seconds": 1000,
}
RESTLESS = {"pretrain.retriever.learning_rate": 0.05}  # the index ages at once
FLAT = {"pretrain.search.backend": {"name": "faiss_flat", "overfetch": 1}}
SAME = {"corpus.pretrain_corpus": "same"}  # queries have an origin
FROZEN: dict[str, Any] = {"pretrain.train_reader": False}
# p(z|x) is flat, which is flagged soon.
COLLAPSED = {"warm_start.embedder.query_scale": 1.0e-6, "pretrain.watch.patience_steps": 1}
COLLAPSED |= {"pretrain.watch.interval_steps": 2}


@dataclass(frozen=True)
class Switch:
    """Another value, what it moves (reader, embedder, metrics, flags), and the circumstances of both runs."""

    value: Any
    moves: tuple[str, ...] = BOTH
    base: dict[str, Any] = field(default_factory=dict)
    first_step: bool = False  # the first step, before any weight has moved, is the same


def line_of(root: Path, stage: str, change: dict[str, Any] | None = None) -> Path:
    """The folder of a stage under SHORT and `change`."""
    return tiny.stage_run(stage, tiny.params(SHORT | (change or {})), root).path


def optimiser(place: str, moves: tuple[str, ...] = BOTH) -> dict[str, Switch]:
    values: dict[str, Any] = {"learning_rate": 2.0e-3, "warmup_steps": 3, "final_fraction": 0.9, "recipe": "bert"}
    return {f"{place}.{name}": Switch(value, moves, first_step=True) for name, value in values.items()}


def causal(root: Path) -> str:
    """A causal language model."""
    folder = root / "causal"
    return str(folder if folder.exists() else write_causal_folder(folder, ["some words of the toy world"]))


SWITCHES: dict[str, Switch] = {
    "model.pictures": Switch(True),  # a projection of pixels
    "model.checkpoint": Switch(lambda root: str(line_of(root, "warm_start") / "model" / "reader"), ("reader",)),
    "model.hidden_size": Switch(32),
    "model.layers": Switch(1),
    "model.heads": Switch(4),
    "model.intermediate_size": Switch(16),
    "model.dropout": Switch(0.1),
    "model.projection_size": Switch(8, ("embedder",)),
    "model.pooling": Switch("mean", ("embedder",)),
    "model.projection": Switch("identity", ("embedder",)),
    "model.share_towers": Switch(False, ("embedder",)),
    "model.score_scale": Switch("cosine", ("embedder",)),
    "model.train_word_embeddings": Switch(False),
    "model.precision": Switch("bfloat16"),
    "warm_start.reader.steps": Switch(3, ("reader",)),
    "warm_start.reader.batch_size": Switch(15, ("reader",)),
    **optimiser("warm_start.reader.optimiser", ("reader",)),
    "warm_start.reader.related_fraction": Switch(0.0, ("reader",)),
    "warm_start.reader.related_only_fraction": Switch(0.75, ("reader",)),
    "warm_start.embedder.steps": Switch(3, ("embedder",)),
    "warm_start.embedder.attempts": Switch(8, ("embedder",)),
    "warm_start.embedder.batch_size": Switch(7, ("embedder",)),
    **optimiser("warm_start.embedder.optimiser", ("embedder",)),
    "warm_start.embedder.initial_encoder": Switch("reader", ("embedder",)),
    "warm_start.embedder.query_scale": Switch(1.0, ("embedder",)),
    "warm_start.ict_cut": Switch("halves", ("embedder",)),
    "pretrain.masking": Switch("random_span"),
    "pretrain.mask_rate": Switch(0.5, base={"pretrain.masking": "random_token"}),
    "pretrain.recurring_spans": Switch([1, 3], base=SAME),
    "pretrain.query_form": Switch("question"),
    "pretrain.candidates": Switch(5),
    "pretrain.candidate_source": Switch("random"),
    "pretrain.null_document": Switch("off"),
    "pretrain.calibrate_null": Switch(True),
    "pretrain.exclude_trivial": Switch("off", base=SAME),
    "pretrain.marginal": Switch("token"),
    "pretrain.objective": Switch("emdr2"),
    "pretrain.causal_checkpoint": Switch(causal, ("embedder",), FROZEN),
    "pretrain.causal_form": Switch("infill", ("embedder",), FROZEN | {"pretrain.causal_checkpoint": causal}),
    "pretrain.reward": Switch("containment", ("embedder",), FROZEN),
    "pretrain.train_reader": Switch(False),
    "pretrain.train_query_tower": Switch(False),
    "pretrain.train_document_tower": Switch(False),
    "pretrain.initial_reader": Switch("scratch"),
    "pretrain.initial_retriever": Switch("scratch"),
    "pretrain.steps": Switch(5),
    "pretrain.batch_size": Switch(3),
    "pretrain.search.backend": Switch("ivf_pq", base=FLAT),
    "pretrain.refresh.policy": Switch("never", base=RESTLESS),
    "pretrain.refresh.interval_steps": Switch(2, base=RESTLESS),
    "pretrain.refresh.delay_steps": Switch(1, base=RESTLESS),
    "pretrain.search_query": Switch("fresh", base=RESTLESS),
    **optimiser("pretrain.reader"),
    **optimiser("pretrain.retriever"),
    "pretrain.watch.interval_steps": Switch(3, ("metrics",)),
    "pretrain.watch.patience_steps": Switch(400, ("flags",), COLLAPSED),
    "pretrain.changes": Switch({3: {"masking": "random_token"}}, first_step=True),
    "finetune.steps": Switch(5),
    "finetune.batch_size": Switch(7),
    "finetune.candidates": Switch(10),
    "finetune.max_span_wordpieces": Switch(2),
    "finetune.span_hidden_size": Switch(8, ("reader",)),
    "finetune.softmax": Switch("joint"),
    "finetune.answer_by": Switch("string", ()),
    "finetune.objective": Switch("hard_em"),
    "finetune.early_loss_candidates": Switch(40),
    "finetune.train_query_tower": Switch(False),
    "finetune.initial_reader": Switch("scratch"),
    "finetune.initial_retriever": Switch("scratch"),
    **optimiser("finetune.reader"),
    **optimiser("finetune.retriever"),
}


def of_part(parameter: str, part: str, option: str, value: Any, other: Any, base: dict[str, Any]) -> dict[str, Switch]:
    """An option of a built-in plug-in, under PARAMETER: PART.OPTION."""
    first, second = ({"name": part, option: given} for given in (value, other))
    return {f"{parameter}: {part}.{option}": Switch(second, base=base | {parameter: first})}


BACKEND, POLICY = "pretrain.search.backend", "pretrain.refresh.policy"
SOURCE = "pretrain.candidate_source"


def mixed(**shares: int) -> dict[str, Any]:
    """A candidate source with numbers of passages."""
    return {"name": "mixed", **shares}


DRIFTING = RESTLESS | {"pretrain.refresh.interval_steps": 3}
MAPPED = RESTLESS | {"pretrain.refresh.interval_steps": 100, "pretrain.steps": 8}
OPTIONS = {
    **of_part("pretrain.masking", "tests.tiny_masks:first_words", "share", 0.5, 0.9, {}),
    **of_part("pretrain.objective", "perplexity_distillation", "temperature", 1.0, 0.1, {}),
    **of_part("pretrain.objective", "leave_one_out", "temperature", 1.0, 0.1, {}),
    **of_part("pretrain.objective", "gated", "threshold", 0.0, 1000.0, {}),
    **of_part("pretrain.objective", "reinforce", "draws", 1, 4, {}),
    **of_part("pretrain.objective", "jsa", "draws", 1, 4, {}),
    **of_part("finetune.objective", "reinforce", "draws", 1, 4, {}),
    **of_part("finetune.objective", "jsa", "draws", 1, 4, {}),
    **{
        f"pretrain.candidate_source: mixed.{option}": Switch(mixed(**shares), base={SOURCE: mixed(index=3, batch=2)})
        for option, shares in {
            "index": {"index": 5},
            "batch": {"index": 1, "batch": 4},
            "random": {"index": 3, "random": 2},
        }.items()
    },
    **of_part("finetune.objective", "perplexity_distillation", "temperature", 1.0, 0.1, {}),
    **of_part("finetune.objective", "leave_one_out", "temperature", 1.0, 0.1, {}),
    **of_part(POLICY, "drift", "overlap", 0.01, 1.0, DRIFTING),
    **of_part(POLICY, "map", "sample", 0.02, 1.0, MAPPED),
    **of_part(POLICY, "map", "kind", "orthogonal", "affine", MAPPED),
    **of_part(POLICY, "map", "every_steps", 1, 3, MAPPED),
    **of_part(BACKEND, "ivf_flat", "nprobe", 1, 4, {}),
    **of_part(BACKEND, "ivf_pq", "nbits", 1, 2, {}),
    **of_part(BACKEND, "hnsw", "M", 2, 16, {}),
}
