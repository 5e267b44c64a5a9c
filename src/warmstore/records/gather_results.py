"""What a gather gives its caller: values of committed and pending rows, stacked, as lists, or packed in one array."""

from collections.abc import Collection, Mapping
from dataclasses import InitVar, dataclass, replace
from typing import Any

import numpy as np

from warmstore.errors import SchemaMismatch
from warmstore.records.format.array_interop import is_tensor, to_numpy
from warmstore.records.format.encoded_rows import join, packed
from warmstore.records.format.fields import Array, Field, Ragged, numpy_dtype
from warmstore.records.format.value_encoding import (
    Packed,
    decode_array,
    decode_gathered,
    decode_packed,
    decode_rows,
    decompressed,
)
from warmstore.records.read.snapshot import Int64
from warmstore.records.write.generation import Generation
from warmstore.records.write.write_buffer import WriteBuffer
from warmstore.storage.memory.buffer_pool import Allocate, take

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def read(generation: Generation, names: Collection[str], positions: Int64) -> dict[str, Any]:
    """Values of committed records: an array or a list per field."""
    fields, gatherer = generation.manifest.fields, generation.gatherer
    snapshot = gatherer.snapshot
    rows = snapshot.rows_at(positions)
    values: dict[str, Any] = {}
    for name in names:
        column = gatherer.column(name)
        found = None if column is None or column.snapshot is not snapshot else column.read(rows)
        if found is None:
            found = decode_gathered(fields[name], generation.read([name], positions)[0])
        values[name] = found
    return values


@dataclass(frozen=True)
class Options:
    """How values are wanted; see `RecordStore.gather`."""

    packed: bool
    out: Mapping[str, Any]
    names: InitVar[Collection[str]]

    def __post_init__(self, names: Collection[str]) -> None:
        for name in self.out:
            if name not in names:
                raise KeyError(f"out has {name!r}, which is not among the fields to read: {list(names)}")


def read_as_wanted(
    generation: Generation,
    pending: WriteBuffer | None,
    names: Collection[str],
    positions: Int64,
    options: Options | None,
) -> dict[str, Any]:
    """`read` where some of the records may be pending, or with options."""
    values = {}
    for name in names:
        field = generation.manifest.fields[name]
        out = None if options is None else options.out.get(name)
        if isinstance(field, Array):
            values[name] = _stacked(generation, pending, name, positions, out)
        elif options is not None and options.packed:
            values[name] = _packed(generation, pending, name, positions, _allocator(name, field, out))
        elif out is not None:
            raise SchemaMismatch(f"values of field {name!r} come as a list; ask for packed=True to have them in out")
        else:
            values[name] = _all(generation, pending, name, positions)
    return values


def _all(generation: Generation, pending: WriteBuffer | None, name: str, positions: Int64) -> Any:
    """Values of one field, committed and pending."""
    if pending is None:
        return read(generation, [name], positions)[name]
    committed = generation.snapshot.length
    late = positions >= committed
    rest = decode_rows(generation.manifest.fields[name], pending.take(name, positions[late] - committed))
    if late.all():
        return rest
    early = read(generation, [name], positions[~late])[name]
    place = _places(late)
    if isinstance(early, list):
        both = early + rest
        return [both[at] for at in place.tolist()]
    masked = isinstance(early, np.ma.MaskedArray) or isinstance(rest, np.ma.MaskedArray)
    return (np.ma.concatenate if masked else np.concatenate)((early, rest))[place]


def _stacked(generation: Generation, pending: WriteBuffer | None, name: str, positions: Int64, out: Any) -> Any:
    """Values of an Array field, in `out` if there is one."""
    if out is None:
        return _all(generation, pending, name, positions)
    field = generation.manifest.fields[name]
    assert isinstance(field, Array)
    target = _target(name, out)
    shape = (len(positions), *field.shape)
    if target.shape != shape or target.dtype != field.numpy:
        raise SchemaMismatch(
            f"out[{name!r}] is {target.dtype} of shape {target.shape}; these values are {field.dtype} of shape {shape}"
        )
    data = target.reshape(-1).view(np.uint8).reshape(len(positions), field.width)
    if pending is None:
        gatherer = generation.gatherer
        column = gatherer.column(name)
        if column is not None and column.read_into(column.snapshot.rows_at(positions), data):
            return out
    values = _all(generation, pending, name, positions)
    if not isinstance(values, np.ma.MaskedArray):
        target[...] = values
        return out
    target[...] = values.data
    absent = np.ma.getmaskarray(values).reshape(len(positions), -1).all(axis=1)
    return decode_array(field, data, np.asarray(absent))


def _packed(
    generation: Generation, pending: WriteBuffer | None, name: str, positions: Int64, allocate: Allocate
) -> Packed:
    """Values of a field that are no arrays of one shape, one after the other."""
    field, committed = generation.manifest.fields[name], generation.snapshot.length
    if pending is None:
        (gathered,) = generation.read([name], positions)
        return decode_packed(field, decompressed(field, gathered, allocate))
    late = positions >= committed
    (gathered,) = generation.read([name], positions[~late])
    both = join([decompressed(field, gathered), pending.take(name, positions[late] - committed)])
    place, views = _places(late), both.views()
    shapes = None if both.shapes is None else both.shapes[place]
    rows = packed([views[at] for at in place.tolist()], shapes, allocate)
    return decode_packed(field, replace(rows, absent=None if both.absent is None else both.absent[place]))


def _allocator(name: str, field: Field, out: Any) -> Allocate:
    """Where packed values go: into `out` if there is one, which must be large enough."""
    if out is None:
        return take
    target = _target(name, out)
    dtype = numpy_dtype(field.dtype) if isinstance(field, Ragged) else np.dtype(np.uint8)
    if target.ndim != 1 or target.dtype != dtype:
        raise SchemaMismatch(
            f"out[{name!r}] is {target.dtype} of shape {target.shape}; packed values need one dimension of {dtype}"
        )
    memory = target.view(np.uint8)

    def allocate(length: int) -> Bytes:
        if length > len(memory):
            raise SchemaMismatch(
                f"out[{name!r}] has room for {len(target):,} values; these are {length // dtype.itemsize:,}"
            )
        return memory[:length]

    return allocate


def _target(name: str, out: Any) -> np.ndarray[Any, Any]:
    tensor = is_tensor(out)
    if not (tensor or isinstance(out, np.ndarray)) or (tensor and out.device.type != "cpu"):
        raise SchemaMismatch(f"out[{name!r}] must be a NumPy array or a tensor on the CPU; got {out!r:.80}")
    if not (out.is_contiguous() if tensor else out.flags.c_contiguous and out.flags.writeable):
        raise SchemaMismatch(f"out[{name!r}] must be writeable and contiguous")
    return to_numpy(out)


def _places(late: np.ndarray[Any, np.dtype[np.bool_]]) -> Int64:
    """Where each row comes to stand: first all committed ones were read, then all pending ones."""
    return np.argsort(np.concatenate((np.flatnonzero(~late), np.flatnonzero(late))))
