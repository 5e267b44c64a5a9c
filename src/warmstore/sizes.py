"""Sizes as people write them: bytes as an int, or a string such as "512MB" (powers of 1000) or "4GiB" (of 1024)."""

import re
from decimal import Decimal

_UNITS = {"": 1, "B": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate(("K", "M", "G", "T"), start=1)
    for suffix, base in (("", 1000), ("B", 1000), ("IB", 1024))
}


def parse_size(size: int | str) -> int:
    """Bytes meant by a size.

    Raises:
        ValueError: not a size, or not above zero.
    """
    bytes_meant: int | Decimal = 0
    if isinstance(size, int) and not isinstance(size, bool):
        bytes_meant = size
    elif isinstance(size, str) and (match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size)):
        bytes_meant = Decimal(match[1]) * _UNITS.get(match[2].upper(), 0)
    if bytes_meant < 1:
        raise ValueError(
            f'{size!r} is not a size above zero; write bytes as an int, or a string such as "512MB" or "4GiB"'
        )
    return int(bytes_meant)
