"""Make the files of experiments/real_news_clozes.yaml, or of a study like it, from texts.

    python examples/clozes.py --name NAME --texts TEXT [TEXT ...] [--clozes CLOZES ...]

TEXT is a file in any format that realm_lab reads. If it names salient spans, as JSON lines of {id, title, text, spans}
do (or `links`, as in Wikipedia's current events), each of its documents is an item. Other documents, such as plain
text, are cut into items of some sentences, and the rule tagger finds their spans. Written are

data/NAME/questions_test.jsonl    clozes: items with [MASK] for a span that other items have; they are taken out of the
                                  corpus with their copies. With --clozes (JSON lines of {id, cloze, answer, source_id,
                                  evidence_ids}) these clozes, if an item that supports the answer is left
data/NAME/questions_dev.jsonl     clozes made in the same way from further items, for choices such as a learning rate.
                                  `evidence_ids` are the items that support an answer: they have its span, and another
                                  span of the item that the cloze comes from
data/NAME/knowledge.jsonl         the items that are left; one span is marked in some of them, which pre-training masks
data/NAME/knowledge_random.jsonl  the same with a random span of as many words marked in the same sentence
experiments/NAME.yaml             real_news_clozes.yaml with these files; another study of this name is an error

Items are copies if they share 40 % of the runs of four words of the shorter one; copies share an article, so that
`pretrain.exclude_trivial: article` never retrieves a copy of the item that a query comes from.
"""

import argparse
import json
import random
import re
import sys
from collections import Counter, defaultdict
from pathlib import Path

from realm_lab.engine.corpus.chunking import split_sentences
from realm_lab.engine.corpus.readers import input_files, read_documents, register_shape
from realm_lab.engine.corpus.records import Document, Span
from realm_lab.engine.corpus.salient_spans import RuleTagger
from realm_lab.errors import UserError

LEAST_SHARED = 0.4
COMMON_RUN = 50  # items; a run of words in more of them is a phrase, not a copy
RECURS = range(1, 21)  # a span may be masked if this many other groups of copies have it
WORDS = 60  # the most in an item that is cut from a document
WORDS_BEFORE = 3  # before a span in its sentence: a causal language model needs some
EXPERIMENTS = Path(__file__).parents[1] / "experiments"


def linked(record, dropped):
    """An item of Wikipedia's current events: its links are its spans, labelled with the page."""
    spans = tuple(Span(*link) for link in record.field("links", list))
    yield Document(record.identity(), record.text("title"), record.field("text", str), record.identity(), spans=spans)


def pieces(document):
    """The items of a document: itself, if its spans are named, else some sentences each, with the tagger's spans."""
    if document.spans is not None:
        return [document]
    items, tagger = [], RuleTagger()
    for paragraph in document.text.split("\n"):
        texts = []
        for start, end in split_sentences(paragraph):
            sentence = paragraph[start:end]
            if texts and len(f"{texts[-1]} {sentence}".split()) <= WORDS:
                texts[-1] += f" {sentence}"
            else:
                texts.append(sentence)
        found = tagger.tag_batch(texts, [document.text] * len(texts))
        for text, spans in zip(texts, found, strict=True):
            items.append(document._replace(id=f"{document.id}/{len(items)}", text=text, spans=spans))
    return items


def read_items(texts):
    """The items of text files in any format that realm_lab reads."""
    register_shape(
        "linked_texts", {"text", "links"}, "{id, title, text, links: [[start, end, title]]}", documents=linked
    )
    return [item for document in read_documents(input_files(*texts)) for item in pieces(document)]


def read_lines(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]


def write(path, records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), encoding="utf-8")
    print(f"{path}: {len(records):,} records")


def groups_of_copies(items):
    """For each item the number of its group of copies."""
    runs, having = [], defaultdict(list)
    for number, item in enumerate(items):
        words = re.findall(r"\w+", item.text.lower())
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


def having_spans(items, group, taken):
    """Span -> the groups that have it, without the groups that are taken out."""
    having = defaultdict(set)
    for item, own in zip(items, group, strict=True):
        for start, end, _ in item.spans if own not in taken else ():
            having[item.text[start:end].lower()].add(own)
    return having


def sentence_start(text, place):
    """The approximate start of the sentence that has the character at `place`."""
    return max(text.rfind(mark, 0, place) + len(mark) if mark in text[:place] else 0 for mark in (". ", "? ", "! "))


def sentence_words(text, span):
    """The start and end of each word of a span's sentence."""
    first = sentence_start(text, span[0])
    ends = [text.find(mark, span[1]) for mark in (". ", "? ", "! ")]
    last = min((end for end in ends if end >= 0), default=len(text.rstrip(".")))
    words = re.finditer(r"\w[\w'’.,-]*\w|\w", text[first:last])
    return [(first + word.start(), first + word.end()) for word in words]


def is_free(text, start, end):
    """True if a span occurs once in its item, after enough words of its sentence."""
    same = re.finditer(rf"(?<!\w){re.escape(text[start:end])}(?!\w)", text, re.IGNORECASE)
    words = sentence_words(text, (start, end))
    before = sum(stop <= start for _, stop in words)
    return WORDS_BEFORE <= before < len(words) and all(match.start() == start for match in same)


def maskable(item, having):
    """The spans of an item that other groups have too, and that may be masked in a query."""
    recurring = [
        (start, end) for start, end, _ in item.spans if len(having[item.text[start:end].lower()]) - 1 in RECURS
    ]
    return [span for span in recurring if is_free(item.text, *span)]


def random_span(text, span, generator):
    """A span of as many words as the given one, anywhere in its sentence after the first words."""
    words = sentence_words(text, span)
    count = min(len(text[slice(*span)].split()), len(words) - WORDS_BEFORE)
    start = generator.randrange(WORDS_BEFORE, len(words) - count + 1)
    return words[start][0], words[start + count - 1][1]


def take_clozes(items, group, taken, spared, count, generator):
    """Up to `count` clozes of items that are then taken out with their copies."""
    having, found = having_spans(items, group, taken), []
    for number in generator.sample(range(len(items)), len(items)):
        spans = maskable(items[number], having)
        if len(found) < count and spans and group[number] not in taken | spared:
            taken.add(group[number])
            found.append((items[number], generator.choice(spans)))
    return found


def words_of_spans(item):
    return {item.text[start:end].lower() for start, end, _ in item.spans}


def questions_of(clozes, left):
    """Questions from the clozes whose answer is a span of an item in `left`, with the items that support the answer."""
    spans = {item.id: words_of_spans(item) for item, _ in left}
    questions = []
    for item, (start, end) in clozes:
        answer = item.text[start:end]
        having = [other for other, words in spans.items() if answer.lower() in words]
        others = words_of_spans(item) - {answer.lower()}
        if having:
            question = f"{item.text[:start]}[MASK]{item.text[end:]}"
            evidence = [other for other in having if spans[other] & others]
            questions.append({"id": item.id, "question": question, "answer": [answer], "evidence_ids": evidence})
    return questions


def study_of(name, model, folder):
    """The path and the text of the study `name`: the study `model` with the files of data/NAME for data/FOLDER;
    None if both folders are the same. UserError: there is another study of this name."""
    if name == folder:
        return None
    path, model_path = Path("experiments") / f"{name}.yaml", EXPERIMENTS / f"{model}.yaml"
    settings = model_path.read_text(encoding="utf-8").split("\nquestion:", 1)[1]  # the lines before are about the news
    text = f"# {model_path.name} on data/{name}; its first lines explain the variants.\nquestion:{settings}"
    text = text.replace(f"data/{folder}/", f"data/{name}/")
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise UserError("another study", "choose another --name", path=path)
    return path, text


def write_study(study):
    """Write what `study_of` returned."""
    if study:
        path, text = study
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"{path}: run it with `realm-lab sweep {path.stem}`")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", required=True)
    parser.add_argument("--texts", nargs="+", required=True)
    parser.add_argument("--clozes", nargs="*", default=[])
    parser.add_argument("--masked", type=int, default=4000, help="items with a marked span, at most")
    parser.add_argument("--test", type=int, default=600, help="test clozes, at most and at most a tenth of the items")
    parser.add_argument("--dev", type=int, default=600, help="development clozes, the same")
    asked = parser.parse_args()
    study = study_of(asked.name, "real_news_clozes", "news")
    items = read_items(asked.texts)
    group, generator, folder = groups_of_copies(items), random.Random(0), Path("data") / asked.name
    clozes = [(Path(path).name.split(".")[0], cloze) for path in asked.clozes for cloze in read_lines(path)]

    # Take out the items of the test clozes, then items for development clozes, but no evidence of the tests.
    number_of = {item.id: number for number, item in enumerate(items)}
    for _, cloze in clozes:
        if cloze["source_id"] not in number_of:
            raise UserError(f"--clozes: no item of --texts has the id '{cloze['source_id']}'", "name its texts as well")
    taken = {group[number_of[cloze["source_id"]]] for _, cloze in clozes}
    spared = {group[number_of[one]] for _, cloze in clozes for one in cloze["evidence_ids"] if one in number_of}
    most = len(items) // 10
    own = [] if clozes else take_clozes(items, group, taken, spared, min(asked.test, most), generator)
    dev = take_clozes(items, group, taken, spared, min(asked.dev, most), generator)
    having = having_spans(items, group, taken)
    left = [(item, own) for item, own in zip(items, group, strict=True) if own not in taken]
    ids = {item.id for item, _ in left}
    tests = questions_of(own, left)
    for name, cloze in clozes:
        if evidence := [one for one in cloze["evidence_ids"] if one in ids]:
            asked_of = {"id": cloze["id"], "question": cloze["cloze"], "answer": [cloze["answer"]]}
            tests.append(asked_of | {"groups": [name], "evidence_ids": evidence})
    if not (tests and dev):
        recurs = f"{RECURS[0]} to {RECURS[-1]}"
        sys.exit(f"no span is in {recurs} other items; choose texts that repeat names, or cut them into paragraphs")
    write(folder / "questions_dev.jsonl", questions_of(dev, left))
    write(folder / "questions_test.jsonl", tests)

    # Mark a span in some of the items that are left.
    can = [number for number, (item, _) in enumerate(left) if maskable(item, having)]
    masked = set(generator.sample(can, min(asked.masked, len(can))))
    marked, at_random = [], []
    for number, (item, own_group) in enumerate(left):
        spans = [generator.choice(maskable(item, having))] if number in masked else []
        given = {"id": item.id, "title": item.title, "text": item.text, "article": f"group {own_group}"}
        marked.append(given | {"spans": [[*span, "link"] for span in spans]})
        drawn = [random_span(item.text, span, generator) for span in spans]
        at_random.append(given | {"spans": [[*span, "random"] for span in drawn]})
    write(folder / "knowledge.jsonl", marked)
    write(folder / "knowledge_random.jsonl", at_random)
    write_study(study)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.exit(f"clozes.py: error: {error}")
