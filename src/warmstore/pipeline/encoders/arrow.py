"""Encoders of Arrow data: arrays, chunked arrays, record batches, tables, scalars and schemas of pyarrow.

An array is kept as one IPC stream, which has its type with all metadata and its dictionary, and of a slice only the
rows in it. Chunks stay as they are, since sums of floats depend on them. Extension types that are defined in Python are
refused: a process that has not registered them would read them as their storage.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from warmstore.errors import UnsupportedType
from warmstore.pipeline.encoders.encoder import Bits, Encoder

_READING = pa.ipc.IpcReadOptions(use_threads=False)
_WRITING = pa.ipc.IpcWriteOptions(use_threads=False)


def _encode_batch(batch: Any) -> bytes:
    for field in batch.schema:
        _check(field.type)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=_WRITING) as writer:
        writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _decode_batch(data: bytes) -> Any:
    with pa.ipc.open_stream(data, options=_READING) as reader:
        return reader.read_next_batch()


def _encode_array(array: Any) -> bytes:
    return _encode_batch(pa.record_batch([array], schema=pa.schema([pa.field("", array.type)])))


def _decode_array(data: bytes) -> Any:
    return _decode_batch(data).column(0)


def _encode_chunked(chunked: Any) -> dict[str, Any]:
    return {"type": _encode_schema(pa.schema([pa.field("", chunked.type)])), "chunks": chunked.chunks}


def _decode_chunked(parts: dict[str, Any]) -> Any:
    return pa.chunked_array(parts["chunks"], type=_decode_schema(parts["type"]).field(0).type)


def _encode_table(table: Any) -> dict[str, Any]:
    batches = table.to_batches()
    layout = [len(batch) for batch in batches]
    is_even = all([len(chunk) for chunk in column.chunks] == layout for column in table.columns)
    return {"schema": _encode_schema(table.schema), "parts": batches if is_even else table.columns}


def _decode_table(parts: dict[str, Any]) -> Any:
    schema, found = _decode_schema(parts["schema"]), parts["parts"]
    if all(isinstance(part, pa.RecordBatch) for part in found):
        return pa.Table.from_batches(found, schema)
    return pa.Table.from_arrays(found, schema=schema)


def _encode_scalar(scalar: Any) -> bytes:
    return _encode_array(pa.repeat(scalar, 1))


def _decode_scalar(data: bytes) -> Any:
    return _decode_array(data)[0]


def _encode_schema(schema: Any) -> bytes:
    for field in schema:
        _check(field.type)
    data: bytes = schema.serialize().to_pybytes()
    return data


def _decode_schema(data: bytes) -> Any:
    return pa.ipc.read_schema(pa.py_buffer(data))


def _check(kind: Any) -> None:
    """Check that a type is the same in every process.

    Raises:
        UnsupportedType: it is, or has in it, an extension type of a program.
    """
    if isinstance(kind, pa.ExtensionType | pa.lib.UnknownExtensionType):
        raise UnsupportedType(f"Arrow data of the extension type {kind} cannot be kept; return its storage")
    if isinstance(kind, pa.BaseExtensionType):
        _check(kind.storage_type)
    elif isinstance(kind, pa.DictionaryType | pa.lib.RunEndEncodedType):
        _check(kind.value_type)
    else:
        for at in range(kind.num_fields):
            _check(kind.field(at).type)


def _same(encode: Callable[[Any], Any]) -> Callable[[Any, Any], bool]:
    """Compares two values by their types and their bits, as Arrow writes them: NaN equals NaN."""

    def same(first: Any, second: Any) -> bool:
        return bool(_comparable(encode, first) == _comparable(encode, second))

    return same


def _comparable(encode: Callable[[Any], Any], value: Any) -> Any:
    found = encode(value)
    if isinstance(found, bytes):
        return found
    parts = found.get("chunks", found.get("parts"))
    return [found.get("type", found.get("schema")), [_comparable(_ENCODE[_family(part)], part) for part in parts]]


def _family(value: Any) -> type:
    return next(cls for cls in _ENCODE if isinstance(value, cls))


def _memory(value: Any) -> list[Bits]:
    """The memory of Arrow data, which may be that of NumPy arrays."""
    found: list[Bits] = []
    for array in _arrays(value):
        found += [np.frombuffer(buffer, np.uint8) for buffer in array.buffers() if buffer is not None and buffer.size]
        if isinstance(array, pa.DictionaryArray):
            found += _memory(array.dictionary)
    return found


def _arrays(value: Any) -> list[Any]:
    if isinstance(value, pa.Array):
        return [value]
    if isinstance(value, pa.RecordBatch):
        return list(value.columns)
    return []  # of chunked arrays and tables, the parts have the memory; a scalar is a copy


_ENCODE: dict[type, Callable[[Any], Any]] = {
    pa.Array: _encode_array,
    pa.ChunkedArray: _encode_chunked,
    pa.RecordBatch: _encode_batch,
    pa.Table: _encode_table,
    pa.Scalar: _encode_scalar,
    pa.Schema: _encode_schema,
}
_DECODE: dict[type, Callable[[Any], Any]] = {
    pa.Array: _decode_array,
    pa.ChunkedArray: _decode_chunked,
    pa.RecordBatch: _decode_batch,
    pa.Table: _decode_table,
    pa.Scalar: _decode_scalar,
    pa.Schema: _decode_schema,
}

ENCODERS = [
    Encoder(
        cls, _ENCODE[base], _DECODE[base], _same(_ENCODE[base]), "1", is_own=True, is_mutable=False,
        memory=_memory,
    )
    for base in _ENCODE
    for cls in {cls for cls in vars(pa.lib).values() if isinstance(cls, type) and issubclass(cls, base)}
]  # fmt: skip
