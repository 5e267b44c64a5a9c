"""What child processes of multiprocessing run; importable, so that spawned ones find it."""

import os
from pathlib import Path
from typing import Any

from tests.faults.children import columns, record, same

import warmstore as ws


def number(writer: int, at: int) -> int:
    """The record that a writer appends as its `at`-th."""
    return 1000 * writer + at


def write(path: Path, writer: int, count: int) -> None:
    """Append `count` records in batches of 1 to 4, rolling chunks over."""
    with ws.RecordStore.open(path, "a", chunk_size=5000) as store:
        at = 0
        while at < count:
            size = min(at % 4 + 1, count - at)
            store.extend(columns(number(writer, one) for one in range(at, at + size)))
            store.flush()
            at += size


def read(path: Path, writers: int, count: int, said: Any) -> None:
    """Follow a growing store until it is complete; rows never change, and each writer's come in order."""
    store = ws.RecordStore.open(path)
    known: list[int] = []
    try:
        while len(known) < writers * count:
            store.refresh()
            if len(store) == len(known):
                os.sched_yield() if hasattr(os, "sched_yield") else None
                continue
            values = store[:]
            numbers = values["number"].tolist()
            assert numbers[: len(known)] == known
            for at in range(len(known), len(numbers)):
                for name, expected in record(numbers[at]).items():
                    assert name == "number" or same(values[name][at], expected), (at, name)
            known = numbers
        for writer in range(writers):
            mine = [one for one in known if one // 1000 == writer]
            assert mine == [number(writer, at) for at in range(count)]
        said.put("well")
    except BaseException as error:
        said.put(repr(error))
        raise


def length(store: ws.RecordStore, said: Any) -> None:
    """Say how long a store is that was handed over."""
    said.put(len(store))


def append(path: Path, first: int, count: int) -> None:
    """Append without flushing or closing, and return."""
    store = ws.RecordStore.open(path, "a")
    store.extend(columns(range(first, first + count)))
    globals()["_kept"] = store
