"""Registers the corpus sources of section 6; named in pyproject.toml as an entry point of `realm_lab.plugins`."""

from realm_lab.corpus.sources import CORPUS_SOURCES

_HERE = "realm_lab.contrib.section6"
CORPUS_SOURCES.declare("triples", f"{_HERE}.triples:TripleSource", f"{_HERE}.settings:TripleOptions")
CORPUS_SOURCES.declare("bilingual", f"{_HERE}.bilingual:BilingualSource", f"{_HERE}.settings:BilingualOptions")
CORPUS_SOURCES.declare("drawn", f"{_HERE}.drawn:DrawnSource", f"{_HERE}.settings:DrawnOptions")
