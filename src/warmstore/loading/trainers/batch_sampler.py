"""BatchSampler: positions batch by batch, for torch's DataLoader and the trainers that drive it."""

from collections.abc import Iterator
from typing import Any, Never, final

from warmstore.extras import imported
from warmstore.loading.batch_sizes import BatchSize
from warmstore.loading.steps.cursor import MOST_EPOCH
from warmstore.loading.steps.shard import Uneven
from warmstore.loading.trainers.drawing import Drawing, DrawnBatches, is_for_predictions
from warmstore.loading.trainers.drivers import driver_of, is_automatic
from warmstore.loading.trainers.trainer_faces import EpochSampler
from warmstore.loading.validation import integer, refuse

_torch_data: Any = imported("torch.utils.data")


@final
class BatchSampler(_torch_data.BatchSampler):  # type: ignore[misc]
    """Positions batch by batch, for one rank of many: a `batch_sampler` for torch's DataLoader.

    One `for` is one epoch, as with a `Loader`: the last batch ends an epoch, and every `iter()` that is read begins
    one. If a trainer shards batches itself (accelerate, and Lightning with use_distributed_sampler), a rank that was
    not passed is ignored, which is logged once.

    Args:
        source: the data set, or the number of samples.
        batch_size: as a `Loader` takes it.
        sampler: as a `Loader` takes it.
        rank: as a `Loader` takes it.
        world_size: as a `Loader` takes it.
        uneven: as a `Loader` takes it. Repeated rows are the last `padded` rows of an epoch's last batch; `ws.collate`
            adds the mask "valid" to batches that are dicts.
        resume_partial: as a `Loader` takes it.

    Raises:
        BadRank: a rank outside the world, or a rank that was passed although a trainer shards.
        ValueError, TypeError: an invalid option.
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
        if isinstance(source, BatchSampler):  # Lightning rebuilds a batch sampler with its own sampler
            drawing = source._drawing.sharded_by(sampler)
            if not is_for_predictions(sampler):
                source._drawing = drawing  # the user's batch sampler shows the position of training
        else:
            if isinstance(source, _torch_data.Sampler):
                raise TypeError(
                    f"a BatchSampler takes the data set, or its length; got a {type(source).__name__}. If a trainer "
                    "rebuilds it with a sampler of its own, pass Trainer(use_distributed_sampler=False)"
                )
            if batch_size is None:
                raise TypeError("BatchSampler needs a batch_size: BatchSampler(data_set, 32)")
            drawing = Drawing(source, batch_size, sampler, rank, world_size, uneven, resume_partial)
        self._set(drawing)

    def _set(self, drawing: Drawing) -> None:
        # One attribute, as trainers copy the attributes of a batch sampler.
        self._drawing = drawing
        # Lightning rebuilds batch samplers with the arguments under these names, and its sampler as `sampler`.
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
        return EpochSampler(drawing.order, drawing.cursor, None if drawing.resume_partial else self.set_epoch)

    @property
    def padded(self) -> int:
        """Repeated rows at the end of an epoch's last batch, of this rank."""
        return self._drawing.padded()

    @property
    def epoch(self) -> int:
        """The epoch of the next batch, or the epoch set by `set_epoch`."""
        self._drawing.settle()
        return self._drawing.cursor.next_epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that begins next. A running epoch, and a state loaded from that epoch, do not change.

        Raises:
            ValueError: not an integer from 0 to 2**64 - 1.
        """
        self._drawing.set_epoch(integer("epoch", epoch, 0, MOST_EPOCH), is_automatic=is_automatic())

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch; of all ranks under a trainer that shards."""
        return self._drawing.count(driver_of())

    def __iter__(self) -> Iterator[list[int]]:
        """The batches of an epoch: lists of positions. The epoch begins with the first `next`."""
        return DrawnBatches(self._drawing, driver_of())

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """The position of training; see `Loader.state_dict`.

        It counts batches that torch's DataLoader handed out, without those that its workers drew ahead or that
        accelerate buffers. Without a DataLoader it counts all batches.

        Args:
            batches: the state after this many batches of the last epoch, of this rank under a trainer that shards.
                Between epochs, and after a state was loaded, 0 is the start of the next epoch.

        Raises:
            ValueError: more batches than an epoch has.
        """
        return self._drawing.state(batches)

    def load_state_dict(self, state: dict[str, Any], strict: bool = True, *, check_identity: bool = True) -> None:
        """Resume at a state, of a `Loader` too, with the next `for`; see `Loader.load_state_dict`.

        Raises:
            BadState: not a state, or a state of other samples or another order; the position is unchanged.
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
