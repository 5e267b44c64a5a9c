"""Ways of feeding shuffled batches: warmstore's Loader, its peers, and how each of them is best set up.

A feeder opens what its keeper wrote and loads batches from it, epoch by epoch. Each row carries its number in its first
value, so that a batch says which rows it has. Each peer's import is inside its functions, so one that is not installed
costs only its own row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import warmstore as ws
from benchmarks.keepers import (
    BATCH,
    WARMSTORE,
    WIDTH,
    Keeper,
    array_record_file_reader,
    array_record_fill,
    datasets_fill,
    datasets_numpy_reader,
    loaderx_reader,
    loaderx_writer,
    npy_fill,
    npy_reader,
)

Epoch = Callable[[], Iterator[Any]]
Source = Callable[[Path], AbstractContextManager[Any]]
Load = Callable[[Any], AbstractContextManager[Epoch]]

NPY = Keeper("npy", npy_reader, fill=npy_fill)
ARRAY_RECORD = Keeper("array_record", array_record_file_reader, fill=array_record_fill)
LOADERX = Keeper("loaderx", loaderx_reader, loaderx_writer)
DATASETS = Keeper("datasets", datasets_numpy_reader, fill=datasets_fill)


@dataclass(frozen=True)
class Feeder:
    """`source(folder)` opens what `keeper` wrote; `load(source)` makes a loader, whose every call is a new epoch.

    `see` gives a batch as float32 [rows, WIDTH]; it is not timed. An `endless` one has no end of an epoch; `blurred`
    says how many batches around it may change places. An epoch that takes minutes is not read as a `whole` untimed.
    """

    name: str
    keeper: Keeper
    source: Source
    load: Load
    see: Callable[[Any], np.ndarray] = lambda batch: batch
    note: str = ""
    endless: bool = False
    blurred: int = 0
    whole: bool = True


@contextmanager
def opened_store(folder: Path) -> Iterator[ws.RecordStore]:
    with ws.RecordStore.open(folder / "store") as store:
        yield store


@contextmanager
def gathered(store: ws.RecordStore) -> Iterator[Epoch]:
    """The limit: bare gathers of a permutation that is ready."""
    order = np.random.default_rng(0).permutation(len(store))

    def epoch() -> Iterator[np.ndarray]:
        for first in range(0, len(order), BATCH):
            yield store.gather(order[first : first + BATCH], fields=["x"])["x"]

    yield epoch


def loader(**options: Any) -> Load:
    """warmstore's Loader over one field."""

    @contextmanager
    def load(store: ws.RecordStore) -> Iterator[Epoch]:
        with closing(ws.Loader({"x": store["x"]}, BATCH, ws.Shuffle(seed=0), **options)) as made:
            yield lambda: iter(made)

    return load


@contextmanager
def npy_loader(path: Path) -> Iterator[Epoch]:
    with closing(ws.Loader(path, BATCH, ws.Shuffle(seed=0))) as made:
        yield lambda: iter(made)


def ours_in_torch(workers: int = 0) -> Load:
    @contextmanager
    def load(store: ws.RecordStore) -> Iterator[Epoch]:
        sampler = ws.BatchSampler(store, BATCH, ws.Shuffle(seed=0))
        made = DataLoader(store["x"], batch_sampler=sampler, collate_fn=ws.collate, **_workers(workers))
        yield lambda: iter(made)

    return load


class Rows(Dataset):
    """A memmap, sample by sample: the mapping as one tensor, whose rows are views.

    The fastest of the ways that are taught: 384 µs a batch without workers, for 490 with `torch.from_numpy(rows[i])`,
    504 with a copy of it, 645 with the array's rows left to the collate function, and 925 with those of the memmap.
    """

    def __init__(self, path: Path) -> None:
        self.rows = torch.from_numpy(np.asarray(np.load(path, mmap_mode="c")))  # "c": torch knows no read-only memory

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, position: int) -> torch.Tensor:
        return self.rows[position]


class RowsAtOnce(Rows):
    """A memmap, a batch in one read: little known, and by hand. `index_select` was slower than NumPy's `take`."""

    def __getitems__(self, positions: list[int]) -> torch.Tensor:
        return torch.from_numpy(self.rows.numpy().take(positions, axis=0))


def npy_path(folder: Path) -> AbstractContextManager[Path]:
    return nullcontext(folder / "rows.npy")


def sampled(workers: int = 0) -> Load:
    """torch's DataLoader over a memmap as it is usually written."""

    @contextmanager
    def load(path: Path) -> Iterator[Epoch]:
        made = DataLoader(Rows(path), BATCH, shuffle=True, **_workers(workers))
        yield lambda: iter(made)

    return load


def at_once(workers: int = 0) -> Load:
    @contextmanager
    def load(path: Path) -> Iterator[Epoch]:
        made = DataLoader(RowsAtOnce(path), BATCH, shuffle=True, collate_fn=_as_is, **_workers(workers))
        yield lambda: iter(made)

    return load


@contextmanager
def taken(path: Path) -> Iterator[Epoch]:
    """No loader at all: a permutation and `take`."""
    rows = np.load(path, mmap_mode="r")
    order = np.random.default_rng(0).permutation(len(rows))
    yield lambda: (rows.take(order[first : first + BATCH], axis=0) for first in range(0, len(rows), BATCH))


@contextmanager
def opened_datasets(folder: Path) -> Iterator[Any]:
    import datasets

    yield datasets.load_from_disk(str(folder / "datasets")).with_format("torch")


def datasets_shuffled(workers: int = 0) -> Load:
    """Its torch format in torch's DataLoader. A batch sampler as sampler, without a collation, was no faster."""

    @contextmanager
    def load(rows: Any) -> Iterator[Epoch]:
        made = DataLoader(rows, BATCH, shuffle=True, **_workers(workers))
        yield lambda: iter(made)

    return load


@contextmanager
def opened_loaderx(folder: Path) -> Iterator[Any]:
    from loaderx.zrecord import Dense

    with Dense.open(folder / "zrecord") as container:
        yield container


def loaderx(workers: int) -> Load:
    @contextmanager
    def load(container: Any) -> Iterator[Epoch]:
        from loaderx import Loader
        from loaderx.sampler import Sampler

        sampler = Sampler(len(container), BATCH, Sampler.Mode.CYCLIC, seed=0)
        with Loader({"x": [container]}, sampler, workers=workers) as made:
            yield lambda: iter(made)

    return load


def loaderx_see(shards: Any) -> np.ndarray:
    return np.from_dlpack(shards[0]["x"])


@contextmanager
def opened_grain(folder: Path) -> Iterator[Any]:
    import grain

    # Its own options for the reader are the fastest: an index in memory or no threads made no difference.
    with grain.sources.ArrayRecordDataSource([str(folder / "rows.array_record")]) as source:
        yield source


def grain_documented(threads: int = 0, processes: int = 0) -> Load:
    """Grain as its documentation has it. Batches after reading ahead, or its DataLoader, are no faster."""

    @contextmanager
    def load(source: Any) -> Iterator[Epoch]:
        import grain

        made = grain.MapDataset.source(source).shuffle(seed=0).map(_decoded).batch(BATCH)
        made = made.to_iter_dataset(_reading(threads))
        if processes:
            from absl import flags

            flags.FLAGS(["benchmarks"], known_only=True)  # with JAX there, Grain asks for flags of a program of absl's
            made = made.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(num_workers=processes))
        with _closed(made) as epoch:
            yield epoch

    return load


def grain_at_once(threads: int = 0) -> Load:
    """Grain over places, and the records of a batch in one read: by hand."""

    @contextmanager
    def load(source: Any) -> Iterator[Epoch]:
        import grain

        def read(positions: np.ndarray) -> np.ndarray:
            records = b"".join(source.__getitems__(positions.tolist()))
            return np.frombuffer(records, np.float32).reshape(-1, WIDTH)

        made = grain.MapDataset.range(len(source)).shuffle(seed=0).batch(BATCH).map(read)
        with _closed(made.to_iter_dataset(_reading(threads))) as epoch:
            yield epoch

    return load


@contextmanager
def _closed(made: Any) -> Iterator[Epoch]:
    """Each epoch ends the one before it, and its threads or processes."""
    begun: list[Any] = []

    def epoch() -> Iterator[Any]:
        while begun:
            begun.pop().close()
        begun.append(iter(made))
        return begun[0]

    yield epoch
    while begun:
        begun.pop().close()


def _reading(threads: int) -> Any:
    import grain

    # Four batches ahead, as all others; its default is 500, for elements that are single records.
    return grain.ReadOptions(num_threads=threads, prefetch_buffer_size=4 if threads else 0)


def _decoded(record: bytes) -> np.ndarray:
    return np.frombuffer(record, np.float32)


def _workers(workers: int) -> dict[str, Any]:
    return {"num_workers": workers, "persistent_workers": workers > 0}


def _as_is(batch: Any) -> Any:
    return batch


def x(batch: Any) -> Any:
    return batch["x"]


def x_tensor(batch: Any) -> np.ndarray:
    return batch["x"].numpy()


def tensor(batch: torch.Tensor) -> np.ndarray:
    return batch.numpy()


def doubled(batch: Any) -> Any:
    return {"x": batch["x"] * 2}


LIMIT = Feeder("bare gather", WARMSTORE, opened_store, gathered, note="of a permutation that is ready")
OURS = Feeder("warmstore", WARMSTORE, opened_store, loader(), x)
OURS_IN_TORCH = Feeder("warmstore in torch's DataLoader", WARMSTORE, opened_store, ours_in_torch(), tensor)
TORCH = tuple(
    Feeder(f"torch DataLoader over a memmap, {workers} workers", NPY, npy_path, sampled(workers), tensor)
    for workers in (0, 1, 2, 4)
)
LOADERX_FEEDERS = tuple(
    Feeder(
        f"loaderx, {workers} workers",
        LOADERX,
        opened_loaderx,
        loaderx(workers),
        loaderx_see,
        "an endless stream" + ", batches in any order" * (workers > 1),
        endless=True,
        blurred=workers if workers > 1 else 0,
    )
    for workers in (0, 1, 2, 4)
)
GRAIN = (
    *(
        Feeder(f"Grain, {what}", ARRAY_RECORD, opened_grain, grain_documented(*how), whole=False)
        for what, how in (("0 threads", (0, 0)), ("2 threads", (2, 0)), ("2 processes", (0, 2)))
    ),
)
GRAIN_BY_HAND = tuple(
    Feeder(
        f"Grain, a read a batch, {threads} threads",
        ARRAY_RECORD,
        opened_grain,
        grain_at_once(threads),
        note="by hand",
        whole=False,
    )
    for threads in (0, 2)
)
TAKE = Feeder("numpy memmap, rows.take", NPY, npy_path, taken, note="no loader: a permutation that is ready")
OTHERS = (
    Feeder('warmstore, to="torch"', WARMSTORE, opened_store, loader(to="torch"), x_tensor),
    Feeder("warmstore, 2 workers", WARMSTORE, opened_store, loader(workers=2), x),
    Feeder(
        "warmstore, transform x * 2",
        WARMSTORE,
        opened_store,
        loader(transform=doubled),
        lambda batch: batch["x"] / 2,
        "workers as it chooses",
    ),
    Feeder(
        "warmstore, transform x * 2, 0 workers",
        WARMSTORE,
        opened_store,
        loader(transform=doubled, workers=0),
        lambda batch: batch["x"] / 2,
    ),
    Feeder("warmstore in torch's DataLoader, 2 workers", WARMSTORE, opened_store, ours_in_torch(2), tensor),
    Feeder("warmstore over the .npy", NPY, npy_path, npy_loader),
    TAKE,
    *(
        Feeder(
            f"torch DataLoader over a memmap, a read a batch, {workers} workers",
            NPY,
            npy_path,
            at_once(workers),
            tensor,
            "__getitems__ by hand",
        )
        for workers in (0, 2)
    ),
    *(
        Feeder(
            f"HF datasets in torch's DataLoader, {workers} workers",
            DATASETS,
            opened_datasets,
            datasets_shuffled(workers),
            x_tensor,
        )
        for workers in (0, 2)
    ),
)
