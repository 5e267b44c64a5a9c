"""How values that vary in length become a batch: as a list, padded to the longest, or packed one after the other or
into rows.

Lists cost nothing and fit everything. Padded ones are one array with a mask; packed ones are what attention kernels
for variable lengths take, and waste no room.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from warmstore.errors import SchemaMismatch
from warmstore.loading.packing import PackRows, pack_rows
from warmstore.loading.validation import MOST_SAMPLES, integer
from warmstore.records.format.array_interop import is_jax_array, is_tensor, to_numpy
from warmstore.records.format.value_encoding import Packed
from warmstore.tree.columns import rebuilt
from warmstore.tree.columns import stack as stack_parts

LIST, PACKED = "list", "packed"


@dataclass(frozen=True)
class Pad:
    """Pad to the longest value of the batch, along the first dimension.

    Args:
        value: what fills up, converted to the values' dtype.
        length: pad to this length instead, so that all batches have one shape; a longer value is an error.

    Raises:
        ValueError: a length that is no integer above zero.
    """

    value: Any = 0
    length: int | None = None

    def __post_init__(self) -> None:
        if self.length is not None:
            object.__setattr__(self, "length", integer("length of a Pad", self.length, 1, MOST_SAMPLES))


Way = str | Pad | PackRows
"""Of one field: "list", "packed", a Pad or a PackRows."""


@dataclass(frozen=True)
class Collation:
    """What to do with values that vary in length: by field, or one way for all."""

    ways: Mapping[str, "Collation"]
    rest: Way = LIST
    asked: bool = False  # for this very field, rather than for all there are

    @classmethod
    def of(cls, given: Any) -> "Collation":
        """From what a user says: "list", "pad", "packed", a Pad, a PackRows, or a dict of these by field.

        Raises:
            ValueError: something else.
        """
        if isinstance(given, Collation):
            return given
        if isinstance(given, Mapping):
            # A nested dict is for a batch that is nested itself.
            return cls({str(name): cls._named(way) for name, way in given.items()})
        if isinstance(given, Pad | PackRows):
            return cls({}, given)
        if given == "pad":
            return cls({}, Pad())
        if isinstance(given, str) and given in (LIST, PACKED):
            return cls({}, given)
        raise ValueError(
            f"collate must be 'list', 'pad', 'packed', a Pad, a PackRows, or a dict of these by field; got {given!r}"
        )

    @classmethod
    def _named(cls, given: Any) -> "Collation":
        found = cls.of(given)
        return found if isinstance(given, Mapping) else cls({}, found.rest, asked=True)

    @property
    def does_nothing(self) -> bool:
        """Whether lists stay lists everywhere."""
        return self.rest == LIST and not self.asked and all(way.does_nothing for way in self.ways.values())

    def under(self, name: str) -> "Collation":
        """What is said of one field, or of all that is below it."""
        return self.ways.get(name) or Collation({}, self.rest)

    def check_names(self, batch: Any) -> None:
        """Raise KeyError where a name is not in a batch."""
        if isinstance(batch, tuple):
            batch = _by_number(batch)
        known = list(batch) if isinstance(batch, Mapping) else []
        for name, way in self.ways.items():
            if name not in known:
                raise KeyError(f"collate names {name!r}, which batches do not have; they have {known}")
            if way.ways:
                way.check_names(batch[name])

    def __call__(self, batch: Any, name: str = "") -> Any:
        """A batch as it was read, collated.

        Raises:
            SchemaMismatch: values that cannot be put together.
        """
        if isinstance(batch, dict):
            return {
                key: self.under(str(key))(value, f"{name}.{key}" if name else str(key)) for key, value in batch.items()
            }
        if isinstance(batch, tuple):
            return rebuilt(batch, self(_by_number(batch), name).values())
        if self.asked and isinstance(batch, np.ndarray) and batch.ndim > 1:
            batch = list(batch)  # samples that happen to have one length
        if self.rest == LIST:
            return batch
        if self.asked and not isinstance(batch, Packed | list):
            raise SchemaMismatch(f"{name or 'the batch'} does not vary in length; it cannot be padded or packed")
        if isinstance(batch, list) and (self.asked or all(_is_sequence(value) for value in batch)):
            batch = _packed(batch, name)
        if not isinstance(batch, Packed):
            return batch  # fixed shapes; text and JSON values, unless they are asked for by name
        values, offsets = _by_rows(batch, name)
        if isinstance(self.rest, PackRows):
            return pack_rows(values, offsets, self.rest, name)
        return _pad(values, offsets, self.rest, name) if isinstance(self.rest, Pad) else _pack(values, offsets)


def stack(samples: Sequence[Any]) -> Any:
    """A list of samples as one batch: dicts and tuples by their parts, arrays and numbers of one shape as an array.

    Args:
        samples: at least one.

    Returns:
        [n, *shape] arrays; a list where shapes or types vary, and of bytes, str and whatever else.
    """
    return stack_parts(samples, _column)


def _column(samples: list[Any]) -> Any:
    first = samples[0]
    if not all(isinstance(sample, _kind_of(first)) for sample in samples):
        return samples
    if isinstance(first, np.character):
        return [sample.item() for sample in samples]  # as str and bytes, which nobody takes for arrays
    if isinstance(first, list):
        try:
            arrays = [np.asarray(sample) for sample in samples]
        except (TypeError, ValueError):  # a list of arrays of several shapes is no array
            return samples
        if any(array.dtype.kind in "OUS" for array in arrays):  # nor are lists of text, or of what has no dtype
            return samples
        samples = arrays
    elif is_tensor(first) or is_jax_array(first):
        samples = [to_numpy(sample) for sample in samples]
    first = samples[0]
    if isinstance(first, np.ndarray):
        same = all(one.shape == first.shape and one.dtype == first.dtype for one in samples)
        return np.stack(samples) if same else samples
    return np.array(samples) if _kind_of(first) is _NUMBERS else samples


_NUMBERS = (bool, int, float, complex, np.number, np.bool_, np.datetime64, np.timedelta64)


def _kind_of(value: Any) -> Any:
    """What the others must be, to be stacked with a value."""
    for kind in (Mapping, tuple, list, np.ndarray, _NUMBERS):
        if isinstance(value, kind):
            return kind
    return type(value)


def _by_number(batch: tuple[Any, ...]) -> dict[str, Any]:
    """The parts of a tuple, by "0", "1", ..., as collate= names them."""
    return {str(at): part for at, part in enumerate(batch)}


def _is_sequence(value: Any) -> bool:
    return isinstance(value, np.ndarray | memoryview | bytes | bytearray) or value is None


def _packed(values: list[Any], name: str) -> Packed:
    """A list of arrays or bytes as one array; None is empty."""
    arrays = [_as_array(value, name) for value in values]
    given = [array for array in arrays if array is not None]
    dtypes = {array.dtype for array in given}
    dims = {array.ndim for array in given}
    if len(dtypes) > 1 or len(dims) > 1 or 0 in dims:
        raise SchemaMismatch(
            f"values of {name or 'the batch'} differ in more than length: dtypes {sorted(map(str, dtypes))}, "
            f"dimensions {sorted(dims)}"
        )
    ndim, dtype = (given[0].ndim, given[0].dtype) if given else (1, np.dtype(np.uint8))
    shapes = np.array([(0,) * ndim if array is None else array.shape for array in arrays], np.int64).reshape(-1, ndim)
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(shapes.prod(axis=1))))
    flat = np.concatenate([array.reshape(-1) for array in given]) if given else np.zeros(0, dtype)
    return Packed(flat, offsets, shapes, np.array([array is None for array in arrays]))


def _as_array(value: Any, name: str) -> np.ndarray[Any, Any] | None:
    if value is None:
        return None
    if isinstance(value, bytes | bytearray | memoryview):
        return np.frombuffer(value, np.uint8)
    if isinstance(value, str):
        return np.frombuffer(value.encode(), np.uint8)
    try:
        return to_numpy(value)
    except ValueError:
        raise SchemaMismatch(f"values of {name or 'the batch'} are no arrays: {value!r:.80}") from None


def _by_rows(packed: Packed, name: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, np.dtype[np.int64]]]:
    """Values as [total length, *rest], and int64 [n + 1] where each begins, in rows."""
    if packed.shapes is None:
        return packed.values, packed.offsets
    shapes = packed.shapes
    if packed.absent is not None:
        shapes = shapes[~packed.absent]
    rest = shapes[:1, 1:]
    if (shapes[:, 1:] != rest).any():
        raise SchemaMismatch(
            f"values of {name or 'the batch'} differ in more than their first dimension: their shapes go from "
            f"{tuple(shapes.min(axis=0).tolist())} to {tuple(shapes.max(axis=0).tolist())}"
        )
    lengths = packed.shapes[:, 0]  # of absent ones 0
    offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
    if not len(shapes):
        return packed.values, offsets
    return packed.values.reshape(int(offsets[-1]), *rest[0].tolist()), offsets


def _pack(values: np.ndarray[Any, Any], offsets: np.ndarray[Any, np.dtype[np.int64]]) -> dict[str, Any]:
    lengths = np.diff(offsets)
    small = len(values) < 2**31
    return {
        "values": values,
        "cu_seqlens": offsets.astype(np.int32 if small else np.int64),
        "max_seqlen": int(lengths.max(initial=0)),
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
    padded = np.full((len(lengths), longest, *values.shape[1:]), pad.value, values.dtype)
    padded[mask] = values
    return {"values": padded, "lengths": lengths, "mask": mask}
