"""How long something takes, or took, in the words of a table."""

import re

_UNITS = {"s": 1.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them: `4.1 s`, `12 min`, `3.5 h`, `41 days`."""
    seconds = max(seconds, 0.0)
    for limit, unit, divisor in ((0.9995, "ms", 1e-3), (60, "s", 1), (3600, "min", 60), (48 * 3600, "h", 3600)):
        if seconds < limit:
            count = seconds / divisor
            return f"{count:.1f} {unit}" if count < 9.95 and unit != "ms" else f"{count:.0f} {unit}"
    return f"{seconds / 86400:,.0f} days"


def parse_duration(text: str) -> float:
    """Seconds meant by a text such as "30d", "12h", "5min" or "90s".

    Raises:
        ValueError: it says no duration.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|min|h|d)\s*", text)
    if match is None:
        raise ValueError(f'{text!r} is no duration; write one such as "30d", "12h", "5min" or "90s"')
    return float(match[1]) * _UNITS[match[2]]
