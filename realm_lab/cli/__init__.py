"""The command line: one function a verb; heavy imports are inside it."""

from realm_lab.cli.parser import build_parser, main

__all__ = ["build_parser", "main"]
