"""The fields of a record: the types of values, and the Arrow columns that store them.

Every field becomes one or more Arrow columns: its data, for ragged fields also its shapes, and always `NAME::xxh3`, a
checksum per row. Values keep their dtype bit for bit. A dtype that Arrow lacks (bfloat16, float8, complex, bool as
bytes) is stored as an integer type of the same width, with the true dtype in the field's metadata.
"""

import base64
import contextlib
import dataclasses
import difflib
import functools
import json
import math
import operator
import sys
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import ml_dtypes
import numpy as np
import pyarrow as pa

from warmstore.errors import NewerFormat, SchemaMismatch, UnsupportedType
from warmstore.records.format.codecs import parse_codec
from warmstore.storage.cached_property import cached_property

CHECKSUM = "::xxh3"
SHAPE = "::shape"
LARGEST_RECORD = 1 << 29
"""The most bytes of the values of one record, before compression. A chunk of 1 GiB has room for it and its metadata."""

_ML_DTYPES = {
    name: np.dtype(getattr(ml_dtypes, name))
    for name in dir(ml_dtypes)
    if name == "bfloat16" or name.startswith("float8_")
}
_INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
ARROW_NATIVE = {name: pa.from_numpy_dtype(name) for name in (*_INTEGERS, "float16", "float32", "float64")}
_WIDTHS: dict[Any, str] = {int: "'int64' or 'int32'", float: "'float32' or 'float64'", complex: "'complex64'"}
_OTHER_FIELDS: dict[Any, str] = {
    **dict.fromkeys((bytes, bytearray), "Bytes"), **dict.fromkeys((object, dict, list), "Json"), str: "Text",
}  # fmt: skip
_ABSTRACT = {
    *(np.generic, np.number, np.integer, np.signedinteger, np.unsignedinteger),
    *(np.inexact, np.floating, np.complexfloating, np.flexible, np.character),
}
ARROW_BITS = {1: pa.uint8(), 2: pa.uint16(), 4: pa.uint32(), 8: pa.uint64()}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a field's dtype name, `ml_dtypes` ones included.

    Raises:
        UnsupportedType: no fixed-width number, bool or time of that name exists.
    """
    dtype: np.dtype[Any]
    if name in _ML_DTYPES:
        dtype = _ML_DTYPES[name]
        return dtype
    try:
        dtype = np.dtype(name)
    except TypeError:
        raise UnsupportedType(
            f"there is no dtype {name!r}; use a NumPy name such as 'float32', or 'bfloat16'"
        ) from None
    if dtype.kind not in "biufcmM" or dtype.itemsize > 16 or not dtype.isnative or dtype.char in "gG":
        raise UnsupportedType(
            f"dtype {name!r} cannot be kept bit for bit. Arrays hold numbers, bools and times in native byte order up "
            "to 128 bits; use ws.Text(), ws.Bytes() or ws.Json() for strings and objects"
        )
    return dtype


def _named_dtype(dtype: Any) -> str:
    """The name of a dtype, given as a name, or as a dtype or scalar type of NumPy, ml_dtypes, JAX or torch.

    Raises:
        UnsupportedType: it cannot be stored, or has no width: NumPy, torch and JAX disagree on the width of Python's
            int, float and complex.
    """
    if isinstance(dtype, type) and dtype in _WIDTHS:
        raise UnsupportedType(f"dtype {dtype.__name__} has no width; name one that does, such as {_WIDTHS[dtype]}")
    if isinstance(dtype, type) and dtype in _OTHER_FIELDS:
        raise UnsupportedType(f"dtype {dtype.__name__} is not a dtype of arrays; use ws.{_OTHER_FIELDS[dtype]}()")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        return dtype_name(numpy_dtype(str(dtype).removeprefix("torch.")))
    if isinstance(dtype, type) and dtype not in _ABSTRACT:
        with contextlib.suppress(TypeError):  # the error message then names the type
            dtype = np.dtype(dtype)
    return dtype_name(numpy_dtype(str(dtype)))


@functools.cache
def dtype_name(dtype: np.dtype[Any]) -> str:
    """The inverse of `numpy_dtype`."""
    return dtype.str[1:] if dtype.kind in "mM" else dtype.name


@dataclass(frozen=True)
class Array:
    """Arrays of one dtype and one shape: an int64 label is `Array("int64")`, an image `Array("uint8", (96, 96, 3))`.

    dtype: a name, or a dtype or scalar type of NumPy, ml_dtypes, JAX or torch; it is stored as a name. Python's int,
    float and complex have no width and are refused.
    """

    dtype: str
    shape: tuple[int, ...] = ()
    codec: str = "raw"
    dictionary: bytes | None = dataclasses.field(default=None, repr=False, kw_only=True)
    kind: ClassVar[str] = "array"

    if TYPE_CHECKING:

        def __init__(
            self,
            dtype: Any,
            shape: int | Sequence[int] = (),
            codec: str = "raw",
            *,
            dictionary: bytes | None = None,
        ) -> None: ...

    def __post_init__(self) -> None:
        _check_codec(self)
        object.__setattr__(self, "dtype", _named_dtype(self.dtype))
        try:
            sizes = (self.shape,) if isinstance(self.shape, int | np.integer) else self.shape
            shape = tuple(map(operator.index, sizes))
        except TypeError:
            raise SchemaMismatch(f"Array shape is {self.shape!r}; it must be a tuple of ints") from None
        if any(size < 0 for size in shape):
            raise SchemaMismatch(f"Array shape {shape} has a negative size")
        object.__setattr__(self, "shape", shape)

    @cached_property
    def width(self) -> int:
        """Bytes per row."""
        return math.prod(self.shape) * self.numpy.itemsize

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype."""
        return numpy_dtype(self.dtype)


@dataclass(frozen=True)
class Ragged:
    """Arrays of one dtype and one number of dimensions, each record with its own shape; dtypes are those of `Array`."""

    dtype: str
    ndim: int = 1
    codec: str = "raw"
    dictionary: bytes | None = dataclasses.field(default=None, repr=False, kw_only=True)
    kind: ClassVar[str] = "ragged"

    if TYPE_CHECKING:

        def __init__(
            self, dtype: Any, ndim: int = 1, codec: str = "raw", *, dictionary: bytes | None = None
        ) -> None: ...

    def __post_init__(self) -> None:
        _check_codec(self)
        object.__setattr__(self, "dtype", _named_dtype(self.dtype))
        if not isinstance(self.ndim, int | np.integer) or not 1 <= self.ndim <= 32:
            raise SchemaMismatch(f"Ragged ndim is {self.ndim!r}; it must be an int, 1 to 32 (a scalar is an Array)")
        object.__setattr__(self, "ndim", operator.index(self.ndim))


@dataclass(frozen=True)
class _Varying:
    """The options of the fields whose values are strings of bytes."""

    codec: str = "raw"
    dictionary: bytes | None = dataclasses.field(default=None, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        _check_codec(self)


@dataclass(frozen=True)
class Bytes(_Varying):
    """Byte strings of any length. They come back as read-only memoryviews."""

    kind: ClassVar[str] = "bytes"


@dataclass(frozen=True)
class Text(_Varying):
    """Unicode strings of any length."""

    kind: ClassVar[str] = "text"


@dataclass(frozen=True)
class Json(_Varying):
    """JSON values: None, bool, int, float, str, lists, dicts with str keys. Nothing is ever unpickled."""

    kind: ClassVar[str] = "json"


Field = Array | Ragged | Bytes | Text | Json
"""Every field takes `codec`: "raw", "deflate", "zstd" or "lz4", with an optional ":level", applied to each record by
itself; and for zstd a trained `dictionary`."""
Fields = dict[str, Field]
_KINDS: dict[str, type[Field]] = {cls.kind: cls for cls in (Array, Ragged, Bytes, Text, Json)}


@dataclass(frozen=True)
class ArrowColumn:
    """One Arrow column. `width` is its bytes per row, None if rows vary in length."""

    name: str
    type: pa.DataType
    width: int | None


def columns_of(name: str, field: Field) -> list[ArrowColumn]:
    """The Arrow columns of a field: the data, then the shapes of a ragged field, then the checksums."""
    checksum = ArrowColumn(name + CHECKSUM, pa.uint64(), 8)
    if isinstance(field, Array) and not field.width:
        return [checksum]  # rows of zero bytes need no column, and Arrow has none
    if isinstance(field, Ragged):
        shape = ArrowColumn(name + SHAPE, pa.list_(pa.int64(), field.ndim), 8 * field.ndim)
        return [ArrowColumn(name, pa.large_binary(), None), shape, checksum]
    if isinstance(field, Array) and field.codec == "raw":
        return [ArrowColumn(name, _array_type(field), field.width), checksum]
    text = isinstance(field, Text | Json) and field.codec == "raw"
    return [ArrowColumn(name, pa.large_string() if text else pa.large_binary(), None), checksum]


def field_has_bytes(field: Field) -> bool:
    """Whether a field has a data column."""
    return not isinstance(field, Array) or field.width > 0


def field_text(field: Field) -> str:
    """The type of a field as text: `uint8 [96, 96]`."""
    if isinstance(field, Array):
        return f"{field.dtype} {list(field.shape)}" if field.shape else field.dtype
    if isinstance(field, Ragged):
        return f"{field.dtype} [{', '.join('?' * field.ndim)}]"
    return type(field).__name__


def arrow_schema(fields: Fields) -> pa.Schema:
    """The schema of the chunks of a store with these fields."""
    return pa.schema(
        [
            pa.field(column.name, column.type, nullable=column.name == name, metadata=metadata)
            for name, field in fields.items()
            for metadata in [column_metadata(field)]
            for column in columns_of(name, field)
        ]
    )


def check_fields(fields: Any) -> Fields:
    """Check the fields that a user gave.

    Raises:
        SchemaMismatch: there are none, a name is invalid, a value is not a field, or records are too large for a chunk.
    """
    if not isinstance(fields, dict) or not fields:
        raise SchemaMismatch(f'fields must be a non-empty dict such as {{"label": ws.Array("int64")}}, not {fields!r}')
    for name, field in fields.items():
        if not isinstance(name, str) or not name or "::" in name or any("\ud800" <= char <= "\udfff" for char in name):
            raise SchemaMismatch(f"field name {name!r} must be a non-empty str of valid Unicode without '::'")
        if not isinstance(field, Field):
            raise SchemaMismatch(f"field {name!r} is {field!r}; it must be ws.Array, Ragged, Bytes, Text or Json")
    widths = {name: field.width for name, field in fields.items() if isinstance(field, Array)}
    if sum(widths.values()) > LARGEST_RECORD:
        widest = max(widths, key=widths.__getitem__)
        raise SchemaMismatch(
            f"a record of {sum(widths.values()):,} bytes is too large: one holds at most {LARGEST_RECORD:,}. Split it, "
            f"such as field {widest!r}, which takes {widths[widest]:,}"
        )
    return dict(fields)


def check_known(where: Any, names: Iterable[str], fields: Collection[str]) -> None:
    """Raise KeyError for the first name that is not a field. `where` is the owner of the fields, for the message."""
    if isinstance(names, str):
        raise TypeError(f"fields must be a list of names, such as [{names!r}]; got {names!r:.80}")
    for name in names:
        if name not in fields:
            raise KeyError(f"{where} has no field {name!r}{suggestion(name, fields)}; it has {list(fields)}")


def suggestion(name: Any, fields: Collection[str]) -> str:
    """The field that a misspelt name resembles, as a part of a message; empty if there is none."""
    close = difflib.get_close_matches(name, fields, 1) if isinstance(name, str) else []
    return f" (did you mean {close[0]!r}?)" if close else ""


def fields_to_json(fields: Fields) -> list[dict[str, Any]]:
    """Fields as store.json lists them, in their order."""
    return [{"name": name, **_describe(field)} for name, field in fields.items()]


def fields_from_json(described: list[dict[str, Any]]) -> Fields:
    """The inverse of `fields_to_json`.

    Raises:
        NewerFormat: a kind of field that this version does not know.
    """
    fields: Fields = {}
    for entry in described:
        options = dict(entry)
        name, kind = options.pop("name"), options.pop("kind")
        if kind not in _KINDS:
            raise NewerFormat(f"field {name!r} is of kind {kind!r}, which this warmstore does not know; upgrade it")
        if "shape" in options:
            options["shape"] = tuple(options["shape"])
        if "dictionary" in options:
            options["dictionary"] = base64.b64decode(options["dictionary"])
        fields[name] = _KINDS[kind](**options)
    return fields


def _describe(field: Field) -> dict[str, Any]:
    options = {"kind": field.kind, **{option.name: getattr(field, option.name) for option in dataclasses.fields(field)}}
    dictionary = options.pop("dictionary")
    if dictionary is not None:
        options["dictionary"] = base64.b64encode(dictionary).decode()
    if field.codec == "raw":
        del options["codec"]
    if "shape" in options:
        options["shape"] = list(options["shape"])  # as it is read from JSON
    return options


def column_metadata(field: Field) -> dict[str, str]:
    """A field's description as the metadata of its columns."""
    # The dictionary is in store.json. A copy in every chunk would waste space.
    described = _describe(field)
    described.pop("dictionary", None)
    return {"warmstore": json.dumps(described)}


def _check_codec(field: Any) -> None:
    """Check the codec and its dictionary, of which the field gets a copy."""
    kind, _ = parse_codec(field.codec)
    if field.dictionary is None:
        return
    if kind != "zstd":
        raise SchemaMismatch(f"a dictionary goes with codec 'zstd', not {field.codec!r}")
    if not isinstance(field.dictionary, bytes | bytearray | memoryview):
        raise SchemaMismatch(f"a dictionary is bytes, not {type(field.dictionary).__name__}")
    object.__setattr__(field, "dictionary", bytes(field.dictionary))


def _array_type(field: Array) -> pa.DataType:
    dtype = numpy_dtype(field.dtype)
    if dtype.itemsize == 16:  # complex128
        value, shape = pa.uint64(), (*field.shape, 2)
    else:
        value, shape = ARROW_NATIVE.get(field.dtype, ARROW_BITS[dtype.itemsize]), field.shape
    if not shape:
        return value
    return pa.fixed_shape_tensor(value, shape)
