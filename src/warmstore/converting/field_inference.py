"""The field for a Python value, an array or a column."""

from typing import Any

import numpy as np

from warmstore.errors import BadSource, UnsupportedType
from warmstore.records.format.array_interop import is_tensor, to_numpy
from warmstore.records.format.fields import Array, Bytes, Field, Json, Text, dtype_name, numpy_dtype

_SCALARS = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}


def field_of(name: str, value: Any) -> Field:
    """The field for values of the type of `value`.

    Raises:
        UnsupportedType: no field holds the type; the message names the field.
    """
    if isinstance(value, str):
        return Text()
    if isinstance(value, bytes | bytearray | memoryview):
        return Bytes()
    if type(value) in _SCALARS:
        return Array(_SCALARS[type(value)])
    if is_tensor(value) or isinstance(value, np.ndarray | np.generic) or hasattr(value, "__array_interface__"):
        array = to_numpy(value)
        return array_field(name, array.dtype, array.shape)
    if value is None or isinstance(value, dict | list):
        return Json()
    raise UnsupportedType(
        f"field {name!r}: nothing holds a {type(value).__name__}. Records are dicts of arrays, numbers, bytes, str, "
        "and dicts and lists of JSON values; convert it to one of these"
    )


def column_field(name: str, values: Any) -> Field:
    """The field for a column: an array [n, ...], or a list, whose first value that is not None decides.

    Raises:
        BadSource: an empty list. UnsupportedType: no field holds the values.
    """
    if isinstance(values, list | tuple):
        if not values:
            raise BadSource(f"field {name!r} holds no records, so its type is unknown; pass fields=")
        return field_of(name, next((value for value in values if value is not None), None))
    array = to_numpy(values)
    return array_field(name, array.dtype, array.shape[1:])


def array_field(name: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Field:
    """The field for arrays of this dtype, in any byte order, and shape per record.

    Raises:
        UnsupportedType: objects, structures, and other dtypes that no field holds.
    """
    if dtype.kind in "US" and not shape:
        return Text() if dtype.kind == "U" else Bytes()
    if dtype.hasobject:
        raise no_objects(name)
    if dtype.type is np.void:
        raise UnsupportedType(
            f"field {name!r} has the dtype {dtype}, which does not say what its bits are. Where it is bfloat16 or "
            f'float8, pass fields={{{name!r}: ws.Array("bfloat16", {shape})}}; split a structure into its parts'
        )
    if not dtype.isnative:
        dtype = dtype.newbyteorder("=")
    return Array(dtype_name(numpy_dtype(dtype_name(dtype))), shape)


def no_objects(name: str) -> UnsupportedType:
    """The error for an array of objects."""
    return UnsupportedType(
        f"field {name!r} is an array of Python objects, which only pickle can store; nothing is ever unpickled. Save "
        "an array of numbers, or convert an iterable of records with ws.Json() fields"
    )


def native(array: np.ndarray[Any, Any], field: Field) -> Any:
    """An array for `encode`: native byte order, strings as a list, void bits in the field's dtype."""
    if array.dtype.kind in "US":
        return array.tolist()
    if array.dtype.type is np.void and isinstance(field, Array) and array.dtype.itemsize == field.numpy.itemsize:
        return array.view(field.numpy)
    if not array.dtype.isnative:
        return array.astype(array.dtype.newbyteorder("="))
    return array
