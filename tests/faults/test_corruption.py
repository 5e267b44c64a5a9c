"""Every bit of a small store flipped, and every file cut at every length: an exact value or a typed error.

The reading runs in child processes, so that a crash of the interpreter shows.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.children import FIELDS, columns, in_child, record, same, well

import warmstore as ws
from warmstore.errors import WarmstoreError

ROWS = 5


def make(path: Path) -> Path:
    with ws.RecordStore.create(path, FIELDS, metadata={"note": "é"}) as store:
        store.extend(columns(range(3)))
        store.flush()
        store.extend(columns(range(3, ROWS)))
    return path


def wrong(path: Path, least: int = ROWS) -> str:
    """What is wrong with what a damaged store says; nothing, where every value is exact or a typed error."""
    try:
        store = ws.RecordStore.open(path)
    except WarmstoreError:
        return ""
    try:
        if not least <= len(store) <= ROWS:
            return f"{len(store)} records"
        if store.fields != FIELDS or store.metadata != {"note": "é"}:
            return "another description"
        for at in range(len(store)):
            for name in FIELDS:
                try:
                    value = store.gather([at], [name])[name][0]
                except WarmstoreError:
                    continue
                expected = record(at)[name]
                if not (value == expected if name == "number" else same(value, expected)):
                    return f"{name} of record {at} is {value!r}"
        try:
            store.to_arrow()
        except WarmstoreError:
            pass
    finally:
        store.close()
    return ""


def changed(path: Path, changes: Iterator[tuple[str, bytes]], least: int = ROWS) -> int:
    """Write each change to a file, in a child, and look; return how many were looked at."""
    original = path.read_bytes()
    store = path.parents[
        len(path.parts) - len(next(one for one in path.parents if (one / "store.json").exists()).parts) - 1
    ]

    def work(say: Callable[[Any], None]) -> None:
        count = 0
        for what, data in changes:
            path.write_bytes(data)
            try:
                problem = wrong(store, least)
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
            if problem:
                say(f"{path.name}, {what}: {problem}")
            count += 1
        say(count)

    ended = in_child(work)
    path.write_bytes(original)
    said = well(ended)
    assert not said[:-1], said[:5]
    return int(said[-1])


def flips(data: bytes, bits: range, first: int, step: int) -> Iterator[tuple[str, bytes]]:
    for at in range(first, len(data), step):
        for bit in bits if len(bits) > 1 else [at % 8]:
            copy = bytearray(data)
            copy[at] ^= 1 << bit
            yield f"bit {bit} of byte {at}", bytes(copy)


def file_of(folder: Path, name: str) -> Path:
    return {"json": folder / "store.json", "log": folder / "g0001" / "log", "chunk": folder / "g0001" / "000000.arrow"}[
        name
    ]


@pytest.mark.parametrize("part", range(2))
@pytest.mark.parametrize("name", ["json", "log", "chunk"])
def test_every_byte_flipped(tmp_path: Path, name: str, part: int) -> None:
    """One bit of every byte, another one from byte to byte."""
    path = file_of(make(tmp_path / "s"), name)
    data = path.read_bytes()
    assert changed(path, flips(data, range(1), part, 2)) == len(range(part, len(data), 2))


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
@pytest.mark.parametrize("name", ["json", "log", "chunk"])
def test_every_bit_flipped(tmp_path: Path, name: str, part: int) -> None:
    path = file_of(make(tmp_path / "s"), name)
    changed(path, flips(path.read_bytes(), range(8), part, 4))


@pytest.mark.parametrize("name", ["json", "log", "chunk"])
def test_cut_at_every_length(tmp_path: Path, name: str) -> None:
    path = file_of(make(tmp_path / "s"), name)
    data = path.read_bytes()
    cuts = ((f"cut to {length}", data[:length]) for length in range(len(data)))
    assert changed(path, cuts, 0 if name == "log" else ROWS) == len(data)


@pytest.mark.parametrize("name", ["json", "log", "chunk"])
@pytest.mark.parametrize("length", [1, 7, 8, 64, 512, 100_000])
def test_zeros_and_garbage(tmp_path: Path, name: str, length: int) -> None:
    path = file_of(make(tmp_path / "s"), name)
    data = path.read_bytes()

    def changes() -> Iterator[tuple[str, bytes]]:
        for fill in (b"\0", b"\xff", b"A"):
            for at in range(0, len(data), 64):
                put = fill * min(length, len(data) - at)
                yield f"{length} x {fill!r} at {at}", data[:at] + put + data[at + length :]
            yield "whole", fill * len(data)

    # Zeros over the log's end are what a torn tail looks like.
    changed(path, changes(), 0 if name == "log" else ROWS)


def test_a_chunk_swapped_for_another(tmp_path: Path) -> None:
    one, two = make(tmp_path / "one"), tmp_path / "two"
    with ws.RecordStore.create(two, FIELDS) as store:
        store.extend(columns(range(40, 43)))
        store.flush()
        store.extend(columns(range(43, 45)))
    path = file_of(one, "chunk")
    assert changed(path, iter([("empty", b""), ("text", b"ARROW1" * 1000)])) == 2


def test_the_check_itself_would_see_a_wrong_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from warmstore.records import gather

    path = file_of(make(tmp_path / "s"), "chunk")
    data = path.read_bytes()
    monkeypatch.setattr(gather.Gatherer, "_check", lambda *arguments: None)
    with pytest.raises(AssertionError, match=r"of record \d"):
        changed(path, flips(data, range(1), 0, 1))
