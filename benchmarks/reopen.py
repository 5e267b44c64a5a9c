"""How long does a new process wait for a cache of millions of keys, and how much memory of its own does that cost?

The index is there already, in the page cache; a fresh process opens the cache and looks 256 keys up. Run as a module
(`python -m benchmarks.reopen FOLDER KIND COUNT`) this file is that process.
"""

from __future__ import annotations

import json
import pickle
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import torch

import warmstore as ws
from benchmarks.private_memory import in_fresh_process, private_bytes
from benchmarks.report import Bar, Report, Table
from benchmarks.settings import Settings

FILL = 65_536  # rows in a flush while filling: only the result matters here


def run(settings: Settings) -> Report:
    count = settings.pick(2_000_000, 20_000)
    times = settings.pick(5, 1)
    rows, bars = [], []
    for kind in ("int keys", "string keys", "pickled dict"):
        KINDS[kind][0](settings.folder / kind, count)
        runs = [in_fresh_process(__name__, str(settings.folder / kind), kind, str(count)) for _ in range(times)]
        seconds = float(np.median([run["seconds"] for run in runs]))
        per_key = float(np.median([run["bytes"] for run in runs])) / count
        rows.append((kind, seconds * 1e3, max(run["seconds"] for run in runs) * 1e3, per_key))
        if kind != "pickled dict":
            bars.append(Bar.at_most(f"{kind}: seconds to open and look up, median", seconds, 0.3))
            bars.append(Bar.at_most(f"{kind}: private bytes a key", per_key, 8.0))
    return Report(
        "reopen",
        f"A fresh process opens a cache of {count:,} keys (8-byte values) and looks 256 of them up.",
        (Table("", ("", "median ms", "worst ms", "private bytes a key"), tuple(rows)),),
        tuple(bars),
        (
            f"{times} processes each. Imports are not counted. Private: anonymous and private dirty memory gained "
            "from before opening to after the lookup, thread stacks and all.",
            "The pickled dict (name to float) is what a cache with its index in memory has to load at every start.",
        ),
    )


def fill_cache(folder: Path, count: int, ids_of: Callable) -> None:
    with closing(ws.FeatureCache(folder, "keys", flush_every=FILL)) as cache:
        for first in range(0, count, FILL):
            numbers = np.arange(first, min(first + FILL, count))
            cache.put_batch(ids_of(numbers), torch.from_numpy(numbers.astype(np.float64)))
        cache.flush()


def look_up(folder: Path, count: int, ids_of: Callable) -> None:
    numbers = np.random.default_rng(0).integers(0, count, 256)
    with closing(ws.FeatureCache(folder, "keys")) as cache:
        values, missing = cache.get_batch(ids_of(numbers))
        measure()
        assert len(missing) == 0, f"{len(missing)} keys missing"
        assert np.array_equal(np.asarray(values), numbers), "wrong values"


def fill_dict(folder: Path, count: int) -> None:
    folder.write_bytes(pickle.dumps({name: float(number) for number, name in enumerate(names_of(range(count)))}))


def look_up_dict(folder: Path, count: int) -> None:
    numbers = np.random.default_rng(0).integers(0, count, 256)
    known = pickle.loads(folder.read_bytes())
    values = [known[name] for name in names_of(numbers)]
    measure()
    assert np.array_equal(values, numbers), "wrong values"


def names_of(numbers: np.ndarray | range) -> list[str]:
    return [f"train/{number:08d}.jpg" for number in numbers]


def scattered(numbers: np.ndarray) -> list[int]:
    """Int keys that are not dense: a direct table would not do."""
    return (numbers * 1_000_003).tolist()


KINDS: dict[str, tuple[Callable, Callable]] = {
    "int keys": (lambda f, n: fill_cache(f, n, scattered), lambda f, n: look_up(f, n, scattered)),
    "string keys": (lambda f, n: fill_cache(f, n, names_of), lambda f, n: look_up(f, n, names_of)),
    "pickled dict": (fill_dict, look_up_dict),
}


def main(folder: str, kind: str, count: str) -> None:
    """Prints {"seconds", "bytes"}: from here to when the looker-up calls `measure`."""
    KINDS[kind][1](Path(folder), int(count))


def measure() -> None:
    spent = time.perf_counter() - BEGAN
    print(json.dumps({"seconds": spent, "bytes": private_bytes() - BEFORE}))


if __name__ == "__main__":
    BEFORE = private_bytes()
    BEGAN = time.perf_counter()
    main(*sys.argv[1:])
