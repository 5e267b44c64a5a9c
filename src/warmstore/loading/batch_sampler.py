"""BatchSampler: positions batch by batch, for torch's DataLoader and the trainers that drive it."""

import logging
from collections.abc import Iterator
from typing import Any, Never, Self, final

import numpy as np

from warmstore.errors import BadRank
from warmstore.loading.batch_sizes import BatchSize
from warmstore.loading.budget_steps import BudgetSteps
from warmstore.loading.cursor import EpochCursor
from warmstore.loading.dataset import Dataset
from warmstore.loading.drivers import Driver, driver_of, is_automatic
from warmstore.loading.epoch_steps import EpochSteps, FixedSteps
from warmstore.loading.mixture import MixtureSampler
from warmstore.loading.samplers.counter_rng import MOST_SEED
from warmstore.loading.samplers.samplers import sampler_of
from warmstore.loading.shard import Shard, Uneven, find_rank
from warmstore.loading.sources.mixture import MixtureSource
from warmstore.loading.sources.resolve import source_of
from warmstore.loading.sources.source import Source
from warmstore.loading.trainer_faces import BatchPositions, EpochSampler
from warmstore.loading.validation import integer, refuse
from warmstore.records.formats import imported

_torch_data: Any = imported("torch.utils.data")
_log = logging.getLogger("warmstore")


@final
class BatchSampler(_torch_data.BatchSampler):  # type: ignore[misc]
    """Positions batch by batch in an order, for one rank of many: what torch's DataLoader takes as `batch_sampler`.

    One `for` is one epoch, as of a `Loader`: its last batch ends it, and every `iter()` from which something is taken
    begins another one. Who shards is known: a rank that was found gives way to a trainer that shards (accelerate, and
    Lightning with use_distributed_sampler), which is logged once.

    Args:
        source: the data set, or the number of samples.
        batch_size, sampler, rank, world_size, uneven, resume_partial: as a `Loader` takes them. There is no mask in
            positions: repeated rows are the last `padded` of an epoch's last batch, and `ws.collate` and `Dataset` add
            the mask "valid" to batches that are dicts.

    Raises:
        BadRank: a rank outside the world; or one that was passed, to a trainer that shards again.
        ValueError, TypeError: an option that cannot be.
    """

    def __init__(
        self,
        source: Any,
        batch_size: int | BatchSize | None = None,
        sampler: Any = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        uneven: Uneven = "pad",
        resume_partial: bool = False,
        **unknown: Never,
    ) -> None:
        refuse("BatchSampler", unknown)
        if isinstance(source, BatchSampler):  # Lightning's way of making one anew, around its own sampler
            drawing = source._drawing.sharded_by(sampler)
            if not is_for_predictions(sampler):
                source._drawing = drawing  # whoever holds that one sees where training stands
        else:
            drawing = _Drawing(source, batch_size, sampler, rank, world_size, uneven, resume_partial)
        self._set(drawing)

    def _set(self, drawing: "_Drawing") -> None:
        # One attribute: trainers copy and replay those of a batch sampler.
        self._drawing = drawing
        # Lightning makes batch samplers anew with what it finds under these names, and its sampler as `sampler`.
        saved = {"args": (), "kwargs": {"source": self}, "arg_names": (), "default_kwargs": {"sampler": None}}
        self.__dict__.update({f"__pl_saved_{name}": value for name, value in saved.items()})

    @property
    def batch_size(self) -> int | None:
        """Samples in a batch; None where batches vary in size."""
        size = self._drawing.batch_size
        return size if isinstance(size, int) else None

    @property
    def drop_last(self) -> bool:
        """Whether the rest of an epoch is left out."""
        return self._drawing.shard.uneven == "drop"

    @property
    def sampler(self) -> EpochSampler:
        """The order of this rank's samples; its `set_epoch` is this batch sampler's."""
        drawing = self._drawing
        return EpochSampler(drawing.order, drawing.positions, None if drawing.resume_partial else self.set_epoch)

    @property
    def padded(self) -> int:
        """Repeated rows at the end of an epoch's last batch, of this rank."""
        return self._drawing.padded()

    @property
    def epoch(self) -> int:
        """The epoch of the next batch; or the one that was named since."""
        return self._drawing.cursor.next_epoch

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch that begins next. One that runs is not changed; a state loaded from that epoch stays.

        Raises:
            ValueError: no integer from 0 to 2**64 - 1.
        """
        self._drawing.set_epoch(integer("epoch", epoch, 0, MOST_SEED), by_itself=is_automatic())

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch; of all ranks for a trainer that shards."""
        self._drawing.find_shard(driver_of())
        return self._drawing.cursor.count()

    def __iter__(self) -> Iterator[list[int]]:
        """The batches of an epoch: lists of positions. It begins with the first one that is asked for."""
        return _Positions(self)

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Where training stands, as `Loader.state_dict` has it.

        What torch's DataLoader handed out is counted, not what its workers drew ahead; nor the batch that accelerate
        holds back. Without a DataLoader every batch that was drawn counts.

        Args:
            batches: count so many batches of the epoch that was drawn from last instead; of this rank, under a trainer
                that shards. Between epochs, and after a state was loaded, 0 is where the next epoch begins.

        Raises:
            ValueError: more batches than an epoch has.
        """
        return self._drawing.state(batches)

    def load_state_dict(self, state: dict[str, Any], strict: bool = True, *, check_identity: bool = True) -> None:
        """Go on where a state was taken, with the next `for`; states of a `Loader` fit too. See `Loader`.

        Raises:
            BadState: no state, or one of other samples or another order; nothing has changed.
        """
        self._drawing.load(state, strict=strict, check_identity=check_identity)

    def __repr__(self) -> str:
        drawing = self._drawing
        return f"BatchSampler({drawing.cursor.samples:,} samples, {drawing.order!r:.200}, {drawing.shard})"

    def __reduce__(self) -> Any:
        return _unpickled, (self._drawing,)


def _unpickled(drawing: "_Drawing") -> BatchSampler:
    made = BatchSampler.__new__(BatchSampler)
    made._set(drawing)
    return made


class _Drawing:
    """What a batch sampler draws from, and how far it has come."""

    def __init__(
        self,
        source: Any,
        batch_size: Any,
        sampler: Any,
        rank: int | None,
        world_size: int | None,
        uneven: Uneven,
        resume_partial: bool,
    ) -> None:
        if batch_size is None:
            raise TypeError("BatchSampler needs a batch_size")
        if isinstance(source, _torch_data.Sampler):
            raise TypeError(
                f"a BatchSampler takes the data set, or its length; got a {type(source).__name__}. Keep a trainer from "
                "making it anew around a sampler of its own: Trainer(use_distributed_sampler=False)"
            )
        found = None if isinstance(source, int | np.integer) else _source(source)
        order = sampler_of(sampler)
        if isinstance(found, MixtureSource) and not isinstance(order, MixtureSampler):
            order = found.mixed.sampler(found.lengths, order)
        self.batch_size = (
            batch_size if isinstance(batch_size, BatchSize) else integer("batch_size", batch_size, 1, 2**38)
        )
        self.order = order
        self.resume_partial = resume_partial
        self._rank, self._world_size, self._uneven = rank, world_size, uneven
        self._source = found
        self.samples = integer("samples", source, 0, 2**62) if found is None else len(found)
        self._sharded = False  # by a trainer, for good
        self.shard = self._found_shard()
        self.cursor = EpochCursor(self._steps(), self.samples, self._identity, {}, resume_partial=resume_partial)
        # Epoch, place, samples and finished epochs where the last `for` began.
        self._begun: tuple[int, int, int | None, int] = (0, 0, None, 0)
        self.drawn: _Positions | None = None  # by the last `for`
        self._told = False
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

    def find_shard(self, driver: Driver) -> None:
        """Find out again who this process is, and whether somebody else shards."""
        if self._sharded:
            return
        shard = self._found_shard() if self._rank is None else self.shard
        if driver.shards_over:
            if self._rank is not None and self._world_size != 1:
                raise BadRank(
                    f"{driver.name} shards these batches over its {driver.shards_over} processes, and this "
                    f"BatchSampler was told to be rank {self._rank} of {self._world_size}: leave rank= and "
                    "world_size= out"
                )
            self._tell(driver.name, shard)
            shard = Shard(shard.batch_size, 0, 1, shard.uneven)
        if shard != self.shard:
            self.shard = shard
            self.cursor.steps = self._steps()

    def sharded_by(self, sampler: Any) -> "_Drawing":
        """The same for the rank of a trainer's DistributedSampler."""
        replicas, rank = getattr(sampler, "num_replicas", None), getattr(sampler, "rank", None)
        if sampler is None:  # it is only copied
            replicas, rank = self._world_size, self._rank
        elif replicas is None:
            replicas, rank = 1, 0
        elif self._rank is not None and not self._sharded and replicas > 1:
            raise BadRank(
                f"Lightning shards these batches over {replicas} processes, and this BatchSampler was told to be rank "
                f"{self._rank} of {self._world_size}: leave rank= and world_size= out, or pass "
                "Trainer(use_distributed_sampler=False)"
            )
        made = _Drawing(
            self.samples if self._source is None else self._source,
            self.batch_size, self.order, rank, replicas, self._uneven, self.resume_partial,
        )  # fmt: skip
        if is_for_predictions(sampler):  # each is given once
            made._uneven, made.shard = "allow", Shard(made.shard.batch_size, rank or 0, replicas or 1, "allow")
            made.cursor.steps = made._steps()
        if sampler is not None and (self._rank is None or self._sharded):
            made._sharded = True
            made._told = self._told
            made._tell("Lightning", made.shard)
        made.cursor = self.cursor.moved(made.cursor.steps)
        return made

    def _tell(self, name: str, shard: Shard) -> None:
        if not self._told and shard.world_size > 1:
            self._told = True
            _log.warning("%s shards the batches over its ranks, so that their BatchSampler does not", name)

    def positions(self) -> Iterator[int]:
        """This rank's samples of the epoch, one by one."""
        for _, positions in self.cursor.steps.steps(self.cursor.samples, self.cursor.next_epoch, 0):
            yield from positions.tolist()

    def padded(self) -> int:
        """Repeated rows at the end of an epoch."""
        return self.cursor.steps.padded(self.cursor.samples, self.cursor.epoch)

    def begin(self, drawn: "_Positions") -> Iterator[tuple[int, Any, Any]]:
        """The steps of the epoch that begins now."""
        driver = drawn.driver
        self.find_shard(driver)
        if driver.epoch is not None:
            self.set_epoch(driver.epoch, by_itself=True)
        self._is_named = False
        if self.drawn is not None and self.drawn.was_unused():
            self.cursor.go_back()
        epoch, place, samples = self.cursor.begin()
        self._begun = epoch, place, samples, self.cursor.finished
        self.drawn = drawn
        for step, positions in self.cursor.steps.steps(samples, epoch, place):
            self.cursor.hand_out(epoch, step)
            yield epoch, step, positions

    def set_epoch(self, epoch: int, *, by_itself: bool) -> None:
        """Name the epoch that begins next. What a trainer counts by itself yields to a state and what a user says."""
        if by_itself and (self.cursor.is_loaded or self._is_named):
            return
        self._is_named = not by_itself
        self.cursor.set_epoch(epoch)

    def state(self, batches: int | None) -> dict[str, Any]:
        """See `BatchSampler.state_dict`."""
        drawn = self.drawn
        if drawn is None:
            if batches:
                raise ValueError(f"batches={batches} of an epoch that has not begun")
            return self.cursor.state()
        if batches is None:
            handed = drawn.handed()
            if handed is None:
                return self.cursor.state()
        else:
            handed = integer("batches", batches, 0, 2**62)
            if not handed and drawn.is_over():
                return self.cursor.state()
        return self._state_after(handed * drawn.driver.draws_a_step)

    def _state_after(self, handed: int) -> dict[str, Any]:
        """The state after so many batches of the last `for`."""
        epoch, place, samples, finished = self._begun
        if not handed:
            return self.cursor.state_at(epoch, place, finished)
        after = self.cursor.steps.after(samples, epoch, place, handed)
        if after is None:
            return self.cursor.state_at(epoch + 1, 0, finished + 1)
        return self.cursor.state_at(epoch, after, finished)

    def load(self, state: Any, *, strict: bool, check_identity: bool) -> None:
        """See `BatchSampler.load_state_dict`."""
        self.cursor.load(state, strict=strict, check_identity=check_identity)
        self.drawn = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "drawn": None}


class _Positions:
    """The batches of one `for`. It counts what is drawn, and what of it the DataLoader above has handed out."""

    def __init__(self, owner: BatchSampler) -> None:
        self.driver = driver_of()
        self._drawing = owner._drawing
        self._steps: Iterator[tuple[int, Any, Any]] | None = None
        self._drawn = 0
        self._asked = 0
        self._is_exhausted = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[int]:
        if self._steps is None:
            self._steps = self._drawing.begin(self)
        self._asked += 1
        try:
            epoch, step, positions = next(self._steps)
        except StopIteration:
            self._is_exhausted = True
            raise
        self._drawn += 1
        if self.driver.shards_over:  # it joins and cuts them
            return positions.tolist()  # type: ignore[no-any-return]
        return BatchPositions(positions.tolist(), epoch, step, self._drawing.shard.marks)

    def handed(self) -> int | None:
        """How many of the batches training has had; None for all that were drawn."""
        return self.driver.handed(self._asked, self._drawn, is_exhausted=self._is_exhausted)

    def is_over(self) -> bool:
        """Whether the `for` was gone through to its end."""
        handed = self.handed()
        return self._is_exhausted and (handed is None or handed * self.driver.draws_a_step >= self._drawn)

    def was_unused(self) -> bool:
        """Whether workers drew ahead, and nothing of it was handed out."""
        return self._drawn > 0 and not self.driver.shards_over and self.handed() == 0

    def state_dict(self) -> dict[str, Any]:
        """Where drawing stands: torchdata's StatefulDataLoader keeps this beside every batch that it draws."""
        return self._drawing.cursor.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Draw from where a state was taken."""
        self._drawing.load(state, strict=True, check_identity=True)
        self._steps = None


def is_for_predictions(sampler: Any) -> bool:
    """Whether a sampler is Lightning's that repeats nothing."""
    return type(sampler).__name__.startswith("Unrepeated")


def _source(value: Any) -> Source:
    return value.source if isinstance(value, Dataset) else source_of(value)
