"""Measurements: open-domain answers, retrieval, and retrieval utility."""
