"""BudgetSteps: the steps of a rank with batches of varying size.

The order is cut into consecutive batches, each as long as the rule allows. A global step takes one batch for each rank.
A cut depends only on its start, so an epoch can be resumed between any two steps.
"""

from collections.abc import Iterator
from itertools import islice, pairwise
from typing import Any, final

import numpy as np

from warmstore.loading.batch_sizes import BatchSize
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.samplers.sampler import Sampler
from warmstore.loading.steps.epoch_steps import EpochSteps
from warmstore.loading.steps.shard import RankStep, Shard

_BLOCK = 16_384  # places cut at once


@final
class BudgetSteps(EpochSteps):
    """One rank's steps under a rule that cuts batches.

    If the last batches of an epoch are fewer than the ranks, the shard's `uneven` decides: the other ranks get a batch
    of one repeated sample ("pad", "full") or no step ("allow"), or these batches are left out ("drop").

    Raises:
        ValueError: a rule over another number of samples.
    """

    def __init__(self, sampler: Sampler, shard: Shard, rule: BatchSize, samples: int) -> None:
        if len(rule.lengths) != samples:
            raise ValueError(f"one length for each sample: got {len(rule.lengths):,} lengths for {samples:,} samples")
        self._rule = rule
        self._sampler = sampler
        self.shuffles = sampler.shuffles
        self._shard = shard
        self._counted: tuple[int, int, int] | None = None  # samples, epoch, batches of this rank in it

    def places(self, samples: int | None) -> int:
        assert samples is not None
        return self._sampler.length(samples)

    def is_over(self, samples: int | None, epoch: int, place: int) -> bool:
        assert samples is not None
        least = self._shard.world_size if self._shard.uneven == "drop" else 1
        return sum(1 for _ in islice(self._batches(samples, epoch, place), least)) < least

    def describe(self) -> dict[str, Any]:
        return {"sampler": self._sampler.describe(), "batches": self._rule.describe()}

    def count(self, samples: int | None, epoch: int) -> int:
        """Batches of this rank in an epoch. O(samples) the first time for each epoch."""
        assert samples is not None
        if self._counted is None or self._counted[:2] != (samples, epoch):
            batches = sum(1 for _ in self._batches(samples, epoch, 0))
            whole, rest = divmod(batches, self._shard.world_size)
            self._counted = samples, epoch, whole + self._shard.has_rest(rest)
        return self._counted[2]

    def steps(self, samples: int | None, epoch: int, place: int) -> Iterator[tuple[RankStep, Int64]]:
        assert samples is not None
        delayed: tuple[RankStep, Int64] | None = None  # by one step, to know the last
        for following in self._steps(samples, epoch, place):
            if delayed is not None:
                yield delayed
            delayed = following
        if delayed is not None:
            yield delayed[0]._replace(is_last=True), delayed[1]

    def _steps(self, samples: int, epoch: int, place: int) -> Iterator[tuple[RankStep, Int64]]:
        world, rank = self._shard.world_size, self._shard.rank
        group: list[tuple[int, Int64]] = []
        for first, positions in self._batches(samples, epoch, place):
            group.append((first, positions))
            if len(group) == world:
                yield _step(group, rank)
                group = []
        if not self._shard.has_rest(len(group)):
            return
        if rank < len(group):
            yield _step(group, rank)
        else:
            after = group[-1][0] + len(group[-1][1])
            yield RankStep(after, after, after, (0, 1)), self._sampler.indices(0, 1, samples, epoch)

    def _batches(self, samples: int, epoch: int, place: int) -> Iterator[tuple[int, Int64]]:
        """The batches of all ranks in order: first place, and positions."""
        length = self._sampler.length(samples)
        waiting = np.empty(0, np.int64)
        reached = place
        while reached < length or len(waiting):
            upto = min(reached + max(_BLOCK, self._rule.limit), length)
            waiting = np.concatenate((waiting, self._sampler.indices(reached, upto, samples, epoch)))
            reached = upto
            ends = self._rule.cut(self._rule.lengths[waiting], final=reached == length)
            for first, last in pairwise([0, *ends.tolist()]):
                yield reached - len(waiting) + first, waiting[first:last]
            waiting = waiting[int(ends[-1]) if len(ends) else 0 :]


def _step(group: list[tuple[int, Int64]], rank: int) -> tuple[RankStep, Int64]:
    """A rank's step of a global step with these batches."""
    first, positions = group[rank]
    last_first, last_positions = group[-1]
    return RankStep(first, first + len(positions), last_first + len(last_positions)), positions
