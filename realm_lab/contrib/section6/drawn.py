"""The toy world in pictures (section 6): passages of Z that show a fact as a picture.

A picture shows one fact: on top a coloured shape, which is the relation (its colour is the type of the subject), below
it the subject's name and then the value, in letters of 3 x 10 pixels. Each piece is drawn in several ways, moved and
with noise. The passage has neither title nor text, so that only the picture contains the subject's name.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from realm_lab.contrib.section6.bilingual import refuse_same
from realm_lab.contrib.section6.settings import DrawnOptions
from realm_lab.contrib.section6.triples import TripleWorld, of_toy, wording
from realm_lab.engine.core.seeding import numpy_generator
from realm_lab.engine.corpus.pictures import SIDE, cut_patches
from realm_lab.engine.corpus.records import PICTURE, Passage, Sentence
from realm_lab.engine.corpus.sources import SourceRequest
from realm_lab.engine.params.corpus import Corpus
from realm_lab.engine.worlds.language import RELATIONS, TYPES, Relation, template_words
from realm_lab.engine.worlds.sentences import fill
from realm_lab.engine.worlds.settings import WorldOptions
from realm_lab.engine.worlds.source import ToySource
from realm_lab.errors import UserError

WAYS = 3  # in which each piece is drawn
NOISE = 12.0  # standard deviation of the noise, of 255
PAPER, INK = 235, 20
COLOURS = ((200, 40, 40), (40, 90, 200), (30, 140, 60), (210, 140, 20))
MARK = " | "  # between the parts of a picture's text, and nowhere else
# Rows of three pixels, from the top, as octal digits.
GLYPHS = dict(
    word.split("=")
    for word in (
        "a=25755 b=65656 d=65556 e=74647 f=74644 g=34553 i=72227 k=55655 l=44447 m=57755 n=65555 o=75557 p=65644 "
        "r=65655 s=34216 t=72222 u=55557 v=55552 z=71247 "
        "0=25552 1=26227 2=61247 3=61216 4=55711 5=74616 6=34652 7=71122 8=25252 9=25316"
    ).split()
)


class DrawnWorld(TripleWorld):
    """The world of some options and a seed, with a picture of each fact that TripleWorld has as a triple."""

    def __init__(self, options: DrawnOptions, seed: int):
        super().__init__(options, seed, "both" if options.pictures == "captioned" else "all")
        self._is_shuffled = options.pictures == "shuffled"

    @property
    def vocabulary(self) -> list[str]:
        """Words and names, without the further words of triples: pictures have no wordpieces."""
        return [*template_words(), *self.name_pieces]

    def stated(self, entity: int) -> list[tuple[str, list[int]]]:
        return [(PICTURE if form == "triple" else form, facts) for form, facts in super().stated(entity)]

    def title(self, entity: int, form: str) -> str:
        return "" if form == PICTURE else super().title(entity, form)

    def bodies(self, entity: int, version: int = 0) -> tuple[list[list[Sentence]], list[Sentence]]:
        """Return the passages of TripleWorld; a passage with a picture has only its fact, as the text that is drawn."""
        bodies, restated = super().bodies(entity, version)
        rng = numpy_generator(self.seed, "shuffled-pictures", entity, version)
        facts_of = self.facts(entity)
        for position, (form, facts) in enumerate(self.stated(entity)):
            if form == PICTURE:
                relation, *values = facts_of[facts[0]]
                value = values[version]
                if self._is_shuffled:
                    value = self.draw(relation, entity, rng).text
                bodies[position] = [fill(wording(relation), {}, s=self.subject(entity), o=value)]
        return bodies, restated

    def passages(self, version: int = 0) -> Iterator[tuple[Passage, list[Sentence]]]:
        for passage, sentences in super().passages(version):
            yield (passage._replace(body="") if passage.form == PICTURE else passage), sentences

    def beside_filler(
        self, text: str, relation: Relation, kind: str, subject: str, named: str, rng: np.random.Generator
    ) -> str:
        """Add no sentence to the text of a picture, which contains only its fact."""
        return text if MARK in text else super().beside_filler(text, relation, kind, subject, named, rng)


class DrawnSource(ToySource):
    """The world of a seed with pictures."""

    def __init__(self, request: SourceRequest, options: DrawnOptions):
        world = DrawnWorld(options, request.seed)
        super().__init__(request, options, world)
        self._painter = Painter(world, self.tokenizer.get_vocab_size())
        self.patches = self._painter.patches

    @classmethod
    def identity(cls, corpus: Corpus, options: WorldOptions, seed: int) -> dict[str, Any]:
        """Return the inputs of the toy world. UserError: X is Z, or questions take two hops."""
        refuse_same(corpus)
        if options.hops != 1:
            raise UserError("corpus.source: drawn has facts of one hop; set hops to 1", parameter="corpus.source.hops")
        return of_toy(super().identity(corpus, options, seed))

    def parts(self, texts: Sequence[str]) -> list[list[list[int]]]:
        """Return the wordpieces of each text; for a text that is drawn, the patches of each row of its picture."""
        drawn = {text: self._painter.rows(text) for text in texts if MARK in text}
        written = iter(super().parts([text for text in texts if text not in drawn]))
        return [drawn[text] if text in drawn else next(written) for text in texts]


class Painter:
    """Draws triples of a world, the same triple always alike. `patches`: all possible ones, uint8 [patches,
    PATCH_VALUES]."""

    def __init__(self, world: DrawnWorld, first_id: int):
        self._pieces, self._first_id, self._seed = world.pieces_per_name, first_id, world.seed
        self._rng = numpy_generator(world.seed, "painter")
        names = sorted({piece.removeprefix("##") for piece in world.name_pieces})
        self._places = {name: WAYS * position for position, name in enumerate(names)}
        drawn = [self._paper(_write(name), (INK, INK, INK)) for name in names for _ in range(WAYS)]
        blank = np.zeros((SIDE, SIDE), bool)
        self._blank = len(drawn)
        drawn += [self._paper(blank, (INK, INK, INK)) for _ in range(WAYS)]
        self._shapes: dict[str, int] = {}  # relation -> the first patch of its shape
        for colour, kind in zip(COLOURS, TYPES, strict=True):
            for number, relation in enumerate(RELATIONS[kind]):
                self._shapes[relation.name] = len(drawn)
                for _ in range(WAYS):
                    shape = self._paper(_shape(number, SIDE * self._pieces), colour)
                    drawn += [shape[:, at : at + SIDE] for at in range(0, SIDE * self._pieces, SIDE)]
        self.patches = np.concatenate([cut_patches(patch) for patch in drawn])

    def rows(self, triple: str) -> list[list[int]]:
        """The ids of the patches of a triple, "subject | relation | value .", a list for each row of the picture."""
        subject, relation, value = triple.removesuffix(" .").split(MARK)
        rng = numpy_generator(self._seed, "drawn", triple)
        shape = self._first_id + self._shapes[relation] + int(rng.integers(WAYS)) * self._pieces
        names = [position + int(rng.integers(WAYS)) for name in (subject, value) for position in self._written(name)]
        ids = [*range(shape, shape + self._pieces), *(self._first_id + name for name in names)]
        return [ids[at : at + self._pieces] for at in range(0, len(ids), self._pieces)]

    def _written(self, name: str) -> list[int]:
        """Return the number of the first patch of each piece of a name, then of blanks. A piece is three letters, or
        two digits of a year."""
        width = 2 if name.isdigit() else 3
        pieces = [self._places[name[at : at + width]] for at in range(0, len(name), width)]
        return [*pieces, *[self._blank] * (self._pieces - len(pieces))]

    def _paper(self, ink: np.ndarray, colour: Sequence[int]) -> np.ndarray:
        """A drawing in a colour on paper, moved by some pixels, with noise, uint8 [height, width, 3]."""
        moved = np.roll(ink, self._rng.integers(-1, 2, 2), (0, 1))
        drawn = np.where(moved[:, :, None], np.array(colour), PAPER)
        noise = self._rng.normal(0.0, NOISE, drawn.shape)
        return (drawn + noise).round().clip(0, 255).astype(np.uint8)


def _write(letters: str) -> np.ndarray:
    """Letters of 3 x 10 pixels side by side, bool [SIDE, SIDE]."""
    ink = np.zeros((SIDE, SIDE), bool)
    for position, letter in enumerate(letters):
        rows = np.array([[int(digit) >> shift & 1 for shift in (2, 1, 0)] for digit in GLYPHS[letter]], bool)
        ink[3:13, 2 + 4 * position : 5 + 4 * position] = rows.repeat(2, 0)
    return ink


def _shape(number: int, width: int) -> np.ndarray:
    """One of six shapes in the middle of a strip, bool [SIDE, width]."""
    y, x = np.mgrid[:SIDE, :width] - np.array([(SIDE - 1) / 2, (width - 1) / 2])[:, None, None]
    far = np.hypot(x, y)
    shapes = (
        far < 6,  # disc
        np.maximum(abs(x), abs(y)) < 6,  # square
        (abs(x) < (y + 6) / 2) & (y < 6),  # triangle
        abs(x) + abs(y) < 7,  # diamond
        (np.minimum(abs(x), abs(y)) < 2) & (np.maximum(abs(x), abs(y)) < 7),  # cross
        (far < 7) & (far > 4),  # ring
    )
    shape: np.ndarray = shapes[number]
    return shape
