"""A store against a plain list: random operations of two writers and some readers, and of children that are killed.

Every open store must show the records that were committed when it last looked, then its own pending ones. A child that
is killed leaves what it was told is done, and of what it was doing all or nothing. By small limits
updates take several batches and small chunks are merged. Other readers of Arrow files open every sealed chunk.
"""

import logging
import shutil
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from tests.faults.children import in_child, well
from tests.faults.seam import Killing
from tests.slow import either
from tests.state_machines import KeptWarnings, run_machine

import warmstore as ws
from warmstore.errors import PositionError
from warmstore.records import store_session
from warmstore.records.log.log_entries import BATCH, COPIED, ENTRY, SEALED, STAGED
from warmstore.records.write import chunk_merging

pytestmark = pytest.mark.forks

FIELDS: dict[str, Any] = {
    "number": ws.Array("int64"),  # never absent and never twice the same, so that every edit shows
    "pair": ws.Array("float32", (2,)),
    "bytes": ws.Bytes("zstd"),
    "ragged": ws.Ragged("int16", 1),
    "text": ws.Text(),
    "json": ws.Json("lz4"),
}
MORE = {"extra": ws.Array("uint8", (3,)), "later": ws.Bytes("deflate")}
CHUNK_SIZES = (1, 9000, 1 << 30)

Record = dict[str, Any]
Records = list[Record]
Edit = Callable[[ws.RecordStore], None]


def record(number: int, names: list[str], absent: bool) -> Record:
    """A record as plain values, which follow from its number; with `absent` some are None."""
    values: Record = {
        "number": number,
        "pair": [float(number), -0.5],
        "bytes": b"%d" % number * (number % 4),
        "ragged": list(range(number, number + number % 3)),
        "text": f"é{number}" if number % 5 else "",
        "json": {"number": [number, None]},
        "extra": [number % 256, 0, 1],
        "later": b"later %d" % number,
    }
    gone = names[1 + number % 7 :: 3] if absent else []
    return {name: None if name in gone else values[name] for name in names}


def as_given(name: str, value: Any) -> Any:
    """A plain value as a store takes it."""
    dtypes = {"pair": np.float32, "ragged": np.int16, "extra": np.uint8}
    return value if value is None or name not in dtypes else np.array(value, dtypes[name])


def as_columns(records: Records) -> dict[str, list[Any]]:
    return {name: [as_given(name, one[name]) for one in records] for name in records[0]}


def plain(value: Any) -> Any:
    """A value that a store gave back as a plain one."""
    if isinstance(value, np.ma.MaskedArray):
        return None if np.ma.getmaskarray(value).all() else value.data.tolist()
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return bytes(value) if isinstance(value, memoryview) else value


def shown(store: ws.RecordStore) -> Records:
    """All records of a store as plain values."""
    columns = store.gather(slice(None))
    return [{name: plain(column[at]) for name, column in columns.items()} for at in range(len(store))]


def remove(records: Records, gone: set[int]) -> None:
    """Take positions away: holes are filled in rising order, each by the last record that is left."""
    for hole in sorted(gone):
        while len(records) > hole and len(records) - 1 in gone:
            records.pop()
        if hole < len(records):
            records[hole] = records.pop()


def replace(records: Records, positions: list[int], changes: Records) -> None:
    """Put values into records, one change after the other."""
    for position, change in zip(positions, changes, strict=True):
        records[position] = {**records[position], **change}


@st.composite
def indices(draw: st.DrawFn, length: int) -> tuple[Any, list[int]]:
    """Many positions as a store may be given them, and as a list of integers from 0; never none."""
    positions = st.lists(st.integers(-length, length - 1), min_size=1, max_size=6)
    index = draw(positions | positions.map(np.array) | st.slices(length))
    found = list(range(length))[index] if isinstance(index, slice) else [int(at) % length for at in index]
    return (index, found) if found else ([0], [0])


@dataclass(frozen=True)
class State:
    """What is committed: the records, and how many edits there were."""

    records: Records
    edits: int


@dataclass(frozen=True)
class Step:
    """A call of a store's method, and what is committed after each commit it makes."""

    method: str
    arguments: tuple[Any, ...]
    states: list[State]

    def run(self, store: ws.RecordStore) -> None:
        getattr(store, self.method)(*self.arguments)


@dataclass(eq=False)
class Opened:
    """An open store, and what it must show: the records it saw when it last looked, then its pending ones."""

    store: ws.RecordStore
    names: list[str] = field(default_factory=list)
    records: Records = field(default_factory=list)
    pending: Records = field(default_factory=list)
    edits: int = 0
    generation: int = 0

    @property
    def expected(self) -> Records:
        return self.records + self.pending


class Machine(RuleBasedStateMachine):
    """`names`, `records`, `edits` and `generation` are the truth: what is committed on the disk."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.path = self.folder / "s"
        self.names = list(FIELDS)
        self.records: Records = []
        self.edits = 0
        self.generation = 1
        self.last_number = 0
        self.writers: list[Opened] = []
        self.readers: list[Opened] = []
        self.versions: dict[int, Record] = {}  # all that were committed, by their number
        self.opened: set[bytes] = set()  # chunks that others opened, by the entries that seal them
        self.limits = pytest.MonkeyPatch()
        self.limits.setattr(chunk_merging, "FAN_IN", 3)
        self.limits.setattr(store_session.StoreSession, "_blocks", small_blocks)
        self.warnings = KeptWarnings()
        logging.getLogger("warmstore").addHandler(self.warnings)

    @initialize(absent=st.booleans(), chunk_size=st.sampled_from(CHUNK_SIZES), count=st.sampled_from([0, 1, 12, 20]))
    def create(self, absent: bool, chunk_size: int, count: int) -> None:
        self.absent = absent
        self.writers.append(self.saw(Opened(ws.RecordStore.create(self.path, FIELDS, chunk_size=chunk_size))))
        if count:
            self.extend(0, count, False)

    # What a store sees, and what it commits

    def saw(self, opened: Opened) -> Opened:
        """The store looked: it knows all that is committed."""
        opened.names, opened.records = self.names, list(self.records)
        opened.edits, opened.generation = self.edits, self.generation
        return opened

    def flushed(self, opened: Opened) -> None:
        self.records, opened.pending = self.records + opened.pending, []
        self.saw(opened)

    def new(self, count: int, names: list[str]) -> Records:
        self.last_number += count
        numbers = range(self.last_number - count + 1, self.last_number + 1)
        return [record(number, names, self.absent) for number in numbers]

    def writer(self, which: int) -> Opened:
        return self.writers[which % len(self.writers)]

    # Appending

    @rule(which=st.integers(0, 1), count=st.integers(1, 3))
    def append(self, which: int, count: int) -> None:
        opened = self.writer(which)
        if opened.names != self.names:
            self.refresh(which)
        for one in self.new(count, self.names):
            # A field that is left out is absent.
            opened.store.append({name: as_given(name, value) for name, value in one.items() if value is not None})
            opened.pending.append(one)

    @rule(which=st.integers(0, 1), count=st.integers(1, 6), flush=st.booleans())
    def extend(self, which: int, count: int, flush: bool) -> None:
        opened = self.writer(which)
        if opened.names != self.names:
            self.refresh(which)
        records = self.new(count, self.names)
        opened.store.extend(as_columns(records))
        opened.pending += records
        if flush:
            self.flush(which)

    @rule(which=st.integers(0, 1))
    def flush(self, which: int) -> None:
        opened = self.writer(which)
        opened.store.flush()
        self.flushed(opened)

    # Looking

    @rule(which=st.integers(0, 1))
    def refresh(self, which: int) -> None:
        opened = self.writer(which)
        opened.store.refresh()
        self.saw(opened)

    @precondition(lambda self: self.readers)
    @rule(which=st.integers(0, 1))
    def refresh_reader(self, which: int) -> None:
        opened = self.readers[which % len(self.readers)]
        opened.store.refresh()
        self.saw(opened)

    @rule()
    def open_reader(self) -> None:
        self.readers.append(self.saw(Opened(ws.RecordStore.open(self.path))))
        if len(self.readers) > 2:
            self.readers.pop(0).store.close()

    @precondition(lambda self: len(self.writers) < 2)
    @rule(chunk_size=st.sampled_from(CHUNK_SIZES))
    def open_second_writer(self, chunk_size: int) -> None:
        self.writers.append(self.saw(Opened(ws.RecordStore.open(self.path, "a", chunk_size=chunk_size))))

    @rule(which=st.integers(0, 1), chunk_size=st.sampled_from(CHUNK_SIZES))
    def reopen(self, which: int, chunk_size: int) -> None:
        opened = self.writer(which)
        opened.store.close()
        self.flushed(opened)
        opened.store = ws.RecordStore.open(self.path, "a", chunk_size=chunk_size)

    @rule(which=st.integers(0, 1))
    def seal(self, which: int) -> None:
        opened = self.writer(which)
        opened.store.seal()
        self.flushed(opened)

    @rule(which=st.integers(0, 1), chunks=st.integers(2, 4))
    def merge(self, which: int, chunks: int) -> None:
        """Seal as many chunks as make a merge, one after the other."""
        for _ in range(chunks):
            self.extend(which, 1, False)
            self.seal(which)

    @rule(which=st.integers(0, 3))
    def verify(self, which: int) -> None:
        everybody = self.writers + self.readers
        opened = everybody[which % len(everybody)]
        report = opened.store.verify(progress=False)
        assert report.ok
        assert report.records == len(opened.records)
        assert opened.store.to_arrow()["text"].to_pylist() == [one["text"] for one in opened.records]
        for name in set(opened.names) - {"json"}:  # JSON has a None of its own
            assert opened.store.present(name).tolist() == [one[name] is not None for one in opened.records]

    # Editing

    def edit(self, opened: Opened, positions: list[int], edit: Edit, change: Callable[[Records], None]) -> None:
        """Edit by positions that were found in what `opened` shows; refused where they may mean other records now."""
        moved = any(at >= len(opened.records) for at in positions) and len(opened.records) != len(self.records)
        stale = moved or opened.edits != self.edits
        rewritten = opened.generation != self.generation
        try:
            edit(opened.store)
        except PositionError:
            assert stale or rewritten
            self.flushed(opened)
            return
        assert not stale
        self.flushed(opened)
        change(self.records)
        self.edits += 1
        self.saw(opened)

    @rule(which=st.integers(0, 1), data=st.data())
    def update_one(self, which: int, data: Any) -> None:
        opened = self.writer(which)
        if length := len(opened.expected):
            at = data.draw(st.integers(-length, length - 1), "position")
            (change,) = self.changes(opened.names, 1, data)
            given = {name: as_given(name, value) for name, value in change.items()}
            self.edit(
                opened,
                [at % length],
                lambda store: store.update(at, given),
                lambda records: replace(records, [at % length], [change]),
            )

    @rule(which=st.integers(0, 1), data=st.data())
    def update_many(self, which: int, data: Any) -> None:
        opened = self.writer(which)
        if length := len(opened.expected):
            index, positions = data.draw(indices(length), "index")
            changes = self.changes(opened.names, len(positions), data)
            columns = as_columns(changes)
            self.edit(
                opened,
                positions,
                lambda store: store.update(index, columns),
                lambda records: replace(records, positions, changes),
            )

    def changes(self, names: list[str], count: int, data: Any) -> Records:
        """New values for some of the fields."""
        chosen = data.draw(st.sets(st.sampled_from(names)), "fields") | {"number"}
        return [{name: one[name] for name in names if name in chosen} for one in self.new(count, names)]

    @rule(which=st.integers(0, 1), data=st.data())
    def delete(self, which: int, data: Any) -> None:
        opened = self.writer(which)
        if length := len(opened.expected):
            one = st.integers(-length, length - 1).map(lambda at: (at, [at % length]))
            index, positions = data.draw(one | indices(length), "index")
            self.edit(
                opened, positions, lambda store: store.delete(index), lambda records: remove(records, set(positions))
            )

    @rule(which=st.integers(0, 1), beyond=st.integers(0, 3), below=st.booleans())
    def outside(self, which: int, beyond: int, below: bool) -> None:
        opened = self.writer(which)
        length = len(opened.expected)
        at = -length - 1 - beyond if below else length + beyond
        with pytest.raises(PositionError):
            opened.store.delete([0, at])
        with pytest.raises(PositionError):
            opened.store.update(at, {"number": 0})

    # Writing anew

    def rewritten(self, opened: Opened) -> None:
        self.flushed(opened)
        self.generation += 1
        self.saw(opened)
        assert [path.name for path in self.path.glob("g*")] == [f"g{self.generation:04d}"]

    @rule(which=st.integers(0, 1))
    def rebalance(self, which: int) -> None:
        opened = self.writer(which)
        done = opened.store.rebalance(progress=False)
        self.rewritten(opened)
        assert done.records == len(self.records)

    @rule(which=st.integers(0, 1), name=st.sampled_from(list(MORE)))
    def change_fields(self, which: int, name: str) -> None:
        """Add a field, or drop it where it is. Whoever has rows pending then would have to start anew."""
        opened = self.writer(which)
        for each in self.writers:
            each.store.flush()
            self.flushed(each)
        opened.store.refresh()
        self.saw(opened)
        if name in self.names:
            self.names = [each for each in self.names if each != name]
            opened.store.drop_field(name, progress=False)
            self.records = [{each: one[each] for each in self.names} for one in self.records]
        else:
            self.names = [*self.names, name]
            values = [one[name] for one in self.new(len(self.records), self.names)]
            given = [as_given(name, value) for value in values]
            opened.store.add_field(name, MORE[name], given or None, progress=False)
            self.records = [{**one, name: value} for one, value in zip(self.records, values, strict=True)]
        self.rewritten(opened)

    # Dying

    @rule(data=st.data(), at=st.integers(0, 60), moment=st.sampled_from(["before", "middle", "after"]))
    def killed(self, data: Any, at: int, moment: str) -> None:
        """A child kills itself at one of its operations on files, or ends well before it came to that."""
        chunk_size = data.draw(st.sampled_from(CHUNK_SIZES), "chunk_size")
        steps = self.steps(data)

        def work(say: Callable[[Any], None]) -> None:
            store = ws.RecordStore.open(self.path, "a", chunk_size=chunk_size, files=Killing(at, moment))
            for step in steps:
                step.run(store)
                say(None)

        with ws.RecordStore.open(self.path) as found:
            generation, edits = found._manifest.generation, found._snapshot.edits
        ended = in_child(work)
        done = len(ended.said)
        allowed = [steps[done - 1].states[-1] if done else State(self.records, self.edits)]
        if ended.signal == signal.SIGKILL:
            allowed += steps[done].states  # of the step it was at all or nothing, commit by commit
        else:
            well(ended)
        with ws.RecordStore.open(self.path) as found:
            records, self.generation = shown(found), found._manifest.generation
            # Several may have these records, as after an edit that changed nothing; the store counts its edits.
            if self.generation == generation:
                counted = self.edits + found._snapshot.edits - edits
                allowed = [state for state in allowed if state.edits == counted]
        self.edits = next(state.edits for state in allowed if state.records == records)
        self.records = records

    def steps(self, data: Any) -> list["Step"]:
        """What a child will do, with what is committed after each commit that this takes."""
        state, pending = State(self.records, self.edits), list[Record]()
        steps: list[Step] = []
        for last in [False] * data.draw(st.integers(1, 4), "steps") + [True]:
            length = len(state.records) + len(pending)
            kinds = ["append", "flush", "rebalance"] + (["update", "delete"] if length else [])
            kind = "close" if last else data.draw(st.sampled_from(kinds), "step")
            arguments: tuple[Any, ...] = ()
            states = [state]
            if kind == "append":
                added = self.new(data.draw(st.integers(1, 4), "records"), self.names)
                kind, arguments, pending = "extend", (as_columns(added),), pending + added
            else:
                states, pending = [State(state.records + pending, state.edits)], []
            if kind in ("update", "delete"):
                index, positions = data.draw(indices(length), "index")
                records = list(states[0].records)
                if kind == "update":
                    changes = self.changes(self.names, len(positions), data)
                    arguments = (index, as_columns(changes))
                    replace(records, positions, changes)
                else:
                    arguments = (index,)
                    remove(records, set(positions))
                states.append(State(records, state.edits + 1))
            state = states[-1]
            steps.append(Step(kind, arguments, states))
        return steps

    # What must hold after every step

    @invariant()
    def everybody_shows_what_it_must(self) -> None:
        for opened in self.writers + self.readers:
            store, expected = opened.store, opened.expected
            assert len(store) == len(expected)
            assert list(store.fields) == opened.names
            assert shown(store) == expected
            if expected:
                at = self.last_number % len(expected)
                assert {name: plain(value) for name, value in store[at].items()} == expected[at]
        assert not self.warnings.messages

    @invariant()
    def others_open_what_is_sealed(self) -> None:
        """pyarrow and polars do, with the rows as they were written; each chunk once."""
        self.versions.update({one["number"]: one for one in self.records})
        folder = self.path / f"g{self.generation:04d}"
        if not folder.exists():
            return  # before the store is made
        log = (folder / "log").read_bytes()
        entries = np.frombuffer(log, ENTRY, len(log) // ENTRY.itemsize)  # a killed writer leaves a torn tail
        for sealed in entries[entries["kind"] == SEALED]:
            path = folder / f"{int(sealed['chunk']):06d}.arrow"
            if sealed.tobytes() not in self.opened and path.exists():
                self.opened.add(sealed.tobytes())
                here = entries[entries["chunk"] == sealed["chunk"]]
                self.check_chunk(path, here[np.isin(here["kind"], (BATCH, STAGED, COPIED))]["rows"].tolist())

    def check_chunk(self, path: Path, rows: list[int]) -> None:
        with pa.OSFile(str(path)) as file:
            chunk = pa.ipc.open_file(file)
            assert [chunk.get_batch(at).num_rows for at in range(chunk.num_record_batches)] == rows
            table = chunk.read_all()
        table.validate(full=True)
        others = pl.read_ipc(path)
        for name in ("number", "text"):
            assert others[name].to_list() == table[name].to_pylist()
        for row in table.select(["number", "text", "pair"]).to_pylist():
            version = self.versions.get(row["number"])  # none of an update that was killed
            assert version is None or row == {name: version[name] for name in row}

    def teardown(self) -> None:
        logging.getLogger("warmstore").removeHandler(self.warnings)
        try:
            for opened in self.writers + self.readers:
                opened.store.close()
                self.records = self.records + opened.pending
            if self.writers:
                with ws.RecordStore.open(self.path) as store:
                    assert shown(store) == self.records
                    assert store.verify(progress=False).ok
        finally:
            self.limits.undo()
            shutil.rmtree(self.folder)


def small_blocks(
    session_: store_session.StoreSession, *arguments: Any, blocks: Any = store_session.StoreSession._blocks
) -> Any:
    """The blocks of an update, of few rows each."""
    with pytest.MonkeyPatch.context() as limit:
        limit.setattr(store_session, "BATCH_BYTES", 250)
        yield from blocks(session_, *arguments)


def test_a_store_equals_a_list() -> None:
    run_machine(Machine, either(5, 300), either(40, 80))
