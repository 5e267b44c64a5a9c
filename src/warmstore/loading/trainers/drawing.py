"""Drawing: where a batch sampler stands, over all that draw from it, and what of what was drawn was handed out."""

import logging
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import numpy as np

from warmstore.errors import BadRank
from warmstore.loading.batch_sizes import BatchSize
from warmstore.loading.mixture import MixtureSampler
from warmstore.loading.samplers.sampler_argument import sampler_of
from warmstore.loading.source import Source
from warmstore.loading.sources.combined.mixture import MixtureSource
from warmstore.loading.sources.resolve import source_of
from warmstore.loading.steps.cursor import EpochCursor
from warmstore.loading.steps.epoch_steps import EpochSteps
from warmstore.loading.steps.rank_steps import batch_size_of, shard_of, steps_of
from warmstore.loading.steps.shard import RankStep, Shard, Uneven
from warmstore.loading.trainers.dataset import Dataset
from warmstore.loading.trainers.drivers import Driver
from warmstore.loading.trainers.trainer_faces import BatchPositions, EpochSampler
from warmstore.loading.validation import MOST_SAMPLES, integer

_log = logging.getLogger("warmstore")


class Drawing:
    """What a batch sampler draws from, and how far it has come. See `BatchSampler` for the arguments.

    A trainer copies and replays the attributes of a batch sampler, so all that changes is here.
    """

    def __init__(
        self,
        source: Any,
        batch_size: int | BatchSize,
        sampler: Any,
        rank: int | None,
        world_size: int | None,
        uneven: Uneven,
        resume_partial: bool,
    ) -> None:
        found = None if isinstance(source, int | np.integer) else _source(source)
        order = sampler_of(sampler)
        if isinstance(found, MixtureSource) and not isinstance(order, MixtureSampler):
            order = found.mixed.sampler(found.lengths, order)
        self.batch_size = batch_size_of(batch_size)
        self.order = order
        self.resume_partial = resume_partial
        self._rank, self._world_size, self._uneven = rank, world_size, uneven
        self._source = found
        self.samples = integer("samples", source, 0, MOST_SAMPLES) if found is None else len(found)
        self._is_sharded = False  # by Lightning, which made this one for its rank
        self.shard = self._found_shard()
        self.cursor = EpochCursor(
            self._steps(self.shard), self.samples, self._identity, {}, resume_partial=resume_partial
        )
        self.drawn: DrawnBatches | None = None  # which was asked for a batch last
        self._living: weakref.WeakSet[DrawnBatches] = weakref.WeakSet()
        self._is_told = False
        self._offset: int | None = 0  # from a trainer's own count of epochs to ours; None: to be found at the next one

    def _identity(self) -> Any:
        return None if self._source is None else self._source.identity

    def _found_shard(self) -> Shard:
        return shard_of(self.batch_size, self._rank, self._world_size, self._uneven)

    def _steps(self, shard: Shard) -> EpochSteps:
        return steps_of(self.batch_size, self.order, shard, self.samples)

    def count(self, driver: Driver) -> int:
        """Batches of this rank in the epoch that comes next; of all ranks for a driver that shards."""
        shard = self._shard_under(driver)
        steps = self.cursor.steps if shard == self.shard else self._steps(shard)
        return self.cursor.count(steps)

    def _shard_under(self, driver: Driver) -> Shard:
        """Who this process is now, and whether somebody else shards.

        Raises:
            BadRank: a trainer shards, and this is a rank that was passed.
        """
        if self._is_sharded:
            return self.shard
        shard = self._found_shard()
        if not driver.shards_over:
            return shard
        if self._rank is not None and self._world_size != 1:
            raise BadRank(
                f"{driver.name} shards these batches over its {driver.shards_over} processes, and this BatchSampler "
                f"was told to be rank {self._rank} of {self._world_size}: leave rank= and world_size= out"
            )
        self._tell(driver.name, shard)
        # It fills up what is left itself, and marks nothing.
        return Shard(shard.batch_size, 0, 1, "pad" if shard.uneven == "full" else shard.uneven)

    def sharded_by(self, sampler: Any) -> "Drawing":
        """The same for the rank of Lightning's DistributedSampler; for all where it is another one, or none.

        Raises:
            BadRank: this is a rank that was passed.
        """
        replicas, rank = getattr(sampler, "num_replicas", None), getattr(sampler, "rank", None)
        if sampler is None:  # it is only copied
            replicas, rank = self._world_size, self._rank
        elif replicas is None:
            replicas, rank = 1, 0
        elif self._rank is not None and not self._is_sharded and replicas > 1:
            raise BadRank(
                f"Lightning shards these batches over {replicas} processes, and this BatchSampler was told to be rank "
                f"{self._rank} of {self._world_size}: leave rank= and world_size= out, or pass "
                "Trainer(use_distributed_sampler=False)"
            )
        uneven: Uneven = "allow" if is_for_predictions(sampler) else self._uneven  # of which each is given once
        source = self.samples if self._source is None else self._source
        made = Drawing(source, self.batch_size, self.order, rank, replicas, uneven, self.resume_partial)
        if sampler is not None and (self._rank is None or self._is_sharded):
            made._is_sharded, made._is_told = True, self._is_told
            made._tell("Lightning", made.shard)
        made.cursor = self.cursor.moved(made.cursor.steps)
        return made

    def _tell(self, name: str, shard: Shard) -> None:
        if not self._is_told and shard.world_size > 1:
            self._is_told = True
            _log.warning("%s shards the batches over its ranks, so that their BatchSampler does not", name)

    def sampler(self, set_epoch: Callable[[int], None]) -> EpochSampler:
        """The order of this rank's samples."""
        cursor = self.cursor
        return EpochSampler(self.order, cursor, None if self.resume_partial else set_epoch)

    def padded(self) -> int:
        """Repeated rows at the end of the epoch that was drawn from last, or of the one that comes."""
        if self.drawn is not None and self.drawn.begun is not None:
            begun = self.drawn.begun
            return begun.steps.padded(begun.samples, begun.epoch, begun.place)
        return self.cursor.steps.padded(self.cursor.samples, self.cursor.epoch, self.cursor.place)

    def set_epoch(self, epoch: int, *, by_itself: bool) -> None:
        """Name the epoch that begins next.

        Args:
            by_itself: a trainer counts so without being asked. Its count goes on from where a state or a user set ours.
        """
        self.settle()
        if not by_itself:
            self.cursor.set_epoch(epoch)
            self._offset = None
            return
        if self._offset is None:
            self._offset = self.cursor.next_epoch - epoch
        self.cursor.set_epoch(max(epoch + self._offset, 0))

    def begin(self, drawn: "DrawnBatches") -> "Begun":
        """Where an epoch begins that is drawn now."""
        self.settle()
        shard = self._shard_under(drawn.driver)
        if shard != self.shard:
            self.shard = shard
            self.cursor.steps = self._steps(shard)
        if drawn.driver.epoch is not None:
            self.set_epoch(drawn.driver.epoch, by_itself=True)
        self._living.add(drawn)
        return Begun(*self.cursor.begin(), self.cursor.finished, self.cursor.steps)

    def settle(self) -> None:
        """Count what was handed out since: that of the `for` which was asked last comes last."""
        for drawn in sorted(self._living, key=lambda drawn: drawn is self.drawn):
            drawn.settle()

    def state(self, batches: int | None) -> dict[str, Any]:
        """See `BatchSampler.state_dict`."""
        if batches is None:
            self.settle()
            if self.drawn is not None:
                self.drawn.check()
            return self.cursor.state()
        count = integer("batches", batches, 0, MOST_SAMPLES)
        begun = None if self.drawn is None else self.drawn.begun
        if self.drawn is None or begun is None:
            if count:
                raise ValueError(f"batches={batches} of an epoch that has not begun")
            return self.cursor.state()
        if not count:
            if self.drawn.is_over():
                return self.state(None)
            return self.cursor.state_at(begun.epoch, begun.place, begun.finished)
        after = begun.steps.after(begun.samples, begun.epoch, begun.place, count * self.drawn.driver.draws_a_step)
        if after is None:
            return self.cursor.state_at(begun.epoch + 1, 0, begun.finished + 1)
        return self.cursor.state_at(begun.epoch, after, begun.finished)

    def load(self, state: Any, *, strict: bool, check_identity: bool) -> None:
        """See `BatchSampler.load_state_dict`."""
        self.cursor.load(state, strict=strict, check_identity=check_identity)
        self._living.clear()
        self.drawn = None
        self._offset = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy stands where training does, and has no `for` of it."""
        self.settle()
        return {**vars(self), "drawn": None, "_living": None, "cursor": self.cursor.moved(self.cursor.steps)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._living = weakref.WeakSet()


class Begun(NamedTuple):
    """Where an epoch begins that is drawn, after how many finished ones, and its steps."""

    epoch: int
    place: int
    samples: int | None
    finished: int
    steps: EpochSteps


class DrawnBatches:
    """The batches of one `for`. Those that the DataLoader above has handed out count, not those that were drawn.

    begun: where it began, with its first batch.
    """

    def __init__(self, drawing: Drawing, driver: Driver) -> None:
        self.driver = driver
        self.begun: Begun | None = None
        self._drawing = drawing
        self._steps: Iterator[tuple[RankStep, Any]] = iter(())
        self._drawn: deque[RankStep] = deque()  # and not handed out
        self._asked = 0  # how often for a batch
        self._failed = 0
        self._settled = 0  # of those drawn, handed out
        self._last: RankStep | None = None
        self._is_exhausted = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[int]:
        drawing = self._drawing
        if self.begun is None:
            self.begun = begun = drawing.begin(self)
            self._steps = begun.steps.steps(begun.samples, begun.epoch, begun.place)
            self.driver.begin()
        begun = self.begun
        self._failed = self.driver.failed(self._asked, self._failed)
        self.settle()
        self._asked += 1
        drawing.drawn = self
        found = next(self._steps, None)
        if found is None:
            self._is_exhausted = True
            if self._last is None and begun.place == drawing.cursor.place and begun.epoch == drawing.cursor.epoch:
                drawing.cursor.end(begun.epoch)  # without a batch for this rank
                drawing._living.discard(self)
            raise StopIteration
        step, positions = found
        self._last = step
        self._drawn.append(step)
        if not self.driver.is_known:
            self.settle()
        if self.driver.shards_over:  # it joins and cuts them
            return positions.tolist()  # type: ignore[no-any-return]
        return BatchPositions(positions.tolist(), begun.epoch, step, drawing.shard.marks)

    def settle(self) -> None:
        """Count the batches that were handed out since."""
        if self.begun is None or not self._drawn:
            return
        handed = self._handed()
        while self._drawn and self._settled < handed:
            self._drawing.cursor.hand_out(self.begun.epoch, self._drawn.popleft())
            self._settled += 1

    def check(self) -> None:
        """Raise ValueError where nobody knows what was handed out."""
        self.driver.check(is_over=self.is_over())

    def _handed(self) -> int:
        drawn = self._settled + len(self._drawn)
        return self.driver.handed(self._asked, drawn, self._failed, is_exhausted=self._is_exhausted)

    def is_over(self) -> bool:
        """Whether the last batch of the epoch was handed out."""
        self.settle()
        return self._last is not None and self._last.is_last and not self._drawn

    def state_dict(self) -> dict[str, Any]:
        """Where drawing stands: torchdata's StatefulDataLoader keeps this beside every batch that it draws."""
        cursor, begun, last = self._drawing.cursor, self.begun, self._last
        if begun is None or last is None:
            return self._drawing.state(None)
        if last.is_last:
            return cursor.state_at(begun.epoch + 1, 0, begun.finished + 1)
        return cursor.state_at(begun.epoch, last.after, begun.finished)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Draw from where a state was taken."""
        self._drawing.load(state, strict=True, check_identity=True)
        self.begun = None


def is_for_predictions(sampler: Any) -> bool:
    """Whether a sampler is Lightning's that repeats nothing."""
    return type(sampler).__name__.startswith("Unrepeated")


def _source(value: Any) -> Source:
    return value.source if isinstance(value, Dataset) else source_of(value)
