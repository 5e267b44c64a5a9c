"""Ways of replacing and removing many labels, one int64 each, that are on disk: warmstore and peers that can.

Every call is on the disk when it returns. warmstore edits positions, and a delete moves the last records into the
holes; the peers edit keys, which stay what they are. HF datasets, loaderx and ArrayRecord are never edited in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import warmstore as ws
from benchmarks.keepers import BY_HAND, flat_writer, sync_changed
from benchmarks.label_keepers import lmdb_writer, open_lmdb, words

Edit = Callable[["Ask"], None]
ReadBack = Callable[[], np.ndarray]


@dataclass(frozen=True)
class Ask:
    """One bulk edit. `positions` are of the store as it then is; `keys`, those of the first state, come only once."""

    positions: np.ndarray
    keys: np.ndarray
    labels: np.ndarray


@dataclass(frozen=True)
class Editor:
    """`editor(folder, labels)` keeps the labels and gives an edit, and what reads all labels back at the end."""

    name: str
    editor: Callable[[Path, np.ndarray], AbstractContextManager[tuple[Edit, ReadBack | None]]]
    by_key: bool = False
    note: str = ""


def asks_of(count: int, calls: int, size: int, *, deleting: bool) -> list[Ask]:
    """Edits of `size` random labels each."""
    rng = np.random.default_rng(3)
    keys = np.split(rng.permutation(count)[: calls * size], calls)
    lengths = [count - number * size if deleting else count for number in range(calls)]
    return [
        Ask(rng.choice(length, size, replace=False), own, rng.integers(0, 1 << 62, size))
        for length, own in zip(lengths, keys, strict=True)
    ]


def updated(labels: np.ndarray, asks: list[Ask]) -> np.ndarray:
    """What is right after these updates, by position or by key alike where both are asked for the same."""
    labels = labels.copy()
    for ask in asks:
        labels[ask.keys] = ask.labels
    return labels


def deleted(rows: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """What is right after a delete: holes, in rising order, are filled with the last rows that are left."""
    length = len(rows) - len(positions)
    rows, holes = rows.copy(), np.sort(positions[positions < length])
    rows[holes] = rows[np.setdiff1d(np.arange(length, len(rows)), positions)[::-1]]
    return rows[:length]


@contextmanager
def warmstore_labels(folder: Path, labels: np.ndarray) -> Iterator[ws.RecordStore]:
    with ws.RecordStore.create(folder / "store", {"x": ws.Array("int64")}) as store:
        store.extend({"x": labels})
        store.flush()
        yield store


@contextmanager
def warmstore_update(folder: Path, labels: np.ndarray) -> Iterator[tuple[Edit, ReadBack]]:
    with warmstore_labels(folder, labels) as store:
        yield lambda ask: store.update(ask.keys, {"x": ask.labels}), lambda: store[:]["x"]


@contextmanager
def warmstore_delete(folder: Path, labels: np.ndarray) -> Iterator[tuple[Edit, ReadBack]]:
    with warmstore_labels(folder, labels) as store:
        yield lambda ask: store.delete(ask.positions), lambda: store[:]["x"]


@contextmanager
def plain_update(folder: Path, labels: np.ndarray) -> Iterator[tuple[Edit, None]]:
    """The limit: writing down which labels are replaced, and by what."""
    with flat_writer(folder) as append:
        yield lambda ask: append(np.concatenate((ask.keys, ask.labels))), None


@contextmanager
def plain_delete(folder: Path, labels: np.ndarray) -> Iterator[tuple[Edit, None]]:
    with flat_writer(folder) as append:
        yield lambda ask: append(ask.positions), None


@contextmanager
def memmap_update(folder: Path, labels: np.ndarray) -> Iterator[tuple[Edit, ReadBack]]:
    np.save(folder / "labels.npy", labels)
    rows = np.load(folder / "labels.npy", mmap_mode="r+")

    def edit(ask: Ask) -> None:
        rows[ask.keys] = ask.labels
        rows.flush()

    yield edit, lambda: np.load(folder / "labels.npy")


@contextmanager
def lmdb_labels(folder: Path, labels: np.ndarray) -> Iterator[tuple[Any, Any]]:
    with lmdb_writer(folder) as append:
        append(labels)
    with open_lmdb(folder) as (environment, table):
        yield environment, table


def _lmdb_left(environment: Any, table: Any) -> np.ndarray:
    with environment.begin(table) as transaction:
        return np.frombuffer(b"".join(transaction.cursor().iternext(keys=False)), np.int64)


# In the order of the keys, LMDB walks its tree once (update: 86 ms for 125; delete: 82 for 176).
def _sorted(ask: Ask) -> tuple[list[bytes], list[bytes]]:
    order = np.argsort(ask.keys)
    return words(ask.keys[order]), words(ask.labels[order])


@contextmanager
def lmdb_update(folder: Path, labels: np.ndarray) -> Iterator[tuple[Edit, ReadBack]]:
    with lmdb_labels(folder, labels) as (environment, table):

        def edit(ask: Ask) -> None:
            with environment.begin(write=True) as transaction:
                transaction.cursor(table).putmulti(zip(*_sorted(ask), strict=True))

        yield edit, lambda: _lmdb_left(environment, table)


@contextmanager
def lmdb_delete(folder: Path, labels: np.ndarray) -> Iterator[tuple[Edit, ReadBack]]:
    with lmdb_labels(folder, labels) as (environment, table):

        def edit(ask: Ask) -> None:
            with environment.begin(table, write=True) as transaction:
                for key in _sorted(ask)[0]:
                    transaction.delete(key)

        yield edit, lambda: _lmdb_left(environment, table)


@contextmanager
def lance_labels(folder: Path, labels: np.ndarray, work: Callable[[Any, Ask], Any]) -> Iterator[tuple[Edit, ReadBack]]:
    import lance
    import pyarrow as pa

    path, sizes = folder / "lance", {}
    dataset = lance.write_dataset(pa.table({"key": np.arange(len(labels)), "x": labels}), str(path))
    sync_changed(folder, sizes)

    def edit(ask: Ask) -> None:
        work(dataset, ask)
        sync_changed(folder, sizes)

    yield edit, lambda: lance.dataset(str(path)).to_table().sort_by("key").column("x").to_numpy()


def lance_update(folder: Path, labels: np.ndarray) -> AbstractContextManager[tuple[Edit, ReadBack]]:
    import pyarrow as pa

    def work(dataset: Any, ask: Ask) -> None:
        dataset.merge_insert("key").when_matched_update_all().execute(pa.table({"key": ask.keys, "x": ask.labels}))

    return lance_labels(folder, labels, work)


def lance_delete(folder: Path, labels: np.ndarray) -> AbstractContextManager[tuple[Edit, ReadBack]]:
    import pyarrow as pa

    # A list of keys in an SQL condition took 600 ms, this 120.
    def work(dataset: Any, ask: Ask) -> None:
        dataset.merge_insert("key").when_matched_delete().execute(pa.table({"key": ask.keys}))

    return lance_labels(folder, labels, work)


PLAIN = "write + fdatasync"
UPDATERS = (
    Editor(PLAIN, plain_update, note="positions and labels"),
    Editor("warmstore", warmstore_update),
    Editor("numpy memmap", memmap_update, note="in place: a crash may leave half an update"),
    Editor("LMDB", lmdb_update),
    Editor("Lance", lance_update, note=f"merge_insert; {BY_HAND}"),
)
DELETERS = (
    Editor(PLAIN, plain_delete, note="positions"),
    Editor("warmstore", warmstore_delete),
    Editor("LMDB", lmdb_delete, by_key=True),
    Editor("Lance", lance_delete, by_key=True, note=f"merge_insert; {BY_HAND}"),
)
