"""Stories of caches under power cuts: what is found is exact, what was flushed is found, all else is a miss."""

from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch
from tests.compiling.environments import HERE
from tests.faults.record_cuts import Ledger
from tests.faults.recording import Recorder
from tests.pipeline.functions import change, make, shake
from tests.pipeline.making import expected, plan_of, same

import warmstore as ws
from warmstore.compiling.scratch.harvester import Harvester
from warmstore.compiling.scratch.scratch_dir import ScratchDir
from warmstore.compiling.scratch.scratch_quota import ScratchQuota
from warmstore.compiling.store.artifact_store import ArtifactStore
from warmstore.compiling.warn_once import WarnOnce
from warmstore.errors import Damaged, NoArtifact
from warmstore.features.keyed.cache_quota import SMALLEST
from warmstore.features.keyed.version_binding import bind
from warmstore.pipeline.pipeline import Pipeline

WIDTH, STEP = 6, 3
BROAD, MANY = 12_500, 10


def values(ids: Sequence[int], width: int = WIDTH, version: int = 0) -> Any:
    """The outputs of some samples, by their numbers."""
    return np.arange(width, dtype=np.float32) + np.asarray(ids, np.float32)[:, None] * 7 + 1000 * version


def names(ids: Sequence[int]) -> list[Any]:
    """Ids of samples: small ints for the direct table of the index, texts for the other one."""
    return [number if number % 2 else f"sample {number}" for number in ids]


class CacheStory:
    """A story of a feature cache, of one or two versions. A state is the samples that each version must have."""

    def __init__(
        self,
        tell: Callable[[Path, Recorder], list[Any]],
        *,
        width: int = WIDTH,
        versions: int = 1,
        deletes: bool = False,
        output: Callable[[Any], Any] = lambda values: values,
        **options: Any,
    ) -> None:
        self.name = tell.__name__
        self._deletes = deletes
        self._output = output
        self._tell = tell
        self._options = {"width": width, **options}
        self._versions = versions

    def prepare(self, root: Path) -> None:
        if "max_size" in self._options:
            fill(root, range(0, 80, MANY))

    def run(self, root: Path, recorder: Recorder) -> list[Any]:
        return self._tell(root, recorder)

    def check(self, root: Path, allowed: list[Any], *, thorough: bool) -> int:
        for version in range(self._versions):
            with opened(root, version=version if self._versions > 1 else None, **self._options) as cache:
                # What was flushed before the cut is in every state that is allowed.
                found = self._look(cache, version)
                least = set.intersection(*(state[version] for state in allowed))
                assert "max_size" in self._options or least <= found, f"{sorted(least - found)} were flushed, and miss"
                gone = found - set.union(*(state[version] for state in allowed)) if self._deletes else set()
                assert not gone, f"{sorted(gone)} were deleted, and are found"
                missing = sorted(set(range(90)) - found)
                self._put(cache, version, missing[:MANY] if "max_size" in self._options else missing)
                self._put(cache, version, range(90, 90 + MANY))
                assert set(range(90, 90 + MANY)) <= self._look(cache, version)
                if thorough:
                    cache.rebalance(progress=False)
                    assert set(range(90, 90 + MANY)) <= self._look(cache, version)
        return 0

    def again(self, root: Path, expected: int) -> None:
        for version in range(self._versions):
            with opened(root, version=version if self._versions > 1 else None, **self._options) as cache:
                found = self._look(cache, version)
                assert set(range(90, 90 + MANY)) <= found
                assert "max_size" in self._options or found == set(range(90 + MANY)), found
                assert cache.stats().damaged == 0

    def _put(self, cache: ws.FeatureCache, version: int, ids: Sequence[int]) -> None:
        if ids:
            cache.put_batch(names(ids), self._output(values(ids, self._options["width"], version)))
            cache.flush()

    def _look(self, cache: ws.FeatureCache, version: int) -> set[int]:
        """The samples that are found, each of which is exact."""
        found, missing = cache.get_batch(names(range(90 + MANY)))
        present = np.delete(np.arange(90 + MANY), missing).tolist()
        if present:
            assert np.array_equal(found, values(present, self._options["width"], version))
        return set(present)


def opened(root: Path, *, width: int = WIDTH, version: int | None = None, **options: Any) -> ws.FeatureCache:
    versions = {} if version is None else {"versions": "new"}
    cache = ws.FeatureCache(root / "caches", "c", async_write=False, flush_every=10_000, **versions, **options)
    if version is not None:
        digest = f"{version + 1:x}" * 32
        bind(cache._session.version, {"rules": 1, "digest": digest, "module": digest, "facts": {}})
    return cache


def fill(root: Path, starts: Sequence[int]) -> None:
    with opened(root, max_size=SMALLEST) as cache:
        for first in starts:
            ids = range(first, first + MANY)
            cache.put_batch(names(ids), values(ids, BROAD))
            cache.flush()


def puts(root: Path, recorder: Recorder) -> list[Any]:
    """Two sessions of a cache, of some flushes each; the index is synced between them."""
    done: set[int] = set()
    ledger = Ledger(recorder, [set()])
    for start in (0, 30):
        with opened(root) as cache:
            for first in range(start, start + 12, STEP):
                ids = range(first, first + STEP)
                cache.put_batch(names(ids), values(ids))
                done = done | set(ids)
                with ledger.step([done]):
                    cache.flush()
    return ledger.states


def compactions(root: Path, recorder: Recorder) -> list[Any]:
    """Samples that are deleted, and two rebalances, one of which finds samples pending."""
    done = set(range(8))
    ledger = Ledger(recorder, [set()])
    with opened(root) as cache:
        cache.put_batch(names(range(8)), values(range(8)))
        with ledger.step([done]):
            cache.flush()
        for number in (1, 4):
            done = done - {number}
            with ledger.step([done]):
                del cache[names([number])[0]]
        with ledger.step([done]):
            cache.rebalance(progress=False)
        cache.put_batch(names([4, 9]), values([4, 9]))
        done = done | {4, 9}
        with ledger.step([done]):
            cache.rebalance(progress=False)
    return ledger.states


class Scaled(torch.nn.Module):
    """Computes `values`."""

    def forward(self, number: torch.Tensor) -> torch.Tensor:
        return torch.arange(WIDTH, dtype=torch.float32) + number[:, None] * 7


def fills(root: Path, recorder: Recorder) -> list[Any]:
    """A fill by blocks, and the same one again with more samples."""
    done: set[int] = set()
    ledger = Ledger(recorder, [done])
    for count in (3, 5):
        ids = range(1, 2 * count * STEP, 2)  # odd ones are ints
        samples = {"id": np.array(ids), "number": np.array(ids, np.float32)}
        options = {"async_write": False}
        job = ws.FillJob(root / "caches", "c", Scaled(), samples, block_size=STEP, cache_options=options)
        blocks = [done | set(ids[:end]) for end in range(STEP, len(ids) + 1, STEP)]
        done = blocks[-1]
        with ledger.step(*([block] for block in blocks)):
            job.run(progress=False)
    return ledger.states


def evictions(root: Path, recorder: Recorder) -> list[Any]:
    """Flushes of a cache that is full, so that chunks are evicted."""
    ledger = Ledger(recorder, [set()])
    with opened(root, max_size=SMALLEST) as cache:
        for first in (80, 85):
            ids = range(first, first + MANY // 2)
            cache.put_batch(names(ids), values(ids, BROAD))
            with ledger.step([set()]):
                cache.flush()
    return ledger.states


def versions(root: Path, recorder: Recorder) -> list[Any]:
    """A cache of one module, then of a changed one beside it, then of the first one again."""
    state: list[set[int]] = [set(), set()]
    ledger = Ledger(recorder, state)
    for turn, version in enumerate((0, 1, 0)):
        with opened(root, version=version) as cache:
            ids = range(turn * 10, turn * 10 + STEP)
            cache.put_batch(names(ids), values(ids, WIDTH, version))
            state = [known | set(ids) if at == version else known for at, known in enumerate(state)]
            with ledger.step(state):
                cache.flush()
    return ledger.states


SAMPLES = 24


class TierStory:
    """Epochs of a pipeline that keeps its samples on the disk. Nothing is promised but right samples."""

    name = "tiers"

    def prepare(self, root: Path) -> None:
        """Nothing is there before."""

    def run(self, root: Path, recorder: Recorder) -> list[Any]:
        ledger = Ledger(recorder, None)
        for count in (SAMPLES // 2, SAMPLES):
            with ledger.step(None):
                epoch(root, count, 0)
        return ledger.states

    def check(self, root: Path, allowed: list[Any], *, thorough: bool) -> int:
        epoch(root, SAMPLES, 0)
        if thorough:
            epoch(root, SAMPLES, 1)
        return 0

    def again(self, root: Path, expected: int) -> None:
        assert epoch(root, SAMPLES, 2) == SAMPLES


def epoch(root: Path, count: int, number: int) -> int:
    """Compare an epoch with what the steps make. Returns how many samples are kept at its end."""
    pipe: Pipeline = ws.Pipeline(range(count)).step(make, kind="mixed").step(change).step(shake, random=True)
    plan = plan_of(pipe, [(2, "disk", "raw")], [count], folder=root / "plan")
    with pipe.loader(plan, batch_size=8, seed=number, workers=0) as loader:
        for batch, like in zip(loader, expected(pipe, 8, number, 0), strict=True):
            assert same(batch, like)
        return int((loader._source.cached.open().rows >= 0).sum())


class ArtifactStory:
    """Artifacts that are put, used, replaced and evicted. What is found is exact; what is lost is compiled again."""

    name = "artifacts"

    def prepare(self, root: Path) -> None:
        with artifacts(root) as store:
            store.put("old", "cpp.so", content("old"), environment=HERE)

    def run(self, root: Path, recorder: Recorder) -> list[Any]:
        ledger = Ledger(recorder, None)
        with artifacts(root) as store:
            for key in ("a", "b", "c"):
                with ledger.step(None):
                    store.put(key, "cpp.so", content(key), environment=HERE, job="train")
            found = store.find("a", "cpp.so", HERE)
            assert found is not None
            store.used([found])
            store.put("a", "cpp.so", content("a", 1), environment=HERE)
            store.clear(kind="cpp.so", job="train")
            store.put("d", "cpp.so", content("d"), environment=HERE)
        return ledger.states

    def check(self, root: Path, allowed: list[Any], *, thorough: bool) -> int:
        with artifacts(root) as store:
            self._look(store)
            for key in ("a", "e"):
                store.put(key, "cpp.so", content(key), environment=HERE, job="train")
                found = store.find(key, "cpp.so", HERE)
                assert found is not None
                assert store.read(found) == content(key)
            if thorough:
                store.verify()
                assert not store.verify()
                self._look(store)
        return 0

    def again(self, root: Path, expected: int) -> None:
        with artifacts(root) as store:
            assert {"a", "e"} <= self._look(store)
            assert not store.stats().read_only

    def _look(self, store: ArtifactStore) -> set[str]:
        found = set()
        for key in ("old", "a", "b", "c", "d", "e"):
            artifact = store.find(key, "cpp.so", HERE)
            if artifact is None:
                continue
            try:
                assert store.read(artifact) in (content(key), content(key, 1))
            except (Damaged, NoArtifact):
                assert store.find(key, "cpp.so", HERE) is None
            else:
                found.add(key)
        return found


def artifacts(root: Path) -> ArtifactStore:
    return ArtifactStore(root / "artifacts", "64MB")


def content(key: str, version: int = 0) -> bytes:
    return np.random.default_rng([ord(key[0]), version]).bytes(1700)


class HarvestStory(ArtifactStory):
    """Files of compilers that are stored in the background and at the end. No error reaches the compiler."""

    name = "harvests"

    def run(self, root: Path, recorder: Recorder) -> list[Any]:
        ledger = Ledger(recorder, None)
        store = artifacts(root)
        scratch = ScratchDir.create([root.parent])
        quota = ScratchQuota(store, scratch)

        def put(path: str, kind: str, data: bytes, seconds: float) -> None:
            store.put(PurePosixPath(path).parts[1], "cpp.so", data, environment=HERE)

        harvester = Harvester(store, quota, put, lambda path: None, WarnOnce(), lambda: None)
        for key in ("a", "b", "c"):
            folder = scratch.path / "triton" / key
            folder.mkdir(parents=True)
            (folder / "kernel.cubin").write_bytes(content(key))
            with ledger.step(None):
                harvester.harvest()
        with ledger.step(None):
            harvester.close()
            quota.close()
            store.close()
        return ledger.states


STORIES = [
    CacheStory(puts),
    CacheStory(compactions, deletes=True),
    CacheStory(fills, output=torch.from_numpy),
    CacheStory(versions, versions=2),
    CacheStory(evictions, width=BROAD, max_size=SMALLEST),
    TierStory(),
    ArtifactStory(),
    HarvestStory(),
]
