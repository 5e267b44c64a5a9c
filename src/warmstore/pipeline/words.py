"""Seconds and bytes as a reader wants them."""

_TIMES = ((0.9995e-3, "µs", 1e-6), (0.9995, "ms", 1e-3), (120.0, "s", 1.0), (7200.0, "min", 60.0))


def duration(seconds: float) -> str:
    """Seconds in the unit that suits them: `85 µs`, `1.4 ms`, `4.1 s`, `12 min`, `3.5 h`; `0` for none."""
    if seconds <= 0:
        return "0"
    unit, divisor = next(((unit, divisor) for limit, unit, divisor in _TIMES if seconds < limit), ("h", 3600.0))
    count = seconds / divisor
    return f"{count:.1f} {unit}" if count < 9.95 else f"{count:,.0f} {unit}"


def size(nbytes: float) -> str:
    """Bytes in powers of 1000: `512 B`, `1.4 kB`, `12 MB`."""
    power = next((power for power in range(4) if nbytes < 999.5 * 1000**power), 4)
    count, unit = nbytes / 1000**power, ("B", "kB", "MB", "GB", "TB")[power]
    return f"{count:.0f} {unit}" if not power or count >= 9.95 else f"{count:.1f} {unit}"
