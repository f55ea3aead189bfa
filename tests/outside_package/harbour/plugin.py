"""Registers all parts: the entry point of the package."""

from harbour import metrics, parts, systems, towns, tracker

__all__ = ["metrics", "parts", "systems", "towns", "tracker"]
