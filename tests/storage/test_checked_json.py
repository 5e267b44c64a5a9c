"""Damaged objects are refused, whatever is damaged: also the name of the checksum."""

import itertools
import json

import pytest

from warmstore.storage import checked_json

CONTENT = {"name": "words", "rows": 17, "parts": [1, 2]}


def test_what_was_written_is_read_and_so_is_what_earlier_versions_wrote() -> None:
    assert checked_json.from_bytes(checked_json.to_bytes(CONTENT)) == CONTENT
    assert checked_json.from_bytes(checked_json.to_bytes(CONTENT, indent=1)) == CONTENT
    for content in (CONTENT, {}):
        assert checked_json.from_bytes(json.dumps(content).encode()) == content


def test_two_flipped_bits_are_refused() -> None:
    """Of the name and of the figures: all pairs."""
    data = checked_json.to_bytes({"rows": 17})
    figures = [(data.index(b"17") + at, bit) for at in range(2) for bit in range(8)]
    name = [(data.index(b"checksum") + at, bit) for at in range(8) for bit in range(8)]
    for pair in itertools.product(figures, name):
        damaged = bytearray(data)
        for at, bit in pair:
            damaged[at] ^= 1 << bit
        with pytest.raises(ValueError, match=r"\w"):
            checked_json.from_bytes(bytes(damaged))


def test_a_flipped_bit_is_refused() -> None:
    data = checked_json.to_bytes(CONTENT)
    for at, bit in itertools.product(range(len(data)), range(8)):
        damaged = bytearray(data)
        damaged[at] ^= 1 << bit
        if bytes(damaged).split() != data.split():
            with pytest.raises(ValueError, match=r"\w"):
                checked_json.from_bytes(bytes(damaged))
