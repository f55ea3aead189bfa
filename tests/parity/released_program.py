"""Runs under transformers 4.40.2, the last release that supports REALM; test_released_parity.py starts it.

python released_program.py FOLDER SEED   small random models, inputs and the outputs of the models
"""

# mypy: ignore-errors
# (the transformers that mypy sees has no REALM)

# Shapes: B queries, K candidates, C passages of the early loss, L positions, S spans, A gold spans

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import RealmConfig, RealmEmbedder, RealmForOpenQA, RealmKnowledgeAugEncoder, RealmReader, RealmScorer

CLS, SEP, MASK, PAD = 2, 3, 4, 0
PARTS = ("tokens", "types", "mask")
CANDIDATES, EARLY, WIDTH, LENGTH = 3, 5, 4, 20
CONFIG = {
    "vocab_size": 40,
    "hidden_size": 8,
    "retriever_proj_size": 6,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_candidates": CANDIDATES,
    "intermediate_size": 12,
    "max_position_embeddings": 64,
    "span_hidden_size": 5,
    "max_span_width": WIDTH,
    "reader_beam_size": CANDIDATES,
    "num_block_records": 7,
    "pad_token_id": PAD,
}
GOLD = [[(9, 10), (12, 12)], [(8, 11), (-1, -1)], [(-1, -1), (-1, -1)]]  # start and end in each passage that is read


def main() -> None:
    torch.set_grad_enabled(False)
    write(Path(sys.argv[1]), int(sys.argv[2]))


def write(folder: Path, seed: int) -> None:
    torch.manual_seed(seed)
    config = RealmConfig(**CONFIG)
    models = {
        "embedder": RealmEmbedder(config),
        "scorer": RealmScorer(config),
        "scorer_of_two": RealmScorer(config, query_embedder=RealmEmbedder(config)),
        "encoder": RealmKnowledgeAugEncoder(config),
        "reader": RealmReader(config),
        "open_qa": RealmForOpenQA(config),
    }
    for name, model in models.items():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.3)
        if name == "open_qa":
            model.block_emb = torch.randn(config.num_block_records, config.retriever_proj_size)
        shared = name in (
            "scorer",
            "reader",
            "open_qa",
        )  # with tensors of two names, which save_pretrained writes only as a pickle
        model.eval().save_pretrained(folder / name, safe_serialization=not shared)
        if shared:
            pickled = folder / name / "pytorch_model.bin"
            tensors = torch.load(pickled, weights_only=True)
            copies = {key: value.clone() for key, value in tensors.items()}
            save_file(copies, str(folder / name / "model.safetensors"), metadata={"format": "pt"})
            pickled.unlink()
    inputs = make_inputs()
    save_file(inputs, str(folder / "inputs.safetensors"))
    save_file(outputs(models, inputs), str(folder / "outputs.safetensors"))


def joined(first: int, second: int) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, types and mask of [CLS] first [SEP] second [SEP], padded; an empty second segment is left out."""
    words = torch.randint(5, CONFIG["vocab_size"], (first + second,)).tolist()
    tokens = [CLS, *words[:first], SEP] + ([*words[first:], SEP] if second else [])
    types = [0] * (first + 2) + [1] * (len(tokens) - first - 2)
    mask = [1] * len(tokens)
    rest = [0] * (LENGTH - len(tokens))
    return torch.tensor(tokens + rest), torch.tensor(types + rest), torch.tensor(mask + rest)


def stacked(rows: list[tuple[Tensor, Tensor, Tensor]], name: str) -> dict[str, Tensor]:
    return {f"{name}.{part}": torch.stack([row[place] for row in rows]) for place, part in enumerate(PARTS)}


def make_inputs() -> dict[str, Tensor]:
    inputs = stacked([joined(size, 0) for size in (4, 9)], "queries")
    inputs |= stacked([joined(3, size) for size in (4, 7, 9, 12, 5, 6)], "documents")
    pairs = [joined(6, size) for size in (5, 11, 8)] + [joined(7, size) for size in (4, 10, 0)]
    for tokens, _, _ in pairs:
        tokens[[2, 5]] = MASK
    inputs |= stacked(pairs, "pairs")
    labels = torch.full((2, LENGTH), -100)
    labels[:, 2], labels[:, 5] = torch.tensor([7, 8]), torch.tensor([9, 10])
    labels[1, 5] = -100  # one query has one masked word, the other two
    spans = stacked([joined(5, size) for size in (10, 6, 12)], "spans")
    inputs |= spans
    return inputs | {
        "labels": labels,
        "relevance": torch.randn(2, CANDIDATES),
        "span_relevance": torch.randn(EARLY),
        "has_answers": torch.tensor([True, True, False, False, True]),
        "starts": torch.tensor([[start for start, _ in row] for row in GOLD]),
        "ends": torch.tensor([[end for _, end in row] for row in GOLD]),
    }


def batch(inputs: dict[str, Tensor], name: str) -> dict[str, Tensor]:
    names = {"input_ids": "tokens", "token_type_ids": "types", "attention_mask": "mask"}
    return {theirs: inputs[f"{name}.{part}"] for theirs, part in names.items()}


def outputs(models: dict[str, nn.Module], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for name, model in models.items():
        if isinstance(model, RealmEmbedder):
            found[f"{name}.projected"] = model(**batch(inputs, "documents")).projected_score
        elif isinstance(model, RealmScorer):
            shape = (2, CANDIDATES, LENGTH)
            candidates = {f"candidate_{key}": value.view(shape) for key, value in batch(inputs, "documents").items()}
            found[f"{name}.relevance"] = model(**batch(inputs, "queries"), **candidates).relevance_score
        elif isinstance(model, RealmKnowledgeAugEncoder):
            pairs = {key: value.view(2, CANDIDATES, LENGTH) for key, value in batch(inputs, "pairs").items()}
            labels = inputs["labels"]
            output = model(
                **pairs, relevance_score=inputs["relevance"], labels=labels, mlm_mask=(labels != -100).long()
            )
            found[f"{name}.loss"] = output.loss
            found[f"{name}.log_probs"] = output.logits[:, [2, 5]].log_softmax(-1)
        elif isinstance(model, RealmReader):
            found |= {f"{name}.{key}": value for key, value in span_outputs(model, inputs).items()}
        else:
            found |= {f"{name}.{key}": value for key, value in span_outputs(model.reader, inputs).items()}
            found[f"{name}.projected"] = model.embedder(**batch(inputs, "queries")).projected_score
            found[f"{name}.block_emb"] = model.block_emb
    return {name: value.contiguous() for name, value in found.items()}


def span_outputs(model: RealmReader, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return span logits and losses; a passage's wordpieces have type 1, except specials."""
    spans = batch(inputs, "spans")
    block = spans["token_type_ids"].bool() & (spans["input_ids"] != SEP)
    logits, starts, ends = model.qa_outputs(model.realm(**spans).last_hidden_state, block)
    losses = model(
        **spans,
        relevance_score=inputs["span_relevance"],
        block_mask=block,
        start_positions=inputs["starts"],
        end_positions=inputs["ends"],
        has_answers=inputs["has_answers"],
    )
    return {
        "span_logits": logits,
        "span_starts": starts,
        "span_ends": ends,
        "reader_loss": losses.reader_loss,
        "retriever_loss": losses.retriever_loss,
    }


if __name__ == "__main__":
    main()
