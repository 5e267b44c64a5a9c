"""Compression of single records: each value is compressed by itself, so one record is read without its neighbours.

All codecs release Python's lock while they work, so many records go through several threads at once.
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

from warmstore.errors import Damaged, SchemaMismatch
from warmstore.records.threads import pool, thread_count
from warmstore.sizes import parse_size

CODECS = ("raw", "deflate", "zstd", "lz4")

# Fewer bytes than this are not worth handing to another thread.
_SHARE = 1 << 17

Transform = Callable[[Any], bytes]


class Codec:
    """One field's codec. Safe to use from several threads.

    Args:
        name: "deflate", "zstd" or "lz4", with ":level" where another than the default is wanted.
        dictionary: for zstd, what `train_dictionary` gave.
    """

    def __init__(self, name: str, dictionary: bytes | None) -> None:
        self._kind, self._level = parse_codec(name)
        self._dictionary = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
        self._local = threading.local()

    def compress(self, values: Sequence[Any]) -> list[bytes]:
        """Each value compressed, in order."""
        return _spread(self._compressor, values)

    def decompress(self, values: Sequence[Any]) -> list[bytes]:
        """Each value as it was.

        Raises:
            Damaged: a value that this codec did not write.
        """
        try:
            return _spread(self._decompressor, values)
        except (zstandard.ZstdError, zlib.error, lz4.block.LZ4BlockError) as error:
            raise Damaged(f"a record does not decompress: {error}") from error

    def _compressor(self) -> Transform:
        if self._kind == "deflate":
            level = 6 if self._level is None else self._level
            return lambda value: zlib.compress(value, level)
        if self._kind == "lz4":
            return lambda value: bytes(lz4.block.compress(value, store_size=True))
        return self._own("compressor", self._zstd_compressor).compress  # type: ignore[no-any-return]

    def _decompressor(self) -> Transform:
        if self._kind == "deflate":
            return zlib.decompress
        if self._kind == "lz4":
            return lambda value: bytes(lz4.block.decompress(value))
        return self._own("decompressor", self._zstd_decompressor).decompress  # type: ignore[no-any-return]

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


def _spread(make: Callable[[], Transform], values: Sequence[Any]) -> list[bytes]:
    """Apply a transform to all values, over several threads where there is enough to do."""

    def work(part: Sequence[Any]) -> list[bytes]:
        transform = make()
        return [transform(value) for value in part]

    threads = thread_count()
    sizes = [len(value) for value in values]
    if threads < 2 or len(values) < 2 or sum(sizes) < _SHARE:
        return work(values)
    # Parts of equal bytes, a few per thread, so that none waits long for the slowest.
    edges = np.searchsorted(np.cumsum(sizes), np.linspace(0, sum(sizes), 4 * threads + 1)[1:-1]).tolist()
    cuts = [0, *edges, len(values)]
    parts = [values[first:last] for first, last in itertools.pairwise(cuts) if first < last]
    return [value for part in pool().map(work, parts) for value in part]
