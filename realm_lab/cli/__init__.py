"""The command line: one function per command; heavy imports are inside these functions."""

from realm_lab.cli.parser import build_parser, main

__all__ = ["build_parser", "main"]
