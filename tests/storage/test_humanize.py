"""Sizes and durations as text."""

import numpy as np
import pytest

from warmstore.storage.humanize import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, 1),
        (1 << 70, 1 << 70),
        (np.int64(10**10), 10**10),
        (np.uint8(200), 200),
        ("1", 1),
        ("1B", 1),
        ("512MB", 512_000_000),
        ("4GiB", 4 << 30),
        ("4gib", 4 << 30),
        (" 2 kb ", 2000),
        ("2K", 2000),
        ("1.5GB", 1_500_000_000),
        ("0.1GB", 100_000_000),
        ("1TiB", 1 << 40),
        ("9007199254740993", 9_007_199_254_740_993),  # a float would lose the last digit
        ("1.0000001TB", 1_000_000_100_000),
    ],
)
def test_a_size_is_parsed(size: int | str, expected: int) -> None:
    assert parse_size(size) == expected
    assert type(parse_size(size)) is int


@pytest.mark.parametrize(
    "size",
    [
        0,
        -1,
        "0",
        "-1",
        "",
        "MB",
        "1XB",
        "1e3",
        "1 2",
        "one",
        "0.4B",
        "inf",
        "nan",
        True,
        np.True_,
        np.int64(-1),
        1.5,
        np.float64(4),
        None,
        b"1",
        [1],
    ],
)
def test_what_is_no_size_is_refused(size: object) -> None:
    with pytest.raises(ValueError, match="is not a size") as caught:
        parse_size(size)  # type: ignore[arg-type]
    assert repr(size) in str(caught.value)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1.0 kB"),
        (1500, "1.5 kB"),
        (12.34e6, "12.3 MB"),
        (99.94e6, "99.9 MB"),
        (99.96e6, "100 MB"),
        (123.4e6, "123 MB"),
        (999_400_000, "999 MB"),
        (999_960_000, "1.0 GB"),
        (2e13, "20.0 TB"),
        (2.5e15, "2,500 TB"),
    ],
)
def test_a_size_is_formatted(nbytes: float, text: str) -> None:
    assert format_size(nbytes) == text


@pytest.mark.parametrize(("text", "seconds"), [("30d", 2_592_000), (" 12 h", 43_200), ("1.5min", 90), ("90s", 90)])
def test_a_duration_is_parsed(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "5", "5m", "d", "-1d", "1d 2h"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration") as caught:
        parse_duration(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"),
        (0, "0 s"),
        (2e-6, "2.0 µs"),
        (0.0004, "400 µs"),
        (0.99949e-3, "999 µs"),
        (0.0012, "1.2 ms"),
        (0.0123, "12 ms"),
        (0.99951, "1.0 s"),
        (1, "1.0 s"),
        (61, "61 s"),
        (600, "10 min"),
        (7200, "2.0 h"),
        (9000, "2.5 h"),
        (86400 * 3, "3 days"),
        (86400 * 4000, "4,000 days"),
    ],
)
def test_a_duration_is_formatted(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
