"""A cache of a hundred million samples that ten hosts filled: what pushes, opening it elsewhere and reading cost.

    python -m benchmarks.scale [--samples 100_000_000] [--hosts 10] [--folder FOLDER]

Outputs have 8 bytes each, so that keys, sidecars and logs are what counts. Hosts are processes with folders of their
own, one after the other; the remote is nginx with WebDAV on loopback. One JSON line is printed for each part.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROUND = 1_000_000  # samples that are put together
BATCH = 256


def fill(folder: str, url: str, first: int, count: int) -> dict[str, Any]:
    """One host: it computes its samples and pushes them."""
    import warmstore as ws

    began = time.perf_counter()
    with ws.FeatureCache(folder, "net", flush_every=ROUND) as cache:
        for start in range(first, first + count, ROUND):
            ids = np.arange(start, min(start + ROUND, first + count))
            cache.put_batch(ids, ids[:, None].astype(np.float32) * np.array([1, -1], np.float32))
        cache.flush()
        filled = time.perf_counter()
        cache.push(url)
        pushed = time.perf_counter()
    return {"fill": filled - began, "push": pushed - filled}


def read(folder: str, url: str, total: int) -> dict[str, Any]:
    """A new host: it opens the cache at its URL and reads random batches."""
    import warmstore as ws

    chance = np.random.default_rng(0)
    began = time.perf_counter()
    with ws.FeatureCache(url, "net", cache_dir=folder) as cache:
        batch(cache, chance, total)
        opened = time.perf_counter()
        seconds = []
        for _ in range(200):
            start = time.perf_counter()
            batch(cache, chance, total)
            seconds.append(time.perf_counter() - start)
        entries = len(cache)
    again = time.perf_counter()
    with ws.FeatureCache(url, "net", cache_dir=folder) as cache:
        batch(cache, chance, total)
        reopened = time.perf_counter()
    return {
        "entries": entries,
        "first batch": opened - began,
        "median batch, ms": float(np.median(seconds)) * 1e3,
        "first batch of the next run": reopened - again,
        "peak private GB": private_peak() / 1e9,
    }


def batch(cache: Any, chance: np.random.Generator, total: int) -> None:
    """Look up random samples, of which none is missing, and compare them."""
    ids = chance.integers(0, total, BATCH)
    values, missing = cache.get_batch(ids)
    assert not len(missing), f"{len(missing)} samples are missing"
    assert (np.asarray(values)[:, 0] == ids.astype(np.float32)).all(), "wrong samples"


def private_peak() -> int:
    """The most anonymous memory of this process, in bytes, as far as it is still there."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon")) * 1024


def started(*command: object) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scale", *map(str, command)], check=True, stdout=subprocess.PIPE, text=True
    )
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    from tests.remote.servers import Nginx

    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--samples", type=int, default=100_000_000)
    arguments.add_argument("--hosts", type=int, default=10)
    arguments.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    given = arguments.parse_args()
    share = given.samples // given.hosts
    with tempfile.TemporaryDirectory(dir=given.folder) as name, Nginx(Path(name) / "nginx") as server:
        folder = Path(name)
        parts = []
        for host in range(given.hosts):
            parts.append(started("fill", folder / "host", server.url, host * share, share))
            shutil.rmtree(folder / "host")
        at_remote = [path for path in server.root.rglob("*") if path.is_file()]
        found = {
            "samples": share * given.hosts,
            "hosts": given.hosts,
            "seconds to fill, each": [round(part["fill"], 2) for part in parts],
            "seconds to push, each": [round(part["push"], 2) for part in parts],
            "objects": len(at_remote),
            "GB at the remote": sum(path.stat().st_size for path in at_remote) / 1e9,
            "KB of the log": sum(path.stat().st_size for path in at_remote if path.parent.name in ("heads", "packs"))
            / 1e3,
        }
        print(json.dumps(found), flush=True)
        print(json.dumps(started("read", folder / "reader", server.url, share * given.hosts)), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["fill"]:
        print(json.dumps(fill(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))))
    elif sys.argv[1:2] == ["read"]:
        print(json.dumps(read(sys.argv[2], sys.argv[3], int(sys.argv[4]))))
    else:
        main()
