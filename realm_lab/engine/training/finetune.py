"""Open-QA fine-tuning: marginal over the top passages, document vectors frozen, query tower trained (section 3.3)."""

# Shapes: B questions, K passages read, C passages of the early loss, N = B * K pairs, L positions, W span widths,
# D embedding size

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from realm_lab.engine.core.flop import computed
from realm_lab.engine.core.process import autocast, share, summed, to_device
from realm_lab.engine.core.seeding import EpochOrder
from realm_lab.engine.corpus.store import Questions
from realm_lab.engine.corpus.vocabulary import SpecialIds, answer_wordpieces
from realm_lab.engine.models.inputs import Batch, join, length_groups
from realm_lab.engine.models.objectives import training_objective
from realm_lab.engine.models.reader import Reader
from realm_lab.engine.models.realm import marginal_log_likelihood
from realm_lab.engine.models.spans import (
    NO_ANSWER,
    answer_log_probs,
    early_log_likelihood,
    find_answer,
    holds_answer,
    mark_answers,
    passage_log_probs,
    read_logits,
    span_log_probs,
)
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.retrieval.retriever import Retriever
from realm_lab.engine.retrieval.rows import NO_SCORE
from realm_lab.engine.training.optimiser import ModelsTask, TrainedModels
from realm_lab.errors import UserError

Spans = list[tuple[int, int]]


class Found(NamedTuple):
    """Passages retrieved for some questions, and the positions of the answers in them."""

    queries: list[np.ndarray]
    rows_BC: np.ndarray  # best first; the first `candidates` are read
    spans: list[list[Spans]]  # of each question and passage that is read: S(z, y)
    early_BC: np.ndarray  # bool: the passage holds an answer; [B, 0] without the early loss

    def part(self, indices: np.ndarray) -> Found:
        """Return the entries of some of the questions."""
        chosen = [int(index) for index in indices]
        queries, spans = [self.queries[i] for i in chosen], [self.spans[i] for i in chosen]
        return Found(queries, self.rows_BC[chosen], spans, self.early_BC[chosen])

    @property
    def answerable_B(self) -> np.ndarray:
        """True if a passage that is read contains the answer."""
        return np.array([any(row) for row in self.spans], bool)


class FinetuneTask(ModelsTask):
    """Open-QA fine-tuning as a task of the loop. The retriever must have an index, which is neither rebuilt
    nor saved in checkpoints.

    Modules that are not trained have no optimiser, no gradient and no dropout.
    """

    def __init__(
        self,
        params: Params,
        seed: int,
        retriever: Retriever,
        reader: Reader,
        questions: Questions,
        tokenizer: Tokenizer,
        special: SpecialIds,
    ):
        self.seed, self._params, self._settings = seed, params, params.finetune
        self.retriever, self.reader, self._questions, self._special = retriever, reader, questions, special
        self.total_steps = self._settings.steps
        self._maximised = training_objective("finetune.objective", self._settings.objective)
        self._over_spans: Callable[[Tensor, Tensor], Tensor] = answer_log_probs
        self._longest = params.corpus.sentence_length + params.corpus.passage_length
        if self.total_steps and not any(questions.answers):
            what = (
                "none of the training questions has an answer" if len(questions) else "there are no training questions"
            )
            raise UserError(
                f"{what}; name some with answers in corpus.files.questions_train, or set finetune.steps to 0"
            )
        for name in ("candidates", "early_loss_candidates"):
            if getattr(self._settings, name) > len(retriever.passages):
                raise UserError(
                    f"parameter 'finetune.{name}' is {getattr(self._settings, name)}, but the knowledge corpus has "
                    f"only {len(retriever.passages)} passages; lower it"
                )
        self._answers = answer_wordpieces(tokenizer, special, questions.answers)
        self._order = EpochOrder(len(questions), seed, "finetune-questions")
        embedder, learns = retriever.embedder, self._settings.train_query_tower
        assert not (learns and embedder.share_towers), "the document tower would be trained too"
        self._models = TrainedModels.of(params, self._settings, reader, embedder, True, learns, False)

    def train_step(self, step: int) -> dict[str, float]:
        """Run one step on -log p(y|x), or on another objective, plus Lee's early loss -log p_early(a passage with an
        answer|x) if configured.

        Each of a question's two terms is 0 if none of its passages has an answer (released code). The loss is the mean
        of the terms' sum, over the questions with such a passage. Without such a question the weights stay; in the
        released code Adam's moments and the weight decay still move them.
        """
        settings = self._settings
        chosen = self._order.take(step * settings.batch_size, settings.batch_size)
        mine = chosen[share(len(chosen))]
        self.reader.train()
        self.retriever.embedder.train(settings.train_query_tower)
        self._models.zero_grad()
        found, query_BD = self._find(mine)
        answerable_B, early_B = found.answerable_B, found.early_BC.any(1)
        useful = np.flatnonzero(answerable_B | early_B)
        answerable, early, count = summed(float(answerable_B.sum()), float(early_B.sum()), float(len(useful)))
        values = {"answerable_fraction": answerable / len(chosen)}
        if settings.early_loss_candidates:
            values["early_answerable_fraction"] = early / len(chosen)
        if not count:
            return values
        sums = self._backward(found, query_BD, useful, int(count))
        stepped = self._models.step(step)
        reader_sum, early_sum, marginal_sum = summed(*sums)
        values |= {"loss": -(reader_sum + early_sum) / count, "loss_reader": -reader_sum / count}
        if settings.early_loss_candidates:
            values["loss_early"] = -early_sum / count
        if answerable:
            values["marginal_log_likelihood"] = marginal_sum / answerable
        return values | stepped

    def _find(self, numbers: np.ndarray) -> tuple[Found, Tensor]:
        """Retrieve passages for some training questions, and return also the questions' vectors [B, D]."""
        settings = self._settings
        early = settings.early_loss_candidates
        size = max(settings.candidates, early)
        if not len(numbers):  # more ranks than questions
            return Found([], np.empty((0, size), np.int64), [], np.empty((0, early), bool)), torch.empty(0)
        queries = [self._questions.tokens[int(number)] for number in numbers]
        query_BD = self.retriever.embed_queries(queries)
        rows_BC = self.retriever.find(query_BD, size)
        spans = [
            [self._spans(int(row), int(number), len(query)) for row in rows[: settings.candidates]]
            for rows, number, query in zip(rows_BC, numbers, queries, strict=True)
        ]
        bodies, pairs = self.retriever.passages.bodies, zip(rows_BC[:, :early], numbers, strict=True)
        early_BC = np.stack([holds_answer(bodies, rows, self._answers[int(n)]) for rows, n in pairs])
        return Found(queries, rows_BC, spans, early_BC), query_BD

    def _spans(self, row: int, number: int, query_length: int) -> Spans:
        """Return the answer's spans in the part of a passage that the reader will see."""
        if row < 0:
            return []
        body = self.retriever.passages.bodies[row][: self._longest - 3 - query_length]
        return find_answer(body, self._answers[number], self._settings.max_span_wordpieces)

    def _backward(self, found: Found, query_BD: Tensor, useful: np.ndarray, count: int) -> tuple[float, ...]:
        """Compute gradients of the loss, `micro_batch` questions at a time; return the sums of the objective, of
        log p_early and of log p(y|x).

        The query tower's backward pass runs once at the end, so that a question is encoded once, with one dropout mask.
        """
        leaf_BD = query_BD.detach().requires_grad_(query_BD.requires_grad)
        at_once = self._params.launch.micro_batch or max(1, len(useful))
        sums_3 = torch.zeros(3, dtype=torch.float64, device=leaf_BD.device)
        for start in range(0, len(useful), at_once):
            indices = useful[start : start + at_once]
            here = to_device(indices, leaf_BD.device)
            parts = [part_B.sum() for part_B in self._objectives(found.part(indices), leaf_BD[here])]
            objective = (parts[0] + parts[1]) / count
            if objective.requires_grad:
                (-objective).backward()
            sums_3 += torch.stack(parts).detach()
        if leaf_BD.grad is not None:
            (query_BD * leaf_BD.grad).sum().backward()
        return tuple(sums_3.tolist())

    def _objectives(self, found: Found, query_BD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the objective, log p_early, and log p(y|x) for the log, [B] each; 0 if no passage has an answer."""
        settings = self._settings
        score_BC = self.retriever.indexed_score(query_BD, found.rows_BC)
        indices = np.flatnonzero(found.answerable_B)
        answerable = to_device(indices, score_BC.device)
        objective_B = marginal_B = log_early_B = torch.zeros(len(score_BC), device=score_BC.device)
        if len(answerable):
            read = found.part(indices)
            log_reader_BK, reader_logit_BK = self._read(read)
            score_BK = score_BC[answerable, : settings.candidates]
            log_prior_BK = passage_log_probs(score_BK, reader_logit_BK, settings.softmax)
            of_answerable = self._maximised(log_prior_BK, log_reader_BK)
            objective_B = objective_B.index_put((answerable,), of_answerable)
            of_answerable = marginal_log_likelihood(log_prior_BK, log_reader_BK).detach()
            marginal_B = marginal_B.index_put((answerable,), of_answerable)
        if settings.early_loss_candidates:
            held_BC = to_device(found.early_BC, score_BC.device)
            log_early_B = early_log_likelihood(score_BC[:, : held_BC.shape[1]], held_BC)
        return objective_B, log_early_B, marginal_B

    def _read(self, found: Found) -> tuple[Tensor, Tensor]:
        """Return log p(y|z,x) and the reader's logit of the passage, for every question and passage, [B, K] each.

        A passage without the answer is read only if its logit is part of p(z|x) (`finetune.softmax` is not `factored`).
        An unread passage has the logit NO_SCORE.
        """
        rows_BK = found.rows_BC[:, : self._settings.candidates]
        device = next(self.reader.parameters()).device
        flat = [spans for row in found.spans for spans in row]
        rows_N, every = rows_BK.reshape(-1), self._settings.softmax != "factored"
        read = np.array([number for number, spans in enumerate(flat) if spans or (every and rows_N[number] >= 0)])
        owners = read // rows_BK.shape[1]
        bodies = [self.retriever.passages.bodies[row] for row in rows_N[read]]
        lengths = [len(found.queries[b]) + len(body) + 3 for b, body in zip(owners, bodies, strict=True)]
        groups = length_groups(lengths, self._params.launch.token_budget)
        parts: list[tuple[Tensor, Tensor]] = []
        for group in groups:
            firsts = [found.queries[owners[i]] for i in group]
            batch = join(firsts, [bodies[i] for i in group], self._special, self._longest)
            shape = torch.Size((*batch.tokens_BL.shape, self._settings.max_span_wordpieces))
            marked_NLW = mark_answers([flat[read[i]] for i in group], [len(f) + 2 for f in firsts], shape)
            given = batch.to(device), to_device(marked_NLW, device)
            parts.append(computed(self._params.launch.recompute, self._read_group, *given))
        at = (to_device(read[np.concatenate(groups)], device),)
        log_reader_N = torch.full((len(flat),), NO_ANSWER, device=device)
        log_reader_N = log_reader_N.index_put(at, torch.cat([log_reader for log_reader, _ in parts]))
        logit_N = torch.full((len(flat),), NO_SCORE, device=device)
        logit_N = logit_N.index_put(at, torch.cat([logit for _, logit in parts]))
        return log_reader_N.view(rows_BK.shape), logit_N.view(rows_BK.shape)

    def _read_group(self, batch: Batch, marked_NLW: Tensor) -> tuple[Tensor, Tensor]:
        width, softmax = self._settings.max_span_wordpieces, self._settings.softmax
        with autocast(marked_NLW.device, self._params.model.precision):
            logits_NLW, logit_N = read_logits(self.reader, batch, width, softmax)
        return self._over_spans(span_log_probs(logits_NLW), marked_NLW), logit_N
