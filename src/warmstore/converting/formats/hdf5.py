"""HDF5 files: a field per data set, named by its path (`group/name`), whose first axis counts the records.

Strings are Text, variable-length arrays Ragged. The store's metadata has the attributes under "attributes", by the path
of their data set or group. Attributes that are no JSON values are listed under "attributes_left_out".
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from warmstore.converting.field_inference import array_field, native
from warmstore.converting.record_source import (
    RecordSource,
    Request,
    SourceBatch,
    equal_lengths,
    reading,
    rows_at_once,
)
from warmstore.errors import BadSource, SchemaMismatch, UnsupportedType
from warmstore.extras import imported
from warmstore.records.format.fields import Array, Field, Ragged, Text, dtype_name

_VARYING = 256
"""Assumed bytes of a value of varying length."""


def open_source(request: Request, files: Sequence[Path]) -> RecordSource:
    h5py = imported("h5py", "this format")
    counts = []
    fields = None
    metadata: dict[str, Any] = {}
    width = 0.0
    for path in files:
        with _opened(h5py, path) as file:
            datasets = _datasets(h5py, path, file, request)
            inferred = request.choose(list(datasets), lambda name, own=datasets: _field(h5py, name, own[name]))  # type: ignore[misc]
            if fields is not None and inferred != fields:
                raise BadSource(f"{path} has the fields {inferred}, the first file {fields}")
            fields = inferred
            counts.append(equal_lengths(path, {name: _length(path, name, datasets[name]) for name in fields}))
            metadata = metadata or _attributes(file, list(fields))
            width = max(width, sum(_width(fields[name], datasets[name]) for name in fields))
    assert fields is not None
    chosen = fields

    def read(start: int) -> Iterator[SourceBatch]:
        step = rows_at_once(width)
        for path, count in zip(files, counts, strict=True):
            skip = min(start, count)
            start -= skip
            with _opened(h5py, path) as file:
                for first in range(skip, count, step):
                    last = min(first + step, count)
                    yield SourceBatch(
                        {name: _values(path, file, name, field, first, last) for name, field in chosen.items()}
                    )

    return RecordSource(chosen, read, sum(counts), metadata=metadata)


@contextmanager
def _opened(h5py: Any, path: Path) -> Iterator[Any]:
    with reading(path), h5py.File(path, "r") as file:
        yield file


def _datasets(h5py: Any, path: Path, file: Any, request: Request) -> dict[str, Any]:
    """The data sets of a file by path, including links that fields= names."""
    found: dict[str, Any] = {}

    def walk(group: Any, above: str, parents: tuple[Any, ...]) -> None:
        for key in group:
            name = f"{above}{key}"
            if not isinstance(group.get(key, getlink=True), h5py.HardLink):
                if request.fields is None:
                    raise BadSource(
                        f"{path}: {name!r} is a link to {_target(group, key)}. Choose fields with fields=[...]; name "
                        "this one to follow the link"
                    )
                if name not in request.fields:
                    continue
                if not isinstance(_linked(group, key), h5py.Dataset):
                    raise BadSource(f"{path}: {name!r} is a link to {_target(group, key)}, which is no data set")
            item = group[key]
            if isinstance(item, h5py.Dataset):
                found[name] = item
            elif isinstance(item, h5py.Group):
                if item.id in parents:
                    raise BadSource(f"{path}: the group {name!r} contains itself; choose fields with fields=[...]")
                walk(item, f"{name}/", (*parents, item.id))

    walk(file, "", (file.id,))
    if not found:
        raise BadSource(f"{path} holds no data sets")
    return found


def _linked(group: Any, key: str) -> Any:
    try:
        return group[key]
    except (KeyError, OSError):
        return None


def _target(group: Any, key: str) -> str:
    link = group.get(key, getlink=True)
    return f"{getattr(link, 'filename', '')}{getattr(link, 'path', '')!r}"


def _field(h5py: Any, name: str, dataset: Any) -> Field:
    base = h5py.check_vlen_dtype(dataset.dtype)
    if dataset.ndim > 1 and (base is not None or h5py.check_string_dtype(dataset.dtype) is not None):
        raise UnsupportedType(
            f"field {name!r} has {dataset.ndim - 1} dimensions of strings or of arrays of varying length per record, "
            "which no field holds; leave it out with fields=[...]"
        )
    if h5py.check_string_dtype(dataset.dtype) is not None:
        return Text()
    if base is not None and base.kind in "biufc":
        return Ragged(dtype_name(base.newbyteorder("=")))
    if h5py.check_ref_dtype(dataset.dtype) is not None or base is not None:
        raise UnsupportedType(
            f"field {name!r} holds {dataset.dtype}, which no field holds; leave it out with fields=[...]"
        )
    return array_field(name, dataset.dtype, (dataset.shape or ())[1:])


def _length(path: Path, name: str, dataset: Any) -> int:
    if not dataset.shape:
        raise BadSource(f"{path}: {name!r} is a single value, not one per record; choose the others with fields=[...]")
    return int(dataset.shape[0])


def _width(field: Field, dataset: Any) -> float:
    return field.width if isinstance(field, Array) else max(_VARYING, dataset.dtype.itemsize)


def _values(path: Path, file: Any, name: str, field: Field, first: int, last: int) -> Any:
    dataset = file[name]
    try:
        if isinstance(field, Text):
            return dataset.asstr("utf-8")[first:last].tolist()
        values = dataset[first:last]
    except (OSError, UnicodeDecodeError, RuntimeError) as error:
        raise BadSource(f"{path}: {name!r} cannot be read in its rows {first:,} to {last - 1:,}: {error}") from None
    except TypeError:
        raise SchemaMismatch(f"{path}: {name!r} holds {dataset.dtype}, which does not fit {field}") from None
    if isinstance(field, Ragged) and values.dtype.kind == "O":
        return [native(value, field) for value in values]
    if isinstance(field, Ragged):
        return list(native(values, field))
    return native(values, field)


def _attributes(file: Any, names: list[str]) -> dict[str, Any]:
    """Metadata with the attributes of a file, of the groups of some data sets, and of these data sets."""
    groups = {str(group) for name in names for group in PurePosixPath(name).parents} - {"."}
    kept: dict[str, dict[str, Any]] = {}
    left_out = []
    for where in ["/", *sorted(groups), *names]:
        for key, value in file[where].attrs.items():
            plain = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
            if _is_json(plain):
                kept.setdefault(where, {})[key] = plain
            else:
                left_out.append(f"{where}@{key}")
    metadata: dict[str, Any] = {"attributes": kept} if kept else {}
    return {**metadata, "attributes_left_out": left_out} if left_out else metadata


def _is_json(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError):
        return False
