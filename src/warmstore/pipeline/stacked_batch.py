"""A batch that is stacked sample by sample, so that memory never holds both the batch and all samples."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any

import numpy as np

from warmstore.errors import BadSource
from warmstore.loading.collate import stack
from warmstore.loading.prefetch.shared_memory import empty
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.values.ownership import copied
from warmstore.pipeline.batched_steps import is_as_one_by_one, row_of
from warmstore.records.format.array_interop import is_tensor
from warmstore.tree.columns import map_columns

_SIMPLE = frozenset((bool, int, float, complex, str, bytes, type(None)))


class Uneven(Exception):
    """A sample differs from the first one in structure, dtype or shape: stack a list of samples instead."""


class Reused(Exception):
    """A sample has an object or memory of an earlier one, which may have lost its values: copy samples at once."""


class StackedBatch:
    """The result of `stack` for `count` samples, filled one sample at a time.

    Args:
        alike: expect samples of equal structure, dtypes and shapes. For another one `put` raises `Uneven`, and earlier
            samples are lost.
        finds_reuse: raise `Reused` for an object or memory of an earlier sample in a list, which a step may have filled
            anew.
    """

    def __init__(self, count: int, *, alike: bool, finds_reuse: bool = False) -> None:
        self._count = count
        self._columns: Any = None if alike else [None] * count
        self._finds_reuse = finds_reuse
        self._earlier: set[int] = set()  # addresses in lists, of earlier samples
        self._found: set[int] = set()  # those of this sample

    def put(self, place: int, value: Any) -> None:
        """Store a sample at a position.

        Raises:
            Uneven, Reused: see above.
        """
        if self._columns is None:
            self._columns = _new_columns(value, self._count)
        _put(self._columns, place, value, self._listed)
        if self._found:
            self._earlier |= self._found
            self._found.clear()

    def _listed(self, value: Any) -> Any:
        """A value for a list."""
        if self._finds_reuse and type(value) not in _SIMPLE:
            is_own = type(value) is np.ndarray and value.flags.owndata  # the usual case
            for part, address in ((value, id(value)),) if is_own else _addresses(value):
                if address in self._earlier and not _is_immutable(part):
                    raise Reused
                self._found.add(address)
        return value

    def is_as_one_by_one(self, stacked: Any) -> bool:
        """Whether each sample, stacked alone, gives its row of the batch `stacked`; see `is_as_one_by_one`."""
        return is_as_one_by_one(self._columns, stacked)

    def row(self, place: int) -> Any:
        """The sample at a position. Samples of a batch that is not `alike` are as they were put."""
        return row_of(self._columns, place)

    def stacked(self) -> Any:
        """The batch. Every position must have been filled."""
        return map_columns(lambda part: stack(part) if isinstance(part, list) else part, self._columns)

    def keep(self, places: Int64) -> None:
        """Leave out all positions but some, int64 [n], ascending. Only those must have been filled."""
        rows = places.tolist()
        self._columns = map_columns(
            lambda part: [part[at] for at in rows] if isinstance(part, list) else part[places], self._columns
        )


def repeated(batch: Any, count: int) -> Any:
    """The rows of a batch, at least one, with copies of the last one up to `count` rows."""

    def column(part: Any) -> Any:
        if isinstance(part, list):
            return part + [copy(part[-1]) for _ in range(count - len(part))]
        return part[np.minimum(np.arange(count), len(part) - 1)]

    return map_columns(column, batch)


def merged(parts: Sequence[tuple[Int64, Any]], count: int) -> Any:
    """One batch of several, whose rows go to the given places; None if their columns differ in more than length.

    Args:
        parts: places, int64 [k], and batches of k rows; together `count` rows.
    """
    first = parts[0][1]
    if isinstance(first, dict | tuple):
        names = _names(first)
        if any(type(batch) is not type(first) or _names(batch) != names for _, batch in parts):
            return None
        columns = [merged([(at, batch[name]) for at, batch in parts], count) for name in names]
        if any(column is None for column in columns):
            return None
        return tuple(columns) if isinstance(first, tuple) else dict(zip(names, columns, strict=True))
    if isinstance(first, list):
        rows: list[Any] = [None] * count
        for at, batch in parts:
            if not isinstance(batch, list):
                return None
            for place, row in zip(at.tolist(), batch, strict=True):
                rows[place] = row
        return rows
    form = first.dtype, first.shape[1:]
    if any(not _is_plain(batch) or (batch.dtype, batch.shape[1:]) != form for _, batch in parts):
        return None
    made = empty((count, *first.shape[1:]), first.dtype)
    for at, batch in parts:
        made[at] = batch
    return made


def _names(columns: Any) -> list[Any]:
    return list(columns) if isinstance(columns, dict) else list(range(len(columns)))


def _is_plain(value: Any) -> bool:
    return type(value) is np.ndarray and value.dtype.kind in "biufc" and value.dtype.isnative


def _new_columns(value: Any, count: int) -> Any:
    """Empty columns for `count` values like this one: arrays, dicts and tuples of these, and lists for the rest."""
    if type(value) is dict:
        return {name: _new_columns(part, count) for name, part in value.items()}
    if type(value) is tuple:
        return tuple(_new_columns(part, count) for part in value)
    return empty((count, *value.shape), value.dtype) if _is_plain(value) else [None] * count


def _addresses(value: Any) -> Iterator[tuple[Any, int]]:
    """The mutable parts of a value, through dicts and tuples, with their addresses: of a view, that of its memory."""
    if type(value) in _SIMPLE:
        return
    if isinstance(value, dict | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _addresses(part)
    if isinstance(value, np.ndarray) and not value.flags.owndata:
        if value.size:
            yield value, int(value.__array_interface__["data"][0])
    elif is_tensor(value):
        if _has_memory(value):
            yield value, int(value.data_ptr())
    elif not isinstance(value, tuple):
        yield value, id(value)


def _has_memory(tensor: Any) -> bool:
    """Whether a tensor has elements at an address: others are sparse, say."""
    import torch

    return tensor.layout is torch.strided and bool(tensor.numel())


def _is_immutable(part: Any) -> bool:
    try:
        return copied(part) is part
    except BadSource:
        return False


def _put(columns: Any, place: int, value: Any, listed: Callable[[Any], Any]) -> None:
    if isinstance(columns, list):
        columns[place] = listed(value)
    elif isinstance(columns, np.ndarray):
        if not _is_plain(value) or value.dtype != columns.dtype or value.shape != columns.shape[1:]:
            raise Uneven
        columns[place] = value
    else:
        if type(value) is not type(columns) or len(value) != len(columns):
            raise Uneven
        for part, child in _pairs(columns, value):
            _put(part, place, child, listed)


def _pairs(columns: Any, value: Any) -> Sequence[tuple[Any, Any]]:
    if isinstance(columns, tuple):
        return list(zip(columns, value, strict=True))
    if list(columns) != list(value):
        raise Uneven
    return [(part, value[name]) for name, part in columns.items()]
