"""Taggers: who finds salient spans. `corpus.tagger` names one.

A tagger is a class that is made in each process that cuts texts, with its options (salient_spans.Tagger).
"""

from __future__ import annotations

from collections.abc import Callable

from realm_lab.core.plugins import Chosen, Kind
from realm_lab.corpus.salient_spans import Tagger
from realm_lab.params.corpus import Corpus
from realm_lab.params.sections import Section


class TaggerFolder(Section):
    """Options of tagger model."""

    folder: str
    """A Hugging Face token-classification folder; docs/data.md describes how to make one."""


TAGGERS: Kind[Callable[..., Tagger]] = Kind("tagger", "Class")
TAGGERS.declare("exact", "realm_lab.corpus.salient_spans:NoTags")
TAGGERS.declare("rule", "realm_lab.corpus.salient_spans:RuleTagger")
TAGGERS.declare("model", "realm_lab.models.tagger:read_tagger", TaggerFolder)
register_tagger = TAGGERS.register  # makes a tagger selectable as `corpus.tagger: NAME`


def corpus_tagger(corpus: Corpus) -> Chosen[Callable[..., Tagger]]:
    """Return the tagger's constructor that `corpus.tagger` names. UserError: there is none, or an option is wrong."""
    return TAGGERS.choose("corpus.tagger", corpus.tagger)
