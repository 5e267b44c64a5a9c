"""BatchSampler: positions batch by batch, for torch's DataLoader and the trainers that drive it."""

from collections.abc import Iterator
from typing import Any, final

import numpy as np

from warmstore.loading.cursor import EpochCursor
from warmstore.loading.dataset import Dataset
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.samplers.samplers import Sampler, Sequential
from warmstore.loading.shard import Shard, find_rank
from warmstore.loading.sources.mixture import MixtureSource
from warmstore.loading.sources.resolve import source_of
from warmstore.loading.sources.source import Source


@final
class BatchSampler:
    """Positions batch by batch in an order, for one rank of many: what torch's DataLoader takes as `batch_sampler`.

    One `for` is one epoch, or what is left of it; the next is the next epoch.

    Args:
        source: the data set, or the number of samples.
        batch_size, sampler, rank, world_size, drop_last: as a `Loader` takes them.

    Raises:
        BadRank: a rank outside the world.
        ValueError: an option that cannot be.
    """

    def __init__(
        self,
        source: Any,
        batch_size: int,
        sampler: Sampler | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
    ) -> None:
        shard = Shard(batch_size, *find_rank(rank, world_size), drop_last)
        sampler = sampler if sampler is not None else Sequential()
        found = None if isinstance(source, int | np.integer) else _source(source)
        if isinstance(found, MixtureSource):
            sampler = found.mixed.sampler(found.lengths, sampler)
        samples = int(source) if found is None else len(found)
        self._cursor = EpochCursor(sampler, samples, shard, None if found is None else found.identity, {})
        self._begun = (0, 0)

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch."""
        return self._cursor.shard.count(self._cursor.length)

    def __iter__(self) -> Iterator[Int64]:
        """The batches that are left of this epoch: int64 [batch] positions."""
        cursor = self._cursor
        self._begun = epoch, place = cursor.epoch, cursor.place
        return self._rest(epoch, place)

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Where the sampler stands, as `Loader.state_dict` has it.

        Args:
            batches: how many batches of the current `for` over the DataLoader training has had. Its worker processes
                draw ahead, and only training knows; None counts what was drawn, which is right without workers.
        """
        cursor = self._cursor
        if batches is None:
            return cursor.state(cursor.epoch, cursor.place)
        epoch, place = self._begun
        return cursor.state(epoch, min(place + batches * cursor.shard.together, cursor.length))

    def load_state_dict(self, state: dict[str, Any], *, check_identity: bool = True) -> None:
        """Go on where a state was taken, with the next `for`; states of a `Loader` fit too.

        Raises:
            BadState: no state, or one of other samples or another order; nothing has changed.
        """
        self._cursor.load(state, check_identity=check_identity)

    def _rest(self, epoch: int, place: int) -> Iterator[Int64]:
        cursor = self._cursor
        for step, positions in cursor.steps(epoch, place):
            cursor.epoch, cursor.place = epoch, step.after
            yield positions
        cursor.epoch, cursor.place = epoch + 1, 0


def _source(value: Any) -> Source:
    return value.source if isinstance(value, Dataset) else source_of(value)
