"""Fingerprint64 against the package `cityhash`, which wraps Google's code."""

import random

import pytest

from realm_lab.engine.corpus.fingerprint import fingerprint64


def test_every_length_has_the_fingerprint_of_farmhash() -> None:
    theirs = pytest.importorskip("farmhash").Fingerprint64
    draw = random.Random(1)
    for size in range(400):  # the formula changes after 16, 32 and 64 bytes
        data = draw.randbytes(size)
        assert fingerprint64(data) == theirs(data), size
