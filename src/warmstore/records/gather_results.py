"""The results of a gather: values of committed and pending rows, stacked, as lists, or packed in one array."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from warmstore.errors import SchemaMismatch
from warmstore.records.format import encoded_rows
from warmstore.records.format.array_interop import is_tensor, to_numpy
from warmstore.records.format.encoded_rows import GatheredColumn
from warmstore.records.format.fields import Array, Field, Fields, Ragged, numpy_dtype
from warmstore.records.format.value_encoding import (
    Packed,
    decode_array,
    decode_gathered,
    decode_packed,
    decode_rows,
    decompressed,
)
from warmstore.records.read.gather import Gatherer
from warmstore.records.read.snapshot import Snapshot
from warmstore.records.read.verified_column import VerifiedColumn
from warmstore.records.write.generation import Generation
from warmstore.records.write.write_buffer import WriteBuffer
from warmstore.storage.array_types import Bools, Bytes, Int64
from warmstore.storage.memory.buffer_pool import Allocate, take


@dataclass(frozen=True)
class CommittedRecords:
    """The committed records of one moment. A record's fields are all read in `snapshot`: another thread may refresh the
    store meanwhile, and a position may be another record then."""

    generation: Generation
    gatherer: Gatherer
    snapshot: Snapshot

    @classmethod
    def of(cls, generation: Generation, gatherer: Gatherer | None = None) -> "CommittedRecords":
        """Those that this process has read from the log by now."""
        gatherer = gatherer or generation.gatherer
        return cls(generation, gatherer, gatherer.snapshot)

    @property
    def fields(self) -> Fields:
        return self.generation.manifest.fields

    def column(self, name: str) -> VerifiedColumn | None:
        """A field whose values can be copied without checks; None for any other."""
        column = self.gatherer.column(name)
        return None if column is None or column.snapshot is not self.snapshot else column

    def gather(self, name: str, positions: Int64) -> GatheredColumn:
        """One field at some positions. Raises Damaged."""
        return self.generation.read([name], positions, self.gatherer, self.snapshot)[0]


def read(records: CommittedRecords, names: Collection[str], positions: Int64) -> dict[str, Any]:
    """Values of committed records: an array or a list per field."""
    rows = records.snapshot.rows_at(positions)
    values: dict[str, Any] = {}
    for name in names:
        column = records.column(name)
        found = None if column is None else column.read(rows)
        if found is None:
            found = decode_gathered(records.fields[name], records.gather(name, positions))
        values[name] = found
    return values


def read_with_options(
    records: CommittedRecords,
    pending: WriteBuffer | None,
    names: Collection[str],
    positions: Int64,
    packed: Collection[str],
    outs: Mapping[str, Any],
) -> dict[str, Any]:
    """`read`, with pending records and with the options `packed` and `out` of `RecordStore.gather`."""
    values = {}
    for name in names:
        field = records.fields[name]
        out = outs.get(name)
        if isinstance(field, Array):
            values[name] = _stacked(records, pending, name, positions, out)
        elif name in packed:
            values[name] = _packed(records, pending, name, positions, _allocator(name, field, out))
        elif out is not None:
            raise SchemaMismatch(f"values of field {name!r} come as a list; ask for packed=True to have them in out")
        else:
            values[name] = _all(records, pending, name, positions)
    return values


def _all(records: CommittedRecords, pending: WriteBuffer | None, name: str, positions: Int64) -> Any:
    """Values of one field, of committed and pending records."""
    if pending is None:
        return read(records, [name], positions)[name]
    committed = records.snapshot.length
    is_pending = positions >= committed
    new = decode_rows(records.fields[name], pending.take(name, positions[is_pending] - committed))
    if is_pending.all():
        return new
    old = read(records, [name], positions[~is_pending])[name]
    order = _order(is_pending)
    if isinstance(old, list):
        both = old + new
        return [both[at] for at in order.tolist()]
    masked = isinstance(old, np.ma.MaskedArray) or isinstance(new, np.ma.MaskedArray)
    return (np.ma.concatenate if masked else np.concatenate)((old, new))[order]


def _stacked(records: CommittedRecords, pending: WriteBuffer | None, name: str, positions: Int64, out: Any) -> Any:
    """Values of an Array field, read into `out` unless it is None."""
    if out is None:
        return _all(records, pending, name, positions)
    field = records.fields[name]
    assert isinstance(field, Array)
    target = _target(name, out)
    shape = (len(positions), *field.shape)
    if target.shape != shape or target.dtype != field.numpy:
        raise SchemaMismatch(
            f"out[{name!r}] is {target.dtype} of shape {target.shape}; these values are {field.dtype} of shape {shape}"
        )
    data = target.reshape(-1).view(np.uint8).reshape(len(positions), field.width)
    if pending is None:
        column = records.column(name)
        if column is not None and column.read_into(records.snapshot.rows_at(positions), data):
            return out
    values = _all(records, pending, name, positions)
    if not isinstance(values, np.ma.MaskedArray):
        target[...] = values
        return out
    target[...] = values.data
    absent = np.ma.getmaskarray(values).reshape(len(positions), -1).all(axis=1)
    return decode_array(field, data, np.asarray(absent))


def _packed(
    records: CommittedRecords, pending: WriteBuffer | None, name: str, positions: Int64, allocate: Allocate
) -> Packed:
    """Values without one common shape, concatenated in one array."""
    field, committed = records.fields[name], records.snapshot.length
    if pending is None:
        return decode_packed(field, decompressed(field, records.gather(name, positions), allocate))
    is_pending = positions >= committed
    gathered = records.gather(name, positions[~is_pending])
    both = encoded_rows.join([decompressed(field, gathered), pending.take(name, positions[is_pending] - committed)])
    order, views = _order(is_pending), both.views()
    shapes = None if both.shapes is None else both.shapes[order]
    rows = encoded_rows.packed([views[at] for at in order.tolist()], shapes, allocate)
    return decode_packed(field, replace(rows, absent=None if both.absent is None else both.absent[order]))


def _allocator(name: str, field: Field, out: Any) -> Allocate:
    """Gives memory for packed values: `out`, which must be large enough, or new memory if `out` is None."""
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
    if tensor and (out.is_conj() or out.is_neg()):
        raise SchemaMismatch(f"out[{name!r}] is the conjugate of a tensor: read into that one, or into a copy of it")
    return to_numpy(out)


def _order(is_pending: Bools) -> Int64:
    """The index that puts rows back into the order asked for: committed rows were read first, pending ones after."""
    return np.argsort(np.concatenate((np.flatnonzero(~is_pending), np.flatnonzero(is_pending))))
