"""Damaged bytes, and everything a damaged store is asked: each answer is an exact value or a typed error.

All of it happens in a child process, which looks at many damages; when the interpreter crashes, the child had said at
which.
"""

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tests.faults.children import in_child, same, well
from tests.faults.stories import Hasty, Record, Story

import warmstore as ws
from warmstore.errors import WarmstoreError
from warmstore.records.log.log_entries import BATCH, COPIED, ENTRY, STAGED

Damage = tuple[str, bytes | None]
"""What was done, and the file's bytes then; None where the file is removed."""
_BATCHES = (BATCH, STAGED, COPIED)
Lost = set[tuple[str, int]]
"""Fields and positions that raise."""


def flips(data: bytes, places: Iterable[int], bits: range | None = None) -> Iterator[Damage]:
    """One bit of some bytes, another one from byte to byte; or each of `bits`."""
    for at in places:
        for bit in bits or [at % 8]:
            copy = bytearray(data)
            copy[at] ^= 1 << bit
            yield f"bit {bit} of byte {at}", bytes(copy)


def cuts(data: bytes, lengths: Iterable[int]) -> Iterator[Damage]:
    for length in lengths:
        yield f"cut to {length}", data[:length]


def fills(data: bytes, length: int, step: int) -> Iterator[Damage]:
    """Zeros, ones and letters over some bytes, and over all."""
    for fill in (b"\0", b"\xff", b"A"):
        for at in range(0, len(data), step):
            put = fill * min(length, len(data) - at)
            yield f"{length} x {fill!r} at {at}", data[:at] + put + data[at + length :]
        yield "whole", fill * len(data)


def pairs_of_bits(data: bytes, count: int, rng: np.random.Generator) -> Iterator[Damage]:
    """Two bits flipped, at any two places."""
    for first, second in rng.choice(8 * len(data), (count, 2)).tolist():
        copy = bytearray(data)
        for bit in (first, second):
            copy[bit >> 3] ^= 1 << (bit & 7)
        yield f"bits {first} and {second}", bytes(copy)


def swapped_words(data: bytes, count: int, rng: np.random.Generator) -> Iterator[Damage]:
    """Two different 8-byte words exchanged."""
    words = np.frombuffer(data[: len(data) // 8 * 8], np.uint64)
    if len(np.unique(words)) < 2:
        return
    while count:
        first, second = rng.choice(len(words), 2).tolist()
        if words[first] != words[second]:
            copy = words.copy()
            copy[[first, second]] = words[[second, first]]
            yield f"words {first} and {second}", copy.tobytes() + data[len(words) * 8 :]
            count -= 1


def files_of(story: Story) -> dict[str, Path]:
    """Every file of a store that holds anything by its name; chunks, the last ones, by their number."""
    folder = story.path / story.generation
    chunks = {str(int(path.stem)): path for path in sorted(folder.glob("*.arrow"))}
    copied = [story.path / "store.json", folder / "store.json.copy"]
    copied += [folder / f"{name}{copy}" for name in ("log", "numbers") for copy in ("", ".copy")]
    files = {**{path.name: path for path in copied if path.exists()}, **chunks}
    present = {path for path in story.path.rglob("*") if path.is_file() and path.stat().st_size}
    assert present == set(files.values())
    return files


def headers_of(story: Story, file: str) -> list[int]:
    """The bytes of a chunk in which headers of batches stand that count."""
    entries = np.frombuffer((story.path / story.generation / "log").read_bytes(), ENTRY)
    here = entries[(entries["chunk"] == int(file)) & (entries["header_hash"] != 0) & np.isin(entries["kind"], _BATCHES)]
    return [at for entry in here for at in range(int(entry["offset"]), int(entry["offset"] + entry["header"]))]


def look_at(path: Path, damages: Iterable[Damage], wrong: Callable[[], str | None], *, scratch: Path) -> int:
    """Do each damage to a file, in a child, and ask `wrong` what is wrong; return how many were looked at.

    Args:
        scratch: what `wrong` may have left there is removed.
    """
    original = path.read_bytes()

    def work(say: Callable[[Any], None]) -> None:
        logging.disable()
        descriptor = os.open(path, os.O_RDWR)
        for what, data in damages:
            say(("at", what))
            if data is None:
                path.unlink()
            else:
                os.pwrite(descriptor, data, 0)
                os.ftruncate(descriptor, len(data))
            try:
                problem = wrong()
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
            if data is None:
                path.write_bytes(original)
                descriptor = os.open(path, os.O_RDWR)
            if problem:
                say(("wrong", f"{path.name}, {what}: {problem}"))
            shutil.rmtree(scratch, ignore_errors=True)

    ended = in_child(work)
    path.write_bytes(original)
    shutil.rmtree(scratch, ignore_errors=True)
    looked = [what for kind, what in ended.said if kind == "at"]
    assert not ended.signal, f"{path.name}, {looked[-1:]}: signal {ended.signal}"
    found = [what for kind, what in well(ended) if kind == "wrong"]
    assert not found, (len(found), found[:5])
    return len(looked)


QUICK, WHOLE, DEEP = range(3)
"""How much a damaged store is asked: to read and to verify; in every way; and copies of it to repair and to write."""


def wrong(
    story: Story,
    entries: Collection[int],
    *,
    depth: int,
    scratch: Path,
    exact: bool = False,
    noticed: bool = False,
    lost_values: Lost | None = None,
) -> str:
    """What is wrong with what a damaged store says; nothing, where every value is exact or a typed error.

    Args:
        entries: how many entries of the log may count.
        exact: every value must be there.
        noticed: `verify` must name some damage.
        lost_values: gets the fields and positions that raise.
    """
    try:
        store = ws.RecordStore.open(story.path)
    except WarmstoreError as error:
        return f"not opened: {error}" if exact else ""
    with contextlib.closing(store):
        if store._snapshot.entries not in entries:
            return f"{store._snapshot.entries} entries"
        if store.fields != story.fields or store.metadata != {"note": "é"}:
            return "another description"
        expected = story.at(store._snapshot.entries)
        if len(store) != len(expected):
            return f"{len(store)} records"
        problem: str = ""
        lost: Lost = set()
        if not _reads_all(store, expected) or depth != QUICK:
            problem, lost = different(store, expected)
            if lost_values is not None:
                lost_values |= lost
        if not lost or depth != QUICK:
            with contextlib.suppress(WarmstoreError):
                assert store.to_arrow().num_rows == len(expected)
        report = store.verify(progress=False)
        named = {(one.field, at) for one in report.problems for at in one.positions}
        if not problem and named != lost:
            problem = f"verify says {sorted(named)}, and reading {sorted(lost)}"
        if not problem and exact and lost:
            problem = f"{sorted(lost)} cannot be read"
        if not problem and report.ok and (noticed or lost):
            problem = "verify does not notice"
    if not problem and depth == DEEP:
        problem = _repaired(story, expected, lost, scratch) or _written(story, expected, lost, scratch)
    return problem


def _reads_all(store: ws.RecordStore, expected: list[Record]) -> bool:
    """Whether everything can be read at once, and is exact."""
    try:
        values = store.gather(slice(None))
    except WarmstoreError:
        return False
    return all(_same(values[name][at], record[name]) for name in values for at, record in enumerate(expected))


def different(store: ws.RecordStore, expected: list[Record]) -> tuple[str, Lost]:
    """The first value that is neither exact nor a typed error; and those that are a typed error."""
    lost = set()
    for name, field in store.fields.items():
        for at, record in enumerate(expected):
            try:
                (value,) = store.gather([at], [name])[name]
            except WarmstoreError:
                lost.add((name, at))
            else:
                if not _same(value, record[name]):
                    return f"{name} of record {at} is {value!r}", lost
        gone = {at for other, at in lost if other == name}
        there = [at for at in range(len(expected)) if at not in gone]
        values = store.gather(there, [name])[name]
        present = store.present(name, there)
        packed = store.gather(there, [name], packed=True)[name]
        for place, at in enumerate(there):
            value = expected[at][name]
            if not _same(values[place], value):
                return f"{name} of record {at} is {values[place]!r} among others", lost
            null = isinstance(field, ws.Json) and value is None  # which may be a value, too
            if present[place] != (value is not None) and not null:
                return f"{name} of record {at} is there: {present[place]}", lost
            if not isinstance(field, ws.Array) and not _same_packed(field, packed, place, value):
                return f"{name} of record {at} is {packed[place]!r} when packed", lost
        for options in ({}, {"packed": True}):
            try:
                store.gather(slice(None), [name], **options)
            except WarmstoreError:
                continue
            if gone:
                return f"{name} of records {gone} is damaged, and all at once are not", lost
    return "", lost


def _repaired(story: Story, expected: list[Record], lost: Lost, scratch: Path) -> str:
    """What is wrong after a repair: values that were whole are exact, the others absent, and nothing is damaged."""
    shutil.copytree(story.path, scratch)
    try:
        with ws.RecordStore.open(scratch, "a", files=Hasty()) as store:
            report = store.verify(repair=True, progress=False)
    except WarmstoreError as error:
        return f"not repaired: {error}"
    if lost and not report.repaired:
        return f"not repaired, with {len(lost)} values lost"
    rest = [{**one, **{name: None for name in one if (name, at) in lost}} for at, one in enumerate(expected)]
    with ws.RecordStore.open(scratch) as store:
        problem, still = different(store, rest)
        report = store.verify(progress=False)
        shutil.rmtree(scratch)
        if not problem and not report.ok:
            problem = f"verify says {report}"
        return (problem and f"{problem} after a repair") or (f"{still} not repaired" if still else "")


def _written(story: Story, expected: list[Record], lost: Lost, scratch: Path) -> str:
    """What is wrong after a batch and an update were written."""
    shutil.copytree(story.path, scratch)
    fresh = [20, 21, 22]
    done = list(expected)
    with contextlib.suppress(WarmstoreError), ws.RecordStore.open(scratch, "a", files=Hasty()) as store:
        store.extend(story.columns(fresh))
        store.flush()
        done += map(story.value, fresh)
        store.update([0], story.columns([23]))
        done[0] = story.value(23)
        lost = {(name, at) for name, at in lost if at}
    with ws.RecordStore.open(scratch) as store:
        if len(store) != len(done):
            return f"{len(store)} records after a write"
        problem, now = different(store, done)
        if not problem and now != lost:
            problem = f"{now} are lost, not {lost},"
        return problem and f"{problem} after a write"


def _same(value: Any, expected: Any) -> bool:
    if value is None or value is np.ma.masked or expected is None:
        return expected is None and (value is None or bool(np.ma.getmaskarray(value).all()))
    if isinstance(expected, int):
        return bool(value == expected)
    return same(np.asarray(value) if isinstance(value, np.ma.MaskedArray) else value, expected)


def _same_packed(field: Any, packed: Any, place: int, expected: Any) -> bool:
    if packed.absent is not None and packed.absent[place]:
        return expected is None and not len(packed[place])
    if isinstance(field, ws.Ragged):
        return expected is not None and same(packed[place], expected)
    data = packed[place].tobytes()
    if isinstance(field, ws.Json):
        return bool(json.loads(data) == expected)
    return expected is not None and data == (expected.encode() if isinstance(expected, str) else bytes(expected))
