"""Bounded caches: never more bytes than allowed, never another sample's rows, and all processes can go on."""

import contextlib
import itertools
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.faults.children import Ended, in_child, well
from tests.faults.seam import Calling
from tests.faults.stories import Hasty
from tests.slow import either, thinned

import warmstore as ws
from warmstore.errors import ReadOnly, SchemaMismatch
from warmstore.features.keyed.cache_quota import SMALLEST
from warmstore.records.format.manifest import read_manifest
from warmstore.records.index.key_index import KeyIndex
from warmstore.records.maintenance.chunk_states import chunk_states
from warmstore.storage.locks import is_held

pytestmark = pytest.mark.forks

BOUND = 5_000_000
WIDTH = 512  # floats


def values(ids: Any) -> Any:
    """What belongs to each id, and to no other."""
    return np.arange(WIDTH, dtype=np.float32) + np.asarray(ids, np.float32)[:, None] * 7


def nbytes(folder: Path) -> int:
    """Bytes of everything in a folder; what goes meanwhile counts as gone."""
    total = 0
    for root, _, names in os.walk(folder):  # as `rglob` does not, it goes on where a folder has gone
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += Path(root, name).stat().st_size
    return total


def right(cache: ws.FeatureCache, ids: list[int], names: Any = None) -> int:
    """Assert that what is found is what belongs to the ids; return how many are missing."""
    found, missing = cache.get_batch(names or ids)
    there = np.delete(np.asarray(ids), missing)
    assert found is None or np.array_equal(found, values(there))
    return len(missing)


class Sampling(Calling, Hasty):
    """Measures a folder after every operation on a file."""

    def __init__(self, folder: Path) -> None:
        self.largest = 0
        self.check = lambda: setattr(self, "largest", max(self.largest, nbytes(folder)))


@pytest.mark.parametrize("key", thinned(2, ["sample {}".format, lambda number: number * 97]))
def test_the_bound_holds_at_every_operation(tmp_path: Path, key: Any) -> None:
    files = Sampling(tmp_path)
    with ws.FeatureCache(tmp_path, "c", max_size=BOUND, flush_every=400, async_write=False, files=files) as cache:
        for first in range(0, 3000, 200):
            ids = list(range(first, first + 200))
            cache.put_batch([key(number) for number in ids], values(ids))
        cache.flush()
        ids = list(range(2600, 3000))
        assert right(cache, ids, [key(number) for number in ids]) == 0  # the newest are there
        assert right(cache, list(range(500)), [key(number) for number in range(500)]) == 500
        stats = cache.stats()
        assert stats.max_size == BOUND
        assert stats.entries + stats.evicted == 3000 == len(cache) + stats.evicted
        assert stats.damaged == 0
        assert cache.rebalance(progress=False).records == len(cache)
        right(cache, ids, [key(number) for number in ids])
    assert files.largest <= BOUND
    assert files.largest > 0.8 * BOUND


@pytest.mark.slow
def test_a_long_log_is_written_anew(tmp_path: Path) -> None:
    """Flushes of one small sample each: the log, and what a flush takes beside values, stay within the bound too."""
    largest, files = 0, Hasty()
    options = {"max_size": SMALLEST, "flush_every": 1, "async_write": False, "files": files}
    with ws.FeatureCache(tmp_path, "c", **options) as cache:
        for number in range(2100):
            cache.put_batch([number], np.full((1, 4), number))
            largest = max(largest, nbytes(tmp_path))
        found, missing = cache.get_batch(list(range(2000, 2100)))
        assert not len(missing)
        assert (found == np.arange(2000, 2100)[:, None]).all()
        assert read_manifest(cache.path, files).generation > 1
    assert largest <= SMALLEST


def test_evicted_samples_are_computed_again(tmp_path: Path, counting: Any) -> None:
    module = counting(lambda x: x.repeat(1, WIDTH))
    with ws.FeatureCache(tmp_path, "c", max_size=BOUND, flush_every=500, async_write=False) as cache:
        features = ws.CachedModule(module, cache)
        for epoch in range(2):
            for first in range(0, 4000, 250):
                x = torch.arange(first, first + 250, dtype=torch.float32)[:, None]
                assert torch.equal(features(x, cache_ids=list(range(first, first + 250))), x.repeat(1, WIDTH))
            assert sum(module.rows) == 4000 * (epoch + 1)  # in this order each is evicted before it comes again
        x = torch.arange(3900, 4000, dtype=torch.float32)[:, None]
        features(x, cache_ids=list(range(3900, 4000)))
        assert sum(module.rows) == 8000


def test_three_writers_and_a_reader(tmp_path: Path) -> None:
    """Real processes; bytes are sampled while they run, and every value that anybody gets is checked."""

    def write(rank: int) -> Any:
        def work(say: Any) -> None:
            rng = np.random.default_rng(rank)
            with ws.FeatureCache(tmp_path, "c", max_size=BOUND, flush_every=200, files=Hasty()) as cache:
                for _ in range(either(12, 40)):
                    ids = rng.choice(5000, 100, replace=False).tolist()
                    right(cache, ids)
                    cache.put_batch(ids, values(ids))
                cache.flush()
                say(cache.stats().damaged)

        return work

    def read(say: Any) -> None:
        cache = ws.FeatureCache(tmp_path, "c", read_only=True)
        missing = found = 0
        while not (tmp_path / "done").exists():
            ids = np.random.default_rng(missing).choice(5000, 200, replace=False).tolist()
            absent = right(cache, ids)
            missing, found = missing + absent, found + 200 - absent
        say((found, cache.stats().damaged))

    ended: dict[Any, Ended] = {}

    def child(name: Any, work: Any) -> threading.Thread:
        thread = threading.Thread(target=lambda: ended.update({name: in_child(work)}))
        thread.start()
        return thread

    writers = [child(rank, write(rank)) for rank in range(3)]
    reader = child("reader", read)
    largest = 0
    try:
        while any(writer.is_alive() for writer in writers):
            largest = max(largest, nbytes(tmp_path))
    finally:
        (tmp_path / "done").touch()
        reader.join()
    assert [well(ended[rank]) for rank in range(3)] == [[0]] * 3
    ((found, damaged),) = well(ended["reader"])
    assert found > 0
    assert damaged == 0
    assert largest <= BOUND
    with ws.FeatureCache(tmp_path, "c") as cache:
        assert cache.stats().evicted > 0
        assert right(cache, list(range(5000))) < 5000


def test_readers_of_evicted_chunks_read_on(tmp_path: Path) -> None:
    """One that only hits goes on with what it has mapped; what is put anew is found again."""
    with ws.FeatureCache(tmp_path, "c", max_size=BOUND, flush_every=100, async_write=False) as cache:
        ids = list(range(100))
        cache.put_batch(ids, values(ids))
        reader = ws.FeatureCache(tmp_path, "c", read_only=True)
        assert right(reader, ids) == 0
        for first in range(100, 4000, 100):
            cache.put_batch(list(range(first, first + 100)), values(range(first, first + 100)))
        assert not (cache.path / "g0001/000000.arrow").exists()
        assert right(reader, ids) == 0
        assert right(reader, list(range(3900, 4000))) == 0
        assert right(reader, ids) == 100
        cache.put_batch(ids, values(ids))
        assert right(reader, ids) == 0
        assert reader.stats().damaged == 0


def test_the_bound_is_that_of_all_versions_and_the_oldest_goes_first(tmp_path: Path) -> None:
    def fill(weights: str, ids: range) -> None:
        with ws.FeatureCache(tmp_path, "c", max_size=BOUND, versions="new", flush_every=200) as cache:
            cache._bind({"weights": weights}).put_batch(list(ids), values(ids))

    def missing(weights: str, ids: range) -> int:
        with ws.FeatureCache(tmp_path, "c", versions="new", read_only=True) as cache:
            return right(cache._bind({"weights": weights}), list(ids))

    fill("old", range(1000))
    fill("new", range(500))
    assert missing("old", range(1000)) == 0
    for first in range(500, 2000, 500):
        fill("new", range(first, first + 500))
    assert missing("old", range(1000)) > 500
    assert missing("new", range(500, 2000)) < 500
    assert nbytes(tmp_path) <= BOUND


def test_new_samples_stay_once_the_clock_was_set_back(tmp_path: Path) -> None:
    """A full cache was written with a clock that was a year ahead. What was written first still goes first."""
    with ws.FeatureCache(tmp_path, "c", max_size=BOUND, flush_every=200, async_write=False) as cache:
        for first in range(0, 3000, 200):
            cache.put_batch(list(range(first, first + 200)), values(range(first, first + 200)))
        for path in cache.path.rglob("*.arrow"):
            ahead = path.stat().st_mtime + 365 * 86400
            os.utime(path, (ahead, ahead))
        for first in range(3000, 4000, 200):
            cache.put_batch(list(range(first, first + 200)), values(range(first, first + 200)))
        assert right(cache, list(range(2800, 4000))) == 0
        assert right(cache, list(range(1000))) == 1000
    assert nbytes(tmp_path) <= BOUND


def test_a_cache_of_earlier_runs_is_shrunk_by_the_first_flush(tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path, "c", flush_every=200, async_write=False) as cache:
        for first in range(0, 4000, 200):
            cache.put_batch(list(range(first, first + 200)), values(range(first, first + 200)))
    assert nbytes(tmp_path) > BOUND
    other = ws.FeatureCache(tmp_path, "c", flush_every=100, async_write=False)
    assert right(other, list(range(200))) == 0
    with ws.FeatureCache(tmp_path, "c", max_size=BOUND) as cache:
        cache.put_batch([5000], values([5000]))
    assert nbytes(tmp_path) <= BOUND
    # A process without a bound goes on beside those with one.
    other.put_batch([1, 5001], values([1, 5001]))
    other.close()
    with ws.FeatureCache(tmp_path, "c", max_size=BOUND) as cache:
        assert right(cache, [5000, 5001, 1]) == 0


def test_what_does_not_fit(tmp_path: Path) -> None:
    for size in (SMALLEST - 1, "1MB"):
        with pytest.raises(ValueError, match=r"max_size is .* needs 4 MB at least"):
            ws.FeatureCache(tmp_path, "c", max_size=size)
    with ws.FeatureCache(tmp_path, "c", max_size=SMALLEST) as cache:
        with pytest.raises(SchemaMismatch, match="sample of 4,000,000 bytes is too large for max_size=4,000,000"):
            cache.put_batch([1], np.zeros((1, 1_000_000), np.float32))
        for number in range(30):  # larger than a chunk should be
            cache.put_batch([number], np.full((1, 100_000), number, np.float32))
            cache.flush()
            assert nbytes(tmp_path) <= SMALLEST
        found, missing = cache.get_batch([29, 28, 0])
        assert missing.tolist() == [2]
        assert found[:, 0].tolist() == [29, 28]


def test_duplicates_are_reclaimed_by_rebalance(tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path, "c", flush_every=100, async_write=False) as cache:
        other = ws.FeatureCache(tmp_path, "c", flush_every=1)
        ids = list(range(100))
        for shift in (3, 2, 1, 0):
            cache.put_batch(ids, values(np.asarray(ids) + shift))
        cache.put_batch([500], values([500]))
        cache.flush()
        assert right(other, ids) == 0
        before = cache.stats().bytes
        done = cache.rebalance(progress=False)
        assert (done.records, done.rows_before) == (101, 401)
        assert done.bytes_before - done.bytes_after > 2.9 * values(ids).nbytes
        assert before - cache.stats().bytes > 2.9 * values(ids).nbytes
        for one in (cache, other, ws.FeatureCache(tmp_path, "c", read_only=True)):
            assert right(one, [500, *ids]) == 0
        # Both go on in the new generation.
        other.put_batch([501], values([501]))
        other.flush()
        cache.put_batch([502], values([502]))
        cache.flush()
        assert right(cache, [500, 501, 502, *ids]) == 0
        other.close()
    with pytest.raises(ReadOnly):
        ws.FeatureCache(tmp_path, "c", read_only=True).rebalance()
    with ws.FeatureCache(tmp_path, "nothing yet") as cache:
        assert cache.rebalance().records == 0


@pytest.mark.parametrize("how", ["put", "delete"])
def test_the_lock_of_the_store_is_taken_before_that_of_the_quota(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Taken after it, a thread that put samples and one that cleared or rebalanced the cache waited for each other."""
    with ws.FeatureCache(tmp_path, "c", max_size=BOUND, async_write=False) as cache, ThreadPoolExecutor(1) as thread:
        cache.put_batch([1, 2], values([1, 2]))
        cache.flush()
        keyed = cache._session.version.reader.keyed
        real, held = keyed.refresh, []

        def refresh() -> None:  # where the quota is held
            held.append(thread.submit(is_held, keyed.store._session.lock).result())
            real()

        monkeypatch.setattr(keyed, "refresh", refresh)
        if how == "put":
            cache.put_batch([1], values([1]))
            cache.flush()
        else:
            del cache[1]
        assert held == [True]


def test_ranks_that_only_read_leave_the_bound_alone(tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path, "c", flush_every=200, async_write=False) as cache:
        cache.put_batch(list(range(4000)), values(range(4000)))
    before = nbytes(tmp_path)
    for options in ({"read_only": True}, {"writer_ranks": [1]}):
        with ws.FeatureCache(tmp_path, "c", max_size=BOUND, **options) as cache:
            assert right(cache, list(range(4000))) == 0
            cache.flush()
    assert nbytes(tmp_path) == before


def test_the_index_and_figures_of_evicted_samples(tmp_path: Path) -> None:
    """The index does not grow with all that ever was; the chunks that are there are told, not those that were."""
    with ws.FeatureCache(tmp_path, "c", max_size=BOUND, flush_every=2000, async_write=False) as cache:
        sizes = []
        for first in range(0, 60_000, 2000):
            cache.put_batch([f"{first + at}" for at in range(2000)], np.zeros((2000, 64), np.int32))
            sizes.append(sum(path.stat().st_size for path in cache.path.glob("keys-*")))
        assert max(sizes[12:]) < 2_500_000
        states = chunk_states(cache.path)
        assert sum(state.records for state in states) == len(cache)
        assert all(state.state in ("sealed", "open") for state in states)
        assert cache.stats().bytes <= BOUND


def test_rows_that_a_rebalance_removed_while_the_index_caught_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread follows the rebalance of another process: the store has fewer rows than the index is to cover."""
    with ws.FeatureCache(tmp_path, "c", async_write=False) as one, ws.FeatureCache(tmp_path, "c") as other:
        for ids in (range(50), range(50), range(3)):
            other.put_batch(ids, values(ids))
            other.flush()
        assert right(one, list(range(50))) == 0
        for first in (0, 60):
            other.put_batch(range(first, first + 40), values(range(first, first + 40)))
            other.flush()
        store, catch_up = one._session.version.reader.keyed.store, KeyIndex.catch_up

        def late(index: KeyIndex, rows: int) -> None:
            monkeypatch.undo()
            other.rebalance(progress=False)
            store.refresh()
            assert rows > len(store)
            catch_up(index, rows)

        monkeypatch.setattr(KeyIndex, "catch_up", late)
        assert right(one, list(range(100))) <= 50
        assert right(one, list(range(100))) == 10


@pytest.mark.parametrize("how", thinned(2, ["deleted", "replaced"]))
def test_an_eviction_brings_nothing_back(how: str, tmp_path: Path) -> None:
    """A sample that another process than its writer has deleted or replaced, in a chunk that was begun before."""
    with (
        ws.FeatureCache(tmp_path, "c", max_size=BOUND) as other,
        ws.FeatureCache(tmp_path, "c", max_size=BOUND) as cache,
    ):
        other.put_batch([900], values([900]))
        other.flush()
        cache.put_batch(range(10), values(range(10)))
        cache.flush()
        assert right(other, [3]) == 0
        if how == "deleted":
            del other[3]
        else:
            other.put_batch([3], values([4]))
            other.flush()
        keyed = cache._session.version.reader.keyed
        for start in itertools.count(1000, 10):
            ids = range(start, start + 10)
            cache.put_batch(ids, values(ids))
            cache.flush()
            if len(cache.get_batch([900])[1]):
                break
        keyed.index.start_over(keyed.store._snapshot.rows)  # as after many evictions, or on another host
        found, missing = cache.get_batch([3])
        assert len(missing) or (how == "replaced" and np.array_equal(found, values([4])))
