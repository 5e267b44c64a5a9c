"""Conversions of a source that changes against its rows: random edits, kills, failing records and other options.

A conversion that returns a store returns one with the rows of the source as it is then. A complete store never changes.
"""

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from tests.faults.children import in_child
from tests.faults.seam import CHANGING
from tests.records.test_machine import shown
from tests.slow import either
from tests.state_machines import run_machine

import warmstore as ws
from warmstore.errors import BadSource, NoSource, SchemaMismatch, StoreExists
from warmstore.storage.files import Files

pytestmark = pytest.mark.forks

Row = dict[str, Any]

KINDS = ["jsonl", "parquet", "npy", "records", "arrays"]
options = st.fixed_dictionaries(
    {"chunk_size": st.sampled_from([1, 3000, 1 << 30]), "metadata": st.sampled_from([None, None, {"a": 1}])}
)


class Failing(RuntimeError):
    """A record that cannot be read."""


class Records:
    """Records that can be iterated any number of times; one of them fails."""

    def __init__(self, rows: list[Row], failing: int | None = None) -> None:
        self.rows, self.failing = rows, failing

    def __iter__(self) -> Iterator[Row]:
        for at, row in enumerate(self.rows):
            if at == self.failing:
                raise Failing(f"record {at}")
            yield {"number": np.int64(row["number"]), "text": row["text"]}


def kill_after(left: int) -> None:
    """Kill this process before its n-th change of the disk."""

    def watched(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **more)

        return call

    for name in CHANGING:
        setattr(Files, name, watched(getattr(Files, name)))


class ConversionMachine(RuleBasedStateMachine):
    """`parts`: the rows of each file. `complete`: the rows of the store at the target, once there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.target = self.folder / "store"
        self.complete: list[Row] | None = None
        self.last = 0

    @initialize(kind=st.sampled_from(KINDS), sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4))
    def begin(self, kind: str, sizes: list[int]) -> None:
        self.kind = kind
        self.parts = [self.new(size) for size in sizes]
        (self.folder / "source").mkdir()
        for at in range(len(sizes)):
            self.write(at)

    def new(self, count: int) -> list[Row]:
        self.last += count
        return [{"number": number, "text": "é" * (number % 40)} for number in range(self.last - count, self.last)]

    def path(self, at: int) -> Path:
        return self.folder / "source" / f"part{at:03}.{self.kind}"

    def write(self, at: int) -> None:
        rows = self.parts[at]
        if self.kind == "jsonl":
            self.path(at).write_text("".join(json.dumps(row) + "\n" for row in rows))
        elif self.kind == "parquet":
            schema = pa.schema({"number": pa.int64(), "text": pa.string()})
            pq.write_table(pa.Table.from_pylist(rows, schema), self.path(at))
        elif self.kind == "npy":
            np.save(self.path(at), np.array([row["number"] for row in rows], np.int64))

    @property
    def rows(self) -> list[Row]:
        if self.kind == "npy":  # every file is a field
            together = zip(*self.parts, strict=True)
            return [{f"part{at:03}": row["number"] for at, row in enumerate(rows)} for rows in together]
        return [row for rows in self.parts for row in rows]

    def source(self, failing: int | None = None) -> Any:
        if self.kind == "records":
            return Records(self.rows, failing)
        if self.kind == "arrays":
            return {"number": np.array([row["number"] for row in self.rows], np.int64)}
        return self.folder / "source" if self.kind == "npy" else str(self.folder / "source" / f"*.{self.kind}")

    def expected(self, fields: Any) -> list[Row]:
        return [{name: value for name, value in row.items() if name in fields} for row in self.rows]

    # The source changes

    @rule(at=st.integers(0, 10), row=st.integers(0, 100))
    def edit(self, at: int, row: int) -> None:
        part = self.parts[at % len(self.parts)]
        if part:
            self.last += 1
            part[row % len(part)] = {"number": -self.last, "text": part[row % len(part)]["text"]}
            self.write(at % len(self.parts))

    @rule(count=st.integers(1, 20), at=st.integers(0, 10), first=st.booleans())
    def grow(self, count: int, at: int, first: bool) -> None:
        part = self.parts[at % len(self.parts)]
        part[:] = [*self.new(count), *part] if first else [*part, *self.new(count)]
        self.write(at % len(self.parts))

    @rule(count=st.integers(1, 20))
    def add_a_part(self, count: int) -> None:
        self.parts.append(self.new(count))
        self.write(len(self.parts) - 1)

    @rule(count=st.integers(0, 10))
    def cut(self, count: int) -> None:
        self.parts[-1] = self.parts[-1][:count]
        self.write(len(self.parts) - 1)

    # Converting

    def convert(self, failing: int | None = None, **more: Any) -> ws.RecordStore:
        return ws.convert(self.source(failing), self.target, progress=False, **more)

    @rule(more=options, failing=st.none() | st.integers(0, 60))
    def convert_it(self, more: dict[str, Any], failing: int | None) -> None:
        try:
            store = self.convert(failing, **more)
        except StoreExists:
            assert self.complete is not None
            return
        except Failing:
            assert self.kind == "records"
            return
        except (BadSource, NoSource, SchemaMismatch):
            sizes = {len(rows) for rows in self.parts}
            assert sizes == {0} or (self.kind == "npy" and len(sizes) > 1) or not self.rows or 0 in sizes
            return
        with store:
            assert shown(store) == self.expected(store.fields)
            if self.complete is not None:
                assert shown(store) == self.complete
            self.complete = shown(store)

    @rule(more=options, left=st.integers(0, 30))
    def killed(self, more: dict[str, Any], left: int) -> None:
        def work(say: Any) -> None:
            kill_after(left)
            self.convert(**more).close()

        in_child(work)
        if self.complete is None and self.target.exists():
            with ws.RecordStore.open(self.target) as store:
                self.complete = shown(store)
                assert self.complete == self.expected(store.fields)

    @rule()
    def look(self) -> None:
        """A complete store stays as it is."""
        if self.complete is not None:
            with ws.RecordStore.open(self.target) as store:
                assert shown(store) == self.complete
                assert store.verify(progress=False).ok

    @rule()
    def remove_the_target(self) -> None:
        """The user begins anew; a draft may be left."""
        shutil.rmtree(self.target, ignore_errors=True)
        self.complete = None

    def teardown(self) -> None:
        self.look()
        shutil.rmtree(self.folder, ignore_errors=True)


def test_conversions_give_the_rows_of_their_source() -> None:
    run_machine(ConversionMachine, either(12, 200), either(15, 25))
