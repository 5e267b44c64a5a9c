"""A batch of records that torch's DataLoader may carry as if it were a list of samples.

`__getitems__` must give a list of samples, of which a collate function makes a batch again. What was gathered is a
batch already; taking it apart and putting it together would cost a hundred times the gather. So this looks like the
list, for any collate function, and `warmstore.collate` takes the batch that it holds.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from warmstore.tree.columns import map_columns


class SampleBatch:
    """The samples of a batch.

    batch: all of them: a dict of arrays or lists, an array, or a list. positions: what was asked for, as it was handed
    in: it may know more of the batch.
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
    if isinstance(column, np.ma.MaskedArray) and np.ma.getmaskarray(value).all():
        return None
    return value
