"""Corpus sources for the future work of section 6 of the paper: structured knowledge, other languages, images."""
