"""Steps that run on whole batches (`batched=True`), and the check that a batch equals its samples one by one.

A batched step gets the columns of a batch: [n, ...] arrays, lists of n, or dicts and tuples of these. It owns them, and
no two of them share memory. A sample that is computed alone is a batch of one.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from warmstore.errors import SchemaMismatch
from warmstore.loading.collate import stack
from warmstore.loading.values.ownership import is_alone
from warmstore.pipeline.encoders.comparison import difference
from warmstore.records.format.array_interop import is_jax_array, is_tensor, to_numpy
from warmstore.tree.columns import map_columns

_IN_LISTS = frozenset((str, bytes, type(None)))


def call_on_columns(call: Callable[[Any], Any], columns: Any, count: int, name: str) -> Any:
    """The result of a batched step as columns that nobody else refers to.

    Args:
        call: the step's function, with all arguments but the first. columns: its input, not used by anybody else.
        count: of the samples. name: of the step.

    Raises:
        SchemaMismatch: the result has not one row per sample.
    """
    given = {id(memory) for column in each_column(columns) for memory in (column, getattr(column, "base", None))}
    given.discard(id(None))
    result = call(columns)
    parts = [part if isinstance(part, list | np.ndarray) else _as_column(part) for part in each_column(result)]
    lengths = {len(part) if isinstance(part, list) or np.ndim(part) else None for part in parts}
    if lengths != {count}:
        raise SchemaMismatch(
            f"step {name!r} is batched and must return arrays or lists with one row per sample ({count:,}), or dicts "
            f"and tuples of these; it returned a {type(result).__name__} with lengths "
            f"{sorted(map(str, lengths)) or 'none'}"
        )
    at = iter(range(len(parts)))
    shape = map_columns(lambda part: next(at), result)  # the columns' numbers, without references to columns
    del result
    known: list[Any] = []
    for number in range(len(parts)):
        parts[number] = _owned(parts, number, given, known)
        known.append(parts[number])
    return map_columns(lambda number: parts[number], shape)


def _owned(parts: list[Any], number: int, given: set[int], known: list[Any]) -> Any:
    """A column, copied if the step or another column may refer to its memory."""
    part = parts[number]
    if not isinstance(part, np.ndarray):
        return list(part)
    is_given = id(part) in given or id(part.base) in given
    del part
    if not is_given and not is_alone(parts, number):
        return parts[number].copy()
    if any(isinstance(other, np.ndarray) and np.may_share_memory(parts[number], other) for other in known):
        return parts[number].copy()
    return parts[number]


def _as_column(part: Any) -> Any:
    return to_numpy(part) if is_tensor(part) or is_jax_array(part) else part


def each_column(columns: Any) -> Iterator[Any]:
    """The columns of a batch, in order."""
    if isinstance(columns, dict):
        columns = tuple(columns.values())
    if isinstance(columns, tuple):
        for part in columns:
            yield from each_column(part)
    else:
        yield columns


def of_one(value: Any) -> Any:
    """A sample as the columns of a batch of one, in memory of their own."""
    return map_columns(lambda column: list(column) if isinstance(column, list) else column, stack([value]))


def row_of(columns: Any, row: int) -> Any:
    """One sample of a batch."""
    return map_columns(lambda column: column[row], columns)


def is_as_one_by_one(columns: Any, stacked: Any) -> bool:
    """Whether each sample, stacked alone, gives its row of a batch.

    Args:
        columns: of the batch before it was stacked, with lists of values where these are not arrays.
        stacked: the batch.
    """
    if isinstance(columns, dict | tuple):
        names = list(columns) if isinstance(columns, dict) else range(len(columns))
        return all(is_as_one_by_one(columns[name], stacked[name]) for name in names)
    if isinstance(columns, list):  # of namedtuples or mappings, if they are stacked by parts
        return not isinstance(stacked, dict | tuple) and _has_one_type(columns, stacked)
    return True


def _has_one_type(column: list[Any], stacked: Any) -> bool:
    """Whether the values of a column, each stacked alone, have the type that they have stacked together.

    Objects that a step may change count as different: they are not copied into the batch.
    """
    kinds = set(map(type, column))
    if isinstance(stacked, list):
        return kinds <= _IN_LISTS
    if stacked.dtype.hasobject:
        return False
    if kinds == {int}:
        return bool(stacked.dtype == np.int64)  # numbers beyond it would change the others' dtype
    if all(issubclass(kind, np.generic) for kind in kinds):
        return {value.dtype for value in column} == {stacked.dtype}
    return len(kinds) == 1


def first_difference(one: Any, other: Any, place: str = "") -> str:
    """The place of the first column in which two batches differ bit by bit, such as `['image'] of row 3`; or ""."""
    if type(one) is not type(other):
        return f"{place or 'the batch'}: {type(one).__name__} and {type(other).__name__}"
    if isinstance(one, dict | tuple):
        names, others = (list(each) if isinstance(each, dict) else list(range(len(each))) for each in (one, other))
        if names != others:
            return f"{place or 'the batch'}: other fields"
        return next(filter(None, (first_difference(one[at], other[at], f"{place}[{at!r}]") for at in names)), "")
    if isinstance(one, np.ndarray) and (one.dtype != other.dtype or one.shape != other.shape):
        return f"{place or 'the batch'}: {one.dtype} {list(one.shape)} and {other.dtype} {list(other.shape)}"
    rows = (row for row in range(len(one)) if difference(one[row], other[row]))
    row = next(rows, None)
    return "" if row is None else f"{place or 'the batch'}, row {row}"
