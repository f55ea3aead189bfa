"""Registers parts of section 6: sources, formats, a figure; an entry point of `realm_lab.plugins` in pyproject.toml."""

from realm_lab.contrib.section6 import triple_files  # noqa: F401
from realm_lab.engine.corpus.sources import CORPUS_SOURCES
from realm_lab.evidence.report.own_figures import FIGURES

_HERE = "realm_lab.contrib.section6"
CORPUS_SOURCES.declare("triples", f"{_HERE}.triples:TripleSource", f"{_HERE}.settings:TripleOptions")
CORPUS_SOURCES.declare("bilingual", f"{_HERE}.bilingual:BilingualSource", f"{_HERE}.settings:BilingualOptions")
CORPUS_SOURCES.declare("drawn", f"{_HERE}.drawn:DrawnSource", f"{_HERE}.settings:DrawnOptions")
FIGURES.declare("retrieved_pictures", f"{_HERE}.figures:retrieved_pictures")
