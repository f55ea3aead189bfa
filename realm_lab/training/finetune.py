"""Open-QA fine-tuning: marginal over the top passages, document vectors frozen, query tower trained (section 3.3)."""

# Shapes: B questions, K passages, N = B * K pairs, L positions, W span widths, D embedding size

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from realm_lab.config import Params
from realm_lab.core.process import autocast
from realm_lab.core.seeding import epoch_order
from realm_lab.corpus.store import Questions
from realm_lab.corpus.vocabulary import SpecialIds, encode_batch_plain
from realm_lab.errors import UserError
from realm_lab.models.export import frozen_names
from realm_lab.models.inputs import join, length_groups
from realm_lab.models.reader import Reader
from realm_lab.models.realm import candidate_log_probs, marginal_log_likelihood
from realm_lab.models.spans import NO_ANSWER, answer_log_probs, find_answer, mark_answers, span_log_probs
from realm_lab.retrieval.retriever import Retriever
from realm_lab.training.checkpoint import load_module, module_tensors
from realm_lab.training.optimiser import ScheduledAdamW

QUERY_TOWER = ("query_encoder.", "query_projection.")


class FinetuneTask:
    """Open-QA fine-tuning as a task of the loop. The retriever's index must be built: it is never rebuilt."""

    def __init__(
        self,
        params: Params,
        seed: int,
        retriever: Retriever,
        reader: Reader,
        questions: Questions,
        tokenizer: Tokenizer,
        special: SpecialIds,
        evaluation: Callable[[], dict[str, float]] = dict,
    ):
        self.seed, self._params, self._settings = seed, params, params.finetune
        self.retriever, self.reader, self._questions, self._special = retriever, reader, questions, special
        self.total_steps = self._settings.steps
        self.evaluation_interval_steps = self.total_steps + 1
        self._evaluation = evaluation
        self._longest = params.corpus.sentence_length + params.corpus.passage_length
        if not len(questions):
            raise UserError("no training questions in the prepared corpus; name them in corpus.files.questions_train")
        if self._settings.candidates > len(retriever.passages):
            raise UserError(
                f"parameter 'finetune.candidates' is {self._settings.candidates}, but the knowledge corpus has only "
                f"{len(retriever.passages)} passages; lower it"
            )
        self._answers = [
            [np.array(e.ids, np.int64) for e in encode_batch_plain(tokenizer, answers)] for answers in questions.answers
        ]
        self._order = epoch_order(len(questions), seed, "finetune-questions")
        embedder = retriever.embedder
        frozen = frozen_names(embedder, params)
        frozen |= {name for name, _ in embedder.named_parameters() if not name.startswith(QUERY_TOWER)}
        self._optimisers = [
            ScheduledAdamW("reader", reader, self._settings.reader, self.total_steps, frozen_names(reader, params)),
            ScheduledAdamW("retriever", embedder, self._settings.retriever, self.total_steps, frozen),
        ]

    def train_step(self, step: int) -> dict[str, float]:
        """One step on log p(y|x) of the questions whose answer is among their passages; the others give no loss."""
        settings = self._settings
        chosen = self._order.take(step * settings.batch_size, settings.batch_size)
        queries = [self._questions.tokens[int(number)] for number in chosen]
        self.reader.train()
        self.retriever.embedder.train()
        for optimiser in self._optimisers:
            optimiser.zero_grad()
        query_BD = self.retriever.embed_queries(queries)
        rows_BK = self.retriever.find(query_BD, settings.candidates, null=False)
        spans = [
            [self._spans(int(row), int(number), len(query)) for row in rows]
            for rows, number, query in zip(rows_BK, chosen, queries, strict=True)
        ]
        held_BK = np.array([[len(found) > 0 for found in row] for row in spans])
        answerable = np.flatnonzero(held_BK.any(1))
        values = {"answerable_fraction": len(answerable) / len(chosen)}
        if len(answerable):
            score_BK = self.retriever.indexed_score(query_BD[answerable], rows_BK[answerable])
            log_prior_BK = candidate_log_probs(score_BK)
            log_reader_BK = self._read(
                [queries[i] for i in answerable], rows_BK[answerable], [spans[i] for i in answerable]
            )
            log_likelihood_B = marginal_log_likelihood(log_prior_BK, log_reader_BK)
            loss = -log_likelihood_B.mean()
            loss.backward()
            values |= {"loss": loss.item(), "marginal_log_likelihood": log_likelihood_B.mean().item()}
            for optimiser in self._optimisers:
                values |= optimiser.step(step)
        return values

    def _spans(self, row: int, number: int, query_length: int) -> list[tuple[int, int]]:
        """The answer's spans in what the reader will see of a passage."""
        if row < 0:
            return []
        body = self.retriever.passages.bodies[row][: self._longest - 3 - query_length]
        return find_answer(body, self._answers[number], self._settings.max_span_wordpieces)

    def _read(self, queries: list[np.ndarray], rows_BK: np.ndarray, spans: list[list[list[tuple[int, int]]]]) -> Tensor:
        """log p(y|z,x) for every question and passage, [B, K]; passages without the answer are not read at all."""
        device = next(self.reader.parameters()).device
        flat = [found for row in spans for found in row]
        read = np.array([number for number, found in enumerate(flat) if found])
        owners = read // rows_BK.shape[1]
        bodies = [self.retriever.passages.bodies[row] for row in rows_BK.reshape(-1)[read]]
        lengths = [len(queries[b]) + len(body) + 3 for b, body in zip(owners, bodies, strict=True)]
        groups = length_groups(lengths, self._params.launch.token_budget)
        parts = []
        for group in groups:
            firsts = [queries[owners[i]] for i in group]
            batch = join(firsts, [bodies[i] for i in group], self._special, self._longest).to(device)
            with autocast(device, self._params.model.precision):
                logits_NLW = self.reader.span_logits(batch, self._settings.max_span_wordpieces)
            marked = mark_answers([flat[read[i]] for i in group], [len(f) + 2 for f in firsts], logits_NLW.shape)
            parts.append(answer_log_probs(span_log_probs(logits_NLW), marked.to(device)))
        order = np.concatenate(groups)
        log_reader_N = torch.full((len(flat),), NO_ANSWER, device=device)
        log_reader_N = log_reader_N.index_put((torch.from_numpy(read[order]).to(device),), torch.cat(parts))
        return log_reader_N.view(rows_BK.shape)

    def evaluate(self, step: int) -> dict[str, float]:
        """Whatever the stage wants measured."""
        return self._evaluation()

    def tensors(self) -> dict[str, Tensor]:
        """Weights and moments; the frozen index is rebuilt from the stage before."""
        state = module_tensors("reader", self.reader) | module_tensors("embedder", self.retriever.embedder)
        for optimiser in self._optimisers:
            state |= optimiser.state()
        return state

    def load(self, tensors: dict[str, Tensor], step: int) -> None:
        """Restore what `tensors` returned."""
        load_module("reader", self.reader, tensors, "checkpoint")
        load_module("embedder", self.retriever.embedder, tensors, "checkpoint")
        for optimiser in self._optimisers:
            optimiser.load_state(tensors)
