"""Find salient spans, the words worth masking in a sentence (paper section 3.4: named entities and dates).

The paper's tagger is a BERT fine-tuned on CoNLL-2003, not released. The rule tagger here needs no model:
  date    an expression of `dates.py`;
  name    capitalised words in a row, with inner joiners ("Statue of Liberty", "Vincent van Gogh"), initials
          ("J. R. R. Tolkien"), titles before them ("Dr. Dre") and a number after them ("Super Bowl 50");
          "and" does not join;
  number  digits with separators, sign of currency, per cent, ordinal ending, and a magnitude ("$1.5 million").
Dates are found first, names in the rest, then numbers; within a kind the longest match wins.

The first word of a sentence is capitalised whatever it is. Function words ("The", "However") are never part of a name
there, except in capitals ("WHO"). Any other first word is part of a name if it is spelled unlike an ordinary word
("NASA", "McDonald"), or if the surrounding text has it capitalised inside a sentence. Otherwise it is skipped if no
capitalised word follows, or if the surrounding text has it in lower case. Inside a sentence a capitalised function
word belongs to the name it precedes ("The Who", "One Nation"), unless it starts with I ("In", "It").

On WikiGold's training part (109 Wikipedia documents; "name" against PER, LOC, ORG and MISC, exact boundaries):
precision 0.78, recall 0.86, F1 0.82 (0.81 without context). Most errors are titles of persons and works.

It misses names in lower case ("van Gogh" loses its "van" at the front), single-word names at the start of a
sentence that do not recur, and spelled numbers ("three"). It joins two names with "of" between them
("Duke of York of England"), and splits a name with a possessive ("Jehovah's | Witnesses"). Headlines in title case
become one span, adjectives of countries ("American") count as names, and "Windows 2000" yields a date.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Protocol

from realm_lab.engine.corpus.dates import DIGIT, find_dates
from realm_lab.engine.corpus.expressions import Expression, matches_from
from realm_lab.engine.corpus.records import Span
from realm_lab.errors import UserError
from realm_lab.records.files import digest, digest_file


class Tagger(Protocol):
    """Finds the salient spans of texts."""

    def tag_batch(self, texts: Sequence[str], contexts: Sequence[str]) -> list[tuple[Span, ...]]:
        """Return the spans of each text: sorted, not overlapping, exact offsets. `contexts`: the article of each text.

        The spans of a text may depend on the whole list: a model's scores differ, in the last bits, with other texts.
        """


MakeTagger = Callable[[], Tagger]  # can be pickled, so that each process makes its own tagger


def merge_spans(*groups: Iterable[Span]) -> tuple[Span, ...]:
    """Merge several lists of spans. Among overlapping spans the longest stays, and of equally long ones the span in the
    earlier list.

    So "1969 Mets" of a tagger wins over the date "1969", and the date "July 20, 1969" over a tagger's "July".
    """
    ranked = [(start - end, number, start, label) for number, group in enumerate(groups) for start, end, label in group]
    kept: list[Span] = []
    for minus_length, _, start, label in sorted(ranked):
        end = start - minus_length
        if all(end <= other.start or other.end <= start for other in kept):
            kept.append(Span(start, end, label))
    return tuple(sorted(kept))


def tagger_digest(name: Path | str) -> str:
    """Return SHA-256 of the files that decide how a folder tags: .json, .txt and .safetensors."""
    folder = Path(name)
    paths = sorted(path for path in folder.glob("*") if path.suffix in (".json", ".txt", ".safetensors"))
    if not (folder / "config.json").is_file() or not any(path.suffix == ".safetensors" for path in paths):
        problem = f"corpus.tagger: {folder} holds no config.json and safetensors"
        remedy = "name a Hugging Face token-classification folder with safetensors"
        raise UserError(problem, remedy, parameter="corpus.tagger")
    return digest({path.name: digest_file(path) for path in paths})


def rule_tagger(text: str, context: str = "") -> tuple[Span, ...]:
    """Return the salient spans of a text by the rules at the top of this file."""
    spans = [Span(start, end, "date") for start, end in find_dates(text)]
    rest = _without(text, spans)
    spans += [Span(start, end, "name") for start, end in _find_names(rest, context)]
    rest = _without(text, spans)
    if DIGIT.of(rest).search(rest):
        spans += [
            Span(match.start(), match.end(), "number") for match in matches_from(_BEGINNING_OF_NUMBER, _NUMBER, rest)
        ]
    return tuple(sorted(spans))


class RuleTagger:
    """Tags each text with the rules."""

    def tag_batch(self, texts: Sequence[str], contexts: Sequence[str]) -> list[tuple[Span, ...]]:
        return list(map(rule_tagger, texts, contexts))


class NoTags:
    """Tags nothing: only spans that documents list are salient. Training leaves out sentences without such a span."""

    def tag_batch(self, texts: Sequence[str], contexts: Sequence[str]) -> list[tuple[Span, ...]]:
        return [()] * len(texts)


_BLANK = r"[ \u00a0]"
# Iris, O'Brien, Franco-Prussian, AT&T, B-52, X.25, iPhone; never a possessive "'s"
_TAIL = r"[\p{L}\p{M}\p{N}]*(?:(?:['’](?!s(?![\p{L}\p{N}]))|[-\u2010-\u2014&/.](?=[\p{Lu}\p{N}]))[\p{L}\p{M}\p{N}]+)*"
_WORD = rf"(?:[\p{{Lu}}]{_TAIL}|[\p{{Ll}}]{{1,2}}[\p{{Lu}}][\p{{L}}]+)"
_INITIALS = r"(?:[\p{Lu}]\.)+"  # J.   U.S.
_TITLE = (
    r"(?:Mr|Mrs|Ms|Dr|Prof|Rev|Fr|Gen|Col|Maj|Capt|Lt|Sgt|Sen|Rep|Gov|Pres|Hon|St|Ste|Mt|Ft)\.(?=[ \u00a0][\p{Lu}])"
)
_SUFFIX = rf"(?:,?{_BLANK}(?:Jr|Sr)\.?(?![\p{{L}}\p{{N}}]))"
_JOINER = (
    r"(?:of|the|de|la|le|les|el|los|las|du|des|da|das|do|dos|di|del|della|delle|den|der|van|von|zu|zum|zur|ter|ten"
    r"|al|ad|bin|bint|ibn|ben|y|und|et|av|af|upon|sur|&)"
)
_PART = rf"(?:{_TITLE}|{_INITIALS}|{_WORD})"
_NAME = Expression(
    rf"{_PART}"
    rf"(?:{_BLANK}{_PART}|(?:{_BLANK}{_JOINER}){{1,3}}{_BLANK}{_PART}|{_SUFFIX})*"
    rf"(?:{_BLANK}\d{{1,3}}(?![\p{{L}}\p{{N}}%]|[.,:]\d|{_BLANK}?(?:per|million|billion)))?"
)
# The first capital of a name. The number of the last group is the number of small letters before it ("iPhone": 1).
_NO_WORD = r"(?<![\p{L}\p{M}\p{N}_])"
_CAPITAL = Expression(
    rf"[\p{{Lu}}](?:(?<={_NO_WORD}.)|(?<={_NO_WORD}[\p{{Ll}}].)()|(?<={_NO_WORD}[\p{{Ll}}][\p{{Ll}}].)())"
)
_JOINERS = Expression(rf"(?:{_JOINER}{_BLANK})+")
_KEEPS_DOT = Expression(r"(?:[\p{Lu}]\.[\p{Lu}]|Jr|Sr)\.$")
_NUMBER = Expression(
    r"(?:[$€£¥]|US\$)?\d+(?:,\d{3})*(?:\.\d+)?(?:st|nd|rd|th|%)?(?![\p{L}\p{M}\p{N}_])"
    r"(?:\s(?:hundred|thousand|million|billion|trillion|percent|per cent)(?![\p{L}]))*"
)
_BEGINNING_OF_NUMBER = Expression(r"[\d$€£¥U](?<![\p{L}\p{M}\p{N}_].)(?<!\d[.,:/].)")
_AT_START = Expression(r"(?:^[^\p{L}\p{N}]*|[.!?]['\"”’)\]]*\s+['\"“‘(\[]*|[\"“]|:\s)$")
_MID_SENTENCE = Expression(
    rf"[\p{{Lu}}](?:(?<=[\p{{Ll}}\p{{N}}]{_BLANK}.)|(?<=[\p{{Ll}}\p{{N}}],{_BLANK}.)){_TAIL}(?![\p{{L}}\p{{N}}])"
)
_LOWER = Expression(r"(?<![\p{L}\p{M}\p{N}'’-])[\p{Ll}][\p{L}\p{M}]*(?![\p{L}\p{M}\p{N}])")

# Capitalised at the start of a sentence, but no part of a name.
FUNCTION_WORDS = frozenset(
    """a about above across additionally after afterwards again against all almost along already also although always
    am among an and another any anyone are around as at away because before behind being below beneath beside besides
    between beyond both but by can clearly consequently conversely could currently despite did do does down due during
    each earlier eight either eleven elsewhere especially even eventually every everyone everything except few fewer
    finally first five following for formerly four from further furthermore generally given had has have he hence her
    here hers him his historically how however i i'd i'll i'm i've if in including indeed initially instead into is it
    it's its itself just last later lastly least less let like likewise many may maybe meanwhile might more moreover
    most much must my near nearly neither nevertheless next nine no nobody none nonetheless nor not notably nothing
    now of off often on once one only onto or originally other others our out over overall own particularly per perhaps
    previously rather recently regarding same second secondly seven several shall she should similarly since six
    so some someone something sometimes soon specifically still subsequently such ten than that that's the their them
    then there thereafter therefore these they third thirdly this those though three through throughout thus to today
    together toward towards traditionally twelve two typically under unlike until unusually up upon us usually very via
    was we were what whatever when whenever where whereas wherever whether which while who whom whose why will with
    within without would yes yet you your""".split()
)


@lru_cache(maxsize=16)
def seen_words(text: str) -> tuple[frozenset[str], frozenset[str]]:
    """Return two sets: the words capitalised inside a sentence (the text before them ends in a small letter or a digit,
    perhaps a comma, and a blank), which makes them parts of names, and the words in lower case."""
    capitalised, lower = _found_in_parts(_MID_SENTENCE, text.split(". ")), _found_in_parts(_LOWER, set(text.split()))
    return frozenset(capitalised), frozenset(lower)


def _found_in_parts(expression: Expression, parts: Iterable[str]) -> list[str]:
    """Return the matches of an expression in parts of a text. It must not match across the end of a part. Plain ASCII
    parts are searched separately, since that is faster."""
    plain: list[str] = []
    others: list[str] = []
    for part in parts:
        (plain if part.isascii() else others).append(part)
    return [found for text in (". ".join(plain), ". ".join(others)) for found in expression.of(text).findall(text)]


def _find_names(text: str, context: str) -> list[tuple[int, int]]:
    names = []
    search_start = _AT_START.of(text).search
    for found in matches_from(_CAPITAL, _NAME, text):
        start = found.start()
        is_within = text[start - 1 : start] == " " and text[start - 2 : start - 1].isalpha()  # the usual case
        if is_within or (start and not search_start(text, max(0, start - 8), start)):
            kept = _name_within(found[0])
        else:
            kept = _name_in(found[0], True, *seen_words(context))
        if kept is not None:
            names.append((start + kept[0], start + kept[1]))
    return names


@lru_cache(maxsize=1 << 16)
def _name_within(found: str) -> tuple[int, int] | None:
    """Return `_name_in` of a match inside a sentence, where it depends only on the words."""
    return _name_in(found, False, frozenset(), frozenset())


def _name_in(found: str, at_start: bool, capitalised: frozenset[str], lower: frozenset[str]) -> tuple[int, int] | None:
    """Return the part [start, end) of matched words that is a name; None if there is none."""
    words, start, end = found.replace("\u00a0", " "), 0, len(found)
    while start < end:
        blank = words.find(" ", start)
        blank = end if blank < 0 else blank
        word = found[start:blank]
        if word.lower().replace("’", "'") in FUNCTION_WORDS and (len(word) == 1 or not word.isupper()):
            ordinary = at_start or blank == end or word[0] == "I"
        elif at_start and not _spelled_like_a_name(word) and word not in capitalised:
            ordinary = blank == end or word.lower() in lower
        else:
            ordinary = False
        if not ordinary:
            break
        start = min(blank + 1, end)
        joiners = _JOINERS.of(found).match(found, start)  # joiners to drop at the front ("Because of the Alps")
        start = joiners.end() if joiners else start
        at_start = False
    if found[start:end].endswith(".") and not _KEEPS_DOT.of(found).search(found, start):  # the sentence's full stop
        end -= 1
    return (start, end) if sum(map(str.isalnum, found[start:end])) > 1 else None


def _spelled_like_a_name(word: str) -> bool:
    """True for NASA, U.S., McDonald, B-52 or iPhone: more than one capital or digit, or a lower-case start."""
    return sum(map(str.isupper, word)) + sum(map(str.isdigit, word)) > 1 or not word[0].isupper()


def _without(text: str, spans: Sequence[Span]) -> str:
    """The text with spans blotted out by as many NULs, so that no later match crosses them."""
    for start, end, _ in spans:
        text = text[:start] + "\0" * (end - start) + text[end:]
    return text
