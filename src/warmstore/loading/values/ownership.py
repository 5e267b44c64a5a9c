"""Batches that own their memory: what a source keeps for itself is copied, what was made for the batch is not.

A value that only the batch refers to was made for it: nobody else can see it change. References are counted by the same
expression here and for the measure, so that the count is right whatever the interpreter adds to it.
"""

import copy
import datetime
import decimal
import enum
import fractions
import itertools
import sys
import types
import uuid
import weakref
from pathlib import PurePath
from typing import Any

import numpy as np

from warmstore.errors import BadSource
from warmstore.records.format.array_interop import is_jax_array, is_tensor
from warmstore.tree.columns import map_columns, rebuilt

_IMMUTABLE = frozenset(
    {
        *(type(None), bool, int, float, complex, str, bytes, range, slice, type(Ellipsis), type),
        *(datetime.date, datetime.datetime, datetime.time, datetime.timedelta, datetime.timezone),
        *(decimal.Decimal, fractions.Fraction, uuid.UUID, np.dtype),
        *(types.FunctionType, types.BuiltinFunctionType, types.ModuleType),
    }
)
_COUNTS_REFERENCES = getattr(sys, "_is_gil_enabled", lambda: True)()


def _references(container: Any, key: Any) -> int:
    return sys.getrefcount(container[key])


_ALONE = _references([np.empty(0)], 0)


def owned(batch: Any) -> Any:
    """A batch, put together and held by the caller alone, with a copy of every mutable value that others hold too.

    Args:
        batch: a dict or tuple of batches; an array, which stays, but for the objects in it; a list of n values.

    Raises:
        BadSource: an object that cannot be copied.
    """
    return map_columns(_owned_column, batch)


def _owned_column(batch: Any) -> Any:
    if isinstance(batch, list):
        kinds = set(map(type, batch))
        if all(_is_immutable(kind) for kind in kinds):
            return batch
        if kinds == {np.ndarray} and not is_alone(batch, 0):
            together = _copied_together(batch)
            if together is not None:
                return together
        return [_own(batch, at, alone=True) for at in range(len(batch))]
    if isinstance(batch, np.ndarray) and batch.dtype.hasobject:
        return copied(batch)
    return batch


def owned_alone(holder: list[Any]) -> Any:
    """The one value of a list that is its only holder, as `owned` has it, arrays included."""
    return _own(holder, 0, alone=True)


def copied(value: Any) -> Any:
    """A copy of a value with every mutable part of it, at any depth.

    Raises:
        BadSource: an object that cannot be copied.
    """
    return _own([value], 0, alone=False)


def is_alone(container: Any, key: Any) -> bool:
    """Whether an array in a container owns its memory and is referred to from nowhere else."""
    if not _COUNTS_REFERENCES or _references(container, key) > _ALONE:
        return False
    value = container[key]
    return bool(
        type(value) is np.ndarray
        and value.flags.owndata
        and value.flags.writeable
        and not value.dtype.hasobject
        and not weakref.getweakrefcount(value)
    )


def _copied_together(arrays: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]] | None:
    """Arrays that differ in their first dimension only as arrays over one fresh memory: one copy, not n; else None."""
    if len({(one.dtype, one.shape[1:], one.ndim) for one in arrays}) > 1:
        return None
    if not arrays[0].ndim or arrays[0].dtype.hasobject:
        return None
    memory = np.concatenate(arrays)
    edges = list(itertools.accumulate(map(len, arrays), initial=0))
    return [memory[start:end] for start, end in itertools.pairwise(edges)]


def _own(container: Any, key: Any, *, alone: bool) -> Any:
    """The value at a key of a container, copied unless the container is its only holder, and held by us alone."""
    if alone and is_alone(container, key):
        return container[key]
    alone = alone and _COUNTS_REFERENCES and _references(container, key) <= _ALONE
    value = container[key]
    kind = type(value)
    if kind in _IMMUTABLE:
        return value
    if kind is np.ndarray and not value.dtype.hasobject:
        return value.copy()
    if isinstance(value, np.memmap):
        return np.array(value)
    if kind is dict:
        return {name: _own(value, name, alone=alone) for name in value}
    if kind is list:
        return [_own(value, at, alone=alone) for at in range(len(value))]
    if isinstance(value, tuple) and (kind is tuple or hasattr(kind, "_fields")):
        return rebuilt(value, [_own(value, at, alone=alone) for at in range(len(value))])
    if _is_immutable(kind) or is_jax_array(value):
        return value
    if is_tensor(value):
        return value.detach().clone()
    if kind is memoryview:
        return value if value.readonly else memoryview(bytearray(value))
    if kind.__module__.startswith("PIL.") and hasattr(value, "copy"):
        return value if alone and _has_its_pixels_alone(value) else value.copy()  # deepcopy takes 40 times as long
    try:
        return copy.deepcopy(value)
    except Exception as error:  # copying runs code of all kinds
        if alone:
            return value  # it was made for this batch
        raise BadSource(
            f"a {kind.__name__} in the source cannot be copied, and a transform that changes it would change the "
            f"source: {error}. Pass copy=False to have the very objects"
        ) from error


def _has_its_pixels_alone(image: Any) -> bool:
    """Whether no other image of PIL has the pixels of one."""
    parts = vars(image)
    return all(_references(parts, name) <= _ALONE for name in ("_im", "im") if name in parts)


def _is_immutable(kind: type) -> bool:
    if kind in _IMMUTABLE:
        return True
    if issubclass(kind, np.generic):
        return not issubclass(kind, np.void | np.object_)  # a view of the record it was taken from
    # Subclasses of str and the like may carry attributes, which nobody changes.
    return issubclass(kind, PurePath | enum.Enum | str | bytes | int | float)


def without_views(batch: Any) -> Any:
    """A batch that can be sent to another process: memoryviews become bytes."""
    return map_columns(_column_without_views, batch)


def _column_without_views(column: Any) -> Any:
    if not isinstance(column, list):
        return column
    return [bytes(value) if isinstance(value, memoryview) else value for value in column]
