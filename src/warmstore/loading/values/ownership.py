"""Batches that own their memory: values that a source keeps are copied, values made for the batch are not.

A value with a single reference, the batch's, was made for the batch. The count for a single reference is measured with
the same expression, as the interpreter may add references of its own.
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
    """A batch with copies of all mutable values that have other references.

    Args:
        batch: a dict or tuple of batches, a list of n values, or an array, of which only objects are copied. The caller
            has the only reference.

    Raises:
        BadSource: an object that cannot be copied.
    """
    return map_columns(_owned_column, batch)


def _owned_column(batch: Any) -> Any:
    if isinstance(batch, list):
        kinds = set(map(type, batch))
        if all(_is_immutable(kind) for kind in kinds):
            return batch
        if kinds == {np.ndarray} and not is_alone(batch, 0) and (copies := _copied_together(batch)) is not None:
            return copies
        return [_own(batch, at, alone=True) for at in range(len(batch))]
    if type(batch) is np.ndarray and batch.dtype == object:
        return _copied_objects(batch)
    if isinstance(batch, np.ndarray) and batch.dtype.hasobject:
        return copied(batch)
    return batch


def _copied_objects(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Copies of the objects, each of its own: a deep copy has a sample that was drawn twice as one object."""
    made = np.empty_like(array)
    for at in np.ndindex(array.shape):
        made[at] = copied(array[at])
    return made


def owned_alone(holder: list[Any]) -> Any:
    """The value of a list of one, copied if it has other references."""
    return _own(holder, 0, alone=True)


def copied(value: Any) -> Any:
    """A deep copy of a value.

    Raises:
        BadSource: an object that cannot be copied.
    """
    return _own([value], 0, alone=False)


def is_alone(container: Any, key: Any) -> bool:
    """Whether a value is an array that owns its memory and has no reference but the container's."""
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
    """Copies over one memory of arrays that differ in their first dimension only; None for other arrays."""
    if len({(array.dtype, array.shape[1:], array.ndim) for array in arrays}) > 1:
        return None
    if not arrays[0].ndim or arrays[0].dtype.hasobject:
        return None
    memory = np.concatenate(arrays)
    edges = list(itertools.accumulate(map(len, arrays), initial=0))
    return [memory[start:end] for start, end in itertools.pairwise(edges)]


def _own(container: Any, key: Any, *, alone: bool) -> Any:
    """The value at a key of a container, copied unless `alone` and the container has the only reference."""
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
        return value if alone and _owns_pixels(value) else value.copy()  # deepcopy takes 40 times as long
    try:
        return copy.deepcopy(value)
    except Exception as error:  # deepcopy runs code of the object
        if alone:
            return value
        raise BadSource(
            f"a {kind.__name__} in the source cannot be copied, and a transform that changes it would change the "
            f"source: {error}. Pass copy=False to read the objects themselves"
        ) from error


def _owns_pixels(image: Any) -> bool:
    """Whether no other PIL image shares the pixels."""
    parts = vars(image)
    return all(_references(parts, name) <= _ALONE for name in ("_im", "im") if name in parts)


def _is_immutable(kind: type) -> bool:
    if kind in _IMMUTABLE:
        return True
    if issubclass(kind, np.generic):
        return not issubclass(kind, np.void | np.object_)  # np.void is a view of a record
    # Attributes of subclasses of str and the like are taken as constant.
    return issubclass(kind, PurePath | enum.Enum | str | bytes | int | float)
