"""Rules of tabular libraries: pandas, polars, pyarrow and Hugging Face datasets.

Tables count by content, or by a fingerprint, and by the files that their text names. The rules match by the module of a
type, so that no library is imported here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import xxhash

from warmstore.identity.kinds.arrays import record_content
from warmstore.identity.kinds.objects import record_object
from warmstore.identity.kinds.registry import Rule
from warmstore.identity.places import Place
from warmstore.identity.plain_data import shortened
from warmstore.identity.walk import Walk

_LONGEST = 4096  # bytes: longer texts are no paths
_AT_ONCE = 1 << 16  # elements


def rule_of_table(kind: type) -> Rule | None:
    """The rule of a type of these libraries; None for other types."""
    module = kind.__module__
    if module == "datasets.arrow_dataset":
        return _hugging_face
    if module.partition(".")[0] == "pandas" and hasattr(kind, "to_numpy"):
        return _pandas
    if module in ("polars.series.series", "polars.dataframe.frame"):
        return _polars
    if module == "polars.lazyframe.frame":
        return _lazy
    if module != "pyarrow.lib":
        return None
    if hasattr(kind, "num_columns"):
        return _arrow_table
    return _arrow_array if hasattr(kind, "to_pylist") else _arrow_buffer if kind.__name__ == "Buffer" else None


def _hugging_face(walk: Walk, place: Place, value: Any) -> None:
    """Record a dataset by its fingerprint, and by the function that formats its samples when they are read."""
    walk.fact(place, f"data set {getattr(value, '_fingerprint', None)!r} {getattr(value, '_format_type', None)!r}")
    walk.whole(place + ".format", getattr(value, "_format_kwargs", None))
    for name, column in zip(value.data.column_names, value.data.columns, strict=True):
        walk.strings(place + f".<{name}>", _texts_of_arrow(column))


def _pandas(walk: Walk, place: Place, value: Any) -> None:
    """Record a frame, series or index by its state, and by the files that its strings name."""
    record_object(walk, place, value)
    record_content(walk, place, value)
    own = {name: part for name, part in vars(value).items() if not name.startswith("_")}
    walk.attributes(place + ".<own>", own)  # pandas keeps no others, and pickles none


def _polars(walk: Walk, place: Place, value: Any) -> None:
    """Record a frame or series by its state, and by the files that its text names."""
    record_object(walk, place, value)
    record_content(walk, place, value)
    walk.strings(place, _texts_of_polars(value))


def _texts_of_polars(value: Any) -> list[Any]:
    """The strings, and the bytes that may be paths, of a frame or series, also within lists and structures."""
    kind = getattr(value, "dtype", None)
    name = "Frame" if kind is None else str(kind.base_type())
    if name in ("Frame", "Struct"):
        columns = value.get_columns() if kind is None else [value.struct.field(each.name) for each in kind.fields]
        return [text for column in columns for text in _texts_of_polars(column)]
    if name in ("List", "Array"):
        return _texts_of_polars(value.explode())
    if name == "Binary":
        value = value.filter(value.bin.size() <= _LONGEST)
    elif name not in ("String", "Categorical", "Enum"):
        return []
    texts: list[Any] = value.unique().drop_nulls().to_list()
    return texts


def _lazy(walk: Walk, place: Place, value: Any) -> None:
    walk.cannot_tell(place, "the files that a lazy frame reads are out of reach; collect it, or pass their paths")


def _arrow_table(walk: Walk, place: Place, value: Any) -> None:
    schema = value.schema.serialize()  # the text of a schema shortens its metadata
    walk.fact(place, f"{type(value).__name__} {xxhash.xxh3_128_hexdigest(schema)} of {value.num_rows}")
    names = value.schema.names
    for at, (name, column) in enumerate(zip(names, value.columns, strict=True)):
        walk.whole(place + f".<{name}>{f'[{at}]' if names.count(name) > 1 else ''}", column)


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
    chunks = f" in {shortened(repr(list(map(len, arrays))))}" if isinstance(value, pa.ChunkedArray) else ""
    walk.fact(place, f"arrow {value.type} of {len(joined)} {xxhash.xxh3_128_hexdigest(sink.getvalue())}{chunks}")
    walk.strings(place, _texts_of_arrow(joined))


def _texts_of_arrow(array: Any) -> Iterator[Any]:
    """The strings and bytes of an array or column that may be paths, also within lists, structures and others."""
    import pyarrow.compute as pc

    wide = _wide_type(array.type)
    if wide is None:
        for part in _parts_of_arrow(array) if _has_text(array.type) else ():
            yield from _texts_of_arrow(part)
        return
    for start in range(0, len(array), _AT_ONCE):
        texts = array.slice(start, _AT_ONCE).cast(wide)
        yield from texts.filter(pc.less_equal(pc.binary_length(texts), _LONGEST)).to_pylist()


def _wide_type(kind: Any) -> Any:
    """The type of the elements of arrays of text or bytes that Arrow's functions are for; None for other arrays."""
    import pyarrow as pa

    types = pa.types
    if any(of(kind) for of in (types.is_string, types.is_large_string, types.is_string_view)):
        return pa.large_string()
    of_bytes = (types.is_binary, types.is_large_binary, types.is_fixed_size_binary, types.is_binary_view)
    return pa.large_binary() if any(of(kind) for of in of_bytes) else None


def _has_text(kind: Any) -> bool:
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return _has_text(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return _has_text(kind.value_type)
    return _wide_type(kind) is not None or any(_has_text(kind.field(at).type) for at in range(kind.num_fields))


def _parts_of_arrow(array: Any) -> list[Any]:
    """The arrays that an array of others than text consists of."""
    import pyarrow as pa

    kind, types = array.type, pa.types
    if isinstance(array, pa.ChunkedArray):
        return list(array.chunks)
    if isinstance(kind, pa.BaseExtensionType):
        return [array.storage]
    if types.is_dictionary(kind):
        return [array.dictionary]
    if types.is_run_end_encoded(kind):
        return [array.values]
    if types.is_map(kind):
        return [array.keys, array.items]
    if types.is_union(kind):
        return [array.field(at) for at in range(kind.num_fields)]
    return list(array.flatten()) if types.is_struct(kind) else [array.flatten()]


def _arrow_buffer(walk: Walk, place: Place, value: Any) -> None:
    walk.fact(place, f"buffer of {value.size} {xxhash.xxh3_128_hexdigest(value)}")
