"""What do many short sessions leave behind, and how long does a store of many chunks take to open?

A session opens a store, appends one record and closes it. The limit is what opening the files takes: open, fstat and
mmap.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import warmstore as ws
from benchmarks.report import Bar, Report, Table
from benchmarks.settings import Settings
from warmstore.storage.files import Files

FIELDS = {
    "fixed": (
        {"x": ws.Array("float32", (16,)), "y": ws.Array("int64")},
        lambda number: {"x": ROW + number, "y": number},
    ),
    "text": ({"t": ws.Text(), "y": ws.Array("int64")}, lambda number: {"t": "a" * (number % 997), "y": number}),
}
ROW = np.zeros(16, np.float32)
SESSIONS = 20
"""That are timed whenever so many have been that a line is due."""


class Unsynced(Files):
    """Files without syncs: a disk's take most of a session, and none of what is measured."""

    def sync(self, descriptor: int) -> None:
        pass

    def sync_folder(self, folder: Path) -> None:
        pass


def run(settings: Settings) -> Report:
    many = settings.pick(100_000, 2_000)
    chunks = settings.pick(4_000, 100)
    opening, bars = [], []
    for kind, (fields, record) in FIELDS.items():
        path = settings.folder / kind
        # Chunks so small that each flush takes one, and none is merged.
        with ws.RecordStore.create(path, fields, chunk_size=1, files=Unsynced()) as store:
            for number in range(chunks):
                store.append(record(number))
                store.flush()
        ours, limit = milliseconds(opened, path), milliseconds(mapped, path)
        opening.append((kind, ours, limit, ours / limit))
        bars.append(Bar.at_most(f"ms to open {chunks:,} chunks, {kind} fields", ours, 50.0))
    path = settings.folder / "sessions"
    fields, record = FIELDS["fixed"]

    def session() -> None:
        with ws.RecordStore.open(path, "a", files=Unsynced()) as store:
            store.append(record(len(store)))

    ws.RecordStore.create(path, fields, files=Unsynced()).close()
    rows, done = [], 0
    for number in (many // 100, many // 10, many):
        with ws.RecordStore.open(path, "a", files=Unsynced()) as writer:
            while done < number - SESSIONS:
                writer.append(record(done))
                writer._session.settle()  # what a close does
                done += 1
        times = []
        for _ in range(SESSIONS):
            began = time.perf_counter()
            session()
            times.append(time.perf_counter() - began)
        done = number
        files = len(list((path / "g0001").glob("*.arrow")))
        spent, opens = float(np.median(times)) * 1e3, milliseconds(opened, path)
        rows.append((number, spent, files, opens, (path / "g0001/log").stat().st_size / 1e6))
    store = ws.RecordStore.open(path)
    whole = store["y"][:].tolist() == list(range(many))
    bars += [
        Bar.at_most(f"files after {many:,} sessions", rows[-1][2], 500),
        Bar.at_most(f"ms to open after {many:,} sessions", rows[-1][3], 50.0),
    ]
    return Report(
        "sessions",
        f"A store of {chunks:,} chunks is opened; and {many:,} times one record is appended and the store settled as a "
        "close does it, without syncs.",
        (
            Table("opening", ("", "ms", "limit ms", "of the limit"), tuple(opening)),
            Table("sessions", ("sessions", "ms of one", "chunks", "ms to open", "MB of log"), tuple(rows)),
        ),
        tuple(bars),
        (
            "Medians of 9. The limit opens, measures and maps each file.",
            f"Of the sessions before each line the last {SESSIONS} open and close the store; their median is told.",
        ),
        () if whole else ("sessions: records are missing",),
    )


def milliseconds(work: Callable[[Path], Callable[[], None]], path: Path) -> float:
    """The median of 9; what `work` returns closes what it opened, which is not measured."""
    times = []
    for _ in range(9):
        began = time.perf_counter()
        close = work(path)
        times.append(time.perf_counter() - began)
        close()
        del close  # else what it holds is let go of within the next time
    return float(np.median(times)) * 1e3


def opened(path: Path) -> Callable[[], None]:
    return ws.RecordStore.open(path).close


def mapped(path: Path) -> Callable[[], None]:
    maps = []
    for entry in os.scandir(path / "g0001"):
        descriptor = os.open(entry.path, os.O_RDONLY)
        size = os.fstat(descriptor).st_size
        if size:
            maps.append(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))
        os.close(descriptor)
    return maps.clear
