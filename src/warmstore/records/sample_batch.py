"""A batch of records that torch's DataLoader handles like a list of samples.

`__getitems__` must return a list of samples, which a collate function turns into a batch. A gather returns a batch
already; splitting and collating it again would cost a hundred times the gather. A `SampleBatch` is a list of samples
to any collate function, and `warmstore.collate` returns the batch in it.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from warmstore.tree.columns import map_columns


class SampleBatch:
    """The samples of a batch.

    batch: a dict of arrays or lists, an array, or a list. positions: the index that was asked for, unchanged: its
    class may describe the batch further.
    """

    def __init__(self, batch: Any, count: int, positions: Any = None) -> None:
        self.batch = batch
        self.positions = positions
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, at: int) -> Any:
        return _sample(self.batch, range(self._count)[at])

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
    return value
