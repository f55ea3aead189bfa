"""Pictures as passages: drawn facts of the toy world, and image files; unreadable ones are refused by name."""

import base64
import io
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from realm_lab.contrib.section6.drawn import INK, PAPER, DrawnWorld, Painter
from realm_lab.contrib.section6.settings import DrawnOptions
from realm_lab.engine.corpus.pictures import SIDE, cut_patches, join_patches
from realm_lab.engine.corpus.records import SPLITS
from realm_lab.engine.corpus.sources import source_options
from realm_lab.engine.params.parameters import Params
from realm_lab.engine.worlds.settings import WorldOptions as Settings
from realm_lab.engine.worlds.world import ToyWorld
from tests.engine.corpus.preparing import made
from tests.tiny_system import tiny_params


def world(pictures: str = "facts") -> DrawnWorld:
    return DrawnWorld(DrawnOptions(entities=80, pictures=pictures), 3)


def test_patches_are_cut_row_by_row_and_put_together_again() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (48, 32, 3), dtype=np.uint8)
    patches = cut_patches(picture)
    assert patches.shape == (6, SIDE * SIDE * 3)
    np.testing.assert_array_equal(patches[3].reshape(SIDE, SIDE, 3), picture[16:32, 16:32])
    np.testing.assert_array_equal(join_patches(patches, 2), picture)


def test_x_and_questions_are_those_of_the_world_without_pictures() -> None:
    plain, drawn = ToyWorld(Settings(entities=80), 3), world()
    for split in SPLITS:
        assert [s for s, _ in drawn.sentences(split)] == [s for s, _ in plain.sentences(split)]
        assert [q for q, _, _ in drawn.questions(split)] == [q for q, _, _ in plain.questions(split)]


@pytest.mark.parametrize(("pictures", "forms"), [("facts", ["picture"]), ("captioned", ["text", "picture"])])
def test_a_fact_is_drawn_with_neither_title_nor_text(pictures: str, forms: list[str]) -> None:
    drawn = world(pictures)
    passages = list(drawn.passages())
    for entity in range(80):
        for number, (relation, value, _) in enumerate(drawn.facts(entity)):
            gold = [passages[row] for row in drawn.gold_rows(entity, number)]
            assert [passage.form for passage, _ in gold] == forms
            picture, [told] = gold[-1]
            assert (picture.title, picture.body) == ("", "")
            assert told.text == f"{drawn.subject(entity)} | {relation.name} | {value} ."


def test_shuffled_pictures_tell_nothing() -> None:
    drawn = world("shuffled")
    passages = list(drawn.passages())
    facts = [(e, n, fact[1]) for e in range(80) for n, fact in enumerate(drawn.facts(e))]
    shown = [passages[drawn.gold_rows(entity, number)[0]][1][0].text.split(" | ") for entity, number, _ in facts]
    assert [subject for subject, _, _ in shown] == [drawn.subject(entity) for entity, _, _ in facts]
    right = [value == f"{told} ." for (_, _, value), (_, _, told) in zip(shown, facts, strict=True)]
    assert np.mean(right) < 0.1


# Letters as people draw them on a grid of 3 x 5, to be found in the patches at twice the height.
LETTERS = {
    "b": "##. #.# ##. #.# ##.",
    "i": "### .#. .#. .#. ###",
    "s": ".## #.. .#. ..# ##.",
    "7": "### ..# ..# .#. .#.",
}


def ink(patch: np.ndarray) -> np.ndarray:
    """Dark pixels of a patch, bool [SIDE, SIDE]."""
    return patch.reshape(SIDE, SIDE, 3).mean(2) < (PAPER + INK) / 2


def test_a_picture_shows_the_letters_of_its_names_and_the_same_relation_the_same_shape() -> None:
    painter = Painter(world(), 100)
    rows = painter.rows("bisbis | mayor | 1777 .")
    assert rows == painter.rows("bisbis | mayor | 1777 .")
    assert [len(row) for row in rows] == [2, 2, 2]
    [bis, _], [_, seventy_seven] = ([painter.patches[place - 100] for place in row] for row in rows[1:])
    for patch, letters in ((bis, "bis"), (seventy_seven, "77")):
        clean = np.zeros((10, 4 * len(letters) - 1), bool)
        for place, letter in enumerate(letters):
            glyph = np.array([[c == "#" for c in row] for row in LETTERS[letter].split()])
            clean[:, 4 * place : 4 * place + 3] = glyph.repeat(2, 0)
        dark = ink(patch)
        at = np.argwhere(dark).min(0)
        np.testing.assert_array_equal(dark[at[0] : at[0] + 10, at[1] : at[1] + clean.shape[1]], clean)
        assert dark.sum() == clean.sum()
    mayor, again, employer = (
        join_patches(painter.patches[np.array(painter.rows(told)[0]) - 100], 2).astype(int)
        for told in ("bisbis | mayor | 1777 .", "zodzod | mayor | 1701 .", "bisbis | employer | 1777 .")
    )
    assert any(
        (shape(again) == np.roll(shape(mayor), (y, x), (0, 1))).all() for y in (-2, -1, 0, 1, 2) for x in range(-2, 3)
    )
    assert shape(mayor).sum() != shape(employer).sum()
    np.testing.assert_allclose(mayor[shape(mayor)].mean(0), (40, 90, 200), atol=5)  # the colour of a city


def shape(strip: np.ndarray) -> np.ndarray:
    """Pixels of a strip that are not paper, bool [SIDE, width]."""
    return abs(strip - PAPER).max(2) > 100


def picture_params(**toy: Any) -> Params:
    source = {"name": "drawn", "entities": 40, "articles": 40, "pictures": "captioned", **toy}
    return tiny_params(corpus={"source": source, "passage_length": 40}, model={"pictures": True})


def test_the_prepared_corpus_keeps_the_patches_and_shows_them(tmp_path: Path) -> None:
    prepared = made(picture_params(), tmp_path / "corpus")
    passages, size = prepared.corpus.passages(), prepared.manifest.vocabulary_size
    assert prepared.corpus.pictures is not None
    patches, first = prepared.corpus.pictures
    assert first == size
    drawn = DrawnWorld(source_options(prepared.params.corpus), 0)
    painter = Painter(drawn, size)
    np.testing.assert_array_equal(patches, painter.patches)
    for row, (passage, sentences) in enumerate(drawn.passages()):
        if passage.form == "picture":
            assert passages.bodies[row].tolist() == [*chain(*painter.rows(sentences[0].text))]
            assert passages.sentence_starts[row].tolist() == [0, 2, 4]
            assert not len(passages.titles[row])
        else:
            assert passages.bodies[row].max() < size
            assert passages.picture(row) is None
    row = next(row for row in range(len(passages)) if passages.bodies[row][0] >= size)
    uri = passages.picture(row)
    assert uri is not None
    shown = np.asarray(Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))), np.int64)
    drawn_there = join_patches(patches[passages.bodies[row].astype(np.int64) - size], 2)
    assert abs(shown - drawn_there.astype(np.int64)).mean() < 20  # JPEG changes pixels a little


def test_articles_have_pictures_too_and_each_restates_its_sentence(tmp_path: Path) -> None:
    prepared = made(picture_params(pictures="facts", articles=400), tmp_path / "corpus")
    articles, size = prepared.corpus.articles(), prepared.manifest.vocabulary_size
    assert articles is not None
    drawn = [number for number in range(400) if articles.restated[number][0] >= size]
    assert len(drawn) == pytest.approx(160, abs=30)
    assert all(len(articles.restated[number]) == len(articles.other[number]) == 6 for number in drawn)
