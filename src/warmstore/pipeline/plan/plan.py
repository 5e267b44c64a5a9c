"""A plan: how many samples a pipeline caches after each step, in memory and on disk.

A fixed permutation of the indices assigns samples to placements. So all processes agree without communication, the
next run finds what this one cached, and every part of an epoch reads all tiers in proportion.
"""

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np

from warmstore.loading.samplers.counter_rng import Int64, UInt64, derive_keys
from warmstore.loading.samplers.permutation import permuted
from warmstore.pipeline.plan.plan_figures import PlanFigures

_KIND = "pipeline plan"


@final
class Plan(PlanFigures):
    """A plan; see `PlanFigures`. Make one with `Pipeline.plan`; `print` it, or `plot` it."""

    def assignment(self, indices: Int64 | Sequence[int]) -> Int64:
        """The placement number of each sample, int64 [n] for int64 [n] indices; -1 for uncached ones.

        The same in every process and for every plan of equal counts; over all samples the counts are exact.
        """
        at = np.asarray(indices, np.int64)
        if at.size and (at.min() < 0 or at.max() >= self.samples):
            wrong = int(at.min() if at.min() < 0 else at.max())
            raise IndexError(f"sample {wrong} is out of range: the plan has {self.samples:,} samples")
        return self._table[at].astype(np.int64)

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
        from warmstore.pipeline.plan.plan_table import as_text  # only printing pays for rich

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
