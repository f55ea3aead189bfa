"""Declares the reader that `pretrain.causal_checkpoint` chooses; an entry point of `realm_lab.plugins`."""

from realm_lab.engine.models.frozen_readers import CAUSAL, FROZEN_READERS

FROZEN_READERS.declare(CAUSAL, "realm_lab.contrib.causal.likelihoods:causal_reader")
