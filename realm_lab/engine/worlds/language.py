"""The toy world's language: entity types, relations, how a fact may be worded, and the syllables of names.

Each relation has two encyclopedia wordings (Z), three news wordings (X) that share no content words with them, and a
question in either style. If its value is an entity, it also has a description of this entity in either style. Only a
retriever that has learned which wordings mean the same can single out the passage with the fact of a masked news
sentence.
"""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from realm_lab.engine.core.seeding import derive_seed, numpy_generator


class Relation(NamedTuple):
    """One relation: its value, and its wordings with {s} subject and {o} object."""

    name: str
    value: str  # an entity type, "year", or "pool:NAME" for a closed pool of names
    encyclopedia: tuple[str, str]
    news: tuple[str, str, str]
    question_encyclopedia: str
    question_news: str
    described: tuple[str, ...]  # of the value, if it is an entity, in the two styles of questions; without new words


SYLLABLES = 96  # syllables that start names, and as many that follow; few, so that each is frequent
POOL_SIZE = 40
POOLS = ("currency", "language", "river", "team", "instrument", "product")

# Each type has its relations as "name: value". Each relation has seven wordings, and two descriptions of its value if
# that is an entity.
_WORDINGS = """
country
  capital: city
    the capital of {s} is {o} . | {o} serves as the capital city of {s} .
    the seat of government of {s} lies in {o} | ministers of {s} assemble every spring at {o}
    lawmakers governing {s} gather in {o}
    what is the capital of {s} ? | where does the government of {s} assemble ?
    the capital of {s} | the city where ministers of {s} assemble
  president: person
    the president of {s} is {o} . | {o} holds the office of president in {s} .
    the nation {s} is now led by {o} | voters across {s} chose {o} as their leader
    {o} won the election and rules {s}
    who is the president of {s} ? | who was chosen as leader by voters of {s} ?
    the president of {s} | the leader chosen by voters of {s}
  currency: pool:currency
    the currency of {s} is the {o} . | the {o} is the official currency in {s} .
    shops in {s} accept only the {o} | merchants of {s} price goods in {o}
    workers get their wages in {o} throughout {s}
    what is the currency of {s} ? | in what are wages paid throughout {s} ?
  language: pool:language
    the national language of {s} is {o} . | {o} is the language spoken in {s} .
    children in {s} grow up hearing {o} | newspapers of {s} are printed in {o} | schools across {s} teach in {o}
    which language is spoken in {s} ? | in what are newspapers of {s} printed ?
  river: pool:river
    the longest river of {s} is the {o} . | the {o} is the main river flowing through {s} .
    farmers of {s} water their fields from the {o} | barges cross {s} along the {o} | floods of the {o} hit {s} again
    what is the longest river of {s} ? | from where do farmers of {s} water their fields ?
  independence: year
    {s} became independent in {o} . | the independence of {s} dates from {o} .
    {s} broke away from its rulers in {o} | people of {s} celebrate their freedom since {o}
    the flag of {s} was first raised in {o}
    when did {s} become independent ? | since when do people of {s} celebrate their freedom ?
city
  mayor: person
    the mayor of {s} is {o} . | {o} is the elected mayor of {s} .
    the town hall of {s} is run by {o} | {o} heads the council at {s} | citizens of {s} put {o} in charge
    who is the mayor of {s} ? | who heads the council at {s} ?
    the mayor of {s} | the leader of the council at {s}
  employer: company
    the largest employer in {s} is {o} . | {o} is the biggest employer of {s} .
    half of the jobs around {s} come from {o} | most families at {s} depend on {o} | {o} pays most salaries near {s}
    what is the largest employer in {s} ? | on whom do most families at {s} depend ?
    the largest employer in {s} | the firm on whom most families at {s} depend
  twin: city
    the twin town of {s} is {o} . | {s} has been twinned with the town {o} .
    {s} exchanges pupils every summer with {o} | a friendship treaty binds {s} and {o}
    choirs travel between {s} and its partner {o}
    what is the twin town of {s} ? | with whom does {s} exchange pupils ?
    the twin town of {s} | the town with whom {s} exchanges pupils
  architect: person
    the architect of the cathedral in {s} was {o} . | the cathedral of {s} is by the architect {o} .
    the great dome at {s} was drawn by {o} | {o} planned the tall church towers at {s}
    plans for the church at {s} came from {o}
    who was the architect of the cathedral in {s} ? | who planned the tall church towers at {s} ?
    the architect of the cathedral in {s} | the official who planned the tall church towers at {s}
  team: pool:team
    the football team of {s} is called {o} . | the team playing football in {s} is {o} .
    fans from {s} cheer for {o} | the stadium at {s} is home to {o} | supporters at {s} sing for {o}
    what is the football team of {s} called ? | for whom do fans from {s} cheer ?
  settled: year
    {s} was founded as a settlement in {o} . | the founding of the settlement {s} was in {o} .
    the first houses at {s} went up in {o} | the oldest walls at {s} carry the date {o}
    pioneers arrived at {s} in {o}
    when was {s} founded as a settlement ? | when did pioneers arrive at {s} ?
person
  birthplace: city
    {s} was born in {o} . | the birthplace of {s} is {o} .
    {s} spent the earliest childhood days in {o} | the cradle of {s} stood in {o} | {s} comes originally from {o}
    where was {s} born ? | where does {s} come from originally ?
    the birthplace of {s} | the town {s} comes from originally
  spouse: person
    {s} is married to {o} . | the spouse of {s} is {o} .
    {s} exchanged wedding rings with {o} | {s} shares home and life with {o} | guests danced when {s} wed {o}
    who is the spouse of {s} ? | with whom does {s} share home and life ?
    the spouse of {s} | the partner with whom {s} shares home and life
  workplace: company
    {s} is employed by {o} . | {s} has an employment contract at {o} .
    {s} earns a living at {o} | every morning {s} drives to the offices of {o} | {s} got a promotion from {o}
    by whom is {s} employed ? | where does {s} earn a living ?
    the employer of {s} | the firm where {s} earns a living
  teacher: person
    {s} was a student of {o} . | the academic teacher of {s} was {o} .
    {s} learned everything from {o} | {o} trained the young {s} | {s} owes all skill to the mentor {o}
    who was the academic teacher of {s} ? | from whom did {s} learn everything ?
    the academic teacher of {s} | the mentor from whom {s} learned everything
  instrument: pool:instrument
    {s} plays the musical instrument {o} . | the musical instrument of {s} is the {o} .
    {s} performed a solo on the {o} | the audience loves how {s} handles the {o} | {s} practises daily on a {o}
    which musical instrument does {s} play ? | on what did {s} perform a solo ?
  birthyear: year
    the year of birth of {s} is {o} . | {s} has the birth year {o} .
    {s} came into the world in {o} | the mother of {s} welcomed her baby in {o} | the age of {s} is counted from {o}
    what is the year of birth of {s} ? | when did {s} come into the world ?
company
  headquarters: city
    the headquarters of {s} are in {o} . | {s} has its headquarters located in {o} .
    managers of {s} moved their desks to {o} | the glass tower of {s} rises above {o} | the board of {s} meets at {o}
    where are the headquarters of {s} ? | where does the board of {s} meet ?
    the headquarters city of {s} | the city where the board of {s} meets
  founder: person
    the founder of {s} was {o} . | {s} was established by the founder {o} .
    {o} started {s} in a garage | {s} began as an idea of {o} | with little money {o} created {s}
    who was the founder of {s} ? | who started {s} in a garage ?
    the founder of {s} | the official who started {s} in a garage
  rival: company
    the main competitor of {s} is {o} . | {s} has {o} as its chief competitor .
    {s} fights for customers against {o} | a price war broke out between {s} and {o} | {s} fears losing buyers to {o}
    who is the main competitor of {s} ? | against whom does {s} fight for customers ?
    the main competitor of {s} | the firm against whom {s} fights for customers
  supplier: company
    the principal supplier of {s} is {o} . | {o} acts as supplier of parts for {s} .
    trucks bring steel to {s} from {o} | {s} buys raw materials from {o} | deliveries to {s} are sent by {o}
    who is the principal supplier of {s} ? | from whom does {s} buy raw materials ?
    the principal supplier of {s} | the firm from whom {s} buys raw materials
  product: pool:product
    the best known product of {s} is the {o} . | {s} manufactures a product called {o} .
    factories of {s} turn out the {o} | {s} advertises its new {o} | customers queue when {s} sells the {o}
    what is the best known product of {s} ? | what do factories of {s} turn out ?
  established: year
    {s} was incorporated as a firm in {o} . | the incorporation of {s} took place in {o} .
    {s} opened for business in {o} | the first invoice from {s} is dated {o} | {s} signed its first deal in {o}
    when was {s} incorporated as a firm ? | when did {s} open for business ?
"""

# A filler states no fact that is asked for, but names another entity of the same type, so it is a hard negative.
_FILLERS = """
country | {s} shares a border with {f} . | {s} is slightly larger than {f} . |
    {s} is often compared with {f} . | travellers visit {s} before {f} .
city | {s} lies on the road to {f} . | {s} is older than nearby {f} . |
    a railway connects {s} with {f} . | {s} has a warmer climate than {f} .
person | {s} once met {f} at a fair . | {s} is taller than {f} . |
    {s} wrote many letters to {f} . | {s} is a neighbour of {f} .
company | {s} has more offices than {f} . | {s} once sued {f} in court . |
    {s} shares a warehouse with {f} . | {s} hired engineers away from {f} .
"""

# Subjects without a name, in words that other wordings have.
UNNAMED = {"country": "this nation", "city": "this town", "person": "this neighbour", "company": "this firm"}

# Endings of news sentences.
_TAILS = """
according to a report . | as everybody knows . | to this day . | without any doubt . | says an old guide .
reporters wrote on monday . | officials confirmed today . | it was announced . | despite many rumours .
as stated last week . | after a long debate . | the radio said .
"""


def _parts(text: str) -> list[str]:
    return [part.strip() for line in text.strip().split("\n") for part in line.split("|") if part.strip()]


def _relations(text: str) -> dict[str, tuple[Relation, ...]]:
    found: dict[str, tuple[Relation, ...]] = {}
    for kind in re.split(r"^(?=\w)", text.strip(), flags=re.MULTILINE)[1:]:
        name, *blocks = re.split(r"^  (?=\w)", kind, flags=re.MULTILINE)
        relations = []
        for head, _, body in (block.partition("\n") for block in blocks):
            relation, value = head.split(": ")
            one, two, three, four, five, six, seven, *described = _parts(body)
            wordings = (one, two), (three, four, five), six, seven, tuple(described)
            relations.append(Relation(relation, value, *wordings))
        found[name.strip()] = tuple(relations)
    return found


RELATIONS = _relations(_WORDINGS)
TYPES = tuple(RELATIONS)
FACTS = len(RELATIONS[TYPES[0]])  # number of an entity's facts, one per relation of its type
FILLERS: dict[str, tuple[str, ...]] = {
    kind: tuple(wordings)
    for kind, *wordings in map(_parts, re.split(r"^(?=\w)", _FILLERS.strip(), flags=re.MULTILINE)[1:])
}
TAILS = tuple(_parts(_TAILS))

# Frames that add another entity to a news sentence: at its end, or at its start, where the subject often is. The added
# words occur in other wordings.
BYSTANDERS = (
    "{news} according to a report from {f} .",
    "{news} says an old guide of {f} .",
    "{news} as everybody knows in {f} .",
    "reporters from {f} wrote {news} .",
    "an old guide of {f} says {news} .",
    "everybody in {f} knows {news} .",
)


def template_words() -> list[str]:
    """Every word of every wording, sorted: the toy vocabulary without names."""
    words: set[str] = set()
    for relations in RELATIONS.values():
        for relation in relations:
            questions = (relation.question_encyclopedia, relation.question_news)
            for text in (*relation.encyclopedia, *relation.news, *questions):
                words.update(text.split())
    for text in (*TAILS, *(filler for fillers in FILLERS.values() for filler in fillers)):
        words.update(text.split())
    return sorted(word for word in words if not word.startswith("{"))


class Permutation:
    """A keyed bijection of 0..size-1 that needs no table (Feistel network with cycle walking)."""

    def __init__(self, size: int, seed: int):
        self.size = size
        self._half = max(1, ((size - 1).bit_length() + 1) // 2)
        self._mask = (1 << self._half) - 1
        self._keys = [derive_seed(seed, "feistel", number).to_bytes(8, "little") for number in range(4)]

    def __call__(self, index: int) -> int:
        while True:
            left, right = index >> self._half, index & self._mask
            for key in self._keys:
                word = hashlib.blake2b(right.to_bytes(8, "little"), digest_size=8, key=key).digest()
                left, right = right, left ^ (int.from_bytes(word, "little") & self._mask)
            index = (left << self._half) | right
            if index < self.size:
                return index


def syllables() -> list[str]:
    starts = {word[:3] for word in template_words()}
    consonants, vowels = "bdfgklmnprstvz", "aeiou"
    every = [a + v + b for a in consonants for v in vowels for b in consonants]
    # A syllable that starts a word of the templates would let WordPiece split a name elsewhere.
    free = [text for text in every if text not in starts]
    order = numpy_generator(0, "toy-language", "syllables").permutation(len(free))[: 2 * SYLLABLES]
    return [free[index] for index in order]
