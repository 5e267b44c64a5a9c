"""Rules of tabular libraries: pandas, polars, pyarrow and Hugging Face datasets.

They match by the module of a type, so that no library is imported here.
"""

from __future__ import annotations

from typing import Any

import xxhash

from warmstore.identity.kinds.arrays import record_content
from warmstore.identity.kinds.objects import record_object
from warmstore.identity.kinds.registry import Rule
from warmstore.identity.places import Place
from warmstore.identity.plain_data import shortened
from warmstore.identity.walk import Walk


def rule_of_table(kind: type) -> Rule | None:
    """The rule of a type of these libraries; None for other types."""
    module = kind.__module__
    if module == "datasets.arrow_dataset":
        return _hugging_face
    if module.partition(".")[0] == "pandas" and hasattr(kind, "to_numpy"):
        return _pandas
    if module == "polars.series.series":
        return _polars
    if module != "pyarrow.lib":
        return None
    if hasattr(kind, "to_batches"):
        return _arrow_table
    return _arrow_array if hasattr(kind, "to_pylist") else _arrow_buffer if kind.__name__ == "Buffer" else None


def _hugging_face(walk: Walk, place: Place, value: Any) -> None:
    """Record a dataset by its fingerprint, and by the function that formats its samples when they are read."""
    walk.fact(place, f"data set {getattr(value, '_fingerprint', None)!r} {getattr(value, '_format_type', None)!r}")
    walk.whole(place + ".format", getattr(value, "_format_kwargs", None))


def _pandas(walk: Walk, place: Place, value: Any) -> None:
    """Record a frame, series or index by its state, and by the files that its strings name."""
    record_object(walk, place, value)
    record_content(walk, place, value)
    array = value.to_numpy()
    if array.dtype.kind in "OUT":
        walk.strings(place, [element for element in array.ravel().tolist() if isinstance(element, str)])


def _polars(walk: Walk, place: Place, value: Any) -> None:
    """Record a series by its state, and by the files that its strings name."""
    record_object(walk, place, value)
    record_content(walk, place, value)
    walk.strings(place, [element for element in value.to_list() if isinstance(element, str)])


def _arrow_table(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, f"{type(value).__name__} {shortened(repr(value.schema))} of {value.num_rows}")
    for name, column in zip(value.schema.names, value.columns, strict=True):
        walk.whole(place + f".<{name}>", column)


def _arrow_array(walk: Walk, place: Place, value: Any) -> None:
    """Record an array by its elements: the buffers of a slice hold more than its elements."""
    import pyarrow as pa

    arrays = value.chunks if isinstance(value, pa.ChunkedArray) else [value] if isinstance(value, pa.Array) else None
    if arrays is None:
        walk.items(place, f"arrow {value.type}", (value.as_py(),))
        return
    joined = pa.concat_arrays(arrays) if len(arrays) > 1 else arrays[0] if arrays else pa.array([], value.type)
    sink = pa.BufferOutputStream()
    # Concatenation copies the elements of a slice into a buffer that starts with them.
    table = pa.table({"": pa.concat_arrays([joined, joined.slice(0, 0)])})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    walk.fact(place, f"arrow {value.type} of {len(joined)} {xxhash.xxh3_128_hexdigest(sink.getvalue())}")
    if pa.types.is_string(value.type) or pa.types.is_large_string(value.type):
        walk.strings(place, [element for element in joined.to_pylist() if element is not None])


def _arrow_buffer(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, f"buffer of {value.size} {xxhash.xxh3_128_hexdigest(value)}")
