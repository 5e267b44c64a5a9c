"""Every bit of a small store flipped, and every file cut at every length: an exact value or a typed error.

The reading runs in child processes, so that a crash of the interpreter shows.
"""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.children import FIELDS, columns, in_child, record, same, well

import warmstore as ws
from warmstore.errors import WarmstoreError

ROWS = 5
EXPECTED = [record(number) for number in range(ROWS)]


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
        for name in FIELDS:
            # All at once where that goes well, else one by one: damage in one record hides no other.
            for index in (slice(None), *([at] for at in range(len(store)))):
                try:
                    values = store.gather(index, [name])[name]
                except WarmstoreError:
                    continue
                places = range(len(store)) if isinstance(index, slice) else index
                for at, value in zip(places, values, strict=True):
                    expected = EXPECTED[at][name]
                    if not (value == expected if name == "number" else same(value, expected)):
                        return f"{name} of record {at} is {value!r}"
                if isinstance(index, slice):
                    break
        with contextlib.suppress(WarmstoreError):
            store.to_arrow()
    finally:
        store.close()
    return ""


def changed(path: Path, changes: Iterator[tuple[str, bytes]], least: int = ROWS) -> int:
    """Write each change to a file, in a child, and look; return how many were looked at."""
    original = path.read_bytes()
    store = next(folder for folder in path.parents if folder.name == "s")

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
    return folder / {"json": "store.json", "log": "g0001/log", "chunk": "g0001/000000.arrow"}[name]


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
    # Every length of the small files; of the chunk every one that no buffer's alignment can hide.
    lengths = range(0, len(data), 3 if name == "chunk" else 1)
    cuts = ((f"cut to {length}", data[:length]) for length in lengths)
    assert changed(path, cuts, 0 if name == "log" else ROWS) == len(lengths)


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


def test_the_check_itself_would_see_a_wrong_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from warmstore.records import gather

    path = file_of(make(tmp_path / "s"), "chunk")
    data = path.read_bytes()
    monkeypatch.setattr(gather.Gatherer, "_check", lambda *arguments: None)
    with pytest.raises(AssertionError, match=r"of record \d"):
        changed(path, flips(data, range(1), 0, 16))
