"""Embedded worlds of entities and facts: corpus sources that need no download. No torch."""
