"""A plan: how many samples a pipeline caches after each step, in memory and on disk.

A fixed permutation of the indices assigns samples to placements. So all processes agree without communication, the
next run finds what this one cached, and every part of an epoch reads all tiers in proportion.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.loading.samplers.counter_rng import Int64, UInt64, derive_keys
from warmstore.loading.samplers.permutation import permuted
from warmstore.pipeline.profile.profile import Codec, Profile, Tier
from warmstore.pipeline.steps import Step

_KIND = "pipeline plan"


@dataclass(frozen=True, order=True)
class Placement:
    """Where samples are cached: after `step` steps (0: the raw value), in a tier, with a codec."""

    step: int
    tier: Tier
    codec: Codec


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """A plan. Make one with `Pipeline.plan`; `print` it, or `plot` it.

    placements, counts: the placements, and the samples per bucket of the profile that each gets.
    samples: total number. buckets: int8 [samples], the bucket of each; None if there is one.
    memory, disk: budgets in bytes, never exceeded. folder: of the disk tier. workers: processes that make batches;
    0 for none. direct_io: the disk tier is read past the page cache. batch_size: assumed by the plan.
    world_size: ranks on this machine that share the budgets; `workers` counts for each.
    strategy: how the plan was found. epochs: number of epochs in which filling the tiers must pay off.
    epoch_seconds: of a steady epoch, predicted; uncached_seconds: of one without caches. build_seconds: extra time of
    the first epoch, predicted. limits: lower bounds of a steady epoch in seconds, by name.
    memory_used, disk_used, worker_bytes: bytes planned for both tiers and for the workers with their batches.
    notes: for the user, such as why a step cannot be cached. reasons: for each stage, why nothing is cached there.
    measured: seconds of the steady epochs that were run, added by the loader.
    """

    placements: tuple[Placement, ...]
    counts: tuple[tuple[int, ...], ...]
    samples: int
    buckets: np.ndarray[Any, np.dtype[np.int8]] | None
    memory: int
    disk: int
    folder: Path | None
    workers: int
    direct_io: bool
    batch_size: int
    world_size: int
    strategy: str
    epochs: int
    epoch_seconds: float
    uncached_seconds: float
    build_seconds: float
    limits: dict[str, float]
    memory_used: int
    disk_used: int
    worker_bytes: int
    steps: tuple[Step, ...]
    profile: Profile
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    measured: list[float] = field(default_factory=list)

    def assignment(self, indices: Int64 | Sequence[int]) -> Int64:
        """The placement number of each sample, int64 [n] for int64 [n] indices; -1 for uncached ones.

        The same in every process and for every plan of equal counts; over all samples the counts are exact.
        """
        at = np.asarray(indices, np.int64)
        if at.size and (at.min() < 0 or at.max() >= self.samples):
            wrong = int(at.min() if at.min() < 0 else at.max())
            raise IndexError(f"sample {wrong} is out of range: the plan has {self.samples:,} samples")
        return self._table[at].astype(np.int64)

    def samples_in(self, placement: int) -> int:
        """How many samples a placement gets, all buckets together."""
        return sum(self.counts[placement])

    def nbytes_of(self, placement: int) -> float:
        """Bytes a placement is planned to take."""
        place = self.placements[placement]
        return float(np.dot(self.counts[placement], self.profile.stages[place.step].stored[place.codec].nbytes))

    @cached_property
    def _table(self) -> np.ndarray[Any, np.dtype[np.int16]]:
        table = np.full(self.samples, -1, np.int16)
        for bucket in range(len(self.counts[0]) if self.counts else 0):
            members = np.arange(self.samples) if self.buckets is None else np.flatnonzero(self.buckets == bucket)
            ends = np.cumsum([counts[bucket] for counts in self.counts])
            places = _ranks(len(members), bucket)
            numbers = np.searchsorted(ends, places, side="right").astype(np.int16)
            numbers[numbers == len(ends)] = -1
            table[members] = numbers
        return table

    def __repr__(self) -> str:
        places = ", ".join(
            f"{self.samples_in(number):,} after step {place.step} in {place.tier} ({place.codec})"
            for number, place in enumerate(self.placements)
        )
        return f"Plan({self.samples:,} samples: {places or 'none cached'}; {self.workers} workers)"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_table"}  # computed again if needed

    def __str__(self) -> str:
        from warmstore.pipeline.plan.plan_table import as_text

        return as_text(self)

    def plot(self, path: str | os.PathLike[str]) -> Path:
        """Plot the plan to a PNG, SVG or PDF file: a row per step with its time, bytes and cached share.

        Raises:
            NotInstalled: matplotlib is not installed.
        """
        from warmstore.pipeline.plan.plot import draw

        return draw(self, Path(path))


def _ranks(count: int, bucket: int) -> UInt64:
    """The position of each of a bucket's samples in the fixed permutation."""
    if not count:
        return np.empty(0, np.uint64)
    return permuted(np.arange(count, dtype=np.uint64), count, derive_keys(_KIND, 0, bucket, count))
