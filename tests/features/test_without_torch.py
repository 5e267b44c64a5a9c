"""What needs no torch runs without it: keys, lookups, statistics, eviction, push and pull of a feature cache."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys

sys.modules["torch"] = None  # every import of torch fails

from pathlib import Path

import numpy as np

import warmstore as ws
from warmstore.features.cache_inspection import find_caches, read_state
from warmstore.records.index.sample_keys import as_keys

folder, remote = Path(sys.argv[1]), Path(sys.argv[2]).as_uri()
with ws.FeatureCache(folder / "here", "id", max_size="4MB") as cache:
    for first in range(0, 2000, 100):
        cache.put_batch(range(first, first + 100), np.full((100, 1024), first, np.float32))
        cache.flush()
    stats = cache.stats()
    assert 0 < stats.entries < 2000 and stats.entries + stats.evicted == 2000
    assert stats.bytes <= 4_000_000
    assert cache._session.missing(as_keys([1999, 0, 1900])).tolist() == [1]  # the oldest rows were evicted
    values, missing = cache.get_batch([1999, "unknown"])
    assert values[0, 0] == 1900 and missing.tolist() == [1]
    assert cache.push(remote).chunks
(path,) = find_caches(folder / "here")
assert read_state(path).entries == stats.entries
with ws.FeatureCache(folder / "there", "id") as cache:
    assert cache.pull(remote).records == stats.entries
    assert not len(cache._session.missing(as_keys([1999])))
    assert cache.rebalance().records == stats.entries
with ws.FeatureCache(folder / "there", "id", read_only=True) as cache:
    assert len(cache) == stats.entries
"""


def test_caches_of_arrays_need_no_torch(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "caches", tmp_path / "remote"], capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
