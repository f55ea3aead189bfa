"""FarmHash's Fingerprint64: ORQA splits the questions of WebQuestions and CuratedTREC with it.

It gives the numbers of `farmhashna::Hash64` (Pike, Google, 2014) on every machine. TensorFlow uses these numbers for
`to_hash_bucket_fast`. A test compares them with the package `cityhash`, which has no wheels for Python 3.14.
"""

# Names as in the original: k0 to k2 are primes, s the bytes, v and w pairs of 64 bits

K0, K1, K2 = 0xC3A5C85C97CB3127, 0xB492B66FBE98F273, 0x9AE16A3B2F90404F
BITS = (1 << 64) - 1


def fingerprint64(s: bytes) -> int:
    """Return the fingerprint of some bytes, 0 to 2⁶⁴ - 1."""
    if len(s) <= 16:
        return _up_to_16(s)
    if len(s) <= 64:
        return _up_to_64(s)
    x, y = 81 * K2 + _word(s, 0), 81 * K1 + 113
    z = _shifted(y * K2 + 113) * K2
    v, w = (0, 0), (0, 0)
    last = len(s) - 64
    for at in [*range(0, len(s) - 64, 64), last]:
        is_last = at == last
        mul, times = (K1 + ((z & 0xFF) << 1), 9) if is_last else (K1, 1)
        if is_last:
            w = (w[0] + (len(s) - 1 & 63), w[1])
            v = (v[0] + w[0], v[1])
            w = (w[0] + v[0], w[1])
        x = _rotated(x + y + v[0] + _word(s, at + 8), 37) * mul ^ w[1] * times & BITS
        y = _rotated(y + v[1] + _word(s, at + 48), 42) * mul + v[0] * times + _word(s, at + 40)
        z = _rotated(z + w[0], 33) * mul
        v = _weak(s, at, v[1] * mul, x + w[0])
        w = _weak(s, at + 32, z + w[1], y + _word(s, at + 16))
        z, x = x, z
    return _mixed(_mixed(v[0], w[0], mul) + _shifted(y) * K0 + z, _mixed(v[1], w[1], mul) + x, mul)


def _up_to_16(s: bytes) -> int:
    mul = K2 + len(s) * 2
    if len(s) >= 8:
        a, b = _word(s, 0) + K2, _word(s, len(s) - 8)
        return _mixed(_rotated(b, 37) * mul + a, (_rotated(a, 25) + b) * mul, mul)
    if len(s) >= 4:
        return _mixed(len(s) + (_word(s, 0, 4) << 3), _word(s, len(s) - 4, 4), mul)
    if s:
        y, z = s[0] + (s[len(s) >> 1] << 8), len(s) + (s[-1] << 2)
        return _shifted(y * K2 ^ z * K0) * K2 & BITS
    return K2


def _up_to_64(s: bytes) -> int:
    mul, first = K2 + len(s) * 2, K1 if len(s) <= 32 else K2
    a, b = _word(s, 0) * first, _word(s, 8)
    c, d = _word(s, len(s) - 8) * mul, _word(s, len(s) - 16) * K2
    y = _rotated(a + b, 43) + _rotated(c, 30) + d
    z = _mixed(y, a + _rotated(b + K2, 18) + c, mul)
    if len(s) <= 32:
        return z
    e, f = _word(s, 16) * mul, _word(s, 24)
    g, h = (y + _word(s, len(s) - 32)) * mul, (z + _word(s, len(s) - 24)) * mul
    return _mixed(_rotated(e + f, 43) + _rotated(g, 30) + h, e + _rotated(f + a, 18) + g, mul)


def _word(s: bytes, at: int, size: int = 8) -> int:
    return int.from_bytes(s[at : at + size], "little")


def _rotated(value: int, by: int) -> int:
    value &= BITS
    return (value >> by | value << 64 - by) & BITS


def _shifted(value: int) -> int:
    value &= BITS
    return value ^ value >> 47


def _mixed(u: int, v: int, mul: int) -> int:
    a = _shifted((u ^ v) * mul)
    return _shifted((v ^ a) * mul) * mul & BITS


def _weak(s: bytes, at: int, a: int, b: int) -> tuple[int, int]:
    w, x, y, z = (_word(s, at + offset) for offset in (0, 8, 16, 24))
    a += w
    return a + x + y + z, _rotated(b + a + z, 21) + _rotated(a + x + y, 44) + a
