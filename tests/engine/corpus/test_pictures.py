"""Images among the files of the knowledge corpus: read, scaled, cut into patches, refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from realm_lab.engine.corpus import pool
from realm_lab.engine.corpus.pictures import join_patches, read_picture
from realm_lab.engine.corpus.prepare import prepare
from realm_lab.engine.corpus.store import PreparedCorpus
from realm_lab.engine.params.parameters import Params
from realm_lab.errors import UserError


def save(path: Path, size: tuple[int, int], colour: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def files_params(folder: Path, text: Path, **corpus: Any) -> Params:
    named = {"knowledge": [str(text), str(folder)]}
    corpus |= {"source": "files", "files": named, "tagger": "rule", "pretrain_corpus": "same"}
    return Params(
        preset="smoke",
        corpus=corpus,
        model={"pictures": True},
        tokenizer={"vocabulary_size": 200},
        warm_start={"embedder": {"initial_encoder": "reader"}},
    )


@pytest.fixture
def album(tmp_path: Path) -> Path:
    """Pictures with names, in folders, some of the same name."""
    for place, colour in enumerate(("red", "green", "blue")):
        save(tmp_path / "album" / f"part{place}" / "the_flag.png", (40 + place, 20), colour)
        save(tmp_path / "album" / f"part{place}" / f"{colour} field.jpg", (16, 16), colour)
    lines = [
        f"Oslo is the capital of Norway since {1000 + n}. The mayor of Oslo came in {1500 + n}.\n\n" for n in range(60)
    ]
    (tmp_path / "cities.txt").write_text("".join(lines))
    return tmp_path / "album"


@pytest.mark.slow
def test_pictures_are_part_of_the_knowledge(album: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "RUN_CHARACTERS", pool.PICTURE_CHARACTERS)  # several runs
    params = files_params(album, album.parent / "cities.txt")
    manifest = prepare(params, tmp_path / "corpus", 0, workers=3)
    corpus = PreparedCorpus(tmp_path / "corpus")
    passages = corpus.passages()
    shown = {passages.text.row(row)["id"]: row for row in range(len(passages)) if passages.picture(row)}
    assert sorted(shown) == sorted(
        f"part{n}/{name}/0"
        for n, c in enumerate(("red", "green", "blue"))
        for name in ("the_flag.png", f"{c} field.jpg")
    )
    assert {passages.text.row(row)["title"] for row in shown.values()} >= {"the flag", "red field"}
    assert corpus.pictures is not None
    for name, channel in (("part0/the_flag.png/0", 0), ("part2/blue field.jpg/0", 2)):
        ids = passages.bodies[shown[name]].astype(np.int64) - manifest.vocabulary_size
        assert len(ids) == 16  # 64 pixels on a side
        picture = join_patches(corpus.pictures.patches[ids], 4)
        assert picture[..., channel].min() > 250
        assert picture[..., 1].max() < 5
    assert len(corpus.sentences()) > 0


def test_a_transparent_picture_stands_on_white(tmp_path: Path) -> None:
    Image.new("RGBA", (16, 16), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    assert read_picture(tmp_path / "clear.png", 16).min() == 255


def test_unreadable_pictures_are_refused_by_name(album: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = (album / "part0" / "the_flag.png").read_bytes()
    for name, content in (("cut.png", good[: len(good) // 2]), ("empty.png", b""), ("text.png", b"no picture")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError, match=rf"{name}: no picture, or one that is cut off .*repair it"):
            read_picture(tmp_path / name, 32)
    monkeypatch.setattr("realm_lab.engine.corpus.pictures.MOST_PIXELS", 100)
    with pytest.raises(UserError, match=r"the_flag.png: 40 x 20 pixels, 100 are the most; scale it down"):
        read_picture(album / "part0" / "the_flag.png", 32)
    monkeypatch.undo()
    params = files_params(album, album.parent / "cities.txt", passage_length=16)
    with pytest.raises(UserError, match=r"16 patches with a title of .* raise corpus.passage_length"):
        prepare(params, tmp_path / "long", 0)
