"""How do hits compare with torchcachex's, the library whose promise this cache keeps?

torchcachex lies in no package index: `pip install git+https://github.com/dahlem/torchcachex` puts it beside. It finds
samples in a dict of tensors in RAM, bounded in entries, or in the Arrow files of all its flushes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import numpy as np
import torch

import warmstore as ws
from benchmarks.backbones import Echo, fill, frozen
from benchmarks.keepers import BATCH, FLUSH, WIDTH
from benchmarks.report import Bar, Report, broken_rows, timings
from benchmarks.settings import Settings
from benchmarks.side_by_side import Call, Contestant, WrongValuesError, named, over, side_by_side


def run(settings: Settings) -> Report:
    count = settings.pick(50 * FLUSH, 2 * FLUSH)
    values = torch.from_numpy(np.random.default_rng(0).standard_normal((count, WIDTH), dtype=np.float32))
    names = [f"train/{number:08d}.jpg" for number in range(count)]
    draws = np.random.default_rng(1).integers(0, count, (settings.pick(100, 6), BATCH))
    asks = [(torch.from_numpy(draw), [f"train/{number:08d}.jpg" for number in draw]) for draw in draws]
    nothing = torch.zeros(BATCH, WIDTH)

    def checked(module: Echo, features: torch.nn.Module) -> Iterator[Call]:
        module.counts.clear()
        yield lambda ask: features(nothing, cache_ids=ask[1])
        if module.counts:
            raise WrongValuesError(f"{sum(module.counts)} rows were computed again")

    @contextmanager
    def limit() -> Iterator[Call]:
        yield lambda ask: torch.index_select(values, 0, ask[0])

    @contextmanager
    def ours() -> Iterator[Call]:
        module = frozen(Echo())
        with closing(ws.FeatureCache(settings.folder / "ours", "echo")) as cache:
            fill(cache, names, values, module)
            for first in range(0, count, FLUSH):  # each row is checked when it is read first
                cache.get_batch(names[first : first + FLUSH])
            yield from checked(module, ws.CachedModule(module, cache))

    def theirs(entries: int) -> Contestant:
        @contextmanager
        def setup() -> Iterator[Call]:
            from torchcachex import ArrowIPCCacheBackend, CacheModuleDecorator

            module = frozen(Echo())
            folder = str(settings.folder / f"theirs-{entries}")
            backend = ArrowIPCCacheBackend(folder, "echo", lru_size=entries, async_write=False, flush_every=FLUSH)
            features = CacheModuleDecorator(module, backend)
            for first in range(0, count, FLUSH):
                features(values[first : first + FLUSH], cache_ids=names[first : first + FLUSH])
            backend.flush()
            yield from checked(module, features)

        return Contestant("torchcachex, hits in RAM" if entries > 1 else "torchcachex, reads from disk", setup)

    found = side_by_side(
        [
            Contestant("torch.index_select in RAM", limit, "limit"),
            Contestant("CachedModule, string ids", ours, "warmstore", "from disk, through the page cache"),
            theirs(count),
            theirs(1),
        ],
        asks,
        lambda ask, result: torch.equal(result, values[ask[0]]),
        reads=True,
    )
    own = named(found, "CachedModule, string ids")
    return Report(
        "torchcachex",
        f"{BATCH} random samples of {WIDTH * 4} bytes, all known, out of {count:,}, by string ids.",
        (timings("", found),),
        (
            Bar.at_least(
                "torchcachex's hits in RAM over ours", over(named(found, "torchcachex, hits in RAM"), own), 5.0
            ),
            Bar.at_least("torchcachex's disk over ours", over(named(found, "torchcachex, reads from disk"), own), 30.0),
        ),
        (
            f"torchcachex wrote {count // FLUSH} files, one a flush, and opens those that a batch needs every time.",
            "From disk: it may keep one sample in RAM; with none allowed it keeps all.",
        ),
        broken_rows(found),
    )
