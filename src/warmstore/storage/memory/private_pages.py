"""Copy-on-write views of files: arrays that callers may write to, without a copy until they do.

They take no memory beside the page cache until they are written to, and stay valid when the file is unlinked.
"""

import mmap
from typing import Any

import numpy as np

from warmstore.storage.array_types import Bytes
from warmstore.storage.files import map_private, release

_PAGE = mmap.PAGESIZE
_MOST = 4096
"""Views that exist at a time. Linux allows 65,530 mappings in a process, and the allocator needs some."""


class _Pages:
    """Owns a mapping, and releases it after the last array over it."""

    count = 0
    _length = 0  # also where the constructor was interrupted

    def __init__(self, address: int, length: int) -> None:
        self._address = address
        self.__array_interface__ = {"data": (address, False), "shape": (length,), "typestr": "|u1", "version": 3}
        _Pages.count += 1
        self._length = length

    def __del__(self, _release: Any = release) -> None:
        if self._length:
            _Pages.count -= 1
            _release(self._address, self._length)


def private_pages(descriptor: int, offset: int, length: int) -> Bytes | None:
    """The bytes [offset, offset + length) of a file as uint8 [length]. Writes to it stay in this process.

    The range must be in the file. None if the process has too many mappings.
    """
    if _Pages.count >= _MOST:
        return None
    first = offset % _PAGE
    try:
        address = map_private(descriptor, offset - first, first + length)
    except OSError:
        return None
    return np.asarray(_Pages(address, first + length))[first:]
