"""The elements of fields as Arrow has them, and back: one number, bool or time each.

| dtype | Arrow type |
|---|---|
| numbers, bool | themselves |
| complex | two floats |
| bfloat16, float8 | the bits in an unsigned integer |
| times in days, seconds and less | date32, timestamp, duration |
| times in minutes and hours, durations in days | timestamp, duration in seconds |
| times of other units | int64 |

A NaT has the least integer of its type, also where it is null: so it differs from a record without a value, which has
0.
"""

import bisect
from typing import Any

import numpy as np
import pyarrow as pa

from warmstore.errors import BadSource, UnsupportedType
from warmstore.records.format.fields import ARROW_BITS, ARROW_NATIVE

Bools = np.ndarray[Any, np.dtype[np.bool_]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
UInt8 = np.ndarray[Any, np.dtype[np.uint8]]

_NAT = np.iinfo(np.int64).min
_SECONDS = {"m": 60, "h": 3600}
_DURATION_SECONDS = {**_SECONDS, "D": 86400}
_UNITS = ("s", "ms", "us", "ns")


def element_type(dtype: np.dtype[Any]) -> tuple[pa.DataType, tuple[int, ...]]:
    """The Arrow type of a dtype's values, and the axis of its parts: (2,) for a complex number's."""
    if dtype.kind == "b":
        return pa.bool_(), ()
    if dtype.kind == "c":
        return (pa.float32() if dtype.itemsize == 8 else pa.float64()), (2,)
    if dtype.kind in "mM":
        return _time_type(dtype), ()
    return ARROW_NATIVE.get(dtype.name, ARROW_BITS[dtype.itemsize]), ()


def _time_type(dtype: np.dtype[Any]) -> pa.DataType:
    unit, step = np.datetime_data(dtype)
    if step != 1:
        return pa.int64()
    if dtype.kind == "M":
        if unit == "D":
            return pa.date32()
        return pa.timestamp(unit if unit in _UNITS else "s") if unit in (*_UNITS, *_SECONDS) else pa.int64()
    return pa.duration(unit if unit in _UNITS else "s") if unit in (*_UNITS, *_DURATION_SECONDS) else pa.int64()


def is_time(dtype: np.dtype[Any]) -> bool:
    """Whether Arrow has a type for the times of a dtype."""
    return dtype.kind in "mM" and not pa.types.is_integer(_time_type(dtype))


def elements(
    name: str,
    dtype: np.dtype[Any],
    kind: pa.DataType,
    data: UInt8,
    absent: Bools | None,
    edges: range | Ints | None = None,
    *,
    nat_is_null: bool = True,
) -> pa.Array:
    """Values as a flat column.

    Args:
        kind: that of `element_type`, or int64 instead of a time.
        data: the bytes of the values, one after the other.
        absent: bool [n], values of records that have none.
        edges: where the values of each record start, if they stand in lists. Those say themselves which of them are
            null, so that only NaT is null here.
        nat_is_null: NaT are null.

    Raises:
        UnsupportedType: a time is out of range for its Arrow type.
    """
    count = len(data) // dtype.itemsize
    nulls = None if edges is not None else absent
    if dtype.kind == "b":
        buffer = pa.py_buffer(np.packbits(data != 0, bitorder="little"))
    elif dtype.kind == "c":
        count, buffer = count * 2, pa.py_buffer(data)
    elif is_time(dtype):
        ticks = data.view(np.int64)
        nat = ticks == _NAT
        if absent is not None and (nat & absent).any():  # what stands below no value must not say NaT
            ticks = np.where(absent, 0, ticks)
            nat &= ~absent
        if nat.any() and nat_is_null:
            nulls = nat if nulls is None else nulls | nat
        buffer = pa.py_buffer(_scaled(name, dtype, ticks, nat, absent, edges))
    else:
        buffer = pa.py_buffer(data)
    return pa.Array.from_buffers(kind, count, [bitmap(nulls), buffer])


def _scaled(
    name: str, dtype: np.dtype[Any], ticks: Ints, nat: Bools, absent: Bools | None, edges: range | Ints | None
) -> np.ndarray[Any, Any]:
    """Times in the unit of their Arrow type; `ticks` themselves where that is theirs.

    Raises:
        UnsupportedType: a time is out of range there.
    """
    kind = _time_type(dtype)
    whole, factor = _unit(dtype)
    limits = np.iinfo(whole)
    if whole == np.int64 and factor == 1:
        return ticks
    ticks = np.where(nat if absent is None else nat | absent, 0, ticks)
    most = limits.max // factor
    wrong = np.flatnonzero((ticks > most) | (ticks < -most))
    if len(wrong):
        record = wrong[0] if edges is None else bisect.bisect_right(edges, wrong[0]) - 1
        raise UnsupportedType(
            f"field {name!r}: {ticks[wrong[0]].view(dtype)!r} in record {record} of a batch is out of range "
            f"for Arrow's {kind}; leave the field out with fields=[...], or read it with gather"
        )
    scaled: np.ndarray[Any, Any] = ticks.astype(whole) * whole.type(factor)
    scaled[nat] = limits.min
    return scaled


def _unit(dtype: np.dtype[Any]) -> tuple[np.dtype[Any], int]:
    """The integers of the Arrow type of a time, and how many of its ticks are one of the dtype's."""
    if pa.types.is_date32(_time_type(dtype)):
        return np.dtype(np.int32), 1
    return np.dtype(np.int64), _DURATION_SECONDS.get(np.datetime_data(dtype)[0], 1)


def element_bytes(name: str, dtype: np.dtype[Any], flat: pa.Array, null: Bools | None = None) -> UInt8:
    """The inverse of `elements`: the bytes of the values of a flat column. NaT is what has the least integer.

    Args:
        null: bool [n], values that are null: what stands below is anything.

    Raises:
        BadSource: a time is no multiple of the dtype's unit.
    """
    data = _raw(flat)
    if dtype.kind == "b":
        return data
    if is_time(dtype):
        whole, factor = _unit(dtype)
        ticks = data.view(whole)
        nat = ticks == np.iinfo(whole).min
        if whole == np.int64 and factor == 1:
            return data
        fine = np.where(nat if null is None else nat | null, 0, ticks).astype(np.int64)
        wrong = np.flatnonzero(fine % factor)
        if len(wrong):
            raise BadSource(
                f"column {name!r} holds {fine[wrong[0]]} seconds, which is no whole number of the {dtype} that its "
                "description says. Say what the field is with fields={...}"
            )
        return np.where(nat, _NAT, fine // factor).view(np.uint8)
    return data


def with_nat(data: UInt8, null: Bools) -> UInt8:
    """The bytes of times of which those that are `null` are NaT."""
    return np.where(null, np.int64(_NAT), data.view(np.int64)).view(np.uint8)


def is_nat(data: UInt8) -> Bools:
    """bool [n]: which times, as bytes, are NaT."""
    return np.asarray(data.view(np.int64) == _NAT)


def bitmap(null: Bools | None) -> pa.Buffer | None:
    """The validity bitmap of a column, or None where nothing is null."""
    return None if null is None or not null.any() else pa.py_buffer(np.packbits(~null, bitorder="little"))


def nulls_of(values: pa.Array) -> Bools | None:
    """Which values of a column are null: bool [n], or None for none."""
    if not values.null_count:
        return None
    buffer = values.buffers()[0]
    if buffer is None:  # of type null, or an extension's
        return np.asarray(values.is_null().to_numpy(zero_copy_only=False))
    bits = np.frombuffer(buffer, np.uint8)
    valid = np.unpackbits(bits, count=values.offset + len(values), bitorder="little")[values.offset :]
    return np.asarray(valid == 0)


def _raw(flat: pa.Array) -> UInt8:
    """The bytes of a flat column of fixed width, also those of nulls; of bools one each."""
    buffer, count = flat.buffers()[1], len(flat)
    if buffer is None or not count:
        return np.zeros(0, np.uint8)
    data = np.frombuffer(buffer, np.uint8)
    if pa.types.is_boolean(flat.type):
        return np.unpackbits(data, count=flat.offset + count, bitorder="little")[flat.offset :]
    width = flat.type.bit_width // 8
    return data[flat.offset * width : (flat.offset + count) * width]
