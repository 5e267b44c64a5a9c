"""The shard and the steps that a user means: of one batch size or a rule, for a rank that is given or found."""

from typing import Any

from warmstore.loading.batch_sizes import BatchSize
from warmstore.loading.samplers.sampler import Sampler
from warmstore.loading.steps.budget_steps import BudgetSteps
from warmstore.loading.steps.epoch_steps import EpochSteps, FixedSteps
from warmstore.loading.steps.shard import MOST_BATCH, Shard, Uneven, find_rank
from warmstore.loading.validation import integer


def batch_size_of(value: Any) -> int | BatchSize:
    """A batch size, or a rule for batches of varying size, as a user hands it in.

    Raises:
        ValueError: neither.
    """
    return value if isinstance(value, BatchSize) else integer("batch_size", value, 1, MOST_BATCH)


def shard_of(batch_size: int | BatchSize, rank: Any, world_size: Any, uneven: Uneven) -> Shard:
    """This process's part of every epoch; under a rule its batches have up to `limit` samples.

    Raises:
        BadRank: a rank outside the world.
        ValueError: a batch size below 1, or another word for `uneven`.
    """
    size = batch_size.limit if isinstance(batch_size, BatchSize) else batch_size
    return Shard(size, *find_rank(rank, world_size), uneven)


def steps_of(batch_size: int | BatchSize, sampler: Sampler, shard: Shard, samples: int) -> EpochSteps:
    """The steps of a shard over samples that have positions.

    Raises:
        ValueError: a rule over another number of samples.
    """
    if isinstance(batch_size, BatchSize):
        return BudgetSteps(sampler, shard, batch_size, samples)
    return FixedSteps(sampler, shard)
