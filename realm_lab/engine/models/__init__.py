"""Embedder, reader and the paper's equations (section 3.2)."""
