"""A batch that is stacked while its samples are made, so that they need not all be in memory beside it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from warmstore.loading.collate import stack
from warmstore.loading.prefetch.shared_memory import empty
from warmstore.tree.columns import map_columns


class Uneven(Exception):
    """A sample is not like the first: its batch must be made from a list."""


class StackedBatch:
    """What `stack` makes of `count` samples, each put at its place as it comes.

    Args:
        alike: the samples are taken to be alike. Where one is not, `put` raises `Uneven`, and those before are lost.
    """

    def __init__(self, count: int, *, alike: bool) -> None:
        self._count = count
        self._room: Any = None if alike else [None] * count

    def put(self, place: int, value: Any) -> None:
        """Take in the sample at a place.

        Raises:
            Uneven: see the class.
        """
        if self._room is None:
            self._room = _room(value, self._count)
        _put(self._room, place, value)

    def stacked(self) -> Any:
        """The batch, of which every place has been filled."""
        return map_columns(lambda part: stack(part) if isinstance(part, list) else part, self._room)


def _is_plain(value: Any) -> bool:
    return type(value) is np.ndarray and value.dtype.kind in "biufc" and value.dtype.isnative


def _room(value: Any, count: int) -> Any:
    """Room for so many values like this one: arrays, dicts and tuples of these, and lists of anything else."""
    if type(value) is dict:
        return {name: _room(part, count) for name, part in value.items()}
    if type(value) is tuple:
        return tuple(_room(part, count) for part in value)
    return empty((count, *value.shape), value.dtype) if _is_plain(value) else [None] * count


def _put(room: Any, place: int, value: Any) -> None:
    if isinstance(room, list):
        room[place] = value
    elif isinstance(room, np.ndarray):
        if not _is_plain(value) or value.dtype != room.dtype or value.shape != room.shape[1:]:
            raise Uneven
        room[place] = value
    else:
        if type(value) is not type(room) or len(value) != len(room):
            raise Uneven
        for part, child in _pairs(room, value):
            _put(part, place, child)


def _pairs(room: Any, value: Any) -> Sequence[tuple[Any, Any]]:
    if isinstance(room, tuple):
        return list(zip(room, value, strict=True))
    if list(room) != list(value):
        raise Uneven
    return [(part, value[name]) for name, part in room.items()]
