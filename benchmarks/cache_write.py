"""Does a flush into a cache of millions of keys take longer than one into an empty cache, and does any take very long?

The second question is about growth: an index that is doubled on the flush path would show as one huge flush. Disks
hiccup as well, so a plain write and fdatasync of the same bytes takes turns with every flush and shows its own worst.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import torch

import warmstore as ws
from benchmarks.keepers import FLUSH, flat_writer
from benchmarks.report import Bar, Cell, Report, Table, broken_rows, timings
from benchmarks.settings import Settings
from benchmarks.side_by_side import Call, Contestant, Row, WrongValuesError, named, over, side_by_side

WIDTH = 16  # float32 values in a row: 64 bytes, so that millions of keys are there quickly
Numbers = np.ndarray


def run(settings: Settings) -> Report:
    count = settings.pick(2_000_000, 8 * FLUSH) // FLUSH * FLUSH
    turns = settings.pick(100, 4)
    settings.break_in_disk(count * 4 * WIDTH * 8)
    with closing(ws.FeatureCache(settings.folder / "warm-up", "rows")) as cache:
        # The first flush of a process also imports and compiles: its start, not the growth asked about.
        cache.put_batch(_names(np.arange(FLUSH)), torch.from_numpy(_values(np.arange(FLUSH))))
        cache.flush()
    full = settings.folder / "full"
    filled = side_by_side(
        [_plain(settings.folder / "plain-fill"), _flushes("warmstore, the whole fill", full, 0)],
        np.split(np.arange(count), count // FLUSH),
        lambda numbers, result: True,  # the clean-up reads back
    )
    grown, empty = f"into a cache of {count:,}", "into an empty cache"
    found = side_by_side(
        [
            _plain(settings.folder / "plain"),
            _flushes(empty, settings.folder / "empty", 0),
            _flushes(grown, full, count),
        ],
        np.split(np.arange(turns * FLUSH), turns),
        lambda numbers, result: True,
    )
    return Report(
        "cache_write",
        f"FeatureCache, string keys: flushes of {FLUSH:,} rows of {WIDTH * 4} bytes.",
        (
            timings("Into a full and an empty cache, in turn", found, unit="ms"),
            Table(
                f"Filling from 0 to {count:,} keys, every flush with everything it takes",
                ("", "flushes", "median ms", "p99 ms", "worst ms", "worst over median", "note"),
                tuple(_spread(row) for row in filled),
            ),
        ),
        (
            Bar.at_most("a flush into the full cache over one into the empty", over(*_two(found, grown, empty)), 1.2),
            Bar.at_most("the worst flush of the whole fill over the median", _hiccup(filled[1]), 5.0),
        ),
        (f"The worst plain write, which only the disk explains, was {_text(_hiccup(filled[0]))} x its median.",),
        broken_rows(filled) + broken_rows(found),
    )


def _plain(folder: Path) -> Contestant:
    @contextmanager
    def setup() -> Iterator[Call]:
        folder.mkdir()
        with flat_writer(folder) as append:
            yield lambda numbers: append(_values(numbers))

    return Contestant("write + fdatasync of the values", setup, "limit")


def _flushes(name: str, folder: Path, first: int) -> Contestant:
    """Put rows under keys that start at `first`, flush by flush."""

    @contextmanager
    def setup() -> Iterator[Call]:
        seen = []
        with closing(ws.FeatureCache(folder, "rows", flush_every=FLUSH)) as cache:

            def flush(numbers: Numbers) -> None:
                cache.put_batch(_names(numbers + first), torch.from_numpy(_values(numbers + first)))
                cache.flush()
                seen.append(numbers + first)

            yield flush
        with closing(ws.FeatureCache(folder, "rows")) as cache:
            for numbers in itertools.chain(seen[:2], seen[-2:]):
                values, missing = cache.get_batch(_names(numbers))
                if len(missing) or not np.array_equal(values, _values(numbers)):
                    raise WrongValuesError(f"in the flush of {numbers[0]}")

    return Contestant(name, setup, "warmstore")


def _values(numbers: Numbers) -> np.ndarray:
    return numbers[:, None].astype(np.float32) + np.arange(WIDTH, dtype=np.float32) / WIDTH


def _names(numbers: Numbers) -> list[str]:
    return [f"train/{number:08d}.jpg" for number in numbers.tolist()]


def _two(rows: list[Row], one: str, other: str) -> tuple[Row, Row]:
    return named(rows, one), named(rows, other)


def _hiccup(row: Row) -> float | None:
    return row.worst / row.median if row.worst and row.median else None


def _spread(row: Row) -> tuple[Cell, ...]:
    if row.trouble:
        return (row.name, 0, None, None, None, None, row.trouble)
    milliseconds: Callable = lambda seconds: seconds * 1e3  # noqa: E731
    times = map(milliseconds, (row.median, row.p99, row.worst))
    return (row.name, len(row.seconds), *times, _hiccup(row), row.note)


def _text(figure: float | None) -> str:
    return "?" if figure is None else f"{figure:.1f}"
