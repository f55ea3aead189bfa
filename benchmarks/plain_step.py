"""A pre-training step as a plain script writes it with transformers' BERT, on the batches that realm_lab has read."""

# Shapes: B sentences, K candidates, N sequences of a part, L positions, M masked positions of all joint sequences

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import BertConfig, BertForMaskedLM, BertModel

from realm_lab.engine.core.process import autocast
from realm_lab.engine.models.embedder import Embedder
from realm_lab.engine.models.encoder import Encoder
from realm_lab.engine.models.folders import bert_config, to_bert, write_reader
from realm_lab.engine.models.reader import Reader

NAMES = {"input_ids": "tokens", "token_type_ids": "types", "attention_mask": "mask"}  # of transformers -> of realm_lab


class PlainStep:
    """transformers' BERTs with realm_lab's weights: one tower for queries and documents, a reader, one fused AdamW.

    There is no dropout. Every part of a batch is padded to its longest sequence. A candidate that two sentences share
    is encoded twice. Only masked positions get logits over the vocabulary.
    """

    def __init__(self, reader: Reader, embedder: Embedder, precision: str, device: torch.device):
        config = BertConfig.from_dict(bert_config(embedder.document_encoder.shape, "BertModel"))
        self.tower = BertModel(config, add_pooling_layer=False)
        assert isinstance(embedder.document_encoder, Encoder)
        self.tower.load_state_dict(to_bert(embedder.document_encoder), strict=False)
        with tempfile.TemporaryDirectory() as folder:
            write_reader(reader, Path(folder))
            self.reader = BertForMaskedLM.from_pretrained(folder)
        self.projections = copy.deepcopy([embedder.query_projection, embedder.document_projection])
        modules = torch.nn.ModuleList([self.tower, self.reader, *self.projections]).to(device).train()
        self.optimiser = torch.optim.AdamW(modules.parameters(), lr=1e-5, fused=True)
        self.precision, self.device = precision, device

    def step(self, arrays: Mapping[str, np.ndarray]) -> float:
        """Take an optimiser step on the arrays of one batch, `query.tokens` and so on; returns the loss."""
        query, document, joint = (self._inputs(arrays, part) for part in ("query", "document", "joint"))
        labels_BL = torch.from_numpy(arrays["labels"]).to(self.device)
        sentences = len(labels_BL)
        self.optimiser.zero_grad(set_to_none=True)
        with autocast(self.device, self.precision):
            firsts = (self.tower(**one).last_hidden_state[:, 0] for one in (query, document))
            query_BD, document_ND = (of(first) for of, first in zip(self.projections, firsts, strict=True))
            hidden_NLD = self.reader.bert(**joint).last_hidden_state
            labels_NL = labels_BL.repeat_interleave(len(hidden_NLD) // sentences, dim=0)
            where_M, at_M = (labels_NL >= 0).nonzero(as_tuple=True)
            logits_MV = self.reader.cls(hidden_NLD[where_M, at_M])
        scores_BK = torch.einsum("bd,bkd->bk", query_BD.float(), document_ND.float().unflatten(0, (sentences, -1)))
        log_probs_M = logits_MV.float().log_softmax(-1).gather(1, labels_NL[where_M, at_M, None])[:, 0]
        reader_N = log_probs_M.new_zeros(len(hidden_NLD)).index_add(0, where_M, log_probs_M)
        log_joint_BK = scores_BK.log_softmax(-1) + reader_N.unflatten(0, (sentences, -1))
        loss = -log_joint_BK.logsumexp(-1).mean()
        loss.backward()
        self.optimiser.step()
        return float(loss)

    def _inputs(self, arrays: Mapping[str, np.ndarray], part: str) -> dict[str, Tensor]:
        """Tokens, segments and mask, [N, L], on the device."""
        found = {theirs: torch.from_numpy(arrays[f"{part}.{ours}"]) for theirs, ours in NAMES.items()}
        return {name: value.flatten(0, -2).to(self.device) for name, value in found.items()}
