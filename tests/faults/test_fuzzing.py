"""Parsers get real inputs, and mutated ones: they return, or raise what they document. `make torture` has far more."""

import random

import pytest
from tests.faults import real_inputs as real
from tests.faults.fuzzed_parsers import PARSERS
from tests.faults.mutations import mutated
from tests.slow import either


@pytest.mark.parametrize("name", PARSERS)
def test_real_inputs(name: str) -> None:
    for data in PARSERS[name].seeds:
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


@pytest.mark.parametrize("name", PARSERS)
def test_mutated_inputs(name: str) -> None:
    rng = random.Random(name)
    for _ in range(either(200, 20_000)):
        data = mutated(PARSERS[name].seeds, rng)
        try:
            PARSERS[name](data)
        except Exception as error:
            error.add_note(f"of {data[:300]!r}")
            raise
