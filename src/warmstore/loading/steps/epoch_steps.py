"""EpochSteps: the samples of a rank at each step of an epoch. FixedSteps: with one batch size."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, final

import numpy as np

from warmstore.loading.samplers.batched_indices import batched_indices
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.samplers.sampler import Sampler
from warmstore.loading.steps.shard import RankStep, Shard


class EpochSteps(ABC):
    """One rank's steps of every epoch. A step begins at a place that all ranks have reached.

    shuffles: whether epochs differ in their order. `samples` is the number of samples of the source; None if unknown.
    """

    shuffles: bool

    @abstractmethod
    def places(self, samples: int | None) -> int | None:
        """Places of an epoch; None if unknown."""

    @abstractmethod
    def count(self, samples: int | None, epoch: int) -> int:
        """Steps of this rank in an epoch."""

    @abstractmethod
    def is_over(self, samples: int | None, epoch: int, place: int) -> bool:
        """Whether no rank has a step of the epoch from `place` on."""

    @abstractmethod
    def steps(self, samples: int | None, epoch: int, place: int) -> Iterator[tuple[RankStep, Any]]:
        """The steps from `place` on, each with the positions of its samples, int64 [batch], or with its samples."""

    def after(self, samples: int | None, epoch: int, place: int, count: int) -> int | None:
        """The place after `count` steps from `place` on, at least 1; None if this rank's epoch is then over."""
        for number, (step, _) in enumerate(self.steps(samples, epoch, place), 1):
            if step.is_last:
                break
            if number == count:
                return step.after
        return None

    def padded(self, samples: int | None, epoch: int, place: int) -> int:
        """Repeated rows at the end of this rank's last batch of an epoch that is read from `place` on."""
        return sum(step.padded for step, _ in self.steps(samples, epoch, place))

    def rows(self, samples: int | None, epoch: int) -> int:
        """Rows of this rank in an epoch, with repeated rows."""
        return sum(len(positions) for _, positions in self.steps(samples, epoch, 0))

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The description of the order in a state, by name."""


@final
class FixedSteps(EpochSteps):
    """Steps with batches of one size; the last batch may differ."""

    def __init__(self, sampler: Sampler, shard: Shard) -> None:
        self._sampler = sampler
        self._shard = shard
        self.shuffles = sampler.shuffles

    def places(self, samples: int | None) -> int:
        assert samples is not None
        return self._sampler.length(samples)

    def count(self, samples: int | None, epoch: int) -> int:
        return self._shard.count(self.places(samples))

    def is_over(self, samples: int | None, epoch: int, place: int) -> bool:
        return self._shard.is_over(self.places(samples), place)

    def steps(self, samples: int | None, epoch: int, place: int) -> Iterator[tuple[RankStep, Int64]]:
        assert samples is not None
        length = self.places(samples)
        spans = ((step.first, step.last) for step in self._shard.steps(length, place))
        # Steps are computed twice, as `batched_indices` reads spans ahead.
        for step, positions in zip(
            self._shard.steps(length, place), batched_indices(self._sampler, spans, samples, epoch), strict=True
        ):
            if step.padded:
                again = self._sampler.at(np.arange(*step.fill) % length, samples, epoch)
                yield step, np.concatenate((positions, again))
            else:
                yield step, positions

    def after(self, samples: int | None, epoch: int, place: int, count: int) -> int | None:
        if count >= self._shard.count(self.places(samples), place):
            return None
        return place + count * self._shard.together

    def padded(self, samples: int | None, epoch: int, place: int) -> int:
        length = self.places(samples)
        rest = (length - place) % self._shard.together
        return sum(step.padded for step in self._shard.steps(length, length - rest))

    def rows(self, samples: int | None, epoch: int) -> int:
        length = self.places(samples)
        rest = length % self._shard.together
        whole = length // self._shard.together * self._shard.batch_size
        return whole + sum(step.last - step.first + step.padded for step in self._shard.steps(length, length - rest))

    def describe(self) -> dict[str, Any]:
        return {"sampler": self._sampler.describe()}
