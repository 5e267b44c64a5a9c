"""Who reads random rows from files that lie on a disk, and what a table says of them.

`cold` and `small_memory` measure them, each in its own way.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.keepers import BATCH, READ_PEERS, WARMSTORE, WIDTH, Gather, Keeper, npy_fill
from benchmarks.report import Bar, Cell, Table
from benchmarks.side_by_side import describe
from warmstore._native import floor

THREADS = 32
HEADER = 128  # bytes before the rows in a .npy file
ROW = 4 * WIDTH


@contextmanager
def pread_reader(folder: Path) -> Iterator[Gather]:
    """Threads of Python that read a file's rows, as one would write it by hand."""
    file = os.open(folder / "rows.npy", os.O_RDONLY)
    with ThreadPoolExecutor(THREADS) as pool:

        def gather(positions: np.ndarray) -> np.ndarray:
            rows, offsets = np.empty((len(positions), WIDTH), np.float32), (HEADER + positions * ROW).tolist()

            def read(first: int) -> None:
                for at in range(first, len(offsets), THREADS):
                    os.preadv(file, [rows[at].data], offsets[at])

            list(pool.map(read, range(THREADS)))
            return rows

        yield gather
    os.close(file)


@contextmanager
def native_pread_reader(folder: Path) -> Iterator[Gather]:
    """As many threads of C, which have nothing else to do: no keys, no checksums, one file."""
    file = os.open(folder / "rows.npy", os.O_RDONLY)

    def gather(positions: np.ndarray) -> np.ndarray:
        rows, missing = np.empty((len(positions), WIDTH), np.float32), np.zeros(len(positions), np.uint8)
        files, lengths = np.full(len(positions), file, np.int32), np.full(len(positions), ROW)
        floor.read(files, HEADER + positions * ROW, lengths, rows, missing, THREADS)
        return rows

    yield gather
    os.close(file)


LIMIT = Keeper(f"{THREADS} threads of pread, in C", native_pread_reader, fill=npy_fill)
KEEPERS = (
    LIMIT,
    WARMSTORE,
    Keeper(f"{THREADS} threads of pread, in Python", pread_reader, fill=npy_fill),
    *(one for one in READ_PEERS if one.name in ("numpy memmap, rows.take", "LMDB", "ArrayRecord", "Lance", "Vortex")),
)


class InTurn:
    """What processes of each keeper measured that read batches, in turn: disks have neighbours too."""

    COLUMNS = ("median ms", "mean ms", "p99 ms", "rows/s", "of the limit")

    def __init__(
        self, folder: Path, rows: np.ndarray, rounds: int, start: Callable[[Keeper, Path, int], dict[str, Any]]
    ) -> None:
        """Let each keeper measure in each round, in a fresh process.

        Args:
            start: runs a keeper's fresh process over the folder of its files, in a round, and returns what it found:
                the seconds of each batch as "seconds".
        """
        self.found: dict[str, list[dict[str, Any]]] = {}
        self.troubles: dict[str, str] = {}
        for number in range(rounds):
            for keeper in KEEPERS:
                place = folder / (keeper.fill or keeper.writer).__name__
                try:
                    if not place.exists():
                        keeper.keep(place, rows)
                    drop_pages(place)
                    self.found.setdefault(keeper.name, []).append(start(keeper, place, number))
                except Exception as error:
                    self.troubles[keeper.name] = describe(error)

    def milliseconds(self, name: str) -> np.ndarray:
        """Of all batches of a keeper's processes; empty if none came to its end."""
        return np.array([one for each in self.found.get(name, ()) for one in each["seconds"]]) * 1e3

    def rate(self, name: str) -> float | None:
        """Rows in a second, if any were read."""
        taken = self.milliseconds(name)
        return len(taken) * BATCH / float(taken.sum()) * 1e3 if len(taken) else None

    def ratio(self, name: str, base: str) -> float | None:
        """One keeper's rate over that of another."""
        rate, other = self.rate(name), self.rate(base)
        return rate / other if rate and other else None

    def table(
        self, title: str, columns: tuple[str, ...], more: Callable[[list[dict[str, Any]]], tuple[Cell, ...]]
    ) -> Table:
        """A row for each keeper.

        Args:
            columns: what a table of this benchmark has more.
            more: the cells of these columns, from what a keeper's processes found.
        """

        def row(keeper: Keeper) -> tuple[Cell, ...]:
            rate = self.rate(keeper.name)
            if rate is None:
                return (keeper.name, *[None] * (len(self.COLUMNS) + len(columns)), self.troubles[keeper.name])
            taken = self.milliseconds(keeper.name)
            figures = float(np.median(taken)), float(taken.mean()), float(np.percentile(taken, 99))
            return (
                keeper.name,
                *figures,
                rate,
                self.ratio(keeper.name, LIMIT.name),
                *more(self.found[keeper.name]),
                keeper.note,
            )

        return Table(title, ("", *self.COLUMNS, *columns, "note"), tuple(map(row, KEEPERS)))

    def bars(self, *peers: str) -> tuple[Bar, ...]:
        """warmstore's rate against the limit, and against the peers that were measured."""
        return (
            Bar.at_least("warmstore's rate over the limit's", self.ratio(WARMSTORE.name, LIMIT.name), 0.8),
            *(
                Bar.at_least(f"warmstore's rate over {peer}'s", self.ratio(WARMSTORE.name, peer), 1.0)
                for peer in peers
                if self.rate(peer)
            ),
        )

    def broken(self) -> tuple[str, ...]:
        """warmstore's own trouble, if it had any."""
        return tuple(f"{name}: {trouble}" for name, trouble in self.troubles.items() if name == WARMSTORE.name)


def rows_of(count: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((count, WIDTH), dtype=np.float32)


def drop_pages(folder: Path) -> None:
    """Have nothing of a folder's files in the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            file = os.open(path, os.O_RDONLY)
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(file)
