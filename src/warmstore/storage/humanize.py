"""Sizes and durations as text: parsed from what people write, formatted for tables.

Sizes are in bytes, with decimal units (kB, MB: powers of 1000); parsed sizes may have binary units (KiB, MiB: powers of
1024). Durations are in seconds. (The `humanize` library parses neither, and writes "12 milliseconds" for "12 ms".)
"""

import contextlib
import operator
import re
from decimal import Decimal

_SIZES = {"": 1, "B": 1} | {
    f"{prefix}{suffix}": base**power
    for power, prefix in enumerate(("K", "M", "G", "T"), start=1)
    for suffix, base in (("", 1000), ("B", 1000), ("IB", 1024))
}
_SIZE_UNITS = ("B", "kB", "MB", "GB", "TB")
_DURATIONS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_UNITS = (
    (0.9995e-3, 1e-6, "µs"),
    (0.9995, 1e-3, "ms"),
    (120, 1, "s"),
    (7200, 60, "min"),
    (172_800, 3600, "h"),
)
"""For each unit: the duration below which it is used, and its length in seconds."""
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\t\n"}


def parse_size(size: int | str) -> int:
    """Parse a size: bytes as an int or an integer of NumPy, or a string such as "512MB" or "4GiB".

    Raises:
        ValueError: it is not positive, or something else.
    """
    nbytes: int | Decimal = 0
    if isinstance(size, str):
        if match := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", size):
            nbytes = Decimal(match[1]) * _SIZES.get(match[2].upper(), 0)
    elif not isinstance(size, bool):
        with contextlib.suppress(TypeError):
            nbytes = operator.index(size)
    if nbytes < 1:
        raise ValueError(
            f'{size!r} is not a size above zero; write bytes as an int, or a string such as "512MB" or "4GiB"'
        )
    return int(nbytes)


def format_size(nbytes: float) -> str:
    """Format bytes in decimal units: `512 B`, `1.4 kB`, `12.3 MB`, `123 GB`."""
    power = next((power for power in range(4) if nbytes < 999.5 * 1000**power), 4)
    count = nbytes / 1000**power
    digits = 1 if power and count < 99.95 else 0
    return f"{count:,.{digits}f} {_SIZE_UNITS[power]}"


def parse_duration(text: str) -> float:
    """Parse a duration such as "30d", "12h", "5min" or "90s". Raises ValueError for other texts."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h|d)\s*", text)
    if match is None:
        raise ValueError(f'{text!r} is not a duration; write one such as "30d", "12h", "5min" or "90s"')
    return float(match[1]) * _DURATIONS[match[2]]


def format_duration(seconds: float) -> str:
    """Format seconds: `85 µs`, `1.4 ms`, `4.1 s`, `12 min`, `3.5 h`, `41 days`; `0 s` for none or less."""
    if seconds <= 0:
        return "0 s"
    for limit, length, unit in _DURATION_UNITS:
        if seconds < limit:
            count = seconds / length
            return f"{count:.1f} {unit}" if count < 9.95 else f"{count:.0f} {unit}"
    return f"{seconds / 86400:,.0f} days"


def printable(text: str) -> str:
    """The text with escapes such as "\\x1b" for control characters that a terminal obeys; tabs and line ends stay."""
    return text.translate(_ESCAPES)
