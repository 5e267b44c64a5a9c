"""A batch of records that torch's DataLoader handles like a list of samples.

`__getitems__` must return a list of samples, which a collate function turns into a batch. A gather returns a batch
already; splitting and collating it again would cost a hundred times the gather. A `SampleBatch` is a list of samples
to any collate function, and `warmstore.collate` returns the batch in it.
"""

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from warmstore.tree.columns import map_columns


class SampleBatch:
    """The samples of a batch.

    batch: a dict of arrays or lists, an array, or a list. positions: the index that was asked for, unchanged: its
    class may describe the batch further.
    """

    def __new__(cls, batch: Any, *rest: Any) -> Any:
        """A list of the samples `batch` if that is all: trainers make a list anew by the type of the old one."""
        return super().__new__(cls) if rest else list(batch)

    def __init__(self, batch: Any, count: int, positions: Any = None) -> None:
        self.batch = batch
        self.positions = positions
        self._count = count

    def __len__(self) -> int:
        return self._count

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """A list, to `isinstance`: collators, such as those of Hugging Face, and trainers look for one."""
        return list

    def __reduce__(self) -> Any:
        return SampleBatch, (without_views(self.batch), self._count, self.positions)

    def __identity__(self) -> Any:
        return self.batch, self._count, self.positions

    def __getitem__(self, at: int | slice) -> Any:
        places = range(self._count)[at]
        return [self[place] for place in places] if isinstance(places, range) else _sample(self.batch, places)

    def __iter__(self) -> Iterator[Any]:
        return (_sample(self.batch, at) for at in range(self._count))

    def __eq__(self, other: object) -> bool:
        return list(self) == (list(other) if isinstance(other, SampleBatch) else other)

    __hash__ = None  # type: ignore[assignment]


def _sample(batch: Any, at: int) -> Any:
    return map_columns(lambda column: _value(column, at), batch)


def _value(column: Any, at: int) -> Any:
    value = column[at]
    if isinstance(column, np.ma.MaskedArray):
        mask = np.ma.getmaskarray(value)
        return None if mask.size and mask.all() else value  # a mask without elements says nothing
    return sendable_value(value)


def sendable_value(value: Any) -> Any:
    """A value of one record as it is; in a worker of torch's DataLoader bytes instead of a memoryview."""
    return bytes(value) if isinstance(value, memoryview) and in_torch_worker() else value


def in_torch_worker() -> bool:
    """Whether this process is a worker of torch's DataLoader, which cannot send memoryviews: only the thread that feeds
    its queue would print that, and the program would wait for ever."""
    torch_data = sys.modules.get("torch.utils.data")
    return torch_data is not None and torch_data.get_worker_info() is not None


def without_views(batch: Any) -> Any:
    """A batch with bytes instead of memoryviews, which cannot be sent to another process."""

    def without_views_of(column: Any) -> Any:
        if not isinstance(column, list):
            return column
        return [bytes(value) if isinstance(value, memoryview) else value for value in column]

    return map_columns(without_views_of, batch)
