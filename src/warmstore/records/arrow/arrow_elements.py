"""Conversion of the elements of fields, each a number, bool or time, to Arrow and back.

| dtype | Arrow type |
|---|---|
| numbers, bool | the same |
| complex | two floats |
| bfloat16, float8 | the bits in an unsigned integer |
| times in days, seconds and less | date32, timestamp, duration |
| times in minutes and hours, durations in days | timestamp, duration in seconds |
| times of other units | int64 |

A NaT is the least integer of its type, also if it is null. So it differs from a record without a value, which is 0.
"""

import bisect
from typing import Any

import numpy as np
import pyarrow as pa

from warmstore.errors import BadSource, UnsupportedType
from warmstore.records.format.fields import ARROW_BITS, ARROW_NATIVE
from warmstore.storage.array_types import Bools, Bytes, Int64

_NAT = np.iinfo(np.int64).min
_SECONDS = {"m": 60, "h": 3600}
_DURATION_SECONDS = {**_SECONDS, "D": 86400}
_UNITS = ("s", "ms", "us", "ns")


def element_type(dtype: np.dtype[Any]) -> tuple[pa.DataType, tuple[int, ...]]:
    """The Arrow type of a dtype's elements, and their additional axes: (2,) for complex numbers, else ()."""
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
    """Whether a dtype is a time that Arrow has a type for."""
    return dtype.kind in "mM" and not pa.types.is_integer(_time_type(dtype))


def elements(
    name: str,
    dtype: np.dtype[Any],
    kind: pa.DataType,
    data: Bytes,
    absent: Bools | None,
    edges: range | Int64 | None = None,
    *,
    nat_is_null: bool = True,
) -> pa.Array:
    """Values as a flat column.

    Args:
        kind: the type of `element_type`, or int64 instead of a time.
        data: the concatenated bytes of the values.
        absent: bool [n], values of records without a value.
        edges: the index of the first value of each record, for values in lists. The lists have their own nulls, so only
            NaT is null here.
        nat_is_null: NaT is null.

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
        if absent is not None and (nat & absent).any():  # the element of an absent value must not be NaT
            ticks = np.where(absent, 0, ticks)
            nat &= ~absent
        if nat.any() and nat_is_null:
            nulls = nat if nulls is None else nulls | nat
        buffer = pa.py_buffer(_scaled(name, dtype, ticks, nat, absent, edges))
    else:
        buffer = pa.py_buffer(data)
    return pa.Array.from_buffers(kind, count, [bitmap(nulls), buffer])


def _scaled(
    name: str, dtype: np.dtype[Any], ticks: Int64, nat: Bools, absent: Bools | None, edges: range | Int64 | None
) -> np.ndarray[Any, Any]:
    """Times in the unit of their Arrow type; `ticks` itself if the units are equal.

    Raises:
        UnsupportedType: a time is out of range for the Arrow type.
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
    """The integer type of a time in Arrow, and the number of its ticks in one tick of the dtype."""
    if pa.types.is_date32(_time_type(dtype)):
        return np.dtype(np.int32), 1
    return np.dtype(np.int64), _DURATION_SECONDS.get(np.datetime_data(dtype)[0], 1)


def element_bytes(name: str, dtype: np.dtype[Any], flat: pa.Array, null: Bools | None = None) -> Bytes:
    """The inverse of `elements`: the bytes of the values of a flat column. The least integer is NaT.

    Args:
        null: bool [n], null values, whose elements are arbitrary.

    Raises:
        BadSource: a time is not a multiple of the dtype's unit.
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
                f"column {name!r} holds {fine[wrong[0]]} seconds, which is not a multiple of the unit of {dtype}, the "
                "dtype in its description. Specify the field with fields={...}"
            )
        return np.where(nat, _NAT, fine // factor).view(np.uint8)
    return data


def with_nat(data: Bytes, null: Bools) -> Bytes:
    """The bytes of times, with NaT for those that are `null`."""
    return np.where(null, np.int64(_NAT), data.view(np.int64)).view(np.uint8)


def is_nat(data: Bytes) -> Bools:
    """bool [n]: which times, as bytes, are NaT."""
    return np.asarray(data.view(np.int64) == _NAT)


def bitmap(null: Bools | None) -> pa.Buffer | None:
    """The validity bitmap of a column; None if nothing is null."""
    return None if null is None or not null.any() else pa.py_buffer(np.packbits(~null, bitorder="little"))


def nulls_of(values: pa.Array) -> Bools | None:
    """Which values of a column are null: bool [n]; None if none is."""
    if not values.null_count:
        return None
    buffer = values.buffers()[0]
    if buffer is None:  # a column of type null or of an extension type
        return np.asarray(values.is_null().to_numpy(zero_copy_only=False))
    bits = np.frombuffer(buffer, np.uint8)
    valid = np.unpackbits(bits, count=values.offset + len(values), bitorder="little")[values.offset :]
    return np.asarray(valid == 0)


def _raw(flat: pa.Array) -> Bytes:
    """The bytes of a flat column of fixed width, nulls included; one byte per bool."""
    buffer, count = flat.buffers()[1], len(flat)
    if buffer is None or not count:
        return np.zeros(0, np.uint8)
    data = np.frombuffer(buffer, np.uint8)
    if pa.types.is_boolean(flat.type):
        return np.unpackbits(data, count=flat.offset + count, bitorder="little")[flat.offset :]
    width = flat.type.bit_width // 8
    return data[flat.offset * width : (flat.offset + count) * width]
