"""Ways of keeping labels, one int64 a record, on disk: `keepers.py` for values of 8 bytes instead of 2 KiB.

What is best differs where a value is smaller than what it costs to find it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import warmstore as ws
from benchmarks.keepers import (
    BY_HAND,
    FLAT,
    Append,
    Gather,
    Keeper,
    Open,
    flat_writer,
    npy_fill,
    npy_reader,
    npy_take_reader,
    sync_changed,
)


@contextmanager
def warmstore_writer(folder: Path) -> Iterator[Append]:
    with ws.RecordStore.create(folder / "store", {"x": ws.Array("int64")}) as store:

        def append(labels: np.ndarray) -> None:
            store.extend({"x": labels})
            store.flush()

        yield append


@contextmanager
def warmstore_reader(folder: Path) -> Iterator[Gather]:
    with ws.RecordStore.open(folder / "store") as store:
        yield lambda positions: store.gather(positions, fields=["x"])["x"]


@contextmanager
def flat_reader(folder: Path) -> Iterator[Gather]:
    labels = np.memmap(folder / "flat", np.int64, "r")
    yield lambda positions: labels[positions]


def words(numbers: np.ndarray) -> list[bytes]:
    """Each int64 as its 8 bytes."""
    packed = numbers.tobytes()
    return [packed[first : first + 8] for first in range(0, len(packed), 8)]


@contextmanager
def open_lmdb(folder: Path, **options: Any) -> Iterator[tuple[Any, Any]]:
    """An environment and its table. Native integers as keys: reading took 3.4 ms, with big-endian ones 3.9."""
    import lmdb

    with lmdb.open(str(folder / "lmdb"), map_size=1 << 34, max_dbs=1, **options) as environment:
        yield environment, environment.open_db(b"labels", integerkey=True)


@contextmanager
def lmdb_writer(folder: Path) -> Iterator[Append]:
    with open_lmdb(folder) as (environment, table):
        written = 0

        def append(labels: np.ndarray) -> None:
            nonlocal written
            keys = words(np.arange(written, written + len(labels)))
            with environment.begin(write=True) as transaction:
                transaction.cursor(table).putmulti(zip(keys, words(labels), strict=True), append=True)
            written += len(labels)

        yield append


@contextmanager
def lmdb_reader(folder: Path) -> Iterator[Gather]:
    # Bytes, not buffers (3.4 ms against 4.3): a view of 8 bytes costs more than the bytes. getmulti took 4.0.
    with open_lmdb(folder, readonly=True, readahead=False) as (environment, table):

        def gather(positions: np.ndarray) -> np.ndarray:
            with environment.begin(table) as transaction:
                return np.frombuffer(b"".join(map(transaction.get, words(positions))), np.int64)

        yield gather


def _table(labels: np.ndarray) -> Any:
    import pyarrow as pa

    return pa.table({"x": labels})


@contextmanager
def lance_writer(folder: Path) -> Iterator[Append]:
    import lance

    def append(labels: np.ndarray) -> None:
        lance.write_dataset(_table(labels), str(folder / "lance"), mode="append")
        sync_changed(folder, sizes)

    sizes: dict[Path, int] = {}
    lance.write_dataset(_table(np.empty(0, np.int64)), str(folder / "lance"))
    yield append


@contextmanager
def lance_reader(folder: Path) -> Iterator[Gather]:
    import lance
    import pyarrow as pa

    dataset = lance.dataset(str(folder / "lance"))
    yield lambda positions: dataset.take(pa.array(positions), columns=["x"]).column("x").to_numpy()


def datasets_fill(folder: Path, labels: np.ndarray) -> None:
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset(_table(labels)).save_to_disk(str(folder / "datasets"))


@contextmanager
def datasets_reader(folder: Path) -> Iterator[Gather]:
    # The Arrow format: 3.7 ms; "numpy" took 15.
    import datasets

    labels = datasets.load_from_disk(str(folder / "datasets")).with_format("arrow")
    yield lambda positions: labels[positions.tolist()].column("x").to_numpy()


@contextmanager
def loaderx_writer(folder: Path) -> Iterator[Append]:
    from loaderx.zrecord import Dense

    container = Dense.create(folder / "zrecord", "int64", (), codec="raw")
    sizes: dict[Path, int] = {}

    def append(labels: np.ndarray) -> None:
        container.append(labels)
        sync_changed(folder, sizes)

    yield append
    container.close()


@contextmanager
def loaderx_reader(folder: Path) -> Iterator[Gather]:
    from loaderx.zrecord import Dense

    with Dense.open(folder / "zrecord") as container:
        yield lambda positions: np.from_dlpack(container.__getitems__(positions))


@contextmanager
def h5py_writer(folder: Path) -> Iterator[Append]:
    import h5py

    with h5py.File(folder / "labels.h5", "w") as file:
        kept = file.create_dataset("x", (0,), np.int64, maxshape=(None,), chunks=(16_384,))

        def append(labels: np.ndarray) -> None:
            kept.resize(len(kept) + len(labels), axis=0)
            kept[-len(labels) :] = labels
            file.flush()
            os.fdatasync(file.id.get_vfd_handle())

        yield append


def h5py_fill(folder: Path, labels: np.ndarray) -> None:
    import h5py

    with h5py.File(folder / "labels.h5", "w") as file:
        file["x"] = labels


@contextmanager
def h5py_reader(folder: Path) -> Iterator[Gather]:
    import h5py

    with h5py.File(folder / "labels.h5") as file:
        kept = file["x"]

        def gather(positions: np.ndarray) -> np.ndarray:
            places, back = np.unique(positions, return_inverse=True)
            return kept[places][back]

        yield gather


@contextmanager
def h5py_whole_reader(folder: Path) -> Iterator[Gather]:
    # A selection of thousands of points costs more than reading a million labels: 3.3 ms against 0.4.
    import h5py

    with h5py.File(folder / "labels.h5") as file:
        kept = file["x"]
        yield lambda positions: kept[:][positions]


@contextmanager
def array_record_writer(folder: Path) -> Iterator[Append]:
    """A file is readable and can be synced only once closed, so one flush is one file."""
    from array_record.python.array_record_module import ArrayRecordWriter

    def append(labels: np.ndarray) -> None:
        path = folder / f"{len(list(folder.iterdir())):06d}.array_record"
        writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
        for label in words(labels):
            writer.write(label)
        writer.close()
        for written in (path, folder):
            file = os.open(written, os.O_RDONLY)
            os.fsync(file)
            os.close(file)

    yield append


@contextmanager
def array_record_reader(folder: Path) -> Iterator[Gather]:
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    with ArrayRecordDataSource(sorted(map(str, folder.iterdir()))) as source:
        yield lambda positions: np.frombuffer(b"".join(source.__getitems__(positions.tolist())), np.int64)


def at_once(writer: Open) -> Callable[[Path, np.ndarray], None]:
    """A fill of all labels in one append."""

    def fill(folder: Path, labels: np.ndarray) -> None:
        with writer(folder) as append:
            append(labels)

    return fill


ONE_BATCH = Keeper("warmstore, one batch", warmstore_reader, fill=at_once(warmstore_writer))
FLUSHES = Keeper("warmstore, flushes of 2,048", warmstore_reader, warmstore_writer)
READ_PEERS = (
    Keeper("numpy memmap, rows[positions]", npy_reader, fill=npy_fill),
    Keeper("numpy memmap, rows.take", npy_take_reader, fill=npy_fill),
    Keeper("h5py, reading everything", h5py_whole_reader, fill=h5py_fill, note="its time grows with the store"),
    Keeper("h5py", h5py_reader, fill=h5py_fill),
    Keeper("LMDB", lmdb_reader, fill=at_once(lmdb_writer)),
    Keeper("HF datasets, arrow", datasets_reader, fill=datasets_fill),
    Keeper("Lance", lance_reader, fill=at_once(lance_writer)),
    Keeper("loaderx", loaderx_reader, fill=at_once(loaderx_writer)),
    Keeper("ArrayRecord", array_record_reader, fill=at_once(array_record_writer), note="made for larger records"),
)
WRITERS = (
    Keeper(FLAT.name, flat_reader, flat_writer),
    Keeper("warmstore", warmstore_reader, warmstore_writer),
    Keeper("h5py", h5py_reader, h5py_writer, note=BY_HAND),
    Keeper("Lance", lance_reader, lance_writer, note=BY_HAND),
    Keeper("LMDB", lmdb_reader, lmdb_writer),
    Keeper("loaderx", loaderx_reader, loaderx_writer, note=f"{BY_HAND}; readable only once closed"),
    Keeper("ArrayRecord", array_record_reader, array_record_writer, note=f"a file a flush; {BY_HAND}"),
)
