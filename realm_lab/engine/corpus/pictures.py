"""Pictures as passages: cut into square patches, whose ids follow those of the wordpieces.

A passage that is a picture has no text. Instead of wordpieces it has the ids of its patches, row by row, counted from
the size of the vocabulary, and `sentence_starts` has the start of each row. One file has the pixels of all patches.
"""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from realm_lab.errors import UserError

SIDE = 16  # side of a patch in pixels (Dosovitskiy et al. 2021)
PICTURE_SIZE = 64  # side in pixels that image files are scaled to
PATCH_VALUES = SIDE * SIDE * 3
MOST_PIXELS = 1 << 26  # of an image file: 8192 x 8192


def cut_patches(picture: np.ndarray) -> np.ndarray:
    """The patches of a picture, row by row, uint8 [patches, PATCH_VALUES]; its sides are multiples of SIDE."""
    rows, columns = picture.shape[0] // SIDE, picture.shape[1] // SIDE
    return picture.reshape(rows, SIDE, columns, SIDE, 3).swapaxes(1, 2).reshape(rows * columns, PATCH_VALUES)


def join_patches(patches: np.ndarray, columns: int) -> np.ndarray:
    """Join patches to a picture, uint8 [height, width, 3]: the inverse of cut_patches."""
    rows = len(patches) // columns
    return patches.reshape(rows, columns, SIDE, SIDE, 3).swapaxes(1, 2).reshape(rows * SIDE, columns * SIDE, 3)


def read_picture(path: Path, size: int) -> np.ndarray:
    """Read an image file as `size` x `size` pixels, uint8 [size, size, 3]; transparent pixels become white.

    UserError: the file is no image, is damaged, or has more than MOST_PIXELS.
    """
    try:
        with Image.open(path) as image:
            if image.width * image.height > MOST_PIXELS:
                raise UserError(
                    f"{path}: {image.width} x {image.height} pixels, {MOST_PIXELS:,} are the most; scale it down"
                )
            coloured = image.convert("RGBA").resize((size, size), Image.Resampling.BOX)
    except (UnidentifiedImageError, Image.DecompressionBombError, OSError, SyntaxError, ValueError) as error:
        raise UserError(f"{path}: no picture, or one that is cut off ({error}); repair it or take it away") from None
    white = Image.new("RGBA", coloured.size, "white")
    return np.asarray(Image.alpha_composite(white, coloured).convert("RGB"))


def data_uri(patches: np.ndarray, columns: int) -> str:
    """Return a picture as a data URI: a JPEG, since a PNG of a noisy photograph would be four times as long."""
    file = BytesIO()
    Image.fromarray(join_patches(patches, columns)).save(file, "JPEG", quality=85, subsampling=0)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode()
