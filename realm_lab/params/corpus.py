"""The parameters of the corpus: the toy world (corpus/toy_world.py), text files, and how either is cut."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from realm_lab.core.plugins import Choice, ChoiceField
from realm_lab.core.records import Contradiction
from realm_lab.params.sections import OBSERVES, Fraction, NonNegative, Positive, Section, neutral

EASY_WORLD = {
    "entities_per_name": 1,
    "unanswerable_fraction": 0.0,
    "syntax_fraction": 0.0,
    "salient": "both",
    "asked_relations": "all",
    "question_articles": 0.0,
    "question_sentences": 0.0,
}


class ToyWorld(Section):
    """The embedded world of entities and facts that needs no download. In the sharp world, whose knobs are below, a
    retriever must learn more than names, a stale index misses passages, and some masks no passage can fill."""

    world: Annotated[Literal["sharp", "easy"], OBSERVES] = "sharp"
    """`easy`: the knobs from entities_per_name to question_sentences that are not named are off, for smoke tests. Names
    then find their passages, and every mask can be filled."""
    entities: Annotated[int, Field(ge=40, le=4_000_000, multiple_of=4)] = 256
    """Entities of four types; each has an article of several passages."""
    entities_per_name: Annotated[int, Field(ge=1, le=4), neutral(1)] = 3
    """Entities, of as many types, that bear one name: the more, the less a name alone finds."""
    unanswerable_fraction: Annotated[float, Field(ge=0.0, le=0.9), neutral(0.0)] = 0.3
    """Share of the sentences of X whose masked value no passage states: half are about names that Z lacks, half about
    nobody who is named ("this town"). Only X that is another corpus than Z has them."""
    syntax_fraction: Annotated[float, Field(ge=0.0, le=0.9), neutral(0.0)] = 0.1
    """Share of the other sentences of X in which an ordinary word is the salient span: the sentence alone tells it."""
    salient: Annotated[Literal["object", "both"], neutral("both")] = "object"
    """Which names of a sentence about a fact are salient: its value, or its subject as well, which no query tells."""
    asked_relations: Annotated[Literal["half", "all"], neutral("all")] = "half"
    """The relations of each type that training questions ask for; development and test ask for all."""
    question_articles: Annotated[Fraction, neutral(0.0)] = 0.2
    """Share of the throw-away passages that hold a question, so that its words are known before fine-tuning."""
    question_sentences: Annotated[Fraction, neutral(0.0)] = 0.1
    """Share of the sentences of X about facts that are a question and its answer, so that queries hold questions."""
    fillers_per_entity: NonNegative = 2
    """Passages of each article that hold no fact."""
    articles: Positive = 70_000
    """Throw-away articles from which the reader learns to copy in its warm start."""
    changed_fraction: Fraction = 0.5
    """Share of the facts that the corpus update changes (Guu, Table 4)."""
    restate_facts: Annotated[bool, neutral(False)] = False
    """Whether another passage of the same article states each fact again, in other words: where X is Z, evidence then
    exists outside the passage that a query comes from."""
    triples: Annotated[Literal["none", "half", "all", "both"], neutral("none")] = "none"
    """Facts that Z states as a triple, "kelbo | mayor | nofmez .", in place of a sentence: none, half of each entity's,
    or all. `both`: each fact in both forms, a passage each."""
    triple_cards: Annotated[bool, neutral(False)] = False
    """Whether the triples of an entity are one passage, and not each beside a sentence without a fact as others are."""
    bystanders: Annotated[Fraction, neutral(0.0)] = 0.0
    """Share of the sentences of X about facts that also name another entity of the subject's type, of which the same
    relations are known: before ("reporters from ... wrote") or behind ("says an old guide of ...")."""
    second_language: Annotated[Literal["none", "names_shared", "transliterated"], neutral("none")] = "none"
    """Of X, held-out sentences and questions: another word for each word, and every sentence backwards. Names and years
    are the same (names_shared), or in other letters, so that the languages share no wordpiece."""
    knowledge_language: Annotated[Literal["first", "second", "both"], neutral("first")] = "first"
    """The language of Z where there are two; `both`: each passage in each."""
    sentence_fraction: Annotated[float, Field(gt=0.0, le=1.0), neutral(1.0)] = 1.0
    """Share of the training sentences that X has, where it is another corpus than Z: few are a low resource."""
    pictures: Annotated[Literal["none", "facts", "captioned", "shuffled"], neutral("none")] = "none"
    """Facts that Z draws as pictures without a word (model.pictures reads them): none; each of the `facts` in place of
    its sentence; `captioned`, beside it, a passage each; or `shuffled`, each with a value that is drawn by lot, so that
    no passage tells a fact."""
    hops: Annotated[Literal[1, 2], neutral(1)] = 1
    """Facts that a question takes: one, or two, of which the first names whom the second is about: "who is the mayor of
    the birthplace of ...". Of each value that is an entity two facts are asked for."""
    world_seed: NonNegative | None = None
    """Seed of the world; empty: each run seed has a world of its own."""

    @model_validator(mode="before")
    @classmethod
    def _easy(cls, values: Any) -> Any:
        is_easy = isinstance(values, dict) and values.get("world") == "easy"
        return EASY_WORLD | values if is_easy else values


PageKind = Literal["list", "index", "outline", "disambiguation"]


class Files(Section):
    """Text files to read; formats are told apart by name and content."""

    knowledge: list[str] = []
    """Files of the knowledge corpus Z."""
    knowledge_updated: list[str] = []
    """Files of its later version, a corpus update (Guu, Table 4)."""
    pretrain: list[str] = []
    """Files of the pre-training corpus X, where it is not Z (Guu, section 4.3: CC-News)."""
    questions_train: list[str] = []
    """Questions to fine-tune on."""
    questions_dev: list[str] = []
    """Development questions: of the curves drawn during pre-training, and of `exact_match_dev`."""
    questions_test: list[str] = []
    """Questions of the final evaluation."""
    dev_split: Literal["none", "orqa"] = "orqa"
    """Development questions where questions_dev names none. `orqa`: the questions of questions_train whose text has
    hash 0 modulo 10, which are not trained on (code: create_data_splits, for all three data sets). `none`: there are
    none, and nothing can be chosen by them."""
    max_articles: Positive | None = None
    """Read only so many articles; empty: all."""
    max_train_questions: Positive | None = None
    """Keep only so many training questions; empty: all."""
    max_test_questions: Positive | None = None
    """Keep only so many test questions; empty: all."""
    picture_size: Annotated[int, Field(ge=16, le=512, multiple_of=16), neutral(64)] = 64
    """Pixels on a side to which image files are scaled; a passage has a wordpiece for each 16 x 16 of them."""
    drop_pages: Annotated[list[PageKind], neutral([])] = ["list", "index", "outline", "disambiguation"]
    """Kinds of pages to leave out, by their titles: "List of ...", "Index of ...", "Outline of ...",
    "... (disambiguation)" (code, of ORQA)."""

    @property
    def holds_out_dev(self) -> bool:
        """Whether some of questions_train are development questions."""
        return self.dev_split == "orqa" and bool(self.questions_train) and not self.questions_dev


class Corpus(Section):
    """Where text comes from and how it is cut (paper section 4.3)."""

    source: ChoiceField = Choice("files")
    """Text files (`files`: corpus.files), the embedded toy world (`toy`, with its options), or `package.module:Class`
    of your own, with its options."""
    pretrain_corpus: Literal["separate", "same"] = "same"
    """Whether X is another corpus than Z (Guu, section 4.3: CC-News) or the same (Wikipedia)."""
    passage_length: Annotated[int, Field(ge=8, le=512)] = 288
    """Wordpieces of a passage (Guu, section 4.3), its title and three specials included (code)."""
    sentence_length: Annotated[int, Field(ge=8, le=512)] = 64
    """Wordpieces of a query with its two specials (Guu is silent; code: 64 in the Inverse Cloze Task, 96 in its small
    example of pre-training)."""
    tagger: ChoiceField = Choice("rule")
    """Who finds salient spans: the source itself (`exact`), rules for names, dates and numbers (`rule`), or a token
    classifier and expressions for dates, `{name: model, folder: FOLDER}` (Guu, section 3.4: a BERT tagger trained on
    CoNLL-2003 and a regular expression; neither was released). Or `package.module:Class` of your own, with its
    options."""
    files: Files = Files()

    @property
    def has_dev_questions(self) -> bool:
        """Whether there are questions that something may be chosen by."""
        return self.source.name != "files" or bool(self.files.questions_dev) or self.files.holds_out_dev

    @model_validator(mode="after")
    def _tagger_fits(self) -> Corpus:
        if self.tagger.name == "exact" and self.source.name == "files":
            raise Contradiction(
                "tagger: exact spans exist only in the toy world; "
                "also set corpus.tagger to rule, or start from preset real",
                "tagger",
                "source",
            )
        if self.tagger.name == "model" and self.source.name == "toy":
            raise Contradiction(
                "tagger: model reads English, which the toy world does not speak; use tagger: exact", "tagger", "source"
            )
        if self.pretrain_corpus == "same" and self.files.pretrain:
            raise Contradiction(
                "pretrain_corpus: same ignores files.pretrain; set it to separate, or name no such files",
                "pretrain_corpus",
                "files.pretrain",
            )
        if self.source.name == "files" and self.pretrain_corpus == "separate" and not self.files.pretrain:
            raise Contradiction(
                "pretrain_corpus: separate needs files.pretrain; name its files, or set it to same",
                "pretrain_corpus",
                "files.pretrain",
                "source",
            )
        return self
