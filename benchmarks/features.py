"""How fast does a cached module answer when it knows every sample, and what do people get who build it by hand?"""

from __future__ import annotations

import dbm
import shelve
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import numpy as np
import torch

import warmstore as ws
from benchmarks.backbones import DeepEcho, Echo, fill, frozen
from benchmarks.gather import LOOP, PAUSE
from benchmarks.keepers import BATCH, FLUSH, WIDTH
from benchmarks.report import Bar, Report, broken_rows, timings
from benchmarks.settings import Settings
from benchmarks.side_by_side import (
    Call,
    Contestant,
    Row,
    WrongValuesError,
    busy_processes,
    named,
    over,
    side_by_side,
)

INTS, STRINGS = "CachedModule, int ids, tensor", "CachedModule, string ids"
ZSTD, ZSTD_HOT = f"{INTS}, zstd", f"{INTS}, zstd, hot"
TAKE = "numpy memmap, rows.take"


@dataclass(frozen=True)
class Ask:
    """The same samples, named in each of the ways a caller may have at hand."""

    positions: torch.Tensor
    numbers: list[int]
    names: list[str]


def run(settings: Settings) -> Report:
    count = settings.pick(400_000, 8_192)
    values = torch.from_numpy(np.random.default_rng(0).standard_normal((count, WIDTH), dtype=np.float32))
    names = [f"train/{number:08d}.jpg" for number in range(count)]
    draws = np.random.default_rng(1).integers(0, count, (settings.pick(1000, 20), BATCH))
    # Names are made anew: a caller's strings are never the very objects that were stored.
    asks = [Ask(torch.from_numpy(d), d.tolist(), [f"train/{number:08d}.jpg" for number in d]) for d in draws]
    nothing = torch.zeros(FLUSH, WIDTH)

    def cached(ids: Callable[[Ask], object], keys: str, backbone: Callable = Echo, **options: object) -> Callable:
        """A cached module over int or string keys ("positions" or "names"), filled once for all contestants."""

        @contextmanager
        def setup() -> Iterator[Call]:
            with closing(_cache(settings, keys, backbone, values, names, **options)) as cache:
                module = frozen(backbone())
                computed = module.counts
                features = ws.CachedModule(module, cache)
                read_all(lambda ask: features(nothing[: len(ask.numbers)], cache_ids=ids(ask)), values)
                yield lambda ask: features(nothing[:BATCH], cache_ids=ids(ask))
                if computed:
                    raise WrongValuesError(f"{sum(computed)} rows were computed again")

        return setup

    @contextmanager
    def get_batch(keys: str) -> Iterator[Call]:
        with closing(_cache(settings, keys, Echo, values, names)) as cache:
            read_all(lambda ask: cache.get_batch(getattr(ask, keys))[0], values)
            yield lambda ask: cache.get_batch(getattr(ask, keys))[0]

    @contextmanager
    def limit() -> Iterator[Call]:
        yield lambda ask: torch.index_select(values, 0, ask.positions)

    @contextmanager
    def dictionary() -> Iterator[Call]:
        known = dict(zip(names, values.unbind(), strict=True))
        yield lambda ask: torch.stack([known[name] for name in ask.names])

    @contextmanager
    def shelf() -> Iterator[Call]:
        path = str(settings.folder / "shelf")
        with shelve.open(path, "n") as known:
            for name, value in zip(names, values.numpy(), strict=True):
                known[name] = value
        with shelve.open(path, "r") as known:
            yield lambda ask: torch.from_numpy(np.stack([known[name] for name in ask.names]))

    @contextmanager
    def lmdb_names() -> Iterator[Call]:
        import lmdb

        with lmdb.open(str(settings.folder / "lmdb"), map_size=1 << 36, readahead=False) as environment:
            with environment.begin(write=True) as transaction:
                pairs = zip(map(str.encode, names), map(memoryview, values.numpy()), strict=True)
                transaction.cursor().putmulti(pairs, append=True)

            def gather(ask: Ask) -> torch.Tensor:
                with environment.begin(buffers=True) as transaction:
                    joined = bytearray().join(map(transaction.get, map(str.encode, ask.names)))
                return torch.frombuffer(joined, dtype=torch.float32).view(-1, WIDTH)

            yield gather

    @contextmanager
    def memmap_take() -> Iterator[Call]:
        path = settings.folder / "rows.npy"
        if not path.exists():
            np.save(path, values.numpy())
        rows = np.load(path, mmap_mode="r")
        read_all(lambda ask: torch.from_numpy(rows.take(ask.positions.numpy(), axis=0)), values)
        yield lambda ask: torch.from_numpy(rows.take(ask.positions.numpy(), axis=0))

    few = [
        Contestant("torch.index_select in RAM", limit, "limit"),
        Contestant(INTS, cached(lambda ask: ask.positions, "positions"), "warmstore"),
        Contestant(STRINGS, cached(lambda ask: ask.names, "names"), "warmstore"),
        Contestant(TAKE, memmap_take),
    ]

    def race(contestants: list[Contestant], *, loop: int = 1, pause: float = 0) -> list[Row]:
        def right(ask: Ask, result: torch.Tensor) -> bool:
            return torch.equal(result, values[ask.positions])

        return side_by_side(contestants, asks, right, reads=True, loop=loop, pause=pause)

    loop, between = race(few, loop=LOOP), race(few, pause=PAUSE)
    with busy_processes(torch.get_num_threads()):
        busy = race(few)
    found = race(
        [
            *few,
            Contestant("CachedModule, int ids, list", cached(lambda ask: ask.numbers, "positions"), "warmstore"),
            Contestant(
                "CachedModule, int ids, tensor, 318 tensors",
                cached(lambda ask: ask.positions, "positions", DeepEcho),
                "warmstore",
                "as many parameters and buffers as a ResNet-50",
            ),
            Contestant(
                ZSTD,
                cached(lambda ask: ask.positions, "positions", codec="zstd"),
                "warmstore",
                'codec="zstd", of random numbers',
            ),
            Contestant(
                ZSTD_HOT,
                cached(lambda ask: ask.positions, "positions", codec="zstd", hot_size="all"),
                "warmstore",
                'hot_size="all": decompressed in RAM, of this process only',
            ),
            Contestant("get_batch, int ids, tensor", lambda: get_batch("positions"), "warmstore"),
            Contestant("get_batch, string ids", lambda: get_batch("names"), "warmstore"),
            Contestant("dict of tensors + torch.stack", dictionary, note="all in RAM, of this process only"),
            Contestant("LMDB by name", lmdb_names),
            Contestant("shelve by name", shelf),
        ]
    )
    hard = {f"{PAUSE * 1e3:.0f} ms between": between, "busy": busy}

    return Report(
        "features",
        f"{BATCH} random samples of {WIDTH * 4} bytes, all known, out of {count:,}; the backbone is never called.",
        (
            timings("in a loop", loop),
            timings(f"{PAUSE * 1e3:.0f} ms between two calls", between),
            timings(f"beside {torch.get_num_threads()} busy processes", busy),
            timings("call by call", found),
        ),
        (
            *(
                Bar.at_most(f"in a loop: {name}, over the limit", named(loop, name).ratio, bound)
                for name, bound in ((INTS, 1.7), (STRINGS, 2.2))
            ),
            *(
                Bar.at_most(f"{when}: {name}, over {TAKE}", over(named(rows, name), named(rows, TAKE)), bound)
                for when, rows in hard.items()
                for name, bound in ((INTS, 1.4), (STRINGS, 1.6))
            ),
            Bar.at_most(
                f"call by call: {ZSTD_HOT}, over {ZSTD}", over(named(found, ZSTD_HOT), named(found, ZSTD)), 0.5
            ),
        ),
        (
            'String ids look like "train/00012345.jpg".',
            f"shelve keeps its rows with {dbm.whichdb(str(settings.folder / 'shelf'))} here.",
            "torchcachex has a table of its own.",
        ),
        broken_rows(loop) + broken_rows(between) + broken_rows(busy) + broken_rows(found),
    )


def read_all(call: Call, values: torch.Tensor, step: int = FLUSH) -> None:
    """Bring every row into the page cache, and see that it is the right one."""
    for first in range(0, len(values), step):
        positions = torch.arange(first, min(first + step, len(values)))
        numbers = positions.tolist()
        if not torch.equal(call(Ask(positions, numbers, [f"train/{n:08d}.jpg" for n in numbers])), values[positions]):
            raise WrongValuesError(f"within samples {first} to {first + step}")


def _cache(
    settings: Settings,
    keys: str,
    backbone: Callable,
    values: torch.Tensor,
    names: list[str],
    codec: str = "raw",
    **options: object,
) -> ws.FeatureCache:
    folder = settings.folder / f"cache-{keys}-{backbone.__name__}-{codec}"
    if not folder.exists():
        try:
            with closing(ws.FeatureCache(folder, "echo", codec=codec)) as cache:
                fill(cache, range(len(values)) if keys == "positions" else names, values, frozen(backbone()))
        except BaseException:
            shutil.rmtree(folder)  # the next contestant would take half a cache for a whole one
            raise
    return ws.FeatureCache(folder, "echo", **options)
