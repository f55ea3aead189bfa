"""Registers all parts: the entry point of the package."""

from harbour import launcher, metrics, parts, systems, towns, tracker

__all__ = ["launcher", "metrics", "parts", "systems", "towns", "tracker"]
