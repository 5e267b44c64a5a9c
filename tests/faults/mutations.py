"""Bytes mutated with a seed: a few changes of real inputs, such as fuzzers make."""

import random
from collections.abc import Sequence

TOKENS = [
    *(
        b"null",
        b"true",
        b"-1",
        b"0",
        b"1e999",
        b"1.5",
        b'""',
        b"[]",
        b"{}",
        b'"a"',
        b"[[",
        b"NaN",
        b"\\u0000",
        b"\\ud800",
    ),
    *(b"99999999999999999999", b"{0..99999999}", b"{a,b}", b"..", b"\0", b"\n", b"\xff", b"\xc3\xa9", b"~", b"://"),
    *(number.to_bytes(8, "little") for number in (0, 1, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)),
]
"""What parsers treat in ways of their own."""


def mutated(seeds: Sequence[bytes], rng: random.Random) -> bytes:
    """A real input after one to six changes."""
    data = bytearray(rng.choice(seeds))
    for _ in range(rng.randint(1, 6)):
        at = rng.randrange(len(data) + 1)
        length = rng.choice((0, 1, 1, 2, 4, 8, 16, 64))
        kind = rng.randrange(7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at : at + length] = rng.randbytes(length)
        elif kind == 2:
            del data[at : at + length]
        elif kind == 3:
            data[at : at + length] = rng.choice(TOKENS)
        elif kind == 4:
            data[at:at] = data[(start := rng.randrange(len(data) + 1)) : start + length]
        elif kind == 5:
            data[at:at] = bytes([rng.choice(b'[{("\\0 ')]) * rng.choice((1, 9, 3000))
        else:
            other = rng.choice(seeds)
            data[at:] = other[rng.randrange(len(other) + 1) :]
    return bytes(data)
