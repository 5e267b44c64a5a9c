"""Small stores with a past, and what each must hold after every entry of its log: what the corruption tests damage."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.children import FIELDS, record

import warmstore as ws
from warmstore.records import store_session
from warmstore.records.write import chunk_merging
from warmstore.storage.files import Files

Record = dict[str, Any]


class Hasty(Files):
    """Files that are not put on the disk: only the process ends in these tests, and thousands of stores are written."""

    def sync(self, descriptor: int) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        pass


class Story:
    """A store being written, and beside it the records that it must hold."""

    def __init__(self, store: ws.RecordStore, value: Callable[[int], Record], records: Iterable[Record] = ()) -> None:
        self.store = store
        self.path = store.path
        self.fields = store.fields
        self.value = value
        self.records: list[Record] = list(records)
        self.after: dict[int, list[Record]] = {}  # by number of log entries
        self._tell()

    @classmethod
    def create(cls, path: Path, fields: dict[str, Any], value: Callable[[int], Record], **options: Any) -> "Story":
        return cls(ws.RecordStore.create(path, fields, metadata={"note": "é"}, files=Hasty(), **options), value)

    @property
    def generation(self) -> str:
        return self.store._manifest.generation_folder

    def columns(self, numbers: Any, names: Any = None) -> dict[str, list[Any]]:
        records = [self.value(number) for number in numbers]
        return {name: [one[name] for one in records] for name in names or self.fields}

    def extend(self, numbers: range) -> None:
        self.store.extend(self.columns(numbers))
        self.store.flush()
        self.records += [self.value(number) for number in numbers]
        self._tell()

    def update(self, index: list[int], numbers: list[int], *names: str) -> None:
        values = self.columns(numbers, names)
        self.store.update(index, values)
        for at, position in enumerate(index):
            self.records[position] = {**self.records[position], **{name: values[name][at] for name in names}}
        self._tell()

    def delete(self, index: list[int]) -> None:
        """The last records that are left fill the holes, in rising order."""
        self.store.delete(index)
        length = len(self.records) - len(index)
        left = [self.records[at] for at in range(length, len(self.records)) if at not in index]
        for at in sorted(index):
            if at < length:
                self.records[at] = left.pop()
        self.records = self.records[:length]
        self._tell()

    def rebalance(self) -> None:
        self.store.rebalance(progress=False)
        self.after = {0: [], 1: list(self.records)}
        self._tell()

    def another_writer(self) -> None:
        """What comes from now on is written to another chunk."""
        self.store.close()
        self._tell()
        self.store = ws.RecordStore.open(self.path, "a", files=Hasty())

    def close(self, *, seal: bool = True) -> "Story":
        self.store.close(seal=seal)
        self._tell()
        return self

    def _tell(self) -> None:
        entries = (self.path / self.generation / "log").stat().st_size // 64
        self.after[entries] = list(self.records)

    @property
    def entries(self) -> int:
        """All entries of the log."""
        return max(self.after)

    def at(self, entries: int) -> list[Record]:
        """The records when the log had so many entries; one that seals a chunk changes none."""
        return self.after[max(known for known in self.after if known <= entries)]


def plain(path: Path) -> Story:
    story = Story.create(path, FIELDS, record)
    story.extend(range(3))
    story.extend(range(3, 5))
    return story.close()


def edited(path: Path) -> Story:
    """Updates and deletes, one of the row of an update, over two chunks."""
    names = ("number", "image", "points", "text")
    story = Story.create(path, {name: FIELDS[name] for name in names}, record)
    story.extend(range(6))
    story.update([1, 4], [11, 14], *names)
    story.delete([0, 5])
    story.another_writer()
    story.extend(range(6, 8))
    story.update([2], [12], "points", "text")
    story.delete([1])
    return story.close()


def _squeezable(number: int) -> Record:
    word = f"record {number} of a few that resemble each other ".encode()
    return {
        "deflated": np.arange(number, number + 12, dtype=np.int16).reshape(3, 4),
        "zstd": word * (1 + number % 3),
        "trained": word * (number % 3),
        "lz4": word.decode() * (1 + number % 2),
        "rows": np.full((number % 3, 5), number, np.float32),
        "json": {"number": [number] * 9},
    }


def _squeezed(number: int) -> Record:
    whole = _squeezable(number)
    return {name: None if number == place and name != "json" else whole[name] for place, name in enumerate(whole)}


def compressed(path: Path) -> Story:
    """Every codec; most fields have no value in one record."""
    samples = [_squeezable(number)["zstd"] + bytes([number % 251]) * 9 for number in range(500)]
    fields = {
        "deflated": ws.Array("int16", (3, 4), codec="deflate"),
        "zstd": ws.Bytes(codec="zstd"),
        "trained": ws.Bytes(codec="zstd", dictionary=ws.train_dictionary(samples, 256)),
        "lz4": ws.Text(codec="lz4"),
        "rows": ws.Ragged("float32", ndim=2, codec="zstd:1"),
        "json": ws.Json(codec="deflate:9"),
    }
    story = Story.create(path, fields, _squeezed)
    story.extend(range(3))
    story.extend(range(3, 5))
    return story.close()


def _holey(number: int) -> Record:
    whole = record(number)
    return {name: None if (number + place) % 3 == 0 else whole[name] for place, name in enumerate(whole)}


def absent(path: Path) -> Story:
    """Values that are absent, in one batch and not in another."""
    names = [name for name in FIELDS if name != "tag"]  # None is a value of a Json field
    story = Story.create(
        path, {name: FIELDS[name] for name in names}, lambda number: {**record(number), **_holey(number)}
    )
    story.extend(range(4))
    story.update([1], [6], *names)
    return story.close()


def rebalanced(path: Path) -> Story:
    """The second generation, edited once more."""
    names = ("number", "half", "points", "blob", "tag")
    story = Story.create(path, {name: FIELDS[name] for name in names}, record)
    story.extend(range(6))
    story.delete([0])
    story.update([1], [11], "points")
    story.rebalance()
    story.extend(range(6, 8))
    story.update([0], [10], "blob")
    return story.close()


def merged(path: Path) -> Story:
    """Two writers' chunks that were merged, edits before and after, a sealed chunk, and one without a footer."""
    fields = {
        "number": ws.Array("int32"),
        "points": ws.Ragged("int16"),
        "text": ws.Text(codec="lz4"),
    }

    def value(number: int) -> Record:
        points = np.arange(number, number + number % 3, dtype=np.int16)
        return {"number": number, "points": points, "text": None if number % 4 == 3 else "é" * (number % 5)}

    story = Story.create(path, fields, value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_merging, "FAN_IN", 2)
        story.extend(range(6))
        story.another_writer()
        story.update([1], [11], "text")
        story.extend(range(6, 8))
        story.another_writer()  # and now both chunks are one
        story.delete([0])
    story.update([2, 0], [12, 13], "number", "points")
    story.another_writer()
    with pytest.MonkeyPatch.context() as small:
        small.setattr(store_session, "BATCH_BYTES", 1)
        story.update([3, 1], [14, 15], "points", "text")
    story.extend(range(8, 9))
    return story.close(seal=False)


STORIES = {function.__name__: function for function in (plain, edited, compressed, absent, rebalanced, merged)}
