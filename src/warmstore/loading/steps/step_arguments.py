"""The shard and the steps for the arguments of a loader: a batch size or a rule, and a rank that is passed or found."""

from typing import Any

from warmstore.loading.batch_sizes import BatchSize
from warmstore.loading.samplers.sampler import Sampler
from warmstore.loading.steps.budget_steps import BudgetSteps
from warmstore.loading.steps.epoch_steps import EpochSteps, FixedSteps
from warmstore.loading.steps.shard import MOST_BATCH, Shard, Uneven, find_rank
from warmstore.loading.validation import integer


def batch_size_of(value: Any) -> int | BatchSize:
    """The `batch_size` argument: a number, or a rule for batches of varying size.

    Raises:
        ValueError: any other value.
    """
    return value if isinstance(value, BatchSize) else integer("batch_size", value, 1, MOST_BATCH)


def shard_of(batch_size: int | BatchSize, rank: Any, world_size: Any, uneven: Uneven) -> Shard:
    """The shard of a rank, which is found if it is None; with a rule, of batches of `limit` samples.

    Raises:
        BadRank, ValueError: as `Shard`.
    """
    size = batch_size.limit if isinstance(batch_size, BatchSize) else batch_size
    return Shard(size, *find_rank(rank, world_size), uneven)


def steps_of(batch_size: int | BatchSize, sampler: Sampler, shard: Shard, samples: int) -> EpochSteps:
    """The steps of a shard over a source with positions.

    Raises:
        ValueError: a rule for another number of samples.
    """
    if isinstance(batch_size, BatchSize):
        return BudgetSteps(sampler, shard, batch_size, samples)
    return FixedSteps(sampler, shard)
