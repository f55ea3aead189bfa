"""Make the files of experiments/real_entities.yaml, or of a study like it: clozes about entities that other items name
in other words.

    python examples/entities.py --name NAME --texts TEXT [TEXT ...]

TEXT is a file in any format that realm_lab reads. The entity of a span is its label: the page of a link, as in
{id, title, text, links: [[start, end, page]]}, or the label of {id, title, text, spans: [[start, end, label]]}. Without
spans an entity is a name: the rule tagger finds names, and one that starts or ends exactly one longer name ("Macron",
"Emmanuel Macron") means the same. A mention is a span of an entity that 1 to 20 other items have (copies count as
one), all under other words: "Paris Saint-Germain FC", where they have "Paris Saint-Germain". No passage that
supports a mention holds its words, so only a model that reads can find such a passage. Written are

data/NAME/questions_test.jsonl   items with [MASK] for a mention; they are taken out of the corpus with their copies.
                                 `evidence_ids` are the items that are left and have its entity. The group of a question
                                 is `elsewhere` if another item has its words, for another entity or unmarked, else
                                 `nowhere`
data/NAME/questions_dev.jsonl    the same of other entities, for choices such as a learning rate
data/NAME/knowledge.jsonl        the items that are left. Mentions of further entities are marked, which pre-training
                                 masks: those of the group `nowhere`, one per sentence
data/NAME/evidence.jsonl         {sentence, evidence_ids} of the marked mentions, for experiments/evidence.py
experiments/NAME.yaml            real_entities.yaml with these files; another study of this name is an error
"""

import argparse
import random
import sys
import unicodedata
from collections import defaultdict
from pathlib import Path

from clozes import (
    RECURS,
    groups_of_copies,
    is_free,
    read_items,
    study_of,
    write,
    write_study,
)

from realm_lab.engine.corpus.chunking import split_sentences
from realm_lab.errors import UserError

NAME = "name"
TAGGED = {NAME, "date", "number"}  # the rule tagger's labels


def with_entities(items):
    """The items with their names as spans, labelled with the entity in place of the rule tagger's label."""
    names = {item.text[start:end].lower() for item in items for start, end, label in item.spans if label == NAME}
    longer = defaultdict(set)
    for name in names:
        words = name.split()
        for count in range(1, len(words)):
            longer[" ".join(words[:count])].add(name)
            longer[" ".join(words[-count:])].add(name)

    def entity(name):
        return next(iter(longer[name])) if len(longer[name]) == 1 else name

    for item in items:
        named = [span for span in item.spans if span.label == NAME]
        yield item._replace(spans=tuple(s._replace(label=entity(item.text[s.start : s.end].lower())) for s in named))


def plain(text):
    """A text in lower case without accents, as BERT reads it."""
    return "".join(c for c in unicodedata.normalize("NFD", text.lower()) if not unicodedata.combining(c))


class Entities:
    """Items of a corpus by entity; the copies of an item are one group."""

    def __init__(self, items, group):
        self.items, self.group, self._text = items, group, [plain(item.text) for item in items]
        self.having = defaultdict(set)  # entity -> numbers of items
        for number, item in enumerate(items):
            for span in item.spans:
                self.having[span.label].add(number)

    def mentions(self):
        """(number of the item, start, end, entity) of each mention."""
        for number, item in enumerate(self.items):
            for start, end, entity in item.spans:
                others, words = self.others(number, entity), plain(item.text[start:end])
                is_new = not any(words in self._text[other] for other in others)
                if len({self.group[other] for other in others}) in RECURS and is_new and is_free(item.text, start, end):
                    if sum(span.label == entity for span in item.spans) == 1:  # else the item has a second name for it
                        yield number, start, end, entity

    def others(self, number, entity):
        """The items that have an entity, except the item `number` and its copies."""
        return [other for other in self.having[entity] if self.group[other] != self.group[number]]

    def holds(self, words, but=None):
        """True if an item that is not in the group `but` holds the words."""
        texts, words = zip(self._text, self.group, strict=True), plain(words)
        return any(words in text for text, own in texts if own != but)


def take(known, entities, taken, used, count, generator):
    """Up to `count` mentions of entities that are not used. The groups of these mentions are taken out, but at least
    one other group is left for each used entity."""
    left, found = defaultdict(set), []  # entity -> groups
    for entity, numbers in known.having.items():
        left[entity] = {known.group[number] for number in numbers} - taken
    within = defaultdict(set)  # group -> entities
    for entity, groups in left.items():
        for own in groups:
            within[own].add(entity)
    for entity in [entity for entity in entities if entity not in used]:
        for mention in generator.sample(entities[entity], len(entities[entity])):
            own = known.group[mention[0]]
            asked = {one for one in within[own] if one in used} | {entity}
            if len(found) < count and own not in taken and all(len(left[one]) > 1 for one in asked):
                taken.add(own)
                used.add(entity)
                found.append(mention)
                for one in within[own]:
                    left[one].discard(own)
    return found


def sentence_of(text, start, end):
    """The sentence that a span lies in; None if it crosses a boundary."""
    return next((text[a:b] for a, b in split_sentences(text) if a <= start and end <= b), None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True)
    parser.add_argument("--texts", nargs="+", required=True)
    parser.add_argument(
        "--test", type=int, default=600, help="test clozes, at most and at most a third of the mentions"
    )
    parser.add_argument("--dev", type=int, default=300, help="development clozes, the same with a sixth")
    asked = parser.parse_args()
    study, generator = study_of(asked.name, "real_entities", "entities"), random.Random(0)
    items = read_items(asked.texts)
    if all(span.label in TAGGED for item in items for span in item.spans):
        items = [*with_entities(items)]
    known = Entities(items, groups_of_copies(items))
    mentions = [*known.mentions()]
    by_entity = defaultdict(list)
    for mention in mentions:
        by_entity[mention[3]].append(mention)
    print(
        f"{len(mentions):,} mentions, {len({number for number, *_ in mentions}):,} items, {len(by_entity):,} entities"
    )

    # Take out the items of the clozes. No entity is in two of test, development and training.
    order, taken, used = generator.sample(sorted(by_entity), len(by_entity)), set(), set()
    parts = {}
    for split, most in (("test", min(asked.test, len(mentions) // 3)), ("dev", min(asked.dev, len(mentions) // 6))):
        parts[split] = take(known, {name: by_entity[name] for name in order}, taken, used, most, generator)
    left = [number for number, own in enumerate(known.group) if own not in taken]
    remaining = Entities([items[number] for number in left], [known.group[number] for number in left])
    marked, sentences = defaultdict(list), {None}  # item -> its sentences with a mention
    for number, start, end, entity in generator.sample(found := [*remaining.mentions()], len(found)):
        text = remaining.items[number].text
        sentence, is_used = sentence_of(text, start, end), entity in used
        if sentence in sentences or is_used or remaining.holds(text[start:end], but=remaining.group[number]):
            continue
        sentences.add(sentence)
        marked[number].append((sentence, start, end, entity))
    if not (parts["test"] and parts["dev"] and any(marked.values())):
        sys.exit("too few entities have two names; choose more texts on the same things, or texts with links")

    def ids(entity, number=None):
        """The ids of the items that are left and have an entity, without the item `number` and its copies if given."""
        numbers = remaining.having[entity] if number is None else remaining.others(number, entity)
        return [remaining.items[other].id for other in sorted(numbers)]

    folder = Path("data") / asked.name
    for split, clozes in parts.items():
        records = []
        for number, start, end, entity in clozes:
            text, where = (
                items[number].text,
                "elsewhere" if remaining.holds(items[number].text[start:end]) else "nowhere",
            )
            question = {"id": items[number].id, "question": f"{text[:start]}[MASK]{text[end:]}"}
            records.append(question | {"answer": [text[start:end]], "groups": [where], "evidence_ids": ids(entity)})
        write(folder / f"questions_{split}.jsonl", records)
    knowledge, evidence = [], []
    for number, (item, own) in enumerate(zip(remaining.items, remaining.group, strict=True)):
        spans = [[start, end, "mention"] for _, start, end, _ in sorted(marked[number], key=lambda one: one[1])]
        given = {"id": item.id, "title": item.title, "text": item.text, "article": f"group {own}"}
        knowledge.append(given | {"spans": spans})
        evidence += [{"sentence": one, "evidence_ids": ids(entity, number)} for one, _, _, entity in marked[number]]
    write(folder / "knowledge.jsonl", knowledge)
    write(folder / "evidence.jsonl", evidence)
    write_study(study)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"entities.py: error: {error}")
