"""Turn Wikipedia's current events into the corpus of experiments/real_news_clozes.yaml.

    python examples/news_clozes.py EVENTS CLOZES [CLOZES ...] [--folder data/news]

EVENTS is a JSON-lines file of items {id, title, text, links: [[start, end, title], ...]}; CLOZES are JSON-lines files
of {id, cloze, answer, source_id, evidence_ids}, in which [MASK] replaces the answer. Four files are written:

questions_test.jsonl     the clozes that another item still answers once their source items and copies are taken out
questions_dev.jsonl      clozes made in the same way from links of other items, which are taken out as well
knowledge.jsonl          the items that are left; in some of them one link is marked, which pre-training masks
knowledge_random.jsonl   the same items, with a random span of as many words marked in the same sentence

Items are copies of each other if they share 40 % of the runs of four words of the shorter one; copies share an
article, so that `pretrain.exclude_trivial: article` never retrieves a copy of the item that a query comes from.
"""

import argparse
import json
import random
import re
from collections import Counter, defaultdict
from pathlib import Path

LEAST_SHARED = 0.4
COMMON_RUN = 50  # items; a run of words in more of them is a phrase, not a copy
RECURS = range(1, 21)  # other groups of copies that link the same words
WORDS_BEFORE = 3  # in the sentence: a reader of what is to the left needs some


def read(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]


def write(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    print(f"{path}: {len(records):,} records")


def groups_of_copies(items):
    """For each item the number of its group of copies."""
    runs, having = [], defaultdict(list)
    for number, item in enumerate(items):
        words = re.findall(r"\w+", item["text"].lower())
        runs.append({tuple(words[start : start + 4]) for start in range(len(words) - 3)})
        for run in runs[-1]:
            having[run].append(number)
    shared = Counter(
        (first, second)
        for numbers in having.values()
        if len(numbers) <= COMMON_RUN
        for place, second in enumerate(numbers)
        for first in numbers[:place]
    )
    group = list(range(len(items)))

    def root(number):
        while group[number] != number:
            group[number] = group[group[number]]
            number = group[number]
        return number

    for (first, second), count in shared.items():
        if count >= LEAST_SHARED * min(len(runs[first]), len(runs[second])):
            group[root(second)] = root(first)
    return [root(number) for number in range(len(items))]


def before(text, start):
    """Where the sentence of a character starts, roughly."""
    return max(text.rfind(mark, 0, start) + len(mark) if mark in text[:start] else 0 for mark in (". ", "? ", "! "))


def maskable(item, linked):
    """The links of an item that other groups link too, each with enough words before it in its sentence."""
    text = item["text"]
    return [
        (start, end)
        for start, end, _ in item["links"]
        if len(linked[text[start:end].lower()]) - 1 in RECURS
        and len(text[before(text, start) : start].split()) >= WORDS_BEFORE
    ]


def random_span(text, span, generator):
    """A span of as many words as the given one, anywhere in its sentence after the first words."""
    first = before(text, span[0])
    ends = [text.find(mark, span[1]) for mark in (". ", "? ", "! ")]
    last = min((end for end in ends if end >= 0), default=len(text.rstrip(".")))
    words = [match.span() for match in re.finditer(r"\w[\w'’.,-]*\w|\w", text[first:last])]
    count = min(len(text[slice(*span)].split()), len(words) - WORDS_BEFORE)
    start = generator.randrange(WORDS_BEFORE, len(words) - count + 1)
    return first + words[start][0], first + words[start + count - 1][1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("events")
    parser.add_argument("clozes", nargs="+")
    parser.add_argument("--folder", type=Path, default=Path("data/news"))
    parser.add_argument("--masked", type=int, default=4000, help="items with a marked link")
    parser.add_argument("--dev", type=int, default=600, help="development clozes")
    asked = parser.parse_args()
    items = read(asked.events)
    clozes = [(Path(path).name.split(".")[0], cloze) for path in asked.clozes for cloze in read(path)]
    number_of = {item["id"]: number for number, item in enumerate(items)}
    group, generator = groups_of_copies(items), random.Random(0)

    # Take out what the test clozes come from, and the same for development clozes, which spare the tests' evidence.
    taken = {group[number_of[cloze["source_id"]]] for _, cloze in clozes}
    spared = {group[number_of[one]] for _, cloze in clozes for one in cloze["evidence_ids"] if one in number_of}

    def links_of_what_is_left():
        linked = defaultdict(set)
        for item, own in zip(items, group, strict=True):
            for start, end, _ in item["links"] if own not in taken else ():
                linked[item["text"][start:end].lower()].add(own)
        return linked

    linked, dev = links_of_what_is_left(), []
    for number in generator.sample(range(len(items)), len(items)):
        item, spans = items[number], maskable(items[number], linked)
        if len(dev) < asked.dev and spans and group[number] not in taken | spared:
            taken.add(group[number])
            dev.append((item, generator.choice(spans)))
    linked = links_of_what_is_left()
    left = [(item, own) for item, own in zip(items, group, strict=True) if own not in taken]

    questions = [
        {
            "id": item["id"],
            "question": f"{item['text'][:start]}[MASK]{item['text'][end:]}",
            "answer": [item["text"][start:end]],
        }
        for item, (start, end) in dev
        if linked[item["text"][start:end].lower()]
    ]
    write(asked.folder / "questions_dev.jsonl", questions)
    ids = {item["id"] for item, _ in left}
    tests = [
        {"id": cloze["id"], "question": cloze["cloze"], "answer": [cloze["answer"]], "groups": [name]}
        for name, cloze in clozes
        if ids & set(cloze["evidence_ids"])
    ]
    write(asked.folder / "questions_test.jsonl", tests)

    can = [number for number, (item, _) in enumerate(left) if maskable(item, linked)]
    masked = set(generator.sample(can, min(asked.masked, len(can))))
    marked, at_random = [], []
    for number, (item, own) in enumerate(left):
        spans = [generator.choice(maskable(item, linked))] if number in masked else []
        given = {"id": item["id"], "title": item["title"], "text": item["text"], "article": f"group {own}"}
        marked.append(given | {"spans": [[*span, "link"] for span in spans]})
        drawn = [random_span(item["text"], span, generator) for span in spans]
        at_random.append(given | {"spans": [[*span, "random"] for span in drawn]})
    write(asked.folder / "knowledge.jsonl", marked)
    write(asked.folder / "knowledge_random.jsonl", at_random)


if __name__ == "__main__":
    main()
