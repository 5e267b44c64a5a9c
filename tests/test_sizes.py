"""Sizes as people write them."""

import pytest

from warmstore.sizes import parse_size


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        (1, 1),
        (1 << 70, 1 << 70),
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
def test_reads(size: int | str, expected: int) -> None:
    assert parse_size(size) == expected
    assert type(parse_size(size)) is int


@pytest.mark.parametrize(
    "size", [0, -1, "0", "-1", "", "MB", "1XB", "1e3", "1 2", "one", "0.4B", "inf", "nan", True, 1.5, None, b"1", [1]]
)
def test_refuses(size: object) -> None:
    with pytest.raises(ValueError, match="is not a size") as caught:
        parse_size(size)  # type: ignore[arg-type]
    assert repr(size) in str(caught.value)
