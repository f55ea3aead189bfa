"""A frozen causal language model as the reader of pre-training (Shi et al. 2023, REPLUG)."""
