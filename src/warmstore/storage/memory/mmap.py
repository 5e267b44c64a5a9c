"""A file mapped for reading and writing, which can grow at the same address."""

import ctypes
import errno
import weakref
from pathlib import Path

import numpy as np
from numpy.ctypeslib import as_array  # numpy would import it later, in any thread

from warmstore.storage.array_types import Bytes
from warmstore.storage.files import HUGE_PAGE, Files, is_at, release, reserve, write_all

_ROOMS = (1 << 36, 1 << 30, 1 << 26)
"""The least address space of a file: 64 GiB, or less where the process may not have more (`ulimit -v`)."""
_ZEROS = np.zeros(HUGE_PAGE, np.uint8).data


class OutgrownMapping(OSError):
    """A file is larger than the address space that was reserved for it. Map it again."""


class GrowableMmap:
    """A growing file as one byte array, `memory`. Only its first `size` bytes exist.

    Args:
        create: Create a file of that many zero bytes. With 0 an existing file is opened.
        minimum: A smaller file raises ValueError.
        room: The least bytes that the file can grow to.
        write: False maps the file read-only. Writing to `memory` then ends the process.
    """

    def __init__(
        self, path: Path, files: Files, *, create: int = 0, minimum: int = 0, room: int = 0, write: bool = True
    ) -> None:
        self._files = files
        self.write = write
        self._descriptor = files.create(path) if create else files.open(path, write=write)
        try:
            if create:
                files.allocate(self._descriptor, 0, create)
            if self.size < minimum:
                raise ValueError(f"{path} has {self.size} bytes; at least {minimum} are needed")
            address = self._reserve(max(4 * self.size, room))
            owner = (ctypes.c_uint8 * self._room).from_address(address)
            weakref.finalize(owner, release, address, self._room).atexit = False
            files.map(address, self._room, self._descriptor, write=write)
        except BaseException:
            files.close(self._descriptor)
            raise
        self.memory: Bytes = as_array(owner)
        # Closed with the memory, which a lookup in another thread may use. Otherwise the garbage collector could close
        # the file of a store in a cycle before the store closes itself.
        weakref.finalize(owner, files.close, self._descriptor).atexit = False

    def _reserve(self, least: int) -> int:
        """Reserve address space, as much as there is. Returns its address."""
        for room in _ROOMS:
            self._room = max(room, least)
            try:
                return reserve(self._room)
            except OSError as error:
                if error.errno != errno.ENOMEM or room == _ROOMS[-1]:
                    raise
        raise AssertionError

    @property
    def has_outgrown(self) -> bool:
        """Whether the file is larger than `memory`: another process may have more address space."""
        return self._room < _ROOMS[0] and self.size > self._room

    @property
    def size(self) -> int:
        """Bytes of the file. Reading beyond them ends the process."""
        return self._files.size(self._descriptor)

    def allocate(self, size: int, *, used: bool = False) -> None:
        """Extend the file to at least `size` bytes, with disk blocks, so that a later write cannot fail.

        With `used` the pages of the new bytes are prepared too, for writes that follow soon: writing zeros, `HUGE_PAGE`
        bytes at a time, gives huge pages, and takes a third of the time of page faults.

        Raises:
            OutgrownMapping: the file is extended, and larger than `memory`.
            OSError: the disk is full.
        """
        now = self.size
        if size <= now:
            return
        self._files.allocate(self._descriptor, now, size - now)
        if size > self._room:
            raise OutgrownMapping(errno.ENOMEM, f"{size:,} bytes of address space are needed (ulimit -v)")
        while used and now < size:
            end = min(size, (now // HUGE_PAGE + 1) * HUGE_PAGE)
            write_all(self._files, self._descriptor, [_ZEROS[: end - now]], now)
            now = end

    def is_at(self, path: Path) -> bool:
        """Whether `path` still names this file."""
        return is_at(self._descriptor, path)

    def sync(self) -> None:
        """Return when everything written to `memory` is on the disk."""
        self._files.sync(self._descriptor)
