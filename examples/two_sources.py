"""Make the files of experiments/two_sources.yaml: sentences of one source (X), passages of another (Z).

    python examples/two_sources.py --knowledge TEXT [TEXT ...] --texts TEXT [TEXT ...]

TEXT is a file in any format that realm_lab reads. The documents of Z are about their titles, as first paragraphs of
Wikipedia are. A sentence of X is used if it names a title of Z and has a span (by the rule tagger) that is also in the
passage with this title, and in at most 20 passages of Z. So X is not Z (section 4.3 of the paper), and sentences and
passages are about the same facts, as in T-REx (Elsahar et al. 2018). Written are

data/two_sources/knowledge.jsonl        Z
data/two_sources/pretrain.jsonl         the sentences of X, each with one such span marked, which pre-training masks
data/two_sources/questions_test.jsonl   sentences of two tenths of the articles, with [MASK] for the span
data/two_sources/questions_dev.jsonl    the same of another tenth, for choices such as a learning rate
"""

import argparse
import itertools
import json
import random
import re
import sys
from collections import defaultdict
from pathlib import Path

from realm_lab.engine.corpus.chunking import split_sentences
from realm_lab.engine.corpus.readers import input_files, read_documents
from realm_lab.engine.corpus.salient_spans import RuleTagger
from realm_lab.errors import UserError

FOLDER = Path("data/two_sources")
MOST_PASSAGES = 20  # that have a span: years and continents are in more
WORDS_BEFORE = 3  # before a span: a causal language model needs some
TITLE_WORDS = 6


def words_of(text):
    return re.findall(r"\w+", text.lower())


class Knowledge:
    """The passages of Z by their titles, and by their words."""

    def __init__(self, documents):
        self.documents, self.by_title, self._flat, self._having = documents, {}, [], defaultdict(set)
        for number, document in enumerate(documents):
            self.by_title.setdefault(document.title.partition(" (")[0], number)
            words = words_of(document.text)
            self._flat.append(f" {' '.join(words)} ")
            for word in words:
                self._having[word].add(number)

    def having(self, span):
        """The passages that have the words of a span in sequence."""
        words = words_of(span)
        found = set.intersection(*(self._having.get(word, set()) for word in words)) if words else set()
        return {number for number in found if f" {' '.join(words)} " in self._flat[number]}

    def named(self, sentence):
        """(start, end, passage) of each title of a passage that a sentence names, longest first."""
        words = [match.span() for match in re.finditer(r"\w+", sentence)]
        found = []
        for count in range(TITLE_WORDS, 0, -1):
            for (start, _), (_, end) in zip(words, words[count - 1 :], strict=False):
                number = self.by_title.get(sentence[start:end]) if sentence[start].isupper() else None
                if number is not None and all(end <= other[0] or other[1] <= start for other in found):
                    found.append((start, end, number))
        return found


def spans_asked(text, context, knowledge, tagger):
    """The spans of a sentence that are in a passage whose title it names, and in at most MOST_PASSAGES passages."""
    named = knowledge.named(text)
    if not named:
        return []
    found = []
    for start, end, _ in tagger.tag_batch([text], [context])[0]:
        if len(text[:start].split()) < WORDS_BEFORE or any(start < until and first < end for first, until, _ in named):
            continue
        having = knowledge.having(text[start:end])
        if len(having) <= MOST_PASSAGES and any(number in having for *_, number in named):
            found.append((start, end))
    return found


def write(name, records):
    FOLDER.mkdir(parents=True, exist_ok=True)
    lines = "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    (FOLDER / name).write_text(lines, encoding="utf-8")
    print(f"{FOLDER / name}: {len(records):,} records")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--knowledge", nargs="+", required=True)
    parser.add_argument("--texts", nargs="+", required=True)
    asked = parser.parse_args()
    knowledge = Knowledge([each for each in read_documents(input_files(*asked.knowledge)) if each.title])
    generator, tagger, by_article = random.Random(0), RuleTagger(), defaultdict(list)
    for document in read_documents(input_files(*asked.texts)):
        for number, (first, end) in enumerate(split_sentences(document.text)):
            text = document.text[first:end]
            if spans := spans_asked(text, document.text, knowledge, tagger):
                by_article[document.article].append((f"{document.id}/{number}", text, generator.choice(spans)))
    articles = sorted(by_article)
    if len(articles) < 10:
        sys.exit("sentences of fewer than ten articles name a title of Z and a span of its passage; give more texts")
    generator.shuffle(articles)
    tenth = len(articles) // 10
    for name, some in (("test", articles[: 2 * tenth]), ("dev", articles[2 * tenth : 3 * tenth])):
        write(
            f"questions_{name}.jsonl",
            [
                {"id": key, "question": f"{text[:start]}[MASK]{text[end:]}", "answer": [text[start:end]]}
                for article in some
                for key, text, (start, end) in by_article[article]
            ],
        )
    left = itertools.chain.from_iterable(by_article[article] for article in articles[3 * tenth :])
    write(
        "pretrain.jsonl",
        [{"id": key, "title": "", "text": text, "spans": [[*span, "link"]]} for key, text, span in left],
    )
    write("knowledge.jsonl", [{"id": each.id, "title": each.title, "text": each.text} for each in knowledge.documents])


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"two_sources.py: error: {error}")
