"""Drawing: where a batch sampler stands, over all that draw from it, and what of what was drawn was handed out."""

import logging
from collections.abc import Iterator
from typing import Any, Self

import numpy as np

from warmstore.errors import BadRank
from warmstore.loading.batch_sizes import BatchSize
from warmstore.loading.budget_steps import BudgetSteps
from warmstore.loading.cursor import EpochCursor
from warmstore.loading.dataset import Dataset
from warmstore.loading.drivers import Driver
from warmstore.loading.epoch_steps import EpochSteps, FixedSteps
from warmstore.loading.mixture import MixtureSampler
from warmstore.loading.samplers.samplers import sampler_of
from warmstore.loading.shard import Shard, Uneven, find_rank
from warmstore.loading.sources.mixture import MixtureSource
from warmstore.loading.sources.resolve import source_of
from warmstore.loading.sources.source import Source
from warmstore.loading.trainer_faces import BatchPositions
from warmstore.loading.validation import integer

_MOST_BATCH = 2**38
_MOST_SAMPLES = 2**62
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
        is_rule = isinstance(batch_size, BatchSize)
        self.batch_size = batch_size if is_rule else integer("batch_size", batch_size, 1, _MOST_BATCH)
        self.order = order
        self.resume_partial = resume_partial
        self._rank, self._world_size, self._uneven = rank, world_size, uneven
        self._source = found
        self.samples = integer("samples", source, 0, _MOST_SAMPLES) if found is None else len(found)
        self._is_sharded = False  # by Lightning, which made this one for its rank
        self._sharder: Driver | None = None  # who shards the batches of the running epoch
        self.shard = self._found_shard()
        self.cursor = EpochCursor(self._steps(), self.samples, self._identity, {}, resume_partial=resume_partial)
        self.drawn: DrawnBatches | None = None  # which was asked for a batch last
        self.moved_by: DrawnBatches | None = None  # which drew a batch last
        self._is_told = False
        self._offset = 0  # from a trainer's own count of epochs to ours, since a state was loaded
        self._is_named = False  # the epoch that comes next, by a user

    def _identity(self) -> Any:
        return None if self._source is None else self._source.identity

    def _found_shard(self) -> Shard:
        size = self.batch_size.limit if isinstance(self.batch_size, BatchSize) else self.batch_size
        return Shard(size, *find_rank(self._rank, self._world_size), self._uneven)

    def _steps(self) -> EpochSteps:
        if isinstance(self.batch_size, BatchSize):
            return BudgetSteps(self.order, self.shard, self.batch_size, self.samples)
        return FixedSteps(self.order, self.shard)

    def find_shard(self, driver: Driver, *, begins: bool) -> None:
        """Find out again who this process is, and whether somebody else shards.

        Args:
            begins: an epoch begins, which nobody shards unless it is the driver. Else who shards the running one does.

        Raises:
            BadRank: a trainer shards, and this is a rank that was passed.
        """
        if self._is_sharded:
            return
        if driver.shards_over or begins:
            self._sharder = driver if driver.shards_over else None
        shard = self._found_shard() if self._rank is None else self.shard
        if self._sharder is not None:
            if self._rank is not None and self._world_size != 1:
                raise BadRank(
                    f"{driver.name} shards these batches over its {driver.shards_over} processes, and this "
                    f"BatchSampler was told to be rank {self._rank} of {self._world_size}: leave rank= and "
                    "world_size= out"
                )
            self._tell(self._sharder.name, shard)
            shard = Shard(shard.batch_size, 0, 1, shard.uneven)
        if shard != self.shard:
            self.shard = shard
            self.cursor.steps = self._steps()

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

    def positions(self) -> Iterator[int]:
        """This rank's samples of the epoch that comes next, one by one."""
        for _, positions in self.cursor.steps.steps(self.cursor.samples, self.cursor.next_epoch, 0):
            yield from positions.tolist()

    def padded(self) -> int:
        """Repeated rows at the end of the running epoch, or of the one that comes."""
        if self.drawn is not None and self.drawn.begun is not None:
            epoch, place, samples, _ = self.drawn.begun
            return self.cursor.steps.padded(samples, epoch, place)
        return self.cursor.steps.padded(self.cursor.samples, self.cursor.epoch, self.cursor.place)

    def set_epoch(self, epoch: int, *, by_itself: bool) -> None:
        """Name the epoch that begins next. What a trainer counts by itself yields to a state and what a user says."""
        if by_itself and self._is_named:
            return
        if by_itself and self.cursor.is_loaded:
            self._offset = self.cursor.epoch - epoch  # it counts from its own start on
            return
        self._is_named = not by_itself
        self._offset = self._offset if by_itself else 0
        self.cursor.set_epoch(max(epoch + self._offset, 0))

    def begin(self, driver: Driver) -> tuple[int, int, int | None, int]:
        """Where an epoch begins that is drawn now: epoch, place, samples, and the epochs finished before."""
        self.find_shard(driver, begins=True)
        if self.drawn is not None and self.drawn.was_unused():
            self.cursor.go_back()
        elif self.drawn is not None and self.resume_partial and not self.drawn.is_over():
            state = self.state(None)  # what was drawn ahead of training comes again
            self.cursor.stand_at(state["epoch"], state["place"], state["finished"])
        if driver.epoch is not None:
            self.set_epoch(driver.epoch, by_itself=True)
        self._is_named = False
        return (*self.cursor.begin(), self.cursor.finished)

    def state(self, batches: int | None) -> dict[str, Any]:
        """See `BatchSampler.state_dict`."""
        drawn = self.drawn
        if drawn is None or drawn.begun is None:
            if batches:
                raise ValueError(f"batches={batches} of an epoch that has not begun")
            return self.cursor.state()
        if batches is None:
            handed = drawn.handed()
            is_over = drawn.is_over()
        else:
            handed = integer("batches", batches, 0, _MOST_SAMPLES)
            is_over = not handed and drawn.is_over()
        if handed is None or (is_over and self.moved_by is drawn):
            return self.cursor.state()
        epoch, place, samples, finished = drawn.begun
        if is_over:  # another `for` has begun meanwhile
            return self.cursor.state_at(self.cursor.next_epoch if self._is_named else epoch + 1, 0, finished + 1)
        if not handed:
            return self.cursor.state_at(epoch, place, finished)
        after = self.cursor.steps.after(samples, epoch, place, handed * drawn.driver.draws_a_step)
        if after is None:
            return self.cursor.state_at(epoch + 1, 0, finished + 1)
        return self.cursor.state_at(epoch, after, finished)

    def load(self, state: Any, *, strict: bool, check_identity: bool) -> None:
        """See `BatchSampler.load_state_dict`."""
        self.cursor.load(state, strict=strict, check_identity=check_identity)
        self.drawn = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy stands where training does, and not where its workers have drawn to."""
        state = self.state(None)
        cursor = self.cursor.moved(self.cursor.steps)
        cursor.stand_at(state["epoch"], state["place"], state["finished"])
        return {**vars(self), "drawn": None, "moved_by": None, "_sharder": None, "cursor": cursor}


class DrawnBatches:
    """The batches of one `for`. It counts what is drawn, and what of it the DataLoader above has handed out.

    begun: epoch, place, samples and finished epochs where it began, with its first batch.
    """

    def __init__(self, drawing: Drawing, driver: Driver) -> None:
        self.driver = driver
        self.begun: tuple[int, int, int | None, int] | None = None
        self._drawing = drawing
        self._steps: Iterator[tuple[Any, Any]] = iter(())
        self._drawn = 0
        self._asked = 0
        self._failed = 0
        self._is_last = False  # what was drawn last is the last batch of the epoch
        self._is_exhausted = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[int]:
        drawing = self._drawing
        if self.begun is None:
            self.begun = epoch, place, samples, _ = drawing.begin(self.driver)
            self._steps = drawing.cursor.steps.steps(samples, epoch, place)
            self.driver.begin()
        self._failed = self.driver.failed(self._asked, self._failed)
        self._asked += 1
        drawing.drawn = self
        found = next(self._steps, None)
        if found is None:
            self._is_exhausted = True
            if not self._drawn and not self._is_last:  # an epoch without a batch for this rank
                self._is_last = True
                drawing.cursor.end(self.begun[0])
            raise StopIteration
        step, positions = found
        self._drawn += 1
        self._is_last = step.is_last
        drawing.cursor.hand_out(self.begun[0], step)
        drawing.moved_by = self
        if self.driver.shards_over:  # it joins and cuts them
            return positions.tolist()  # type: ignore[no-any-return]
        return BatchPositions(positions.tolist(), self.begun[0], step, drawing.shard.marks)

    def handed(self) -> int | None:
        """How many of the batches training has had; None for all that were drawn."""
        return self.driver.handed(self._asked, self._drawn, self._failed, is_exhausted=self._is_exhausted)

    def is_over(self) -> bool:
        """Whether the last batch of the epoch was handed out."""
        if not self._is_last:
            return False
        handed = self.handed()
        return handed is None or handed * self.driver.draws_a_step >= self._drawn

    def was_unused(self) -> bool:
        """Whether workers drew ahead, and nothing of it was handed out."""
        is_known = not (self.driver.shards_over or self.driver.is_unordered)
        return self._drawn > 0 and is_known and self.handed() == 0

    def state_dict(self) -> dict[str, Any]:
        """Where drawing stands: torchdata's StatefulDataLoader keeps this beside every batch that it draws."""
        return self._drawing.cursor.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Draw from where a state was taken."""
        self._drawing.load(state, strict=True, check_identity=True)
        self.begun = None


def is_for_predictions(sampler: Any) -> bool:
    """Whether a sampler is Lightning's that repeats nothing."""
    return type(sampler).__name__.startswith("Unrepeated")


def _source(value: Any) -> Source:
    return value.source if isinstance(value, Dataset) else source_of(value)
