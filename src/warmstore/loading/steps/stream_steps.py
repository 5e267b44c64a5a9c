"""StreamSteps: the steps of a rank through an iterable of unknown length.

Every rank reads the whole stream and keeps its part, so that all ranks reach the end at the same step. A place is a
number of samples: to resume, that many samples are read and skipped.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, final

from warmstore.loading.sources.iterable import IterableSource
from warmstore.loading.steps.epoch_steps import EpochSteps
from warmstore.loading.steps.shard import RankStep, Shard
from warmstore.loading.steps.until_error import until_error


@final
class StreamSteps(EpochSteps):
    """One rank's steps through an iterable source. If it raises, the error follows the steps before it."""

    def __init__(self, source: IterableSource, shard: Shard) -> None:
        self._source = source
        self._shard = shard
        self.shuffles = source.has_epochs

    def places(self, samples: int | None) -> int | None:
        return None

    def count(self, samples: int | None, epoch: int) -> int:
        known = self._source.length
        if known is None:
            raise TypeError("the number of batches of an iterable source without a length is unknown")
        return self._shard.count(known)

    def is_over(self, samples: int | None, epoch: int, place: int) -> bool:
        return False  # known only at the end of the stream

    def steps(self, samples: int | None, epoch: int, place: int) -> Iterator[tuple[RankStep, list[Any]]]:
        errors: list[Exception] = []
        stream = until_error(self._source.begin(epoch), errors)
        for _ in islice(stream, place):
            pass
        count = self._shard.together
        together = list(islice(stream, count))
        first = [] if place else together  # the start of the epoch, to fill up the last batch
        while together and not errors:
            following = list(islice(stream, count))
            length = place + len(together)
            # The following samples count as one more step, so that this step is not the last.
            more = count if errors else len(following)
            step = next(self._shard.steps(length + more, place), None)
            if step is not None and step.after <= length:
                own = together[step.first - place : step.last - place]
                yield step, [*own, *self._filling(epoch, step, first)]
            place, together = length, following
        if errors:
            raise errors.pop()

    def rows(self, samples: int | None, epoch: int) -> int:
        raise TypeError("an iterable source has no positions")

    def _filling(self, epoch: int, step: RankStep, first: list[Any]) -> list[Any]:
        """The samples that fill up the last batch, from the start of the epoch."""
        if not step.padded:
            return []
        if not first:  # the epoch was resumed
            first = list(islice(self._source.begin(epoch), self._shard.together))
        return [first[at % len(first)] for at in range(*step.fill)]

    def describe(self) -> dict[str, Any]:
        return {"sampler": {"kind": "stream"}}
