"""Ways of keeping rows of float32 on disk: warmstore, its peers, and how each of them is best written and read.

A keeper appends one flush so that it survives a power cut (where it can), and reads random rows back in one call.
Each peer's import is inside its functions, so one that is not installed costs only its own row.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import warmstore as ws

WIDTH = 512  # float32 values in a row: 2 KiB
FLUSH = 2048  # rows in a flush
BATCH = 256  # rows in a gather

Append = Callable[[np.ndarray], None]
Gather = Callable[[np.ndarray], np.ndarray]
Open = Callable[[Path], AbstractContextManager]


@dataclass(frozen=True)
class Keeper:
    """`reader(folder)` gives a gather, `writer(folder)` an append of one durable flush.

    `fill` writes all rows at once where that lies better for reading than flush by flush.
    """

    name: str
    reader: Open
    writer: Open | None = None
    fill: Callable[[Path, np.ndarray], None] | None = None
    note: str = ""

    def keep(self, folder: Path, rows: np.ndarray) -> None:
        """Write the rows into a new folder; one that could not be filled is removed again."""
        folder.mkdir()
        try:
            if self.fill:
                self.fill(folder, rows)
                return
            with self.writer(folder) as append:
                for first in range(0, len(rows), FLUSH):
                    append(rows[first : first + FLUSH])
        except BaseException:
            shutil.rmtree(folder)
            raise


@contextmanager
def warmstore_writer(folder: Path) -> Iterator[Append]:
    with ws.RecordStore.create(folder / "store", {"x": ws.Array("float32", (WIDTH,))}) as store:

        def append(rows: np.ndarray) -> None:
            store.extend({"x": rows})
            store.flush()

        yield append


@contextmanager
def warmstore_reader(folder: Path) -> Iterator[Gather]:
    with ws.RecordStore.open(folder / "store") as store:
        yield lambda positions: store.gather(positions, fields=["x"])["x"]


WARMSTORE = Keeper("warmstore", warmstore_reader, warmstore_writer)


@contextmanager
def flat_writer(folder: Path) -> Iterator[Append]:
    """The limit of writing: the same bytes, one write and one fdatasync a flush."""
    file = os.open(folder / "flat", os.O_WRONLY | os.O_CREAT | os.O_EXCL)

    def append(rows: np.ndarray) -> None:
        written = os.write(file, rows)
        assert written == rows.nbytes, "the disk is full"
        os.fdatasync(file)

    try:
        yield append
    finally:
        os.close(file)


@contextmanager
def flat_reader(folder: Path) -> Iterator[Gather]:
    rows = np.memmap(folder / "flat", np.float32, "r").reshape(-1, WIDTH)
    yield lambda positions: rows[positions]


FLAT = Keeper("write + fdatasync", flat_reader, flat_writer)


def npy_fill(folder: Path, rows: np.ndarray) -> None:
    np.save(folder / "rows.npy", rows)


@contextmanager
def npy_reader(folder: Path) -> Iterator[Gather]:
    rows = np.load(folder / "rows.npy", mmap_mode="r")
    yield lambda positions: rows[positions]


@contextmanager
def npy_take_reader(folder: Path) -> Iterator[Gather]:
    # `take` copies whole rows where fancy indexing goes element by element: about a quarter faster, and little known.
    rows = np.load(folder / "rows.npy", mmap_mode="r")
    yield lambda positions: rows.take(positions, axis=0)


@contextmanager
def lmdb_writer(folder: Path) -> Iterator[Append]:
    """Big-endian keys in order, so that appending is appending; a commit syncs by default."""
    import lmdb

    with lmdb.open(str(folder / "lmdb"), map_size=1 << 36) as environment:
        rows_so_far = environment.stat()["entries"]

        def append(rows: np.ndarray) -> None:
            nonlocal rows_so_far
            keys = big_endian(np.arange(rows_so_far, rows_so_far + len(rows)))
            with environment.begin(write=True) as transaction:
                transaction.cursor().putmulti(zip(keys, map(memoryview, rows), strict=True), append=True)
            rows_so_far += len(rows)

        yield append


@contextmanager
def lmdb_reader(folder: Path) -> Iterator[Gather]:
    # A read transaction a call, values as views on the mapping, joined once; getmulti was slower (376 µs against 295).
    import lmdb

    with lmdb.open(str(folder / "lmdb"), map_size=1 << 36, readonly=True, readahead=False) as environment:

        def gather(positions: np.ndarray) -> np.ndarray:
            with environment.begin(buffers=True) as transaction:
                joined = b"".join(map(transaction.get, big_endian(positions)))
            return np.frombuffer(joined, np.float32).reshape(-1, WIDTH)

        yield gather


def big_endian(positions: np.ndarray) -> list[bytes]:
    packed = positions.astype(">i8").tobytes()
    return [packed[first : first + 8] for first in range(0, len(packed), 8)]


def _arrow_table(rows: np.ndarray):
    import pyarrow as pa

    return pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), WIDTH)})


def _from_arrow(table) -> np.ndarray:
    return table.column("x").combine_chunks().flatten().to_numpy().reshape(-1, WIDTH)


def lance_fill(folder: Path, rows: np.ndarray) -> None:
    import lance

    lance.write_dataset(_arrow_table(rows), str(folder / "lance"))  # one fragment: many small ones read slower


@contextmanager
def lance_writer(folder: Path) -> Iterator[Append]:
    import lance

    def append(rows: np.ndarray) -> None:
        lance.write_dataset(_arrow_table(rows), str(folder / "lance"), mode="append")
        sync_changed(folder, sizes)

    sizes: dict[Path, int] = {}
    # The first append would warn that there is nothing to append to yet.
    lance.write_dataset(_arrow_table(np.empty((0, WIDTH), np.float32)), str(folder / "lance"))
    yield append


@contextmanager
def lance_reader(folder: Path) -> Iterator[Gather]:
    # `take` with an Arrow array, by position: the fastest of a list, an array, row ids, one fragment's take and the
    # file reader, in any file version (2.2 to 2.9 ms).
    import lance
    import pyarrow as pa

    dataset = lance.dataset(str(folder / "lance"))
    yield lambda positions: _from_arrow(dataset.take(pa.array(positions), columns=["x"]))


def vortex_fill(folder: Path, rows: np.ndarray) -> None:
    import vortex

    vortex.io.write(_arrow_table(rows), str(folder / "rows.vortex"))


@contextmanager
def vortex_reader(folder: Path) -> Iterator[Gather]:
    # Indices must be sorted; a file that is mapped reads no faster here.
    import pyarrow as pa
    import vortex

    file = vortex.open(str(folder / "rows.vortex"))

    def gather(positions: np.ndarray) -> np.ndarray:
        places, back = np.unique(positions, return_inverse=True)
        found = file.scan(["x"], indices=vortex.array(pa.array(places.astype(np.uint64)))).read_all().to_arrow_array()
        parts = found.chunks if isinstance(found, pa.ChunkedArray) else [found]
        values = [part.field("x").flatten().to_numpy().reshape(-1, WIDTH) for part in parts]
        return np.concatenate(values)[back]

    yield gather


def datasets_fill(folder: Path, rows: np.ndarray) -> None:
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset(_arrow_table(rows)).save_to_disk(str(folder / "datasets"))


@contextmanager
def _datasets_reader(folder: Path, form: str, read: Callable) -> Iterator[Gather]:
    import datasets

    rows = datasets.load_from_disk(str(folder / "datasets")).with_format(form)
    yield lambda positions: read(rows[positions.tolist()])


def datasets_numpy_reader(folder: Path) -> AbstractContextManager[Gather]:
    # The format its documentation shows; "torch" was a little slower (1.38 ms against 1.27).
    return _datasets_reader(folder, "numpy", lambda batch: batch["x"])


def datasets_arrow_reader(folder: Path) -> AbstractContextManager[Gather]:
    # By hand: take the rows as Arrow and see the values as an array without a copy.
    return _datasets_reader(folder, "arrow", _from_arrow)


@contextmanager
def array_record_writer(folder: Path) -> Iterator[Append]:
    """A file is readable and can be synced only once closed, so one flush is one file."""
    from array_record.python.array_record_module import ArrayRecordWriter

    def append(rows: np.ndarray) -> None:
        path = folder / f"{len(list(folder.iterdir())):06d}.array_record"
        writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
        for row in rows:
            writer.write(row.tobytes())
        writer.close()
        for written in (path, folder):
            file = os.open(written, os.O_RDONLY)
            os.fsync(file)
            os.close(file)

    yield append


@contextmanager
def array_record_reader(folder: Path) -> Iterator[Gather]:
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    # The data source turns read-ahead off itself, as random access wants it.
    with ArrayRecordDataSource(sorted(map(str, folder.iterdir()))) as source:
        yield lambda positions: _joined(source.__getitems__(positions.tolist()))


def array_record_fill(folder: Path, rows: np.ndarray) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    # Groups of one and no compression: what its documentation advises for random access.
    writer = ArrayRecordWriter(str(folder / "rows.array_record"), "group_size:1,uncompressed")
    for row in rows:
        writer.write(row.tobytes())
    writer.close()


@contextmanager
def array_record_file_reader(folder: Path) -> Iterator[Gather]:
    # The reader under the data source, on one file: 1.0 ms a batch.
    from array_record.python.array_record_module import ArrayRecordReader

    reader = ArrayRecordReader(str(folder / "rows.array_record"), options="readahead_buffer_size:0")
    yield lambda positions: _joined(reader.read(positions.tolist()))
    reader.close()


def _joined(rows: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(rows), np.float32).reshape(-1, WIDTH)


@contextmanager
def loaderx_writer(folder: Path) -> Iterator[Append]:
    from loaderx.zrecord import Dense

    container = Dense.create(folder / "zrecord", "float32", (WIDTH,), codec="raw")
    sizes: dict[Path, int] = {}

    def append(rows: np.ndarray) -> None:
        container.append(rows)
        sync_changed(folder, sizes)

    yield append
    container.close()


@contextmanager
def loaderx_reader(folder: Path) -> Iterator[Gather]:
    # Four data shards, its default, were faster than one (413 µs against 697).
    from loaderx.zrecord import Dense

    with Dense.open(folder / "zrecord") as container:
        yield lambda positions: np.from_dlpack(container.__getitems__(positions))


def sync_changed(folder: Path, sizes: dict[Path, int]) -> None:
    """Sync the files that grew since the last call, for peers that leave this to the kernel.

    Without it they would be timed writing to memory, and the kernel would write their rows in the turns of the others.
    """
    for path in folder.rglob("*"):
        size = path.stat().st_size
        if path.is_file() and sizes.get(path) != size:
            file = os.open(path, os.O_RDONLY)
            os.fdatasync(file)
            os.close(file)
            sizes[path] = size


@contextmanager
def h5py_writer(folder: Path) -> Iterator[Append]:
    import h5py

    with h5py.File(folder / "rows.h5", "w") as file:
        rows_kept = file.create_dataset("x", (0, WIDTH), np.float32, maxshape=(None, WIDTH), chunks=(FLUSH // 8, WIDTH))

        def append(rows: np.ndarray) -> None:
            rows_kept.resize(len(rows_kept) + len(rows), axis=0)
            rows_kept[-len(rows) :] = rows
            file.flush()
            os.fdatasync(file.id.get_vfd_handle())

        yield append


def h5py_fill(folder: Path, rows: np.ndarray) -> None:
    import h5py

    with h5py.File(folder / "rows.h5", "w") as file:
        file["x"] = rows  # contiguous: no chunk is read for one row


@contextmanager
def h5py_reader(folder: Path) -> Iterator[Gather]:
    # A selection must be increasing, so sort, read, and put back in order.
    import h5py

    with h5py.File(folder / "rows.h5") as file:
        rows = file["x"]

        def gather(positions: np.ndarray) -> np.ndarray:
            places, back = np.unique(positions, return_inverse=True)
            return rows[places][back]

        yield gather


BY_HAND = "synced by hand"

READ_PEERS = (
    Keeper("numpy memmap, rows[positions]", npy_reader, fill=npy_fill),
    Keeper("numpy memmap, rows.take", npy_take_reader, fill=npy_fill),
    Keeper("LMDB", lmdb_reader, lmdb_writer),
    Keeper("loaderx", loaderx_reader, loaderx_writer),
    Keeper("HF datasets, arrow by hand", datasets_arrow_reader, fill=datasets_fill),
    Keeper("HF datasets, numpy", datasets_numpy_reader, fill=datasets_fill),
    Keeper("ArrayRecord", array_record_file_reader, fill=array_record_fill),
    Keeper("h5py", h5py_reader, fill=h5py_fill),
    Keeper("Lance", lance_reader, fill=lance_fill),
    Keeper("Vortex", vortex_reader, fill=vortex_fill, note="compresses, as it does by default"),
)
WRITE_PEERS = (
    Keeper("LMDB", lmdb_reader, lmdb_writer),
    Keeper("loaderx", loaderx_reader, loaderx_writer, note=f"{BY_HAND}; readable only once closed"),
    Keeper("ArrayRecord", array_record_reader, array_record_writer, note=f"a file a flush; {BY_HAND}"),
    Keeper("h5py", h5py_reader, h5py_writer, note=BY_HAND),
    Keeper("Lance", lance_reader, lance_writer, note=BY_HAND),
)
