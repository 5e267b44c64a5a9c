"""EpochSteps: which samples a rank takes at which step of an epoch; and the steps of one batch size."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, final

import numpy as np

from warmstore.loading.samplers.batched_indices import batched_indices
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.samplers.sampler import Sampler
from warmstore.loading.steps.shard import RankStep, Shard


class EpochSteps(ABC):
    """One rank's steps of every epoch. Every step begins at a place of the epoch that all ranks have reached.

    shuffles: whether another epoch is another order. `samples` is the number of samples that an epoch is over; None
    where nobody knows it.
    """

    shuffles: bool

    @abstractmethod
    def places(self, samples: int | None) -> int | None:
        """Places of an epoch; None where nobody knows."""

    @abstractmethod
    def count(self, samples: int | None, epoch: int) -> int:
        """Steps of this rank in an epoch."""

    @abstractmethod
    def is_over(self, samples: int | None, place: int) -> bool:
        """Whether no rank has a step from a place on."""

    @abstractmethod
    def steps(self, samples: int | None, epoch: int, place: int) -> Iterator[tuple[RankStep, Any]]:
        """The steps from a place on, each with the positions of its samples, int64 [batch]; or with the samples."""

    @abstractmethod
    def after(self, samples: int | None, epoch: int, place: int, count: int) -> int | None:
        """The place after so many steps from a place on, at least one; None where the epoch of this rank is over."""

    @abstractmethod
    def padded(self, samples: int | None, epoch: int, place: int) -> int:
        """Repeated rows at the end of this rank's last batch of an epoch that is taken from a place on."""

    @abstractmethod
    def rows(self, samples: int | None, epoch: int) -> int:
        """Rows of this rank in an epoch, repeated ones included."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """What a state says of the order, by name."""


@final
class FixedSteps(EpochSteps):
    """Steps of one batch size, but for the last."""

    def __init__(self, sampler: Sampler, shard: Shard) -> None:
        self._sampler = sampler
        self._shard = shard
        self.shuffles = sampler.shuffles

    def places(self, samples: int | None) -> int:
        assert samples is not None
        return self._sampler.length(samples)

    def count(self, samples: int | None, epoch: int) -> int:
        return self._shard.count(self.places(samples))

    def is_over(self, samples: int | None, place: int) -> bool:
        return self._shard.is_over(self.places(samples), place)

    def steps(self, samples: int | None, epoch: int, place: int) -> Iterator[tuple[RankStep, Int64]]:
        assert samples is not None
        length = self.places(samples)
        spans = ((step.first, step.last) for step in self._shard.steps(length, place))
        # One after the other: spans are taken ahead.
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
