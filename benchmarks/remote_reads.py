"""How fast do forked workers read shuffled batches of a large store at a URL, beside plain obstore?

The store is some 10 GB of sparse files, served by nginx on loopback. A `Loader` with two forked workers reads a third
of its images in random order, one by one and in blocks of neighbours. obstore reads as many ranges of the same lengths,
aligned to the same blocks, in two processes of its own. Bytes are those of the loopback device.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from tests.remote.packages import find_nginx
from tests.remote.servers import Nginx

import warmstore as ws
from benchmarks.remote_stores import BATCH, IMAGE, serve_sparse
from benchmarks.report import Bar, Report, Table
from benchmarks.settings import Settings
from warmstore.replicate.remote_chunk import BLOCK
from warmstore.replicate.remote_copy import Remote

PROCESSES = 2
AT_ONCE = 32  # requests of a process
ROW = int(np.prod(IMAGE))
ORDERS = {"Shuffle": ws.Shuffle(), "BlockShuffle(40)": ws.BlockShuffle(40, window=64)}


def run(settings: Settings) -> Report:
    assert find_nginx() is not None, "needs nginx: python -m tests.remote.packages"
    times = settings.pick(3, 1)
    with Nginx(settings.folder / "nginx") as server:
        size, count = serve_sparse(settings.folder / "large", server.root / "large", settings.pick(10**10, 10**8))
        url, read = f"{server.url}/large", settings.pick(count // 3, 128)
        rows, rates = [], {}
        for name, order in ORDERS.items():
            runs = []
            for at in range(times):  # in turns
                index = np.sort(np.random.default_rng(at).choice(count, read, replace=False))
                if name != "Shuffle":
                    index = np.arange(read) + at * read % (count - read + 1)
                ours = _measured(partial(_epoch, url, settings.folder / "cache", index, order))
                length = ROW if name == "Shuffle" else 40 * ROW
                theirs = _ranges(url, read * ROW // length, length)
                shutil.rmtree(settings.folder / "cache")
                runs.append((ours, theirs))
            ours, theirs = ([one[which] for one in runs] for which in (0, 1))
            rates[name] = median(a[0] / a[1] / (b[0] / b[1]) for a, b in runs)
            rows.append(
                (name, read, *(median(n / s / 1e6 for n, s in each) for each in (ours, theirs)), rates[name],
                 median(read / s for _, s in ours), median(n for n, _ in ours) / (read * ROW))
            )  # fmt: skip
    heads = ("order", "images", "warmstore MB/s", "obstore MB/s", "ratio", "images/s", "bytes fetched over bytes read")
    return Report(
        "remote_reads",
        "Shuffled batches of a store at a URL, read by two forked workers, beside ranged reads of plain obstore.",
        (Table(f"{size / 1e9:.1f} GB", heads, tuple(rows)),),
        tuple(Bar.at_least(f"{name}: of the rate of plain obstore", rate, 0.7) for name, rate in rates.items()),
        (
            f"Images of {ROW:,} bytes in batches of {BATCH}; nothing is in the cache before. warmstore compares all "
            f"bytes with their checksums and keeps them on disk; obstore drops them. obstore has {PROCESSES} processes "
            f"with {AT_ONCE} requests each, which are there before. Medians of {times}.",
        ),
    )


def _epoch(url: str, cache: Path, index: Any, order: Any) -> None:
    with (
        ws.RecordStore.open(url, cache_dir=cache, cache_size="20GB") as store,
        ws.Loader(ws.Subset(store, index), BATCH, order, epochs=1, processes=PROCESSES, start_method="fork") as loader,
    ):
        seen = np.concatenate([batch["label"] for batch in loader])
    assert (np.sort(seen)[-len(index) :] == index).all(), "wrong samples"


def _ranges(url: str, count: int, length: int) -> tuple[int, float]:
    """Read random ranges of a length, widened to blocks. Their processes are there before the time begins, and are
    spawned: obstore does not work after a fork. Returns bytes and seconds."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(PROCESSES + 1)
    told = [(url, count // PROCESSES, length, at, ready) for at in range(PROCESSES)]
    children = [context.Process(target=_read, args=each) for each in told]
    for child in children:
        child.start()
    ready.wait()

    def join() -> None:
        for child in children:
            child.join()
            assert not child.exitcode

    return _measured(join)


def _read(url: str, count: int, length: int, seed: int, ready: Any) -> None:
    import obstore

    chance = np.random.default_rng(seed)
    with Remote(url).open() as objects:
        chunks = [entry for entry in objects.entries("chunks") if not entry.name.endswith(".hashes")]
        store = objects._opened(write=False)

        async def run() -> None:
            room = asyncio.Semaphore(AT_ONCE)

            async def one() -> None:
                async with room:
                    chunk = chunks[chance.integers(len(chunks))]
                    at = int(chance.integers(max(1, chunk.size - length)))
                    end = min(-(-(at + length) // BLOCK) * BLOCK, chunk.size)
                    await obstore.get_range_async(store, objects._below(chunk.name), start=at // BLOCK * BLOCK, end=end)

            await asyncio.gather(*(one() for _ in range(count)))

        ready.wait()
        asyncio.run(run())


def _measured(do: Callable[[], None]) -> tuple[int, float]:
    """Bytes that came through the loopback device, and seconds."""
    before, began = _received(), time.perf_counter()
    do()
    return _received() - before, time.perf_counter() - began


def _received() -> int:
    (line,) = (line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split(":")[1].split()[0])
