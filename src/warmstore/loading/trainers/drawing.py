"""Drawing: the position of a batch sampler, and which of the drawn batches were handed out to the training loop."""

import logging
import time
import weakref
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple, Self

import numpy as np

from warmstore.errors import BadRank
from warmstore.loading.batch_sizes import BatchSize
from warmstore.loading.mixture import MixtureSampler
from warmstore.loading.samplers.sampler_argument import sampler_of
from warmstore.loading.sources.combined.mixture import MixtureSource
from warmstore.loading.sources.resolve import source_with_positions
from warmstore.loading.steps.cursor import EpochCursor
from warmstore.loading.steps.epoch_steps import EpochSteps
from warmstore.loading.steps.shard import RankStep, Shard, Uneven
from warmstore.loading.steps.step_arguments import batch_size_of, shard_of, steps_of
from warmstore.loading.trainers.dataset import Dataset
from warmstore.loading.trainers.drivers import Driver
from warmstore.loading.trainers.trainer_faces import BatchPositions
from warmstore.loading.validation import MOST_SAMPLES, integer
from warmstore.storage.interrupts import uninterrupted

_log = logging.getLogger("warmstore")


class Drawing:
    """The order and the position of a batch sampler. See `BatchSampler` for the arguments.

    Trainers copy the attributes of a batch sampler, so all mutable state is in this one object.
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
        resolved = None
        if isinstance(source, Dataset):
            resolved = source.source
        elif not isinstance(source, int | np.integer):
            resolved = source_with_positions(source)
        order = sampler_of(sampler)
        if isinstance(resolved, MixtureSource) and not isinstance(order, MixtureSampler):
            order = resolved.mixture.sampler(resolved.lengths, order)
        self.batch_size = batch_size_of(batch_size)
        self.order = order
        self.resume_partial = resume_partial
        self._rank, self._world_size, self._uneven = rank, world_size, uneven
        self._source = resolved
        self.samples = integer("samples", source, 0, MOST_SAMPLES) if resolved is None else len(resolved)
        self._is_sharded = False  # whether Lightning made this drawing for its rank
        self.shard = self._found_shard()
        self.cursor = EpochCursor(
            self._steps(self.shard), self.samples, self._identity, {}, resume_partial=resume_partial
        )
        self.drawn: DrawnBatches | None = None  # the iteration that was read last
        self._iterations: weakref.WeakSet[DrawnBatches] = weakref.WeakSet()
        self._has_warned = False
        self._offset: int | None = 0  # from the trainer's count of epochs to the cursor's; None: set at the next epoch

    def _identity(self) -> Any:
        return None if self._source is None else self._source.identity

    def _found_shard(self) -> Shard:
        return shard_of(self.batch_size, self._rank, self._world_size, self._uneven)

    def _steps(self, shard: Shard) -> EpochSteps:
        return steps_of(self.batch_size, self.order, shard, self.samples)

    def count(self, driver: Driver) -> int:
        """Batches of this rank in the next epoch; of all ranks under a driver that shards."""
        shard = self._shard_under(driver)
        steps = self.cursor.steps if shard == self.shard else self._steps(shard)
        return self.cursor.count(steps)

    def _shard_under(self, driver: Driver) -> Shard:
        """The current shard of this process; a single rank if the driver shards.

        Raises:
            BadRank: the driver shards although a rank was passed.
        """
        if self._is_sharded:
            return self.shard
        shard = self._found_shard()
        if not driver.shards_over:
            return shard
        if self._rank is not None and self._world_size != 1:
            raise BadRank(
                f"{driver.name} shards these batches over its {driver.shards_over} processes, and this BatchSampler "
                f"has rank {self._rank} of {self._world_size}: leave rank= and world_size= out"
            )
        self._warn_once(driver.name, shard)
        # The trainer fills up the last batches itself, without a mask.
        return Shard(shard.batch_size, 0, 1, "pad" if shard.uneven == "full" else shard.uneven)

    def sharded_by(self, sampler: Any) -> "Drawing":
        """A drawing for the rank of Lightning's DistributedSampler; for a single rank with another sampler.

        Raises:
            BadRank: Lightning shards although a rank was passed.
        """
        replicas, rank = getattr(sampler, "num_replicas", None), getattr(sampler, "rank", None)
        if sampler is None:  # a copy
            replicas, rank = self._world_size, self._rank
        elif replicas is None:
            replicas, rank = 1, 0
        elif self._rank is not None and not self._is_sharded and replicas > 1:
            raise BadRank(
                f"Lightning shards these batches over {replicas} processes, and this BatchSampler has rank "
                f"{self._rank} of {self._world_size}: leave rank= and world_size= out, or pass "
                "Trainer(use_distributed_sampler=False)"
            )
        uneven: Uneven = "allow" if is_for_predictions(sampler) else self._uneven  # predictions must not repeat
        source = self.samples if self._source is None else self._source
        drawing = Drawing(source, self.batch_size, self.order, rank, replicas, uneven, self.resume_partial)
        if sampler is not None and (self._rank is None or self._is_sharded):
            drawing._is_sharded, drawing._has_warned = True, self._has_warned
            drawing._warn_once("Lightning", drawing.shard)
        drawing.cursor = self.cursor.with_steps(drawing.cursor.steps)
        return drawing

    def _warn_once(self, name: str, shard: Shard) -> None:
        if not self._has_warned and shard.world_size > 1:
            self._has_warned = True
            _log.warning("%s shards the batches over its ranks, so the BatchSampler does not", name)

    def padded(self) -> int:
        """Repeated rows at the end of the last epoch that was read, or else of the next one."""
        if self.drawn is not None and self.drawn.begun is not None:
            begun = self.drawn.begun
            return begun.steps.padded(begun.samples, begun.epoch, begun.place)
        return self.cursor.steps.padded(self.cursor.samples, self.cursor.epoch, self.cursor.place)

    def set_epoch(self, epoch: int, *, is_automatic: bool) -> None:
        """Set the epoch that begins next.

        Args:
            is_automatic: the epoch is a trainer's own count, which continues from an epoch set by a state or a user.
        """
        self.settle()
        if not is_automatic:
            self.cursor.set_epoch(epoch)
            self._offset = None
            return
        if self._offset is None:
            self._offset = self.cursor.next_epoch - epoch
        self.cursor.set_epoch(max(epoch + self._offset, 0))

    def begin(self, drawn: "DrawnBatches") -> "Begun":
        """Begin an epoch."""
        self.settle()
        shard = self._shard_under(drawn.driver)
        if shard != self.shard:
            self.cursor.steps = self._steps(shard)
            self.shard = shard  # last, so that an interrupted call is repeated
        if drawn.driver.epoch is not None:
            self.set_epoch(drawn.driver.epoch, is_automatic=True)
        self._iterations.add(drawn)
        return Begun(*self.cursor.begin(), self.cursor.finished, self.cursor.steps, time.monotonic_ns())

    def settle(self) -> None:
        """Count the batches handed out since the last call, of the iteration that was read last at the end."""
        for drawn in sorted(self._iterations, key=lambda drawn: drawn is self.drawn):
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
        steps = count * self.drawn.driver.draws_a_step
        return self.state_after(begun, begun.steps.after(begun.samples, begun.epoch, begun.place, steps))

    def state_after(self, begun: "Begun", place: int | None) -> dict[str, Any]:
        """The state at a place of an epoch, or with None at its end."""
        if place is None:
            return self.cursor.state_at(begun.epoch + 1, 0, begun.finished + 1)
        return self.cursor.state_at(begun.epoch, place, begun.finished)

    def load(self, state: Any, *, strict: bool, check_identity: bool) -> None:
        """See `BatchSampler.load_state_dict`."""
        self.cursor.load(state, strict=strict, check_identity=check_identity)
        self._iterations.clear()
        self.drawn = None
        self._offset = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy has the position of training, without iterations."""
        self.settle()
        return {**vars(self), "drawn": None, "_iterations": None, "cursor": self.cursor.with_steps(self.cursor.steps)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._iterations = weakref.WeakSet()


class Begun(NamedTuple):
    """The start of an epoch: epoch, place, samples, finished epochs before it, its steps, and when it began.

    began: see `Source.begin_pass`.
    """

    epoch: int
    place: int
    samples: int | None
    finished: int
    steps: EpochSteps
    began: int


class DrawnBatches:
    """The batches of one `for`. Batches count once the DataLoader hands them out, not when it draws them.

    begun: the start of the epoch, set by the first `next`.
    """

    def __init__(self, drawing: Drawing, driver: Driver) -> None:
        self.driver = driver
        self.begun: Begun | None = None
        self._drawing = drawing
        self._steps: Iterator[tuple[RankStep, Any]] = iter(())
        self._drawn: deque[RankStep] = deque()  # drawn and not handed out
        self._calls = 0  # of `next`
        self._failed = 0  # batches that raised an error
        self._settled = 0  # batches handed out
        self._last: RankStep | None = None
        self._is_exhausted = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[int]:
        drawing = self._drawing
        if self.begun is None:
            begun = drawing.begin(self)
            self._steps = begun.steps.steps(begun.samples, begun.epoch, begun.place)
            self.driver.begin()
            self.begun = begun  # last, so that an interrupted call is repeated
        begun = self.begun
        self._failed = self.driver.failed(self._calls, self._failed)
        self.settle()
        self._calls += 1
        drawing.drawn = self
        drawn = next(self._steps, None)
        if drawn is None:
            self._is_exhausted = True
            if self._last is None and begun.place == drawing.cursor.place and begun.epoch == drawing.cursor.epoch:
                drawing.cursor.end(begun.epoch)  # an epoch without a batch for this rank
                drawing._iterations.discard(self)
            raise StopIteration
        step, positions = drawn
        batch: list[int] = positions.tolist()
        if not self.driver.shards_over:  # else the trainer joins and cuts batches
            batch = BatchPositions(batch, begun.epoch, step, drawing.shard.marks, begun.began)
        is_known = self.driver.is_known
        self._last = step
        self._drawn.append(step)  # late, since an interrupted call draws the next batch
        if not is_known:
            self.settle()
        return batch

    def settle(self) -> None:
        """Count the batches handed out since the last call."""
        if self.begun is None or not self._drawn:
            return
        drawn = self._settled + len(self._drawn)
        handed_out = self.driver.handed_out(self._calls, drawn, self._failed, is_exhausted=self._is_exhausted)
        with uninterrupted():  # else a batch is taken from the list and does not count
            while self._drawn and self._settled < handed_out:
                self._drawing.cursor.hand_out(self.begun.epoch, self._drawn.popleft())
                self._settled += 1

    def check(self) -> None:
        """Raise ValueError if the batches handed out are unknown."""
        self.driver.check(is_over=self.is_over())

    def is_over(self) -> bool:
        """Whether the last batch of the epoch was handed out."""
        self.settle()
        return self._last is not None and self._last.is_last and not self._drawn

    def state_dict(self) -> dict[str, Any]:
        """The position of this iteration. torchdata's StatefulDataLoader takes it with every batch that it draws."""
        if self.begun is None or self._last is None:
            return self._drawing.state(None)
        return self._drawing.state_after(self.begun, None if self._last.is_last else self._last.after)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a state."""
        self._drawing.load(state, strict=True, check_identity=True)
        self.begun = None


def is_for_predictions(sampler: Any) -> bool:
    """Whether a sampler is Lightning's for predictions, which repeats no sample."""
    return type(sampler).__name__.startswith("Unrepeated")
