"""How ORQA (Lee et al. 2019) and REALM split questions: by a hash of the question's text.

Their released program (create_data_splits) takes as development questions those training questions whose
`to_hash_bucket_fast(question, 100000) mod 10` is 0, and as test questions the official development set (Natural
Questions) or test set (WebQuestions, CuratedTREC). TensorFlow's fast hash is FarmHash's Fingerprint64, which does not
change between versions; here it is in Python, for texts of any length.

Source of the hash: Pike, FarmHash (2014), farmhashna::Hash64.
"""

from __future__ import annotations

MASK = (1 << 64) - 1
K0, K1, K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F  # primes of FarmHash
BUCKETS, FOLDS = 100_000, 10


def is_orqa_dev(question: str) -> bool:
    """Whether a training question is one of ORQA's development questions. The text counts to the letter."""
    return fingerprint64(question.encode()) % BUCKETS % FOLDS == 0


def fingerprint64(data: bytes) -> int:
    """FarmHash's Fingerprint64, an unsigned 64-bit number."""
    if len(data) <= 16:
        return _up_to_16(data)
    if len(data) <= 32:
        return _up_to_32(data)
    return _up_to_64(data) if len(data) <= 64 else _longer(data)


def _word(data: bytes, place: int, size: int = 8) -> int:
    """`size` bytes from `place` on, which counts from the end where it is negative."""
    place += len(data) if place < 0 else 0
    return int.from_bytes(data[place : place + size], "little")


def _rotate(value: int, bits: int) -> int:
    value &= MASK
    return (value >> bits | value << 64 - bits) & MASK


def _shift_mix(value: int) -> int:
    value &= MASK
    return value ^ value >> 47


def _mix(u: int, v: int, factor: int) -> int:
    a = _shift_mix((u ^ v) * factor)
    return _shift_mix((v ^ a) * factor) * factor & MASK


def _up_to_16(data: bytes) -> int:
    size = len(data)
    factor = K2 + size * 2
    if size >= 8:
        a, b = _word(data, 0) + K2 & MASK, _word(data, -8)
        c, d = _rotate(b, 37) * factor + a, (_rotate(a, 25) + b) * factor
        return _mix(c & MASK, d & MASK, factor)
    if size >= 4:
        return _mix(size + (_word(data, 0, 4) << 3), _word(data, -4, 4), factor)
    if size:
        y, z = data[0] + (data[size >> 1] << 8), size + (data[-1] << 2)
        return _shift_mix(y * K2 & MASK ^ z * K0 & MASK) * K2 & MASK
    return K2


def _ends(data: bytes, first_factor: int, factor: int) -> tuple[int, int]:
    """The 16 bytes at either end."""
    a, b = _word(data, 0) * first_factor, _word(data, 8)
    c, d = _word(data, -8) * factor, _word(data, -16) * K2
    y = _rotate(a + b, 43) + _rotate(c, 30) + d & MASK
    return y, _mix(y, a + _rotate(b + K2, 18) + c & MASK, factor)


def _up_to_32(data: bytes) -> int:
    return _ends(data, K1, K2 + len(data) * 2)[1]


def _up_to_64(data: bytes) -> int:
    factor = K2 + len(data) * 2
    y, z = _ends(data, K2, factor)
    e, f = _word(data, 16) * factor, _word(data, 24)
    g, h = (y + _word(data, -32)) * factor, (z + _word(data, -24)) * factor
    u = _rotate(e + f, 43) + _rotate(g, 30) + h
    return _mix(u & MASK, e + _rotate(f + _word(data, 0) * K2, 18) + g & MASK, factor)


def _weak(data: bytes, place: int, a: int, b: int) -> tuple[int, int]:
    """32 bytes from `place` on, with two seeds."""
    w, x, y, z = (_word(data, place + 8 * number) for number in range(4))
    a += w
    b = _rotate(b + a + z, 21)
    c = a
    a += x + y
    return a + z & MASK, b + _rotate(a, 44) + c & MASK


def _longer(data: bytes) -> int:
    x = 81
    y = x * K1 + 113 & MASK
    z = _shift_mix(y * K2 + 113) * K2 & MASK
    x = x * K2 + _word(data, 0) & MASK
    v, w = (0, 0), (0, 0)

    def turn(place: int, factor: int, nine: int) -> None:
        nonlocal x, y, z, v, w
        x = _rotate(x + y + v[0] + _word(data, place + 8), 37) * factor & MASK
        y = _rotate(y + v[1] + _word(data, place + 48), 42) * factor & MASK
        x ^= w[1] * nine & MASK
        y = y + v[0] * nine + _word(data, place + 40) & MASK
        z = _rotate(z + w[0], 33) * factor & MASK
        v = _weak(data, place, v[1] * factor, x + w[0])
        w = _weak(data, place + 32, z + w[1], y + _word(data, place + 16))
        x, z = z, x

    for place in range(0, (len(data) - 1) // 64 * 64, 64):
        turn(place, K1, 1)
    factor = K1 + ((z & 0xFF) << 1)
    w = (w[0] + (len(data) - 1 & 63), w[1])
    v = (v[0] + w[0] & MASK, v[1])
    w = (w[0] + v[0] & MASK, w[1])
    turn(len(data) - 64, factor, 9)
    first = _mix(v[0], w[0], factor) + _shift_mix(y) * K0 + z
    return _mix(first & MASK, _mix(v[1], w[1], factor) + x & MASK, factor)
