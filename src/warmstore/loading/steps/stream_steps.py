"""StreamSteps: the steps of an epoch whose samples come one after the other, from an iterable of unknown length.

Every rank goes through the whole stream and takes its part of it, so that all of them meet the end at the same step. A
place is a number of samples: to resume there, that many are taken and left.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, final

from warmstore.loading.sources.iterable import IterableSource
from warmstore.loading.steps.epoch_steps import EpochSteps
from warmstore.loading.steps.shard import RankStep, Shard


@final
class StreamSteps(EpochSteps):
    """One rank's steps through an iterable source."""

    def __init__(self, source: IterableSource, shard: Shard) -> None:
        self._source = source
        self._shard = shard
        self.shuffles = source.has_epochs

    def places(self, samples: int | None) -> int | None:
        return None

    def count(self, samples: int | None, epoch: int) -> int:
        known = self._source.length
        if known is None:
            raise TypeError("nobody knows how many batches an iterable source has before it was read to its end")
        return self._shard.count(known)

    def is_over(self, samples: int | None, place: int) -> bool:
        return False  # the stream says so

    def steps(self, samples: int | None, epoch: int, place: int) -> Iterator[tuple[RankStep, list[Any]]]:
        stream = self._source.begin(epoch)
        for _ in islice(stream, place):
            pass
        together = list(islice(stream, self._shard.together))
        first = [] if place else together  # of the epoch: what fills up
        while together:
            following = list(islice(stream, self._shard.together))
            length = place + len(together)
            # What follows counts as one step more, which keeps this one from being the last.
            step = next(self._shard.steps(length + len(following), place), None)
            if step is not None and step.after <= length:
                taken = together[step.first - place : step.last - place]
                yield step, [*taken, *self._filling(epoch, step, first)]
            place, together = length, following

    def after(self, samples: int | None, epoch: int, place: int, count: int) -> int | None:
        raise TypeError("an iterable source has no positions")

    def rows(self, samples: int | None, epoch: int) -> int:
        raise TypeError("an iterable source has no positions")

    def padded(self, samples: int | None, epoch: int, place: int) -> int:
        raise TypeError("an iterable source has no positions")

    def _filling(self, epoch: int, step: RankStep, first: list[Any]) -> list[Any]:
        """The samples that fill up the last batch, from the start of the epoch."""
        if not step.padded:
            return []
        if not first:  # the epoch was gone on with in its middle
            first = list(islice(self._source.begin(epoch), self._shard.together))
        return [first[at % len(first)] for at in range(*step.fill)]

    def describe(self) -> dict[str, Any]:
        return {"sampler": {"kind": "stream"}}
