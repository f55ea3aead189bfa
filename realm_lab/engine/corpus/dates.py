"""Expressions for dates (the paper: "a regular expression to identify dates", which was not released).

    ISO and numeric   1969-07-20   1969/7/20   20/07/1969   7.20.1969
    day and month     12 March   12th of March   12-14 March   March 12   March 12th
      with a year     12 March 1912   12th of March, 1912   March 12, 1912   March 12-14, 1912
    month or season   July 1969   July, 1969   July of 1969   summer of 1969   Spring 2010
    years             1969   1914-1918   1914-18   1997/98
    decades           1960s   1960's   '60s   mid-1960s (without "mid-")
    centuries         19th century   19th-century   nineteenth century   5th century BC   4th to 6th centuries
    eras              44 BC   44 B.C.   800-700 BCE   AD 70   A.D. 70   70 AD   476 CE   c. 300 BC (without "c.")

Months may be shortened (Jan., Sept) and any dash will do for "-". A bare year is a number from 1000 to 2099 that is
not part of a longer number, not money and not followed by a unit ("1500 km", "2000 people").
Missed: bare months and weekdays (which the tagger takes for names), "yesterday", "Christmas" in "Christmas 1914",
times of day, years below 1000 without an era. Found by mistake: counts of things not in _UNIT ("2000 chickens").
"""

from __future__ import annotations

from realm_lab.engine.corpus.expressions import Expression, matches_from

_DASH = r"[-\u2010-\u2015]"
_MONTH = (
    r"(?:Jan(?:uary|\.)?|Feb(?:ruary|\.)?|Mar(?:ch|\.)?|Apr(?:il|\.)?|May|June?|Jun\.|July?|Jul\.|Aug(?:ust|\.)?"
    r"|Sept?(?:ember|\.)?|Oct(?:ober|\.)?|Nov(?:ember|\.)?|Dec(?:ember|\.)?)(?![\p{L}\p{N}])"
)
_DAY = r"(?:3[01]|[12]\d|0?[1-9])"
_DAYS = rf"{_DAY}(?:st|nd|rd|th)?(?:\s?{_DASH}\s?{_DAY}(?:st|nd|rd|th)?)?"
_YEAR = r"(?:1\d{3}|20\d{2})"
_ERA = r"(?:B\.\s?C\.\s?E\.|B\.\s?C\.|A\.\s?D\.|C\.\s?E\.|BCE|BC|AD|CE)"
_ORDINALS = (
    r"first|second|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth|eleventh|twelfth|thirteenth|fourteenth"
    r"|fifteenth|sixteenth|seventeenth|eighteenth|nineteenth|twentieth|twenty-first"
)
_ORDINAL = rf"(?:\d{{1,2}}(?:st|nd|rd|th)|{_ORDINALS})"
_SEASON = r"(?:[Ss]pring|[Ss]ummer|[Aa]utumn|[Ff]all|[Ww]inter)"
_UNIT = (
    r"(?:%|per\s?cent|percent|km²?|kilomet|met(?:er|re)s?|m²?|ft|feet|mi|miles?|cm|mm|kg|g|lb|tons?|tonnes?|pounds?"
    r"|acres?|hectares?|ha|square|cubic|mph|kW|MW|GW|Hz|kHz|MHz|GHz|K|hours?|minutes?|seconds?|days?|years?|people"
    r"|persons?|men|women|children|students?|soldiers?|troops|inhabitants|residents|families|copies|seats|species"
    r"|dollars?|euros?|million|billion|thousand)"
)

# Alternatives from the most to the least specific: the first that matches at a position is the longest.
_ALTERNATIVES = (
    rf"{_YEAR}(?P<separator>[-/])(?:1[0-2]|0?[1-9])(?P=separator){_DAY}",
    rf"{_DAY}(?P<mark>[-/.]){_DAY}(?P=mark){_YEAR}",
    rf"{_DAYS}\s(?:of\s)?{_MONTH},?\s(?:of\s)?{_YEAR}",
    rf"{_MONTH}\s{_DAYS},?\s{_YEAR}",
    rf"{_MONTH}(?:\s{_DASH}\s?|{_DASH}){_MONTH},?\s{_YEAR}",
    rf"{_MONTH},?\s(?:of\s)?{_YEAR}(?!{_DASH}?\d|s)",
    rf"{_SEASON}\s(?:of\s)?{_YEAR}(?!\d|s)",
    rf"{_DAYS}\s(?:of\s)?{_MONTH}",
    rf"{_MONTH}\s{_DAYS}(?![,.]?\d)",
    rf"\d{{1,4}}(?:\s?{_DASH}\s?\d{{1,4}})?\s?{_ERA}",
    r"(?:A\.\s?D\.|AD)\s?\d{1,4}",
    rf"{_ORDINAL}(?:\s?(?:{_DASH}|to|and|or)\s?(?:the\s)?{_ORDINAL})?[-\s][Cc]entur(?:y|ies)(?:\s{_ERA})?",
    rf"(?:1\d{{2}}|20\d)0['’]?s(?:\s?{_ERA})?",
    r"['’]\d0s",
    rf"{_YEAR}\s?{_DASH}\s?{_YEAR}",
    rf"{_YEAR}(?:{_DASH}|/)\d{{2}}",
    rf"{_YEAR}(?!\s?{_UNIT}(?![\p{{L}}\p{{N}}]))",
)
_DATE = Expression(rf"(?:{'|'.join(_ALTERNATIVES)})(?![\p{{L}}\p{{N}}]|[.,]\d)")


def _beginning(words: str) -> Expression:
    """Return an expression for the characters that a date may start with: a digit, an apostrophe, or one of `words`.
    It matches neither inside a word or a longer number, nor after a sign of currency or a #."""
    first, rest = "".join({word[0] for word in words.split("|")}), "|".join(word[1:] for word in words.split("|"))
    return Expression(rf"[\d'’{first}](?<![\p{{L}}\p{{N}}$€£¥#].)(?<!\d[.,].)(?:(?<=[\d'’])|{rest})")


_WORDS = (
    r"A\.|AD|Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec"
    r"|spring|summer|autumn|fall|winter|Spring|Summer|Autumn|Fall|Winter"
)
_BEGINNING, _BEGINNING_OF_ANY = _beginning(_WORDS), _beginning(f"{_WORDS}|{_ORDINALS}")
DIGIT = Expression(r"\d")


def find_dates(text: str) -> list[tuple[int, int]]:
    """Character offsets (start, end) of the date expressions of `text`, in order, not overlapping."""
    if "entur" in text:
        beginning = _BEGINNING_OF_ANY
    elif DIGIT.of(text).search(text):  # all dates but centuries have a digit; most sentences have none
        beginning = _BEGINNING
    else:
        return []
    return [found.span() for found in matches_from(beginning, _DATE, text)]
