"""MosaicML's MDS: a folder with index.json and shards, raw or compressed with zstd or gzip.

A shard is the number of its samples, the offset of each, and the samples. A sample is the sizes of the columns of
varying size, and then the bytes of all columns, sorted by name. Numbers, offsets and sizes are uint32. Image files are
decoded with decode=True only. The sizes and hashes in index.json are checked. Pickles are refused.
"""

import gzip
import hashlib
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
import zstandard

from warmstore.converting.field_inference import field_of
from warmstore.converting.formats.images import decoded, size_of
from warmstore.converting.json_values import parsed
from warmstore.converting.record_columns import columns_of_records, fields_of_records, groups_of
from warmstore.converting.record_source import RecordSource, Request, SourceBatch, reading
from warmstore.errors import BadSource, NoSource, UnsupportedType, WarmstoreError
from warmstore.extras import imported
from warmstore.records.format.fields import Array, Field, Ragged

INDEX = "index.json"
_IMAGES = ("jpeg", "png")
_DTYPES = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}
_SCALARS = {**{dtype: dtype for dtype in _DTYPES.values()}, "int": "int64"}
_HASHES = {name: getattr(xxhash, name) for name in ("xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128")}


@dataclass(frozen=True)
class _Shard:
    """A shard. packed, raw: the size and hashes of the compressed and uncompressed file in index.json."""

    path: Path
    compression: str | None
    samples: int
    columns: tuple[tuple[str, str, int | None], ...]  # name, encoding, size in bytes where all values have one
    packed: dict[str, Any]
    raw: dict[str, Any]


def list_files(folder: Path) -> list[Path]:
    """index.json and the files of the shards."""
    return [folder / INDEX, *(shard.path for shard in _shards(folder))]


def open_source(request: Request, files: Sequence[Path]) -> RecordSource:
    assert request.paths
    shards = [shard for folder in request.paths for shard in _shards(folder)]
    rows = sum(shard.samples for shard in shards)
    if not rows:
        raise BadSource(f"{', '.join(map(str, request.paths))}: no records")
    encodings = {name: encoding for name, encoding, _ in shards[0].columns}
    for shard in shards:
        if {name: encoding for name, encoding, _ in shard.columns} != encodings:
            raise BadSource(f"{shard.path} has other columns than the first shard: {shard.columns}")
    wanted = list(encodings) if request.fields is None else [name for name in request.fields if name in encodings]
    decoders = {name: _decoder(name, encodings[name], bool(request.decode)) for name in wanted}
    if request.decode:
        imported("PIL.Image", "this format")
    first = next(groups_of(_records(shards, decoders, 0)))

    def infer(name: str, value: Any) -> Field:
        if request.decode and encodings[name] in _IMAGES:
            sizes = {record[name] for record in _records(shards, {name: size_of}, 0)}
            return Array("uint8", (*sizes.pop(), 3)) if len(sizes) == 1 else Ragged("uint8", 3)
        if encodings[name] in _SCALARS:
            return Array(_SCALARS[encodings[name]])
        if encodings[name].startswith("ndarray"):
            return _array(shards, name, decoders[name], value, encodings[name])
        return field_of(name, value)

    fields = fields_of_records(request, first, infer)

    def read(start: int) -> Iterator[SourceBatch]:
        for group in groups_of(_records(shards, decoders, start)):
            yield columns_of_records(group, fields)

    return RecordSource(fields, read, rows)


def _array(shards: Sequence[_Shard], name: str, decode: "_Decode", value: Any, encoding: str) -> Field:
    """Array if the encoding has the shape or all arrays have the same, else Ragged."""
    if encoding.count(":") == 2:
        return field_of(name, value)
    shapes = {record[name].shape for record in _records(shards, {name: decode}, 0)}
    return field_of(name, value) if len(shapes) == 1 else Ragged(value.dtype.name, value.ndim)


def _shards(folder: Path) -> list[_Shard]:
    path = folder / INDEX
    if not path.exists():
        raise NoSource(f"{path} does not exist; an MDS data set is a folder with an {INDEX}")
    try:
        index = json.loads(path.read_bytes())
        return [_shard(folder, entry) for entry in index["shards"]]
    except WarmstoreError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadSource(f"{path} is not an index of MDS shards: {error!r}") from None


def _shard(folder: Path, entry: dict[str, Any]) -> _Shard:
    if entry["format"] != "mds":
        raise BadSource(f"{folder / INDEX}: a shard has the format {entry['format']!r}, not 'mds'")
    columns = zip(entry["column_names"], entry["column_encodings"], entry["column_sizes"], strict=True)
    compression, packed, raw = entry.get("compression"), entry.get("zip_data"), entry["raw_data"]
    path = folder / (packed if compression and packed else raw)["basename"]
    if not path.exists() and (folder / raw["basename"]).exists():
        path, compression = folder / raw["basename"], None  # a shard that streaming has unpacked
    if not path.exists():
        raise NoSource(f"{path} does not exist, but {folder / INDEX} names it as a shard")
    return _Shard(path, compression, entry["samples"], tuple(columns), packed or {}, raw)


def _content(shard: _Shard) -> bytes:
    """The bytes of a shard, unpacked and checked against the index."""
    data = shard.path.read_bytes()
    kind = (shard.compression or "").partition(":")[0]
    if kind:
        _check(shard.path, data, shard.packed)
    with reading(shard.path):
        if kind == "zstd":
            data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(data), read_across_frames=True).read()
        elif kind == "gz":
            data = gzip.decompress(data)
        elif kind:
            raise UnsupportedType(f"{shard.path} is compressed with {kind!r}; write it again with zstd, gz or neither")
    _check(shard.path, data, shard.raw)
    return data


def _check(path: Path, data: bytes, listed: dict[str, Any]) -> None:
    if len(data) != listed.get("bytes", len(data)):
        raise BadSource(f"{path} has {len(data):,} bytes where the index says {listed['bytes']:,}: it is damaged")
    for name, expected in (listed.get("hashes") or {}).items():
        if name in _HASHES:
            digest = _HASHES[name](data).hexdigest()
        elif name in hashlib.algorithms_available:
            digest = hashlib.new(name, data).hexdigest()
        else:
            raise UnsupportedType(f"the index has hashes of {path} by {name!r}, which cannot be checked here")
        if digest != expected:
            raise BadSource(f"{path} does not match its {name}: it is damaged; fetch it again")


_Decode = Callable[[bytes, str], Any]


def _records(shards: Sequence[_Shard], decoders: dict[str, _Decode], start: int) -> Iterator[dict[str, Any]]:
    """The records from number `start` on, with the columns that have a decoder."""
    for shard in shards:
        skip = min(start, shard.samples)
        start -= skip
        if skip == shard.samples:
            continue
        data = _content(shard)
        edges = np.frombuffer(data[4 : 4 * (shard.samples + 2)], np.uint8)
        whole = len(edges) == 4 * (shard.samples + 1) and int.from_bytes(data[:4], "little") == shard.samples
        begins = edges.view("<u4").tolist() if whole else [len(data) + 1]
        if begins[-1] > len(data):
            raise BadSource(f"{shard.path} does not hold the {shard.samples:,} samples that its index says")
        for number in range(skip, shard.samples):
            where = f"{shard.path}: sample {number:,}"
            parts = _columns(where, data[begins[number] : begins[number + 1]], shard)
            record = {}
            for name, decode in decoders.items():
                try:
                    record[name] = decode(parts[name], f"{where}, {name!r}")
                except (ValueError, KeyError, IndexError) as error:
                    if isinstance(error, BadSource):
                        raise
                    raise BadSource(f"{where}: {name!r} cannot be decoded: {error}") from None
            yield record


def _columns(where: str, data: bytes, shard: _Shard) -> dict[str, bytes]:
    free = sum(size is None for _, _, size in shard.columns)
    sizes = iter(np.frombuffer(data[: 4 * free], "<u4").tolist() if len(data) >= 4 * free else [])
    at = 4 * free
    parts = {}
    for name, _, fixed in shard.columns:
        size = fixed if fixed is not None else next(sizes, len(data))
        parts[name] = data[at : at + size]
        at += size
    if at != len(data):
        raise BadSource(f"{where} has {len(data):,} bytes where its columns take {at:,}: the shard is damaged")
    return parts


def _decoder(name: str, encoding: str, pixels: bool) -> _Decode:
    """The function that decodes a column's bytes.

    Raises:
        UnsupportedType: the encoding is a pickle, or unknown.
    """
    kind, _, options = encoding.partition(":")
    if kind in _IMAGES and pixels:
        return decoded
    if kind == "bytes" or kind in _IMAGES:
        return lambda data, _: data
    if encoding in ("str", "str_int", "str_float", "str_decimal"):
        return lambda data, _: data.decode("utf-8")
    if encoding == "json":
        return lambda data, _: parsed(data.decode("utf-8"))
    if encoding in _SCALARS:
        dtype = np.dtype(_SCALARS[encoding]).newbyteorder("<")
        return lambda data, _: _numbers(data, dtype, (1,))[0]
    if kind == "ndarray" and re.fullmatch(r"([a-z0-9]+(:\d+(,\d+)*)?)?", options):
        dtype_name, _, sizes = options.partition(":")
        shape = tuple(int(size) for size in sizes.split(",")) if sizes else None
        return lambda data, _: _ndarray(data, dtype_name, shape)
    why = "which only pickle can read; nothing is ever unpickled" if encoding == "pkl" else "which is not known"
    raise UnsupportedType(f"column {name!r} has the encoding {encoding!r}, {why}. Leave it out with fields=[...]")


def _ndarray(data: bytes, dtype: str, shape: tuple[int, ...] | None) -> np.ndarray[Any, Any]:
    """Decode an array. Without a dtype in the encoding, the first byte has it. Without a shape, a byte has the number
    of dimensions and the width of their sizes, and the sizes follow."""
    at = 0
    if not dtype:
        dtype, at = _DTYPES[data[0]], 1
    if shape is None:
        ndim, width = data[at] >> 2, 1 << (data[at] & 3)
        end = at + 1 + ndim * width
        shape = tuple(np.frombuffer(data[at + 1 : end], f"<u{width}").tolist())
        at = end
        if len(shape) != ndim:
            raise ValueError("it ends within its shape")
    return _numbers(data[at:], np.dtype(dtype).newbyteorder("<"), shape)


def _numbers(data: bytes, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="), copy=False)
