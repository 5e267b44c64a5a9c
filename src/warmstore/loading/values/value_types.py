"""The type of a value, by the names of its classes, so that no library is imported to check a value."""

import inspect
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from warmstore.loading.source import Source
from warmstore.records.field_views import FieldsView, FieldView
from warmstore.records.format.array_interop import is_jax_array, is_tensor
from warmstore.records.framework_arrays import Formatted
from warmstore.replicate.record_store import RecordStore

POLARS_SERIES = ("polars", "Series")
MANY = (("datasets", "DatasetDict"),)
"""Dicts of data sets that are not aligned."""

_WITH_ROWS = (("torch", "DataLoader"), ("warmstore", "Loader"), ("warmstore", "FeatureCache"), ("polars", "LazyFrame"))
_FRAMES = (("pandas", "DataFrame"), ("polars", "DataFrame"))
_HUGGING_FACE = ("datasets.arrow_dataset", "Dataset")
_COLUMNS = (("pandas", "Series"), ("pandas", "Index"), POLARS_SERIES)


def is_of(value: Any, *classes: tuple[str, str]) -> bool:
    """Whether a value is an instance of any of these classes: (package, name)."""
    return any((kind.__module__.partition(".")[0], kind.__name__) in classes for kind in type(value).__mro__)


def is_frame(value: Any) -> bool:
    """Whether a value is a data frame of pandas or polars, or a table of pyarrow."""
    return isinstance(value, pa.Table | pa.RecordBatch) or is_of(value, *_FRAMES)


def is_column(value: Any) -> bool:
    """Whether a value is a column of pandas or polars, or an array of pyarrow."""
    return isinstance(value, pa.Array | pa.ChunkedArray) or is_of(value, *_COLUMNS)


def is_hugging_face(value: Any) -> bool:
    """Whether a value is a `datasets.Dataset`."""
    # The module is compared, as other projects have packages named `datasets`.
    return any((kind.__module__, kind.__name__) == _HUGGING_FACE for kind in type(value).__mro__)


def is_torch_set(value: Any, *names: str) -> bool:
    """Whether a value is a data set of one of torch's classes itself; subclasses may have other samples."""
    return type(value).__module__ == "torch.utils.data.dataset" and type(value).__name__ in names


def is_stream(value: Any) -> bool:
    """Whether a value has samples that can be iterated over, but not read by position."""
    # torch's IterableDataset may have a length, and inherits `__getitem__`.
    if isinstance(value, Iterator) or is_of(value, ("torch", "IterableDataset")):
        return True
    kind = type(value)
    if isinstance(value, Source | set | frozenset) or hasattr(kind, "_as_source") or is_of(value, *_WITH_ROWS):
        return False
    is_made = inspect.isroutine(value) or isinstance(value, partial) or hasattr(kind, "__iter__")
    return is_made and not has_rows(value)


def has_rows(value: Any) -> bool:
    """Whether a value has a length and samples by position. Its class says so: what an object wraps with `__getattr__`
    has other samples."""
    kind = type(value)
    return hasattr(kind, "__len__") and (hasattr(kind, "__getitems__") or hasattr(kind, "__getitem__"))


def many_of(samples: Any) -> Callable[[Any], Any] | None:
    """`__getitems__` of a data set; None if its class has none, or overrides `__getitem__` of the class that has it.

    The samples are those of the class's `__getitem__`. An object that wraps a data set with `__getattr__` has the
    `__getitems__` of that data set, and a subclass of torch's `Subset` inherits one: these read other samples.
    """
    for kind in type(samples).__mro__:
        if "__getitems__" in vars(kind):
            return samples.__getitems__  # type: ignore[no-any-return]
        if "__getitem__" in vars(kind):
            return None
    return None


def is_subset(value: Any) -> bool:
    """Whether a value is a `Subset`."""
    return is_of(value, ("warmstore", "Subset"))


def is_aligned(value: Any) -> bool:
    """Whether a tuple is a tuple of aligned sources rather than of samples.

    It is if every member is a source (an array, tensor or column of at least one dimension, a store or a field, a
    frame, a data set, a `Source`) or a list, and not all members are lists.
    """
    return (
        isinstance(value, tuple)
        and all(isinstance(member, list) or _is_source(member) for member in value)
        and not all(isinstance(member, list) for member in value)
    )


def _is_source(value: Any) -> bool:
    if isinstance(value, np.ndarray) or is_tensor(value) or is_jax_array(value):
        return bool(value.ndim)
    if isinstance(value, Source | RecordStore | FieldView | FieldsView | Formatted):
        return True
    if hasattr(type(value), "_as_source") or is_subset(value):  # data sets of warmstore
        return True
    return is_column(value) or is_frame(value) or is_hugging_face(value)
