"""Stories of record stores under power cuts: what was flushed is there and exact, the rest is whole or not there."""

import contextlib
import functools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tests.faults.children import same
from tests.faults.recording import Recorder

import warmstore as ws
from warmstore.errors import NotAStore
from warmstore.records import store_session
from warmstore.records.maintenance.sealing import seal_abandoned
from warmstore.records.write import chunk_merging
from warmstore.replicate.staged_write import StagedWrite

FIELDS: dict[str, Any] = {"number": ws.Array("int64"), "points": ws.Ragged("float32", ndim=2), "text": ws.Text()}

Numbers = list[int] | None
"""The records of a store by their numbers; None where there is no store."""


@functools.cache
def value(number: int) -> dict[str, Any]:
    """Record `number`: its values follow from the number alone."""
    points = np.arange(number, number + 2 * (number % 3), dtype=np.float32).reshape(-1, 2)
    return {"number": number, "points": points, "text": "é" * (number % 4)}


def columns(numbers: Any) -> dict[str, list[Any]]:
    records = [value(number) for number in numbers]
    return {name: [one[name] for one in records] for name in FIELDS}


def check_store(store: ws.RecordStore) -> list[int]:
    """The numbers of a store's records, each of which is exact."""
    values = store[:]
    numbers: list[int] = values["number"].tolist()
    for at, number in enumerate(numbers):
        for name, expected in value(number).items():
            assert name == "number" or same(values[name][at], expected), (name, at)
    return numbers


class Ledger:
    """The states of a store that a story goes through, told to the recorder as it goes."""

    def __init__(self, recorder: Recorder, first: Numbers) -> None:
        self.recorder = recorder
        self.states: list[Any] = [first]
        recorder.states = self.states
        recorder.promise(0, 0)

    @contextlib.contextmanager
    def step(self, *states: Any) -> Iterator[None]:
        """The block leads to the last of some states, over the others; it is acknowledged when it ends."""
        known = len(self.states) - 1
        self.states += states
        last = len(self.states) - 1
        self.recorder.promise(known, last)
        yield
        self.recorder.promise(last, last)


class RecordStory:
    """A story of the store `s`, or of one deeper down."""

    def __init__(
        self,
        tell: Callable[[Path, Recorder], list[Any]],
        *,
        before: Callable[[Path], None] = lambda root: None,
        place: str = "s",
        commits_pending: bool = True,
    ) -> None:
        self.name = tell.__name__
        self._tell = tell
        self._before = before
        self._place = place
        self.commits_pending = commits_pending  # to the store itself, when what is open is closed

    def prepare(self, root: Path) -> None:
        self._before(root)

    def run(self, root: Path, recorder: Recorder) -> list[Any]:
        return self._tell(root, recorder)

    def check(self, root: Path, allowed: list[Any], *, thorough: bool) -> tuple[list[int], bool]:
        path = root / self._place
        try:
            reader = ws.RecordStore.open(path)
        except NotAStore:
            assert None in allowed, f"there is no store; one of {allowed} was promised"
            ws.RecordStore.create(path, FIELDS).close()
            allowed = [[]]
            reader = ws.RecordStore.open(path)
        numbers = check_store(reader)
        assert numbers in allowed, f"{numbers} is there; one of {allowed} was promised"
        return (self._edited if thorough else self._appended)(path, reader, numbers)

    def _appended(self, path: Path, reader: ws.RecordStore, numbers: list[int]) -> tuple[list[int], bool]:
        """Append."""
        with ws.RecordStore.open(path, "a") as writer:
            writer.append(value(900))
            writer.flush()
        reader.refresh()
        assert check_store(reader) == [*numbers, 900]
        reader.close()
        return [*numbers, 900], False

    def _edited(self, path: Path, reader: ws.RecordStore, numbers: list[int]) -> tuple[list[int], bool]:
        """Repair, append and edit, beside a reader that was there before."""
        writer = ws.RecordStore.open(path, "a")
        report = writer.verify(repair=True)
        assert not report.problems, report
        assert not report.lost, report
        assert writer.verify().ok, writer.verify()
        writer.append(value(900))
        writer.flush()
        writer.update(0, value(901))
        numbers = [901, *numbers[1:], 900] if numbers else [901]
        for one in (writer, reader):
            one.refresh()
            assert check_store(one) == numbers
        writer.close()
        reader.close()
        return numbers, True

    def again(self, root: Path, expected: tuple[list[int], bool]) -> None:
        path = root / self._place
        numbers, repaired = expected
        with ws.RecordStore.open(path) as store:
            assert check_store(store) == numbers
            report = store.verify()
            assert report.ok if repaired else not report.problems and not report.lost, report
        if repaired:
            with ws.RecordStore.open(path, "a") as store:
                store.append(value(902))
                store.rebalance(progress=False)
                assert check_store(store) == [*numbers, 902]
            assert len([path for path in path.iterdir() if path.name.startswith("g")]) == 1


def appends(root: Path, recorder: Recorder) -> list[Any]:
    """A new store, four flushes, and the footer."""
    ledger = Ledger(recorder, None)
    with ledger.step([]):
        store = ws.RecordStore.create(root / "s", FIELDS)
    for first in (0, 2, 4, 6):
        store.extend(columns(range(first, first + 2)))
        with ledger.step([*range(first + 2)]):
            store.flush()
    with ledger.step([*range(8)]):
        store.close()
    return ledger.states


def deep(root: Path, recorder: Recorder) -> list[Any]:
    """A store in folders that are not there yet."""
    ledger = Ledger(recorder, None)
    with ledger.step([]):
        store = ws.RecordStore.create(root / "a" / "b" / "s", FIELDS)
    store.extend(columns(range(2)))
    with ledger.step([0, 1]):
        store.flush()
    return ledger.states


def chunks(root: Path, recorder: Recorder) -> list[Any]:
    """A chunk for each flush, and more entries than a sector holds."""
    store = ws.RecordStore.open(root / "s", "a", chunk_size=1)
    ledger = Ledger(recorder, [*range(6)])
    for number in range(6, 12):
        store.append(value(number))
        with ledger.step([*range(number + 1)]):
            store.flush()
    return ledger.states


def edits(root: Path, recorder: Recorder) -> list[Any]:
    """Updates and deletes, two of them with a pending row, one of several batches."""
    store = ws.RecordStore.open(root / "s", "a")
    ledger = Ledger(recorder, [*range(6)])
    store.append(value(6))
    with ledger.step([*range(7)], [10, 11, 2, 3, 4, 5, 6]):
        store.update([0, 1], columns([10, 11]))
    with ledger.step([10, 6, 2, 5, 4]):
        store.delete([1, 3])
    before = store_session.BATCH_BYTES
    store_session.BATCH_BYTES = 1
    try:
        with ledger.step([20, 21, 22, 23, 24]):
            store.update([0, 1, 2, 3, 4], columns([20, 21, 22, 23, 24]))
    finally:
        store_session.BATCH_BYTES = before
    store.append(value(7))
    with ledger.step([20, 21, 22, 23, 24, 7], [7, 21, 22, 23, 24]):
        store.delete(0)
    with ledger.step([7, 21, 22, 23, 24]):
        store.close()
    return ledger.states


def rebalances(root: Path, recorder: Recorder) -> list[Any]:
    """Two rewrites into a next generation, with rows between."""
    store = ws.RecordStore.open(root / "s", "a")
    ledger = Ledger(recorder, [*range(6)])
    with ledger.step([0, 1, 5, 3, 4]):
        store.delete(2)
    with ledger.step([0, 1, 5, 3, 4]):
        store.rebalance(progress=False)
    store.append(value(8))
    with ledger.step([0, 1, 5, 3, 4, 8]):
        store.flush()
    with ledger.step([0, 1, 5, 3, 4, 8]):
        store.rebalance(progress=False)
    store.append(value(9))
    with ledger.step([0, 1, 5, 3, 4, 8, 9]):
        store.close()
    return ledger.states


def merges(root: Path, recorder: Recorder) -> list[Any]:
    """Short sessions, whose chunks are merged two by two."""
    before = chunk_merging.FAN_IN
    chunk_merging.FAN_IN = 2
    ledger = Ledger(recorder, [*range(6)])
    try:
        for number in (6, 7, 8):
            with ws.RecordStore.open(root / "s", "a") as store:
                store.append(value(number))
                with ledger.step([*range(number + 1)]):
                    store.flush()
    finally:
        chunk_merging.FAN_IN = before
    return ledger.states


def seals(root: Path, recorder: Recorder) -> list[Any]:
    """The chunk of a dead writer gets a footer."""
    ledger = Ledger(recorder, [*range(6)])
    with ws.RecordStore.open(root / "s", "a") as store:
        store.append(value(6))
        with ledger.step([*range(7)]):
            store.flush()
        store.closed = True
        store._session.generation.release()
        store._unregister()
    with ws.RecordStore.open(root / "s", "a") as store:
        assert seal_abandoned(store).sealed
    return ledger.states


def filters(root: Path, recorder: Recorder) -> list[Any]:
    """Every other record of a store in another one, to which rows are added."""
    ledger = Ledger(recorder, None)
    with ws.RecordStore.open(root / "s") as store:
        with ledger.step([0, 2, 4]):
            filtered = store.filter(root / "t", lambda batch: batch["number"] % 2 == 0, progress=False)
        filtered.append(value(6))
        with ledger.step([0, 2, 4, 6]):
            filtered.flush()
    return ledger.states


def fields(root: Path, recorder: Recorder) -> list[Any]:
    """A field is changed, in a next generation, and the store gets a note."""
    ledger = Ledger(recorder, [*range(6)])
    with ws.RecordStore.open(root / "s", "a") as store:
        with ledger.step([*range(6)]):
            store.map_field("text", lambda batch: [value(number)["text"] for number in batch["number"]], progress=False)
        store.append(value(6))
        with ledger.step([*range(7)]):
            points = [value(number)["points"] for number in range(7)]
            store.map_field("points", lambda batch: [points[number] for number in batch["number"]], progress=False)
    return ledger.states


def two_writers(root: Path, recorder: Recorder) -> list[Any]:
    """Two writers in turn, and a reader that follows."""
    one = ws.RecordStore.open(root / "s", "a")
    other = ws.RecordStore.open(root / "s", "a")
    ledger = Ledger(recorder, [*range(6)])
    for number in range(6, 11):
        store = one if number % 2 else other
        store.append(value(number))
        with ledger.step([*range(number + 1)]):
            store.flush()
    with ledger.step([*range(11)]):
        one.close()
        other.close()
    return ledger.states


def staged(root: Path, recorder: Recorder) -> list[Any]:
    """The parts of two tasks become a store, and those of two others are added to it."""
    ledger = Ledger(recorder, None)
    for append, first in ((False, 0), (True, 6)):
        write = StagedWrite(root / "s", append=append, fields=None if append else FIELDS)
        parts = []
        for start in (first, first + 3):
            with write.part() as part:
                for number in range(start, start + 3):
                    part.append(value(number))
            parts.append(part.staged)
        with ledger.step([*range(first + 6)]):
            write.commit(parts)
    return ledger.states


def converts(root: Path, recorder: Recorder) -> list[Any]:
    """An array becomes a store."""
    ledger = Ledger(recorder, None)
    with ledger.step([*range(5)]):
        ws.convert(columns(range(5)), root / "s", fields=FIELDS, progress=False)
    return ledger.states


class RandomStory(RecordStory):
    """A few operations on a store of six records, drawn with a seed: on one writer, or on two in turn."""

    def __init__(self, seed: int) -> None:
        super().__init__(self._steps, before=six)
        self.name = f"random-{seed}"
        self._seed = seed

    def _steps(self, root: Path, recorder: Recorder) -> list[Any]:
        rng = random.Random(self._seed)
        ledger = Ledger(recorder, [*range(6)])
        large, chunk_merging.FAN_IN = chunk_merging.FAN_IN, 2 if rng.random() < 0.5 else 64
        batch, store_session.BATCH_BYTES = store_session.BATCH_BYTES, 1 if rng.random() < 0.3 else 1 << 26
        options = {"chunk_size": 1} if rng.random() < 0.3 else {}
        writers = [ws.RecordStore.open(root / "s", "a", **options) for _ in range(rng.choice((1, 1, 2)))]
        fresh = iter(range(6, 900))
        try:
            for _ in range(rng.randrange(4, 8)):
                at = rng.randrange(len(writers))
                store = writers[at]
                store.refresh()
                _one_of_many(rng, store, ledger, fresh)
                if rng.random() < 0.25:
                    with ledger.step(ledger.states[-1]):
                        store.close(seal=rng.random() < 0.7)
                        writers[at] = ws.RecordStore.open(root / "s", "a", **options)
            with ledger.step(ledger.states[-1]):
                for store in writers:
                    store.close()
        finally:
            chunk_merging.FAN_IN, store_session.BATCH_BYTES = large, batch
        return ledger.states


def _one_of_many(rng: random.Random, store: ws.RecordStore, ledger: Ledger, fresh: Iterator[int]) -> None:
    """One operation, and the states that it goes through."""
    numbers: list[int] = list(ledger.states[-1])
    states = []
    kind = rng.choice(("flush", "flush", "update", "update", "delete", "rebalance", "repair", "map"))
    if kind == "flush" or rng.random() < 0.4:  # else pending rows are committed before the edit
        new = [next(fresh) for _ in range(rng.randrange(1, 4))]
        store.extend(columns(new))
        # A flush of more than BATCH_BYTES commits its rows one after another.
        states += [
            numbers + new[:end] for end in range(1 if store_session.BATCH_BYTES == 1 else len(new), len(new) + 1)
        ]
        numbers = numbers + new
    if kind == "update" and numbers:
        index = rng.sample(range(len(numbers)), rng.randrange(1, min(5, len(numbers)) + 1))
        new = [next(fresh) for _ in index]
        states.append([*numbers])
        for position, number in zip(index, new, strict=True):
            states[-1][position] = number
    elif kind == "delete" and len(numbers) > 3:
        index = rng.sample(range(len(numbers)), rng.randrange(1, 3))
        left = [numbers[at] for at in range(len(numbers) - len(index), len(numbers)) if at not in index]
        kept = numbers[: len(numbers) - len(index)]
        for at in sorted(index):
            if at < len(kept):
                kept[at] = left.pop()
        states.append(kept)
    with ledger.step(*(states or [numbers])):
        if kind == "update" and numbers:
            store.update(index, columns(new))
        elif kind == "delete" and len(numbers) > 3:
            store.delete(index)
        elif kind == "rebalance":
            store.rebalance(progress=False)
        elif kind == "repair":
            assert store.verify(repair=True).ok
        elif kind == "map":
            store.map_field("text", lambda batch: [value(number)["text"] for number in batch["number"]], progress=False)
        else:
            store.flush()


def six(root: Path) -> None:
    """A store of six records, in two chunks."""
    with ws.RecordStore.create(root / "s", FIELDS) as store:
        store.extend(columns(range(4)))
    with ws.RecordStore.open(root / "s", "a") as store:
        store.extend(columns(range(4, 6)))


STORIES = [
    RecordStory(appends),
    RecordStory(deep, place="a/b/s"),
    RecordStory(staged, commits_pending=False),
    RecordStory(converts, commits_pending=False),
    RecordStory(filters, before=six, place="t", commits_pending=False),
    *(RecordStory(tell, before=six) for tell in (chunks, edits, rebalances, merges, seals, fields, two_writers)),
]
