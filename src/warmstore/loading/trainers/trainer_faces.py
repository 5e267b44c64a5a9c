"""A loader's attributes for trainers: `dataset`, `sampler`, and the positions of a batch.

To resume in the middle of an epoch, a trainer rebuilds torch's DataLoader from `dataset`, `batch_sampler` and
`collate_fn`. The lists of positions have an epoch and a step, so that its batches equal those of the loader.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from hashlib import blake2b
from typing import Any, final

import numpy as np

from warmstore.loading.prefetch.batch_builder import BatchBuilder, Task
from warmstore.loading.samplers.sampler import Sampler
from warmstore.loading.steps.cursor import EpochCursor
from warmstore.loading.steps.shard import RankStep
from warmstore.records.read.index_arguments import as_positions
from warmstore.records.sample_batch import SampleBatch, in_torch_worker, without_views


class BatchPositions(list[int]):
    """The positions of a batch, a list as in torch, with epoch and step.

    marks: whether the batch gets a mask. began: see `Source.begin_pass`.
    """

    def __init__(self, positions: Iterable[int], epoch: int, step: RankStep, marks: bool, began: int) -> None:
        super().__init__(positions)
        self.epoch = epoch
        self.step = step
        self.marks = marks
        self.began = began

    @property
    def valid(self) -> np.ndarray[Any, np.dtype[np.bool_]] | None:
        """The mask of rows that are not repeated, bool [rows]; None without `marks`."""
        return np.arange(len(self)) < self.step.last - self.step.first if self.marks else None

    def __reduce__(self) -> Any:
        return BatchPositions, (list(self), self.epoch, self.step, self.marks, self.began)


@final
class LoaderDataset:
    """A loader's samples as a map-style data set. The batch of `BatchPositions` equals the loader's batch."""

    def __init__(self, build: BatchBuilder) -> None:
        self._build = build

    def __len__(self) -> int:
        return len(self._build.source)

    def __getitem__(self, position: int) -> Any:
        """One sample, before any transform."""
        return self._build.source.sample(position)

    def __getitems__(self, positions: Any) -> SampleBatch:
        """The batch at some positions."""
        at = as_positions(positions, len(self))
        if isinstance(positions, BatchPositions):
            task = Task(positions.epoch, positions.step, at, positions.began)
            return SampleBatch(self._build(task).batch, len(at))
        # A trainer has joined or cut batches: repeated rows are unknown, and the generator depends on the positions.
        first = int.from_bytes(blake2b(at.tobytes(), digest_size=7).digest())
        task = Task(0, RankStep(first, first + len(at), first + len(at)), at, 0)
        return SampleBatch(replace(self._build, marks=False)(task).batch, len(at))


def sendable(batch: Any) -> Any:
    """A batch as it is; in a worker of torch's DataLoader without memoryviews."""
    return without_views(batch) if in_torch_worker() else batch


@final
class EpochSampler:
    """The sampler of a loader or batch sampler, with `set_epoch` for trainers and the attributes of the `Sampler`."""

    def __init__(self, sampler: Sampler, cursor: EpochCursor, set_epoch: Callable[[int], None] | None) -> None:
        self._sampler = sampler
        self._cursor = cursor
        self._set_epoch = set_epoch

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that begins next; without effect if epochs are resumed after a break."""
        if self._set_epoch is not None:
            self._set_epoch(epoch)

    def __iter__(self) -> Iterator[int]:
        return self._cursor.positions()

    def __len__(self) -> int:
        return self._cursor.rows()

    def __repr__(self) -> str:
        return repr(self._sampler)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._sampler, name)
