"""What torch's own DataLoader, and Grain, need to be as fast and exact as ours: a data set, a batch sampler, a collate.

A batch sampler hands whole batches of positions over, the data set gathers each at once, and the collate function
passes it through: never a sample by itself.
"""

from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np

from warmstore.loading import collate as collating
from warmstore.loading.course import Course
from warmstore.loading.delivery import ToTorch
from warmstore.loading.draws import Int64
from warmstore.loading.mixing_source import MixedSource
from warmstore.loading.orders import Order, Sequential
from warmstore.loading.sharding import Shard, find_rank
from warmstore.loading.source import Source
from warmstore.loading.sources import source_of
from warmstore.records.samples import Samples

_to_torch = ToTorch()


@final
class Dataset:
    """Any source of a `Loader` as a map-style data set: for torch's DataLoader, as a Grain data source, in a pickle.

    RecordStore and its fields need no such wrapper; dicts of sources, files and mixes do.

    Args:
        source, fields, collate: as a `Loader` takes them.

    Raises:
        BadSource: no source, or sources of different lengths.
    """

    def __init__(self, source: Any, *, fields: Sequence[str] | None = None, collate: Any = "list") -> None:
        self._collation = collating.Collation.of(collate)
        self.source = source_of(source, fields, self._collation)

    def __len__(self) -> int:
        return len(self.source)

    def __repr__(self) -> str:
        return f"Dataset({type(self.source).__name__}, {len(self):,} samples)"

    def __getitem__(self, position: int) -> Any:
        """One sample."""
        at = range(len(self))[position]
        return Samples(self.source.read(np.array([at])), 1)[0]

    def __getitems__(self, positions: Any) -> Samples:
        """Many samples, of which `ws.collate` makes a batch at no cost and any other collate function at some."""
        at = np.asarray(positions, np.int64)
        batch = self.source.read(at)
        return Samples(batch if self._collation.does_nothing else self._collation(batch), len(at))


@final
class BatchSampler:
    """Positions batch by batch in an order, for one rank of many: what torch's DataLoader takes as `batch_sampler`.

    One `for` is one epoch, or what is left of it; the next is the next epoch.

    Args:
        source: the data set, or the number of samples.
        batch_size, order, rank, world_size, drop_last: as a `Loader` takes them.

    Raises:
        BadRank: a rank outside the world.
        ValueError: an option that cannot be.
    """

    def __init__(
        self,
        source: Any,
        batch_size: int,
        order: Order | None = None,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        drop_last: bool = False,
    ) -> None:
        shard = Shard(batch_size, *find_rank(rank, world_size), drop_last)
        order = order if order is not None else Sequential()
        found = None if isinstance(source, int | np.integer) else _source(source)
        if isinstance(found, MixedSource):
            order = found.mixed.order(found.lengths, order)
        samples = int(source) if found is None else len(found)
        self._course = Course(order, samples, shard, None if found is None else found.identity, {})
        self._begun = (0, 0)

    def __len__(self) -> int:
        """Batches of this rank in a whole epoch."""
        return self._course.shard.count(self._course.length)

    def __iter__(self) -> Iterator[Int64]:
        """The batches that are left of this epoch: int64 [batch] positions."""
        course = self._course
        self._begun = epoch, place = course.epoch, course.place
        return self._rest(epoch, place)

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Where the sampler stands, as `Loader.state_dict` has it.

        Args:
            batches: how many batches of the current `for` over the DataLoader training has had. Its worker processes
                draw ahead, and only training knows; None counts what was drawn, which is right without workers.
        """
        course = self._course
        if batches is None:
            return course.state(course.epoch, course.place)
        epoch, place = self._begun
        return course.state(epoch, min(place + batches * course.shard.together, course.length))

    def load_state_dict(self, state: dict[str, Any], *, check_identity: bool = True) -> None:
        """Go on where a state was taken, with the next `for`; states of a `Loader` fit too.

        Raises:
            BadState: no state, or one of other samples or another order; nothing has changed.
        """
        self._course.load(state, check_identity=check_identity)

    def _rest(self, epoch: int, place: int) -> Iterator[Int64]:
        course = self._course
        for step, positions in course.steps(epoch, place):
            course.epoch, course.place = epoch, step.after
            yield positions
        course.epoch, course.place = epoch + 1, 0


def collate(samples: Any) -> Any:
    """A `collate_fn` for torch's DataLoader: batches of tensors over the memory that was gathered.

    Args:
        samples: what `__getitems__` of a RecordStore, of its fields, or of a `Dataset` gives; or a list of samples.

    Returns:
        A batch as a `Loader` with to="torch" gives it; but values of Bytes fields are bytes, which, unlike views of a
        file, get out of a worker process.
    """
    return _to_torch.send(owned(samples.batch if isinstance(samples, Samples) else collating.stack(samples)))


def owned(batch: Any) -> Any:
    """A batch that may leave the process: views of files become bytes."""
    if isinstance(batch, dict):
        return {name: owned(values) for name, values in batch.items()}
    if isinstance(batch, tuple):
        return tuple(owned(values) for values in batch)
    if isinstance(batch, list):
        return [bytes(value) if isinstance(value, memoryview) else value for value in batch]
    return batch


def _source(value: Any) -> Source:
    return value.source if isinstance(value, Dataset) else source_of(value)
