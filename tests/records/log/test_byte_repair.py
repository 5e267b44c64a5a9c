"""Mending one wrong byte by a hash."""

import random

import xxhash

from warmstore.records.log.byte_repair import with_one_byte_changed


def test_any_wrong_byte_is_found() -> None:
    data = random.Random(0).randbytes(70)
    expected = xxhash.xxh3_64_digest(data)
    for at in range(len(data)):
        for change in (1, 128, 0b101, 255):
            wrong = bytearray(data)
            wrong[at] ^= change
            assert with_one_byte_changed(bytes(wrong), lambda tried: xxhash.xxh3_64_digest(tried) == expected) == data


def test_two_wrong_bytes_are_not() -> None:
    data = bytes(40)
    expected = xxhash.xxh3_64_digest(data)
    assert with_one_byte_changed(b"\1\1" + data[2:], lambda tried: xxhash.xxh3_64_digest(tried) == expected) is None


def test_what_is_large_is_not_searched() -> None:
    assert with_one_byte_changed(bytes(1 << 20), lambda tried: True) is None
