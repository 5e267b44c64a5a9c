"""How fast are 256 random records of 20 to 200 KB handed out, copied and decompressed?

Handing out is views of the mapped file, copying is one packed buffer beside a plain copy of as many bytes, and
decompressing is beside zstandard, on one thread and on all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import torch
import zstandard

from benchmarks.keepers import BATCH, Keeper
from benchmarks.record_keepers import (
    COPY_PEERS,
    LOADERX_ZSTD,
    PACKED,
    VIEW_PEERS,
    VIEWS,
    ZSTD_LIST,
    ZSTD_PACKED,
    Gather,
    Values,
    zstd_into_reader,
    zstd_loop_reader,
    zstd_threads_reader,
)
from benchmarks.report import Bar, Report, broken_rows, timings
from benchmarks.settings import Settings
from benchmarks.side_by_side import Contestant, Row, named, over, side_by_side

SMALLEST, LARGEST = 20_000, 200_000  # bytes in a record
COPY, COPYTO = "torch copy_ in RAM", "numpy copyto in RAM"
THREADS, ONE_THREAD = "zstandard, all threads", "zstandard, one thread"
INTO = "zstandard, one thread, into a kept buffer"
AS_MANY, IN_RAM = "as many bytes from one place", "compressed values in RAM"
COPIED = object()  # what a plain copy gives instead of records


def run(settings: Settings) -> Report:
    count = settings.pick(4_000, 512)
    # As many bytes in small records as in large: log-uniform sizes are near enough to those of photos.
    sizes = np.exp(np.random.default_rng(0).uniform(np.log(SMALLEST), np.log(LARGEST), count)).astype(np.int64)
    photos = Values.of(sizes, np.random.default_rng(1).integers(0, 256, int(sizes.sum()), np.uint8))
    orders = [np.random.default_rng(number).permutation(count) for number in range(settings.pick(8, 2))]
    asks = [part for order in orders for part in np.split(order[: count // BATCH * BATCH], count // BATCH)]
    mean = float(np.mean([photos.size(ask) for ask in asks])) / 1e6

    def race(values: Values, *contestants: Contestant) -> list[Row]:
        def right(positions: np.ndarray, result: object) -> bool:
            return result is COPIED or values.are(positions, result)

        return side_by_side(contestants, asks, right, reads=True)

    def kept(keeper: Keeper, values: Values = photos) -> Contestant:
        @contextmanager
        def setup() -> Iterator[Gather]:
            folder = settings.folder / keeper.fill.__name__
            if not folder.exists():
                keeper.keep(folder, values)
            with keeper.reader(folder) as gather:
                values.check(gather, BATCH)
                yield gather

        ours = keeper in (VIEWS, PACKED, ZSTD_LIST, ZSTD_PACKED)
        return Contestant(keeper.name, setup, "warmstore" if ours else "peer", keeper.note)

    by_torch = copying(photos, torch.from_numpy, torch.Tensor.copy_)
    by_numpy = copying(photos, np.asarray, np.copyto)
    viewed = race(photos, Contestant(COPY, by_torch, "limit"), *map(kept, (VIEWS, *VIEW_PEERS)))
    copied = race(
        photos,
        Contestant(COPY, by_torch, "limit", AS_MANY),
        Contestant(COPYTO, by_numpy, note=AS_MANY),
        *map(kept, (PACKED, *COPY_PEERS)),
    )
    texts = Values.of(sizes, phrases(int(sizes.sum())))
    compressor = zstandard.ZstdCompressor(level=3)  # warmstore's default
    frames = [compressor.compress(text) for text in texts.all()]
    shrunk = len(texts.flat) / sum(map(len, frames))

    def from_ram(name: str, reader: Callable, *more: object, role: str = "peer") -> Contestant:
        return Contestant(name, lambda: reader(frames, *more), role, IN_RAM)

    unpacked = race(
        texts,
        from_ram(THREADS, zstd_threads_reader, role="limit"),
        *(kept(keeper, texts) for keeper in (ZSTD_LIST, ZSTD_PACKED)),
        from_ram(ONE_THREAD, zstd_loop_reader),
        from_ram(INTO, zstd_into_reader, texts, BATCH),
        kept(LOADERX_ZSTD, texts),
    )
    views, one_thread = named(viewed, VIEWS.name), named(unpacked, ONE_THREAD)
    megabytes = f"{mean:.0f} MB a call"
    return Report(
        "records",
        f"{BATCH} random records of {SMALLEST // 1000} to {LARGEST // 1000} KB out of {count:,}, in the page cache.",
        (
            timings(f"Handed out as views, beside a copy ({megabytes})", viewed),
            timings(f"Copied ({megabytes})", copied, unit="ms", megabytes=mean),
            timings(f"Decompressed, zstd {shrunk:.1f} to 1 ({megabytes})", unpacked, unit="ms", megabytes=mean),
        ),
        (
            Bar.at_most("views: µs over 300, or share of a copy's time over 0.2, the smaller", handing_out(views), 1.0),
            Bar.at_most("packed copy over the limit's", named(copied, PACKED.name).ratio, 1.15),
            *(
                Bar.at_least(
                    f"zstd, {shape}: rate over one thread's", over(one_thread, named(unpacked, keeper.name)), 1.8
                )
                for keeper, shape in ((ZSTD_PACKED, "packed"), (ZSTD_LIST, "as a list"))
            ),
        ),
        (
            "Views are handed out without their bytes being touched; whoever uses them reads them then.",
            "loaderx, both ways by hand and warmstore's packed gather give one buffer, the others an object a record.",
            f"{THREADS}: `multi_decompress_to_buffer`, which is C throughout and experimental.",
            "Every contestant read every record once before, and was compared with the source.",
        ),
        broken_rows(viewed) + broken_rows(copied) + broken_rows(unpacked),
    )


def copying(values: Values, kind: Callable, copy: Callable) -> Callable[[], AbstractContextManager[Gather]]:
    """Copies as many bytes as the records asked for have, from one stretch of RAM into a buffer that is kept.

    From another stretch in every call, as the records are others: the same one again would come from a cache.
    """

    @contextmanager
    def setup() -> Iterator[Gather]:
        target = np.ones(BATCH * int(np.diff(values.edges).max()), np.uint8)
        source_kind, target_kind = kind(values.flat), kind(target)

        def call(positions: np.ndarray) -> object:
            size = values.size(positions)
            first = min(int(values.edges[positions[0]]), len(values.flat) - size)
            copy(target_kind[:size], source_kind[first : first + size])
            return COPIED

        call(np.zeros(1, np.int64))
        assert np.array_equal(target[: values.edges[1]], values.flat[: values.edges[1]]), "wrong values"
        yield call

    return setup


def phrases(size: int) -> np.ndarray:
    """Bytes that zstd makes about a third of: phrases of 8 bytes out of a thousand, in random order."""
    rng = np.random.default_rng(2)
    return rng.integers(0, 256, (1024, 8), np.uint8)[rng.integers(0, 1024, -(-size // 8))].reshape(-1)[:size]


def handing_out(row: Row) -> float | None:
    """At most 1 where handing out views takes 300 µs, or a fifth of the time a copy takes."""
    if row.median is None or row.ratio is None:
        return None
    return min(row.median * 1e6 / 300, row.ratio / 0.2)
