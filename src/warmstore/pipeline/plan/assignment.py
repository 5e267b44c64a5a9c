"""The assignment of samples to the placements of a plan.

A plan says how many samples to cache at each placement. Which ones depends on their keys, and first on what is cached
already. So a grown list, a subset or another order of the same samples is served by the same rows, and all processes
agree without communication. As keys are hashes, every part of an epoch reads all tiers in proportion.
"""

from collections.abc import Sequence

import numpy as np

from warmstore.identity.samples.sample_hashes import UInt64
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.pipeline.plan.plan_figures import PlanFigures
from warmstore.storage.array_types import Bools


def assign(
    plan: PlanFigures, keys: UInt64, present: Sequence[Bools | None] = (), offered: Sequence[Bools | None] = ()
) -> Int64:
    """The number of the placement of each sample: int64 [samples], -1 for uncached ones.

    Samples that are there at a placement come first, then the others in the order of their keys. Each placement gets
    the planned number of samples. Samples without a placement that are there at one are added to it: they cost nothing.

    Args:
        keys: uint64 [samples, 2].
        present: for each placement which samples are there, bool [samples], or None for none.
        offered: the same, for samples that a remote has. They come after those that are there.
    """
    found = np.full(plan.samples, -1, np.int64)
    there = [*present, *[None] * (len(plan.placements) - len(present))]
    for bucket in range(len(plan.counts[0]) if plan.counts else 0):
        members = np.arange(plan.samples) if plan.buckets is None else np.flatnonzero(plan.buckets == bucket)
        order = members[np.argsort(keys[members, 0], kind="stable")]
        counts = [placement[bucket] for placement in plan.counts]
        for number, known in (*enumerate(there), *enumerate(offered)):
            if known is not None:
                chosen = order[known[order] & (found[order] < 0)][: counts[number]]
                found[chosen] = number
                counts[number] -= len(chosen)
        rest = order[found[order] < 0]
        ends = np.cumsum(counts)
        numbers = np.searchsorted(ends, np.arange(len(rest)), side="right")
        found[rest] = np.where(numbers < len(counts), numbers, -1)
    for number, known in enumerate(there):
        if known is not None:
            found[known & (found < 0)] = number
    return found
