"""Mending a damaged byte where a hash says what the bytes were: the one change that makes them match again is searched.

Small pieces of metadata only: n bytes take at most 255 n hashes. A file of garbage may have any number of pieces, so
only those are searched in which bytes that are known stand as they must.
"""

from collections.abc import Callable

_LARGEST = 1 << 14
"""Bytes of a piece that is still searched: some seconds."""


def with_one_byte_changed(
    data: bytes, matches: Callable[[bytes], bool], *, known: bytes = b"", at: int = 0
) -> bytes | None:
    """The bytes with one of them changed so that they match, or None where no such change exists.

    Single flipped bits are tried first. With a hash of 64 bits a wrong answer has a chance of 255 n in 2**64.

    Args:
        known: what must stand at byte `at`. Where more than one byte of it is wrong, nothing is searched.
    """
    wrong = sum(byte != other for byte, other in zip(data[at : at + len(known)], known, strict=False))
    if len(data) > _LARGEST or wrong > 1:
        return None
    tried = bytearray(data)
    flips = [1 << bit for bit in range(8)]
    for changes in (flips, [change for change in range(1, 256) if change not in flips]):
        for place in range(len(tried)):
            for change in changes:
                tried[place] ^= change
                if matches(bytes(tried)):
                    return bytes(tried)
                tried[place] ^= change
    return None
