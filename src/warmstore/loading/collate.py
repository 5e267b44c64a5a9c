"""Collation of values that vary in length: a list, padded to the longest, concatenated, or packed into rows.

A list costs nothing and holds any values. Padded values are one array with a mask. Packed values are concatenated with
offsets, as attention kernels for variable lengths take them, and waste no room.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from warmstore.errors import SchemaMismatch
from warmstore.loading.packing import PackRows, pack_rows, padding
from warmstore.loading.validation import MOST_SAMPLES, integer, set_fields
from warmstore.records.format.array_interop import is_jax_array, is_tensor, to_numpy
from warmstore.records.format.value_encoding import Packed
from warmstore.tree.columns import rebuilt
from warmstore.tree.columns import stack as stack_parts

LIST, PACKED = "list", "packed"


@dataclass(frozen=True)
class Pad:
    """Pad to the longest value of the batch, along the first dimension.

    Args:
        value: the value of padding, converted to the values' dtype.
        length: pad to this length instead, so that all batches have one shape; a longer value is an error.

    Raises:
        ValueError: a length that is no integer above zero.
    """

    value: Any = 0
    length: int | None = None

    def __post_init__(self) -> None:
        if self.length is not None:
            set_fields(self, length=integer("length of a Pad", self.length, 1, MOST_SAMPLES))


Way = str | Pad | PackRows
"""The collation of one field: "list", "packed", a Pad or a PackRows."""


@dataclass(frozen=True)
class Collation:
    """How to collate values that vary in length.

    ways: collations of fields by name. rest: the way of all other fields. asked: the way was passed for this field by
    name, so values that cannot be collated in that way are an error.
    """

    ways: Mapping[str, "Collation"]
    rest: Way = LIST
    asked: bool = False

    @classmethod
    def of(cls, given: Any) -> "Collation":
        """The `collate` argument: "list", "pad", "packed", a Pad, a PackRows, or a dict of these by field.

        Raises:
            ValueError: any other value.
        """
        if isinstance(given, Collation):
            return given
        if isinstance(given, Mapping):
            # A nested dict is for a nested batch.
            return cls({str(name): cls._named(way) for name, way in given.items()})
        way = Pad() if isinstance(given, str) and given == "pad" else given
        if isinstance(way, Pad | PackRows) or (isinstance(way, str) and way in (LIST, PACKED)):
            return cls({}, way)
        raise ValueError(
            f"collate must be 'list', 'pad', 'packed', a Pad, a PackRows, or a dict of these by field; got {given!r}"
        )

    @classmethod
    def _named(cls, given: Any) -> "Collation":
        collation = cls.of(given)
        return collation if isinstance(given, Mapping) else cls({}, collation.rest, asked=True)

    @property
    def does_nothing(self) -> bool:
        """Whether lists stay lists in all fields."""
        return self.rest == LIST and not self.asked and all(way.does_nothing for way in self.ways.values())

    def under(self, name: str) -> "Collation":
        """The collation of one field and of all fields below it."""
        return self.ways.get(name) or Collation({}, self.rest)

    def check_names(self, batch: Any) -> None:
        """Raise KeyError for a name that is not in a batch."""
        if isinstance(batch, tuple):
            batch = _by_number(batch)
        known = list(batch) if isinstance(batch, Mapping) else []
        for name, way in self.ways.items():
            if name not in known:
                raise KeyError(f"collate names {name!r}, which batches do not have; they have {known}")
            if way.ways:
                way.check_names(batch[name])

    def __call__(self, batch: Any, name: str = "") -> Any:
        """Collate a batch of a source.

        Args:
            name: the path of the batch in the whole batch, for errors.

        Raises:
            SchemaMismatch: values that cannot be collated.
        """
        if isinstance(batch, dict):
            return {
                key: self.under(str(key))(value, f"{name}.{key}" if name else str(key)) for key, value in batch.items()
            }
        if isinstance(batch, tuple):
            return rebuilt(batch, self(_by_number(batch), name).values())
        if self.asked and isinstance(batch, np.ndarray) and (batch.ndim > 1 or batch.dtype == object):
            batch = list(batch)  # the samples of this batch have equal lengths by chance, or are objects
        elif self.rest != LIST and _holds_sequences(batch):
            batch = list(batch)
        if self.rest == LIST:
            return batch
        if self.asked and not isinstance(batch, Packed | list):
            raise SchemaMismatch(f"{name or 'the batch'} does not vary in length; it cannot be padded or packed")
        if isinstance(batch, list) and (self.asked or all(_is_sequence(value) for value in batch)):
            batch = _packed(batch, name)
        if not isinstance(batch, Packed):
            return batch  # fixed shapes, text and JSON values
        values, offsets = _by_rows(batch, name)
        if isinstance(self.rest, PackRows):
            return pack_rows(values, offsets, self.rest, name)
        return _pad(values, offsets, self.rest, name) if isinstance(self.rest, Pad) else _pack(values, offsets)


def stack(samples: Sequence[Any]) -> Any:
    """A list of samples as one batch: dicts and tuples by their parts, arrays and numbers of one shape as an array.

    Args:
        samples: at least one.

    Returns:
        [n, *shape] arrays; masked ones if a sample is. Lists for varying shapes or types, for bytes, str and other
        objects, and for integers that no dtype holds.

    Raises:
        SchemaMismatch: dicts with different keys, or tuples of different lengths.
    """
    return stack_parts(samples, _column)


def _column(samples: list[Any]) -> Any:
    first = samples[0]
    if not all(isinstance(sample, _kind_of(first)) for sample in samples):
        return samples
    if isinstance(first, np.character):
        return [sample.item() for sample in samples]  # str and bytes instead of NumPy scalars
    if isinstance(first, list):
        try:
            arrays = [_array_of(sample) for sample in samples]
        except (TypeError, ValueError):  # arrays of different shapes
            return samples
        if any(array is None or array.dtype.kind in "OUS" for array in arrays):  # text or objects
            return samples
        samples = _empty_alike(arrays)
    elif is_tensor(first) or is_jax_array(first):
        samples = [to_numpy(sample) for sample in samples]
    first = samples[0]
    if isinstance(first, np.ndarray):
        is_uniform = all(sample.shape == first.shape and sample.dtype == first.dtype for sample in samples)
        return _stacked(samples) if is_uniform else samples
    array = _array_of(samples) if _kind_of(first) is _NUMBERS else None
    return samples if array is None else array


def _empty_alike(arrays: list[Any]) -> list[Any]:
    """Arrays of lists. An empty list, of which NumPy makes floats, has no rows of those that the others have."""
    filled = [array for array in arrays if array.size]
    dtypes, rows = {array.dtype for array in filled}, {array.shape[1:] for array in filled}
    if len(filled) == len(arrays) or len(dtypes) != 1:
        return arrays
    empty = np.empty((0, *(rows.pop() if len(rows) == 1 else ())), dtypes.pop())
    return [array if array.size else empty.copy() if array.ndim == 1 else array.astype(empty.dtype) for array in arrays]


def _stacked(samples: list[Any]) -> Any:
    """Arrays of one shape and dtype, in C order whatever theirs, as batches that are gathered: sums depend on it."""
    first = samples[0]
    values = np.stack(samples, out=np.empty((len(samples), *first.shape), first.dtype))
    if any(isinstance(sample, np.ma.MaskedArray) for sample in samples):
        return np.ma.MaskedArray(values, np.stack([np.ma.getmaskarray(sample) for sample in samples]))
    return values


def _array_of(values: list[Any]) -> np.ndarray[Any, Any] | None:
    """Numbers as an array; None for integers that no dtype holds, of which NumPy makes rounded floats or objects."""
    array = np.asarray(values)
    may_be_rounded = array.dtype == object or (array.dtype == np.float64 and (abs(array) >= 2**53).any())
    if not array.size or not may_be_rounded:
        return array
    whole = np.asarray(values, object)
    if not all(isinstance(value, int | np.integer) for value in whole.flat):
        return array
    least, most = int(whole.min()), int(whole.max())
    fitting = (kind for kind in (np.int64, np.uint64) if np.iinfo(kind).min <= least and most <= np.iinfo(kind).max)
    dtype = next(fitting, None)
    return None if dtype is None else whole.astype(dtype)


_NUMBERS = (bool, int, float, complex, np.number, np.bool_, np.datetime64, np.timedelta64)


def _kind_of(value: Any) -> Any:
    """The type of values that can be stacked with a value."""
    for kind in (Mapping, tuple, list, np.ndarray, _NUMBERS):
        if isinstance(value, kind):
            return kind
    return type(value)


def _by_number(batch: tuple[Any, ...]) -> dict[str, Any]:
    """The parts of a tuple by their names in collate=: "0", "1", ..."""
    return {str(at): part for at, part in enumerate(batch)}


def _is_sequence(value: Any) -> bool:
    return isinstance(value, np.ndarray | memoryview | bytes | bytearray) or value is None


def _holds_sequences(batch: Any) -> bool:
    """Whether a batch is an array of objects that are arrays: NumPy's own way to hold values that vary in length."""
    return isinstance(batch, np.ndarray) and batch.dtype == object and all(map(_is_sequence, batch.tolist()))


def _packed(values: list[Any], name: str) -> Packed:
    """A list of arrays or bytes, concatenated; None is absent."""
    arrays = [_as_array(value, name) for value in values]
    present = [array for array in arrays if array is not None]
    dtypes = {array.dtype for array in present}
    dims = {array.ndim for array in present}
    if len(dtypes) > 1 or len(dims) > 1 or 0 in dims:
        raise SchemaMismatch(
            f"values of {name or 'the batch'} differ in more than length: dtypes {sorted(map(str, dtypes))}, "
            f"dimensions {sorted(dims)}"
        )
    ndim, dtype = (present[0].ndim, present[0].dtype) if present else (1, np.dtype(np.uint8))
    shapes = np.array([(0,) * ndim if array is None else array.shape for array in arrays], np.int64).reshape(-1, ndim)
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(shapes.prod(axis=1))))
    join = np.ma.concatenate if any(isinstance(array, np.ma.MaskedArray) for array in present) else np.concatenate
    flat = join([array.reshape(-1) for array in present]) if present else np.zeros(0, dtype)
    return Packed(flat, offsets, shapes, np.array([array is None for array in arrays]))


def _as_array(value: Any, name: str) -> np.ndarray[Any, Any] | None:
    if value is None or isinstance(value, np.ma.MaskedArray):
        return value
    if isinstance(value, str | bytes | bytearray | memoryview):
        return np.frombuffer(value.encode() if isinstance(value, str) else value, np.uint8)
    try:
        return to_numpy(value)
    except ValueError:
        raise SchemaMismatch(f"values of {name or 'the batch'} are no arrays: {value!r:.80}") from None


def _by_rows(packed: Packed, name: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, np.dtype[np.int64]]]:
    """Values as [total length, *rest], and where each begins: int64 [n + 1]."""
    if packed.shapes is None:
        return packed.values, packed.offsets
    shapes = packed.shapes if packed.absent is None else packed.shapes[~packed.absent]
    rest = shapes[:1, 1:]
    if (shapes[:, 1:] != rest).any():
        raise SchemaMismatch(
            f"values of {name or 'the batch'} differ in more than their first dimension: their shapes go from "
            f"{tuple(shapes.min(axis=0).tolist())} to {tuple(shapes.max(axis=0).tolist())}"
        )
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(packed.shapes[:, 0])))
    if not len(shapes):
        return packed.values, offsets
    return packed.values.reshape(int(offsets[-1]), *rest[0].tolist()), offsets


def _pack(values: np.ndarray[Any, Any], offsets: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, Any]:
    return {
        "values": values,
        "cu_seqlens": offsets.astype(np.int32 if len(values) < 2**31 else np.int64),
        "max_seqlen": int(np.diff(offsets).max(initial=0)),
    }


def _pad(
    values: np.ndarray[Any, Any], offsets: np.ndarray[Any, np.dtype[np.int64]], pad: Pad, name: str
) -> dict[str, Any]:
    lengths = np.diff(offsets)
    longest = int(lengths.max(initial=0))
    if pad.length is not None:
        if longest > pad.length:
            raise SchemaMismatch(f"a value of {name or 'the batch'} has length {longest:,}, more than {pad.length:,}")
        longest = pad.length
    mask = np.arange(longest) < lengths[:, None]
    padded = padding((len(lengths), longest, *values.shape[1:]), pad.value, values)
    padded[mask] = values
    return {"values": padded, "lengths": lengths, "mask": mask}
