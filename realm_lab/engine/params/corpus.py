"""The parameters of the corpus: its source, text files, and how texts are cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from realm_lab.engine.params.sections import Positive, Section
from realm_lab.records.plugins import Choice, ChoiceField
from realm_lab.records.validation import Contradiction

PageKind = Literal["list", "index", "outline", "disambiguation"]


class Files(Section):
    """Text files to read; the format is found by name and content."""

    knowledge: list[str] = []
    """Files of the knowledge corpus Z."""
    knowledge_updated: list[str] = []
    """Files of its later version, a corpus update (Guu, Table 4)."""
    pretrain: list[str] = []
    """Files of the pre-training corpus X, if it is not Z (Guu, section 4.3: CC-News)."""
    questions_train: list[str] = []
    """Questions to fine-tune on."""
    questions_dev: list[str] = []
    """Development questions, of curves and `exact_match_dev`."""
    questions_test: list[str] = []
    """Questions of the final evaluation."""
    dev_split: Literal["none", "orqa"] = "orqa"
    """Development questions if questions_dev names no file. `orqa`: those of questions_train whose text has hash 0
    modulo 10, which are not trained on (code). `none`: there are none."""
    max_articles: Positive | None = None
    """Maximum number of articles of `knowledge` (empty: all); files that questions_test names too are kept whole."""
    max_train_questions: Positive | None = None
    """Maximum number of training questions; empty: all."""
    max_test_questions: Positive | None = None
    """Maximum number of test questions; empty: all."""
    drop_pages: list[PageKind] = ["list", "index", "outline", "disambiguation"]
    """Kinds of pages to leave out, by their titles: "List of ...", "Index of ...", "Outline of ...",
    "... (disambiguation)" (code, of ORQA)."""

    @property
    def holds_out_dev(self) -> bool:
        """True if some of questions_train are development questions."""
        return self.dev_split == "orqa" and bool(self.questions_train) and not self.questions_dev


class Corpus(Section):
    """Source of the text, and how it is cut (paper section 4.3)."""

    source: ChoiceField = Choice("files")
    """Text files (`files`: corpus.files), or the embedded toy world (`toy`)."""
    pretrain_corpus: Literal["separate", "same"] = "same"
    """X is another corpus than Z (`separate`; Guu, section 4.3: CC-News), or Z itself (`same`: Wikipedia)."""
    passage_length: Annotated[int, Field(ge=8, le=512)] = 288
    """Wordpieces of a passage (Guu, section 4.3), its title and three specials included (code)."""
    sentence_length: Annotated[int, Field(ge=8, le=512)] = 64
    """Wordpieces of a query with its two specials (code: 64 in the Inverse Cloze Task)."""
    tagger: ChoiceField = Choice("rule")
    """Tagger of salient spans: the source's own spans (`exact`), rules for names, dates and numbers (`rule`), or a
    token classifier and expressions for dates, `{name: model, folder: FOLDER}` (Guu, section 3.4: a BERT tagger trained
    on CoNLL-2003 and a regular expression; neither was released)."""
    files: Files = Files()

    @property
    def has_dev_questions(self) -> bool:
        """True if there are development questions to choose variants by."""
        return self.source.name != "files" or bool(self.files.questions_dev) or self.files.holds_out_dev

    def contradictions(self) -> Iterator[Contradiction]:
        if self.tagger.name == "exact" and self.source.name == "files":
            yield Contradiction(
                "tagger: exact finds no spans in files; also set corpus.tagger to rule, or start from preset real",
                "tagger",
                "source",
            )
        if self.tagger.name == "model" and self.source.name == "toy":
            yield Contradiction(
                "tagger: model reads English, which the toy world does not speak; use tagger: exact", "tagger", "source"
            )
        if self.pretrain_corpus == "same" and self.files.pretrain:
            yield Contradiction(
                "pretrain_corpus: same ignores files.pretrain; set it to separate, or name no such files",
                "pretrain_corpus",
                "files.pretrain",
            )
        if self.source.name == "files" and self.pretrain_corpus == "separate" and not self.files.pretrain:
            yield Contradiction(
                "pretrain_corpus: separate needs files.pretrain; name its files, or set it to same",
                "pretrain_corpus",
                "files.pretrain",
                "source",
            )
