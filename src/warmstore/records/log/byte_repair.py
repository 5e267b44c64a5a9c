"""Repair of one damaged byte: the search for the change that makes bytes match their hash again.

Only for small pieces of metadata: n bytes take at most 255 n hashes. A file of garbage may hold any number of pieces,
so a piece is only searched if its known bytes are as expected.
"""

from collections.abc import Callable

_LARGEST = 1 << 14
"""Bytes of the largest piece that is searched, which takes some seconds."""


def with_one_byte_changed(
    data: bytes, matches: Callable[[bytes], bool], *, known: bytes = b"", at: int = 0
) -> bytes | None:
    """The bytes with one byte changed so that they match; None if no such change exists.

    Single flipped bits are tried first. With a hash of 64 bits the probability of a wrong result is 255 n / 2**64.

    Args:
        known: the correct bytes from byte `at` on. If more than one of them is wrong, nothing is searched.
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
