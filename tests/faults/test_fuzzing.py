"""Parsers get real inputs, and mutated ones: they return, or raise what they document. `make torture` has far more."""

import random

import numpy as np
import pytest
from tests.faults import real_inputs as real
from tests.faults.fuzzed_parsers import PARSERS
from tests.faults.mutations import mutated
from tests.slow import either

from warmstore.records.index.key_index import HEADER
from warmstore.records.log.log_entries import ENTRY


@pytest.mark.parametrize("name", PARSERS)
def test_real_inputs(name: str) -> None:
    for data in PARSERS[name].inputs:
        PARSERS[name](data)


FOUND = {
    "store.json": [b'{"format": 4}', b'{"format": 4, "fields": [], "metadata": 1, "generation": 1, "id": "ab"}'],
    "sidecar": [b"WSSIDE01" + bytes(16) + (1 << 63).to_bytes(8, "little")],
    "chunks of a copy": [b"", b"[1]", b'{"0": 1}', b'{"x": []}'],
    "notes of a remote": [b"[" * 5000],
    "key description": [b"[" * 5000, b'[{}, {"a": 1e999}]'],
    "package": [b"warmstore package 6\n" + (5000).to_bytes(8, "little") + b"[" * 5000],
    "environment": [b"[" * 5000, b'{"compute": [[1e999, 0]]}', b'{"glibc": 5}', b'"text"'],
    "lookups": [b'{"job": "j", "lookups": ["text"]}'],
    "artifacts": [real.ARTIFACTS.replace(b'["avx"]', b"1")],
    "bundle of segments": [real.BUNDLE.replace(b", 9]", b", 1e999]")],
    "URL": [b"~nobody-here/x"],
    "brace pattern": [b"{0..99999999999}"],
}
"""What parsers did not take, or took for ever, before they were mended."""


@pytest.mark.parametrize("name", FOUND)
def test_inputs_that_were_not_taken(name: str) -> None:
    for data in FOUND[name]:
        PARSERS[name](data)


@pytest.mark.parametrize("name", ["direct", "covered", "buckets", "synced"])
@pytest.mark.parametrize("number", [-1, -(1 << 40), 1 << 40])
def test_numbers_of_a_key_index_that_cannot_be(name: str, number: int) -> None:
    """It is built again, where every lookup of a cache raised ValueError."""
    (page,) = PARSERS["key index"].inputs
    header = np.frombuffer(page, HEADER, 1).copy()
    header[name] = number
    assert PARSERS["key index"](header.tobytes() + page[HEADER.itemsize :])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("kind", 99), ("body", 0), ("body", 1 << 48), ("body", 1 << 63), ("rows", 0), ("chunk", 7)),
        *(("header", 0), ("header", 3), ("header", 1 << 31), ("offset", 1 << 63), ("offset", (1 << 64) - 8)),
    ],
)
def test_entries_of_a_log_that_cannot_be(name: str, value: int) -> None:
    """Their hashes match, so somebody made them: a typed error, or the records of the other entries."""
    (log,) = PARSERS["log of a store"].inputs
    for at in range(len(log) // ENTRY.itemsize):
        entries = np.frombuffer(log, ENTRY).copy()
        entries[name][at] = value
        PARSERS["log of a store"](entries.tobytes())


@pytest.mark.parametrize("name", PARSERS)
def test_mutated_inputs(name: str) -> None:
    rng = random.Random(name)
    inputs = PARSERS[name].inputs
    for _ in range(max(10, int(either(100, 4000) * PARSERS[name].share))):
        data = mutated(inputs, rng)
        try:
            PARSERS[name](data)
        except Exception as error:
            error.add_note(f"of {data[:300]!r}")
            raise
