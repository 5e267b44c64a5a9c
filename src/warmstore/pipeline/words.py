"""Seconds and bytes as a reader wants them."""


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them: `85 µs`, `1.4 ms`, `4.1 s`, `12 min`, `3.5 h`; nothing for none."""
    if seconds <= 0:
        return "0"
    for limit, unit, divisor in ((0.9995e-3, "µs", 1e-6), (0.9995, "ms", 1e-3), (120, "s", 1), (7200, "min", 60)):
        if seconds < limit:
            break
    else:
        unit, divisor = "h", 3600
    count = seconds / divisor
    return f"{count:.1f} {unit}" if count < 9.95 else f"{count:,.0f} {unit}"


def size(nbytes: float) -> str:
    """Bytes in powers of 1000: `512 B`, `1.4 kB`, `12 MB`."""
    count = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            break
        count /= 1000
    else:
        unit = "TB"
    return f"{count:.0f} {unit}" if unit == "B" or count >= 9.95 else f"{count:.1f} {unit}"
