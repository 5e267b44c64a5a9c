"""Ways of keeping records of bytes, each of its own length, on disk, and of reading random ones back in one call.

A gather gives its values the way that is quickest to get: a list, one packed buffer and where each value ends, or an
Arrow column. `pieces` makes a list of any of them, outside the timing, so that all are compared with the source.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import warmstore as ws
from benchmarks.keepers import Keeper, big_endian
from benchmarks.side_by_side import WrongValuesError

Gather = Callable[[np.ndarray], Any]


@dataclass(frozen=True)
class Values:
    """The source: values one after the other, uint8 [bytes], and their edges, int64 [n + 1]."""

    flat: np.ndarray
    edges: np.ndarray

    @classmethod
    def of(cls, sizes: np.ndarray, flat: np.ndarray) -> Values:
        return cls(flat, np.concatenate(([0], np.cumsum(sizes, dtype=np.int64))))

    def __len__(self) -> int:
        return len(self.edges) - 1

    def at(self, positions: np.ndarray) -> list[np.ndarray]:
        edges = zip(self.edges[positions].tolist(), self.edges[positions + 1].tolist(), strict=True)
        return [self.flat[first:last] for first, last in edges]

    def all(self) -> list[np.ndarray]:
        return self.at(np.arange(len(self)))

    def size(self, positions: np.ndarray) -> int:
        """Bytes of these values together."""
        return int((self.edges[positions + 1] - self.edges[positions]).sum())

    def are(self, positions: np.ndarray, result: Any) -> bool:
        found = pieces(result)
        return len(found) == len(positions) and all(
            np.array_equal(np.frombuffer(one, np.uint8), other)
            for one, other in zip(found, self.at(positions), strict=True)
        )

    def check(self, gather: Gather, step: int) -> None:
        """Read everything once, so that it is in the page cache, and see that it is right."""
        for first in range(0, len(self), step):
            positions = np.arange(first, min(first + step, len(self)))
            if not self.are(positions, gather(positions)):
                raise WrongValuesError(f"within records {first} to {first + step}")


def pieces(result: Any) -> Sequence[Any]:
    """One bytes-like per value of whatever a gather gave."""
    if isinstance(result, tuple):
        values, offsets = result
        return [values[first:last] for first, last in itertools.pairwise(offsets.tolist())]
    if hasattr(result, "chunks"):
        return [value.as_buffer() for value in result]
    return [result[number] for number in range(len(result))]


def warmstore_fill(folder: Path, values: Values, codec: str = "raw") -> None:
    with ws.RecordStore.create(folder / "store", {"jpeg": ws.Bytes(codec)}) as store:
        for part in np.array_split(np.arange(len(values)), -(-len(values) // 512)):
            store.extend({"jpeg": values.at(part)})


def zstd_fill(folder: Path, values: Values) -> None:
    warmstore_fill(folder, values, "zstd")


@contextmanager
def warmstore_reader(folder: Path) -> Iterator[Gather]:
    with ws.RecordStore.open(folder / "store") as store:
        yield lambda positions: store.gather(positions, fields=["jpeg"])["jpeg"]


@contextmanager
def packed_reader(folder: Path) -> Iterator[Gather]:
    with ws.RecordStore.open(folder / "store") as store:

        def gather(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            found = store.gather(positions, fields=["jpeg"], packed=True)["jpeg"]
            return found.values, found.offsets

        yield gather


VIEWS = Keeper("warmstore", warmstore_reader, fill=warmstore_fill)
PACKED = Keeper("warmstore, packed", packed_reader, fill=warmstore_fill)
ZSTD_LIST = Keeper("warmstore", warmstore_reader, fill=zstd_fill)
ZSTD_PACKED = Keeper("warmstore, packed", packed_reader, fill=zstd_fill)


def flat_fill(folder: Path, values: Values) -> None:
    values.flat.tofile(folder / "flat")
    np.save(folder / "edges.npy", values.edges)


@contextmanager
def flat_views_reader(folder: Path) -> Iterator[Gather]:
    """By hand: slices of a map of one file whose edges are held in RAM."""
    view = memoryview(np.memmap(folder / "flat", np.uint8, "r"))
    edges = np.load(folder / "edges.npy")

    def gather(positions: np.ndarray) -> list[memoryview]:
        bounds = zip(edges[positions].tolist(), edges[positions + 1].tolist(), strict=True)
        return [view[first:last] for first, last in bounds]

    yield gather


@contextmanager
def flat_joined_reader(folder: Path) -> Iterator[Gather]:
    # `b"".join` of the views was faster than `np.concatenate` (1.2 ms against 1.6).
    with flat_views_reader(folder) as views:

        def gather(positions: np.ndarray) -> tuple[bytes, np.ndarray]:
            found = views(positions)
            return b"".join(found), np.cumsum([0, *map(len, found)])

        yield gather


def lmdb_fill(folder: Path, values: Values) -> None:
    import lmdb

    with lmdb.open(str(folder / "lmdb"), map_size=1 << 34) as environment, environment.begin(write=True) as transaction:
        keys = big_endian(np.arange(len(values)))
        transaction.cursor().putmulti(zip(keys, map(memoryview, values.all()), strict=True), append=True)


@contextmanager
def lmdb_views_reader(folder: Path) -> Iterator[Gather]:
    # The views hold as long as their transaction, so it stays open: right for as long as nobody writes.
    import lmdb

    with (
        lmdb.open(str(folder / "lmdb"), map_size=1 << 34, readonly=True, readahead=False) as environment,
        environment.begin(buffers=True) as transaction,
    ):
        yield lambda positions: list(map(transaction.get, big_endian(positions)))


@contextmanager
def lmdb_reader(folder: Path) -> Iterator[Gather]:
    # A bytes object a value; joining views was as fast (1.4 ms against 1.5).
    import lmdb

    with lmdb.open(str(folder / "lmdb"), map_size=1 << 34, readonly=True, readahead=False) as environment:

        def gather(positions: np.ndarray) -> list[bytes]:
            with environment.begin() as transaction:
                return list(map(transaction.get, big_endian(positions)))

        yield gather


def arrow_table(values: Values) -> Any:
    import pyarrow as pa

    buffers = [None, pa.py_buffer(values.edges), pa.py_buffer(values.flat)]
    return pa.table({"jpeg": pa.Array.from_buffers(pa.large_binary(), len(values), buffers)})


def datasets_fill(folder: Path, values: Values) -> None:
    import datasets

    datasets.disable_progress_bars()
    datasets.Dataset(arrow_table(values)).save_to_disk(str(folder / "datasets"))


@contextmanager
def datasets_views_reader(folder: Path) -> Iterator[Gather]:
    # In the Arrow format the records stay where they are: one chunk of the column a record.
    import datasets

    rows = datasets.load_from_disk(str(folder / "datasets")).with_format("arrow")
    yield lambda positions: rows[positions.tolist()].column("jpeg")


@contextmanager
def datasets_reader(folder: Path) -> Iterator[Gather]:
    with datasets_views_reader(folder) as views:

        def gather(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            column = views(positions).combine_chunks()
            _, offsets, values = column.buffers()
            return np.frombuffer(values, np.uint8), np.frombuffer(offsets, np.int64)[: len(positions) + 1]

        yield gather


@contextmanager
def datasets_python_reader(folder: Path) -> Iterator[Gather]:
    import datasets

    rows = datasets.load_from_disk(str(folder / "datasets"))
    yield lambda positions: rows[positions.tolist()]["jpeg"]


def loaderx_fill(folder: Path, values: Values, codec: str = "raw") -> None:
    from loaderx.zrecord import Ragged, RaggedBatch

    container = Ragged.create(folder / "zrecord", "uint8", 1, codec=codec)
    for part in np.array_split(np.arange(len(values)), -(-len(values) // 512)):
        container.append(RaggedBatch.from_records(values.at(part)))
    container.close()


def loaderx_zstd_fill(folder: Path, values: Values) -> None:
    loaderx_fill(folder, values, "zstd")


@contextmanager
def loaderx_reader(folder: Path) -> Iterator[Gather]:
    from loaderx.zrecord import Ragged

    with Ragged.open(folder / "zrecord") as container:

        def gather(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            found = container.__getitems__(positions)
            return np.from_dlpack(found.values), np.from_dlpack(found.cu_seqlens)

        yield gather


def files_fill(folder: Path, values: Values) -> None:
    for number, value in enumerate(values.all()):
        value.tofile(folder / f"{number:06d}.jpg")


@contextmanager
def files_reader(folder: Path) -> Iterator[Gather]:
    paths = sorted(map(str, folder.iterdir()))

    def read(position: int) -> bytes:
        with open(paths[position], "rb", buffering=0) as file:
            return file.read()

    yield lambda positions: list(map(read, positions.tolist()))


def array_record_fill(folder: Path, values: Values) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(folder / "values.array_record"), "group_size:1,uncompressed")
    for value in values.all():
        writer.write(value.tobytes())
    writer.close()


@contextmanager
def array_record_reader(folder: Path) -> Iterator[Gather]:
    from array_record.python.array_record_module import ArrayRecordReader

    reader = ArrayRecordReader(str(folder / "values.array_record"), options="readahead_buffer_size:0")
    yield lambda positions: reader.read(positions.tolist())
    reader.close()


def h5py_fill(folder: Path, values: Values) -> None:
    import h5py

    with h5py.File(folder / "values.h5", "w") as file:
        file["flat"], file["edges"] = values.flat, values.edges


@contextmanager
def h5py_reader(folder: Path) -> Iterator[Gather]:
    # Slices of one flat dataset: 3.8 ms, where a dataset of varying lengths took 8.2 and `read_direct` 15.
    import h5py

    with h5py.File(folder / "values.h5") as file:
        flat, edges = file["flat"], file["edges"][:]

        def gather(positions: np.ndarray) -> list[np.ndarray]:
            bounds = zip(edges[positions].tolist(), edges[positions + 1].tolist(), strict=True)
            return [flat[first:last] for first, last in bounds]

        yield gather


def lance_fill(folder: Path, values: Values) -> None:
    import lance

    table = arrow_table(values)
    blob = table.schema.field("jpeg").with_metadata({"lance-encoding:blob": "true"})
    lance.write_dataset(table.cast(table.schema.set(0, blob)), str(folder / "lance"))


@contextmanager
def lance_reader(folder: Path) -> Iterator[Gather]:
    # As blobs, its way for large values: 13 ms, where `take` of a plain column took 23 and of the legacy format 14.
    import lance

    dataset = lance.dataset(str(folder / "lance"))
    yield lambda positions: [blob.readall() for blob in dataset.take_blobs("jpeg", indices=positions.tolist())]


@contextmanager
def zstd_threads_reader(frames: Sequence[bytes]) -> Iterator[Gather]:
    """zstandard's own threads, in C, from frames in RAM into one buffer a thread."""
    import zstandard

    decompressor, threads = zstandard.ZstdDecompressor(), len(os.sched_getaffinity(0))
    yield lambda positions: decompressor.multi_decompress_to_buffer(
        [frames[at] for at in positions.tolist()], threads=threads
    )


@contextmanager
def zstd_loop_reader(frames: Sequence[bytes]) -> Iterator[Gather]:
    import zstandard

    decompressor = zstandard.ZstdDecompressor()
    yield lambda positions: [decompressor.decompress(frames[at]) for at in positions.tolist()]


@contextmanager
def zstd_into_reader(frames: Sequence[bytes], values: Values, records: int) -> Iterator[Gather]:
    """Into one buffer that is used again and again; the sizes are known beforehand."""
    import zstandard

    decompressor = zstandard.ZstdDecompressor()
    sizes = np.diff(values.edges)
    buffer = np.ones(records * int(sizes.max()), np.uint8)

    def gather(positions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        offsets = np.concatenate(([0], np.cumsum(sizes[positions])))
        for at, (first, last) in zip(positions.tolist(), itertools.pairwise(offsets.tolist()), strict=True):
            with decompressor.stream_reader(frames[at]) as reader:
                while first < last:
                    first += reader.readinto(buffer[first:last])
        return buffer, offsets

    yield gather


VIEW_PEERS = (
    Keeper("slices of a map, by hand", flat_views_reader, fill=flat_fill, note="edges held in RAM"),
    Keeper("LMDB, buffers", lmdb_views_reader, fill=lmdb_fill, note="valid while their transaction is open"),
    Keeper("HF datasets, arrow", datasets_views_reader, fill=datasets_fill, note="an Arrow column of slices"),
)
COPY_PEERS = (
    Keeper("slices of a map, joined by hand", flat_joined_reader, fill=flat_fill, note="edges held in RAM"),
    Keeper("LMDB", lmdb_reader, fill=lmdb_fill),
    Keeper("HF datasets", datasets_python_reader, fill=datasets_fill),
    Keeper("HF datasets, arrow by hand", datasets_reader, fill=datasets_fill),
    Keeper("loaderx", loaderx_reader, fill=loaderx_fill, note="packed"),
    Keeper("h5py", h5py_reader, fill=h5py_fill),
    Keeper("a file each, open and read", files_reader, fill=files_fill),
    Keeper("ArrayRecord", array_record_reader, fill=array_record_fill),
    Keeper("Lance", lance_reader, fill=lance_fill),
)
LOADERX_ZSTD = replace(COPY_PEERS[4], fill=loaderx_zstd_fill, note="packed, from its store")
