"""BatchSampler: positions batch by batch, for torch's DataLoader and the trainers that drive it."""

from collections.abc import Iterator
from typing import Any, Never, final

from warmstore.loading.batch_sizes import BatchSize
from warmstore.loading.steps.cursor import MOST_EPOCH
from warmstore.loading.steps.shard import Uneven
from warmstore.loading.trainers.drawing import Drawing, DrawnBatches, is_for_predictions
from warmstore.loading.trainers.drivers import driver_of, is_automatic
from warmstore.loading.trainers.trainer_faces import EpochSampler
from warmstore.loading.validation import integer, refuse
from warmstore.records.framework_arrays import imported

_torch_data: Any = imported("torch.utils.data")


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
            if isinstance(source, _torch_data.Sampler):
                raise TypeError(
                    f"a BatchSampler takes the data set, or its length; got a {type(source).__name__}. Keep a trainer "
                    "from making it anew around a sampler of its own: Trainer(use_distributed_sampler=False)"
                )
            if batch_size is None:
                raise TypeError("BatchSampler needs a batch_size: BatchSampler(data_set, 32)")
            drawing = Drawing(source, batch_size, sampler, rank, world_size, uneven, resume_partial)
        self._set(drawing)

    def _set(self, drawing: Drawing) -> None:
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
        return self._drawing.sampler(self.set_epoch)

    @property
    def padded(self) -> int:
        """Repeated rows at the end of an epoch's last batch, of this rank."""
        return self._drawing.padded()

    @property
    def epoch(self) -> int:
        """The epoch of the next batch; or the one that was named since."""
        self._drawing.settle()
        return self._drawing.cursor.next_epoch

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch that begins next. One that runs is not changed; a state loaded from that epoch stays.

        Raises:
            ValueError: no integer from 0 to 2**64 - 1.
        """
        self._drawing.set_epoch(integer("epoch", epoch, 0, MOST_EPOCH), by_itself=is_automatic())

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch; of all ranks for a trainer that shards."""
        return self._drawing.count(driver_of())

    def __iter__(self) -> Iterator[list[int]]:
        """The batches of an epoch: lists of positions. It begins with the first one that is asked for."""
        return DrawnBatches(self._drawing, driver_of())

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


def _unpickled(drawing: Drawing) -> BatchSampler:
    made = BatchSampler.__new__(BatchSampler)
    made._set(drawing)
    return made
