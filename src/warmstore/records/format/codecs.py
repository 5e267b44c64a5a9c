"""Compression of single records: each value is compressed by itself, so one record is read without its neighbours.

The native floor decompresses zstd and lz4 where it finds their libraries (`codec_libraries`). Everything else goes
through the Python packages in several threads: they release Python's lock.
"""

import contextlib
import functools
import itertools
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import lz4.block
import numpy as np
import zstandard

from warmstore._native import floor, most_threads
from warmstore.errors import Damaged, SchemaMismatch
from warmstore.records.format.codec_libraries import Functions, functions_of
from warmstore.storage.array_types import Bytes, Int64
from warmstore.storage.humanize import parse_size
from warmstore.storage.memory.buffer_pool import Allocate, take
from warmstore.storage.threads import pool, result_of, thread_count

CODECS = ("raw", "deflate", "zstd", "lz4")

_SHARE = 1 << 17
"""Bytes below which a second thread costs more than it saves."""

Transform = Callable[[Any], bytes]


class Codec:
    """One field's codec. Safe to use from several threads.

    Args:
        name: "deflate", "zstd" or "lz4"; ":level" selects another level than the default.
        dictionary: for zstd, the result of `train_dictionary`.
    """

    def __init__(self, name: str, dictionary: bytes | None) -> None:
        self._kind, self._level = parse_codec(name)
        self._dictionary = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
        self._functions = functions_of(self._kind, dictionary)
        self._local = threading.local()

    def compress(self, values: Sequence[Any], threads: int | None = None) -> list[bytes]:
        """Compress each value, in order, in `threads` threads; None for one thread per core."""
        return _spread(self._compressor, values, threads)

    def decompress(
        self, memory: Bytes, starts: Int64, lengths: Int64, allocate: Allocate = take
    ) -> tuple[Bytes, Int64]:
        """Decompress values into memory from `allocate`, one after the other. An empty value stays empty.

        Args:
            memory: uint8.
            starts, lengths: int64 [n], the compressed values in `memory`, in bytes.

        Returns:
            uint8 [bytes], the values; and int64 [n + 1], the offsets of their starts and the end of the last one.

        Raises:
            Damaged: this codec did not write a value.
        """
        if self._functions is not None:
            return self._decompress_natively(self._functions, memory, starts, lengths, allocate)
        view = memory.data
        values = [view[first : first + length] for first, length in zip(starts.tolist(), lengths.tolist(), strict=True)]
        try:
            results = _spread(self._decompressor, values)
        except (zstandard.ZstdError, zlib.error, lz4.block.LZ4BlockError, ValueError) as error:
            raise Damaged(f"a record does not decompress: {error}") from error
        offsets = np.array([0, *itertools.accumulate(map(len, results))], np.int64)
        data = allocate(int(offsets[-1]))
        data[:] = np.frombuffer(b"".join(results), np.uint8)
        return data, offsets

    def _decompress_natively(
        self, functions: Functions, memory: Bytes, starts: Int64, lengths: Int64, allocate: Allocate
    ) -> tuple[Bytes, Int64]:
        count = len(starts)
        source = functions.kind, functions.addresses, memory, starts, lengths
        sizes = np.empty(count, np.int64)
        if floor.decompressed_sizes(*source, sizes) < count:
            raise Damaged("a record does not decompress: its length is missing")
        offsets = np.zeros(count + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        data = allocate(int(offsets[-1]))
        threads = most_threads() if len(data) >= _SHARE else 1
        bad = floor.decompress(*source, offsets[1:], data, threads)
        if bad >= 0:
            raise Damaged(f"a record does not decompress: {self._kind} refuses {int(lengths[bad])} bytes")
        return data, offsets

    def _compressor(self) -> Transform:
        if self._kind == "deflate":
            level = 6 if self._level is None else self._level
            return lambda value: zlib.compress(value, level)
        if self._kind == "lz4":
            return lambda value: bytes(lz4.block.compress(value, store_size=True))
        compressor = getattr(self._local, "compressor", None)
        if compressor is None:  # one per thread: zstandard's objects serve one thread at a time
            level = 3 if self._level is None else self._level
            compressor = self._local.compressor = zstandard.ZstdCompressor(level=level, dict_data=self._dictionary)
        return compressor.compress

    def _decompressor(self) -> Transform:
        """A function that decompresses one value, for one thread."""
        decompress: Transform = zlib.decompress
        if self._kind == "lz4":
            decompress = lz4.block.decompress
        elif self._kind == "zstd":
            decompress = zstandard.ZstdDecompressor(dict_data=self._dictionary).decompress
        return lambda value: decompress(value) if len(value) else b""

    def __reduce__(self) -> Any:
        raise TypeError("codecs are made from fields, not pickled")


@functools.lru_cache(maxsize=256)
def codec_of(name: str, dictionary: bytes | None) -> Codec | None:
    """The codec of a field; None for "raw"."""
    return None if name == "raw" else Codec(name, dictionary)


def parse_codec(name: str) -> tuple[str, int | None]:
    """A codec's kind and level.

    Raises:
        SchemaMismatch: no such codec.
    """
    kind, _, level = name.partition(":") if isinstance(name, str) else ("", "", "")
    with contextlib.suppress(ValueError):
        number = int(level) if level else None
        limits = {"deflate": range(10), "zstd": range(-7, 23)}
        if kind in CODECS and (number is None or number in limits.get(kind, ())):
            return kind, number
    raise SchemaMismatch(f"codec is {name!r}; it must be one of {', '.join(CODECS)}, or with a level such as 'zstd:9'")


def train_dictionary(samples: Iterable[Any], size: int | str = "112KB") -> bytes:
    """Train a zstd dictionary for many small records that resemble each other.

    Args:
        samples: bytes-like values or arrays: at least a few hundred, together about 100 times `size`.
        size: bytes of the dictionary at most.

    Returns:
        The value for `Bytes(codec="zstd", dictionary=...)` and the other fields.

    Raises:
        ValueError: too few samples to train on.
    """
    values: list[Any] = [value.tobytes() if isinstance(value, np.ndarray) else bytes(value) for value in samples]
    try:
        return zstandard.train_dictionary(parse_size(size), values).as_bytes()
    except zstandard.ZstdError as error:
        raise ValueError(f"{len(values)} samples are not enough to train a dictionary of {size}: {error}") from None


def _spread(make: Callable[[], Transform], values: Sequence[Any], threads: int | None = None) -> list[bytes]:
    """Apply a transform to all values, in several threads if there is enough to do. Each part makes its own."""

    def work(first: int, last: int) -> list[bytes]:
        transform = make()
        return [transform(value) for value in values[first:last]]

    threads = threads or thread_count()
    sizes = [len(value) for value in values]
    if threads < 2 or len(values) < 2 or sum(sizes) < _SHARE:
        return work(0, len(values))
    # Parts of equal bytes, a few per thread, so that no thread waits long for the slowest part.
    edges = np.searchsorted(np.cumsum(sizes), np.linspace(0, sum(sizes), 4 * threads + 1)[1:-1]).tolist()
    cuts = [0, *edges, len(values)]
    parts = [(first, last) for first, last in itertools.pairwise(cuts) if first < last]
    futures = [pool(threads).submit(work, first, last) for first, last in parts]
    return [value for future in futures for value in result_of(future)]
