"""The functions of libzstd and liblz4 that the native floor calls, found in installed libraries.

The wheels of zstandard and lz4, which warmstore requires, export them, and so do the system's libraries. The floor
decompresses many records in one call, without Python's lock and without one Python object per record.
"""

import ctypes
import ctypes.util
import functools
import importlib.util
import weakref
from collections.abc import Iterator

import numpy as np

from warmstore._native import is_compiled
from warmstore.storage.array_types import UInt64

ZSTD, LZ4 = 0, 1
_COUNT = 7  # addresses that the floor takes
_ZSTD = (
    "ZSTD_getFrameContentSize",
    "ZSTD_createDCtx",
    "ZSTD_freeDCtx",
    "ZSTD_decompressDCtx",
    "ZSTD_decompress_usingDDict",
    "ZSTD_isError",
)
_LZ4 = ("LZ4_decompress_safe",)


class Functions:
    """The C functions that the floor calls to decompress; see `codecs.c`.

    kind: ZSTD or LZ4. addresses: uint64 [7]; the last is that of zstd's dictionary, or 0.
    """

    def __init__(self, kind: int, library: ctypes.CDLL, dictionary: bytes | None) -> None:
        self.kind = kind
        self._library = library  # keeps the library loaded
        self.addresses: UInt64 = np.zeros(_COUNT, np.uint64)
        for at, name in enumerate(_ZSTD if kind == ZSTD else _LZ4):
            self.addresses[at] = ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        if dictionary:
            make, free = library.ZSTD_createDDict, library.ZSTD_freeDDict
            make.restype, make.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_size_t]
            free.argtypes = [ctypes.c_void_p]
            made = make(dictionary, len(dictionary))
            if not made:
                raise MemoryError("zstd has no room for a dictionary")
            self.addresses[_COUNT - 1] = made
            weakref.finalize(self, free, made).atexit = False


def functions_of(kind: str, dictionary: bytes | None) -> Functions | None:
    """The functions of a codec; None for other codecs, without a library, or if the floor is not compiled."""
    number = {"zstd": ZSTD, "lz4": LZ4}.get(kind)
    library = _library(number) if number is not None and is_compiled else None
    return None if number is None or library is None else Functions(number, library, dictionary)


@functools.cache
def _library(kind: int) -> ctypes.CDLL | None:
    """A library that exports all required functions; None without one."""
    names = (*_ZSTD, "ZSTD_createDDict", "ZSTD_freeDDict") if kind == ZSTD else _LZ4
    for path in _paths(kind):
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue
        if all(hasattr(library, name) for name in names):
            return library
    return None


def _paths(kind: int) -> Iterator[str]:
    found = importlib.util.find_spec("zstandard._cffi" if kind == ZSTD else "lz4.block._block")
    if found is not None and found.origin:
        yield found.origin
    path = ctypes.util.find_library("zstd" if kind == ZSTD else "lz4")
    if path:
        yield path
