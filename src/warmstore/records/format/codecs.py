"""Compression of single records: each value is compressed by itself, so one record is read without its neighbours.

All codecs release Python's lock while they work, so many records go through several threads at once.
"""

import contextlib
import functools
import itertools
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import lz4.block
import numpy as np
import zstandard

from warmstore._native import floor, most_threads
from warmstore.errors import Damaged, SchemaMismatch
from warmstore.records.format.codec_libraries import Functions, functions_of
from warmstore.storage.humanize import parse_size
from warmstore.storage.memory.buffer_pool import Allocate, take
from warmstore.storage.thread_pool import pool, thread_count

CODECS = ("raw", "deflate", "zstd", "lz4")

# Fewer bytes than this are not worth handing to another thread.
_SHARE = 1 << 17
# From here on zstd writes to where the value goes; a stream costs more than a copy of fewer bytes.
_DIRECT = 1 << 12

Transform = Callable[[Any], bytes]
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Int64 = np.ndarray[Any, np.dtype[np.int64]]
T = TypeVar("T")


class Codec:
    """One field's codec. Safe to use from several threads.

    Args:
        name: "deflate", "zstd" or "lz4", with ":level" where another than the default is wanted.
        dictionary: for zstd, what `train_dictionary` gave.
    """

    def __init__(self, name: str, dictionary: bytes | None) -> None:
        self._kind, self._level = parse_codec(name)
        self._dictionary = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
        self._functions = functions_of(self._kind, dictionary)
        self._local = threading.local()

    def compress(self, values: Sequence[Any], threads: int | None = None) -> list[bytes]:
        """Each value compressed, in order, by so many threads; by one per core if None."""
        return _spread(self._compressor, values, threads)

    def decompress(
        self, memory: Bytes, starts: Int64, lengths: Int64, allocate: Allocate = take
    ) -> tuple[Bytes, Int64]:
        """The values as they were, one after the other in memory from `allocate`; an empty one stays empty.

        Args:
            memory: uint8.
            starts, lengths: int64 [n], where in `memory` the compressed values lie, in bytes.

        Returns:
            uint8 [bytes], and int64 [n + 1], where each value starts and the last one ends.

        Raises:
            Damaged: a value that this codec did not write.
        """
        if self._functions is not None:
            return self._decompress_natively(self._functions, memory, starts, lengths, allocate)
        view = memory.data
        values = [view[first : first + length] for first, length in zip(starts.tolist(), lengths.tolist(), strict=True)]
        try:
            if self._kind == "deflate":  # does not know how long its values are
                results = _spread(lambda: _inflate, values)
                offsets = _edges(map(len, results))
                data = allocate(int(offsets[-1]))
                data[:] = np.frombuffer(b"".join(results), np.uint8)
                return data, offsets
            offsets = _edges(map(self._size, values))
            data = allocate(int(offsets[-1]))
            target, edges = data.data, offsets.tolist()

            def work(first: int, last: int) -> None:
                fill = self._filler()
                for at in range(first, last):
                    if len(values[at]):
                        fill(values[at], target[edges[at] : edges[at + 1]])

            _in_parts(work, values)
            return data, offsets
        except (zstandard.ZstdError, zlib.error, lz4.block.LZ4BlockError, ValueError) as error:
            raise Damaged(f"a record does not decompress: {error}") from error

    def _decompress_natively(
        self, functions: Functions, memory: Bytes, starts: Int64, lengths: Int64, allocate: Allocate
    ) -> tuple[Bytes, Int64]:
        count = len(starts)
        place = functions.kind, functions.addresses, memory, starts, lengths
        sizes = np.empty(count, np.int64)
        if floor.decompressed_sizes(*place, sizes) < count:
            raise Damaged("a record does not decompress: it does not say how long it is")
        offsets = np.zeros(count + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        data = allocate(int(offsets[-1]))
        threads = most_threads() if len(data) >= _SHARE else 1
        bad = floor.decompress(*place, offsets[1:], data, threads)
        if bad >= 0:
            raise Damaged(f"a record does not decompress: {self._kind} refuses {int(lengths[bad])} bytes")
        return data, offsets

    def _compressor(self) -> Transform:
        if self._kind == "deflate":
            level = 6 if self._level is None else self._level
            return lambda value: zlib.compress(value, level)
        if self._kind == "lz4":
            return lambda value: bytes(lz4.block.compress(value, store_size=True))
        return self._own("compressor", self._zstd_compressor).compress  # type: ignore[no-any-return]

    def _size(self, value: Any) -> int:
        """Bytes a value had before it was compressed."""
        if not len(value):
            return 0
        if self._kind == "lz4":
            return int.from_bytes(value[:4], "little")
        size: int = zstandard.frame_content_size(value)
        if size < 0:
            raise ValueError("its zstd frame does not say how long it is")
        return size

    def _filler(self) -> Callable[[Any, memoryview], None]:
        """What decompresses one value into memory of its size."""
        if self._kind == "lz4":

            def fill(value: Any, target: memoryview) -> None:
                target[:] = lz4.block.decompress(value)

            return fill
        decompressor = self._own("decompressor", self._zstd_decompressor)

        def fill_zstd(value: Any, target: memoryview) -> None:
            if len(target) < _DIRECT:
                target[:] = decompressor.decompress(value)
            elif decompressor.stream_reader(value).readinto(target) != len(target):
                raise ValueError("its zstd frame ends early")

        return fill_zstd

    def _own(self, name: str, make: Callable[[], Any]) -> Any:
        # zstandard's objects serve one thread at a time.
        made = getattr(self._local, name, None)
        if made is None:
            made = make()
            setattr(self._local, name, made)
        return made

    def _zstd_compressor(self) -> Any:
        level = 3 if self._level is None else self._level
        return zstandard.ZstdCompressor(level=level, dict_data=self._dictionary)

    def _zstd_decompressor(self) -> Any:
        return zstandard.ZstdDecompressor(dict_data=self._dictionary)

    def __reduce__(self) -> Any:
        raise TypeError("codecs are made from fields, not pickled")


@functools.lru_cache(maxsize=256)
def codec_of(name: str, dictionary: bytes | None) -> Codec | None:
    """The codec of a field, None for raw."""
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
    """A zstd dictionary for many small records that resemble each other.

    Args:
        samples: bytes-like values or arrays, a few hundred at least, together about 100 times `size`.
        size: bytes the dictionary may have.

    Returns:
        What `Bytes(codec="zstd", dictionary=...)` and the other fields take.

    Raises:
        ValueError: too few samples to train on.
    """
    values: list[Any] = [value.tobytes() if isinstance(value, np.ndarray) else bytes(value) for value in samples]
    try:
        return zstandard.train_dictionary(parse_size(size), values).as_bytes()
    except zstandard.ZstdError as error:
        raise ValueError(f"{len(values)} samples are not enough to train a dictionary of {size}: {error}") from None


def _edges(sizes: Iterable[int]) -> Int64:
    """Where values of these sizes start, and the last one ends, one after the other."""
    return np.array([0, *itertools.accumulate(sizes)], np.int64)


def _inflate(value: Any) -> bytes:
    return zlib.decompress(value) if len(value) else b""


def _spread(make: Callable[[], Transform], values: Sequence[Any], threads: int | None = None) -> list[bytes]:
    """Apply a transform to all values, over several threads where there is enough to do."""

    def work(first: int, last: int) -> list[bytes]:
        transform = make()
        return [transform(value) for value in values[first:last]]

    return [value for part in _in_parts(work, values, threads) for value in part]


def _in_parts(work: Callable[[int, int], T], values: Sequence[Any], threads: int | None = None) -> list[T]:
    """Call `work(first, last)` for parts that together are all values, over several threads where there is enough."""
    threads = threads or thread_count()
    sizes = [len(value) for value in values]
    if threads < 2 or len(values) < 2 or sum(sizes) < _SHARE:
        return [work(0, len(values))]
    # Parts of equal bytes, a few per thread, so that none waits long for the slowest.
    edges = np.searchsorted(np.cumsum(sizes), np.linspace(0, sum(sizes), 4 * threads + 1)[1:-1]).tolist()
    cuts = [0, *edges, len(values)]
    parts = [(first, last) for first, last in itertools.pairwise(cuts) if first < last]
    return list(pool(threads).map(work, *zip(*parts, strict=True)))
