"""The file operations of warmstore.

A store opens, creates, writes, syncs, renames, removes, locks and maps files through one `Files` object. Tests use a
subclass that fails, stops early or kills the process at the n-th operation.
"""

import contextlib
import ctypes
import errno
import fcntl
import io
import mmap
import os
import shutil
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from warmstore._native import floor
from warmstore.errors import WriteFailed
from warmstore.storage import held_locks
from warmstore.storage.array_types import Bytes, Int64
from warmstore.storage.block_source import BlockSource
from warmstore.storage.interrupts import uninterrupted

if TYPE_CHECKING:
    import sqlite3

Buffer = bytes | bytearray | memoryview

HUGE_PAGE = 1 << 21
"""Bytes of a huge page."""
POPULATE_READ = 22
"""Advice of madvise(2) since Linux 5.14: map all pages at once. Other systems refuse it."""

COPY = ".copy"
"""The suffix of the second copy of a file."""

_READ, _WRITE, _APPEND = (flags | os.O_CLOEXEC for flags in (os.O_RDONLY, os.O_RDWR, os.O_RDWR | os.O_APPEND))
# macOS has no fdatasync in Python.
_datasync = getattr(os, "fdatasync", os.fsync)


class Files:
    """Plain POSIX file operations. Stateless: one instance may serve any number of stores."""

    def open(self, path: Path | str, *, write: bool = False, append: bool = False) -> int:
        """Open an existing file and return its descriptor."""
        return os.open(path, _READ if not (write or append) else _APPEND if append else _WRITE)

    def create(self, path: Path) -> int:
        """Create a file for reading and writing. Raises FileExistsError if it exists."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def close(self, descriptor: int) -> None:
        held_locks.discard(descriptor)
        os.close(descriptor)

    def size(self, descriptor: int) -> int:
        """Bytes in the file."""
        return os.fstat(descriptor).st_size

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        """At most `length` bytes from `offset`; fewer only at the end of the file."""
        parts: list[bytes] = []
        while length > 0:
            part = os.pread(descriptor, length, offset)
            if not part:
                break
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def read_rows(
        self,
        descriptors: np.ndarray[Any, np.dtype[np.int32]],
        offsets: Int64,
        lengths: Int64,
        out: Bytes,
        missing: Bytes,
        threads: int,
    ) -> int:
        """Read spans of files into one buffer. Returns the number of missing spans.

        Args:
            descriptors, offsets, lengths: [n].
            out: uint8 [sum of lengths].
            missing: uint8 [n], set to 1 for a span that is incomplete in its file or cannot be read.
            threads: The most threads that read at the same time.
        """
        return int(floor.read(descriptors, offsets, lengths, out, missing, threads))

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write buffers from `offset` on. Returns the number of bytes written, which may be fewer than given."""
        return os.pwritev(descriptor, buffers, offset)

    def open_appending(self, path: Path) -> int:
        """Open a file for `append` and reading. A missing file is created. Raises OSError for a link."""
        return os.open(path, _APPEND | os.O_CREAT | os.O_NOFOLLOW, 0o666)

    def append(self, descriptor: int, data: Buffer) -> int:
        """Write at the end of a file of `open_appending`, in one call. Returns the number of bytes written."""
        return os.write(descriptor, data)

    def sync(self, descriptor: int) -> None:
        """Return when the file's data is on the disk."""
        _datasync(descriptor)

    def sync_folder(self, folder: Path) -> None:
        """Return when the names in a folder are on the disk."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def allocate(self, descriptor: int, offset: int, length: int) -> None:
        """Extend the file with zeros and allocate their disk blocks, so that overwriting them later cannot fail."""
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, offset, length)
        else:
            write_all(self, descriptor, [bytes(min(length, 1 << 20))] * -(-length // (1 << 20)), offset)

    def truncate(self, descriptor: int, length: int) -> None:
        os.ftruncate(descriptor, length)

    def extend(self, descriptor: int, offset: int) -> bool:
        """Extend a file to `HUGE_PAGE` bytes behind `offset`, a multiple of that, and hold these bytes in one page of
        the page cache. Returns whether the file was extended: False on systems without huge pages.

        Later writes go to that page. Otherwise the page sizes depend on the size of each write: of writes of 4 MB half
        the bytes are in small pages, and reading their rows in random order takes up to 1.5 times as long.
        """
        if _HUGE is None:
            return False
        os.ftruncate(descriptor, offset + HUGE_PAGE)
        with (
            contextlib.suppress(OSError),
            mmap.mmap(descriptor, HUGE_PAGE, _SHARED, mmap.PROT_READ, offset=offset) as page,
        ):
            page.madvise(_HUGE)
            page.madvise(POPULATE_READ)  # reading the mapping instead could raise SIGBUS
        return True

    def punch(self, descriptor: int, offset: int, length: int) -> None:
        """Make a hole: zeros without disk blocks, where the file system supports it."""
        _punch(descriptor, offset, length)

    def rename(self, source: Path, target: Path) -> None:
        """Move a file or an empty-target folder, atomically."""
        source.replace(target)

    def remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def make_folder(self, folder: Path) -> None:
        """Create a folder and its missing parents. Raises FileExistsError if it exists."""
        folder.mkdir(parents=True)

    def remove_folder(self, folder: Path) -> None:
        """Remove a folder with everything in it."""
        shutil.rmtree(folder)

    def lock(self, descriptor: int, *, wait: bool = True, for_long: bool = False) -> bool:
        """Take the file's exclusive advisory lock. Without `wait`, returns False if it is held through another
        descriptor. for_long: the caller keeps it, and is amid no write.

        Raises:
            WriteFailed: with `wait`, this thread holds it through another descriptor; `errno` is EDEADLK.
        """
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not wait:
                return False
            held_locks.check_not_held(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        if wait and not for_long:
            held_locks.add(descriptor)
        return True

    def unlock(self, descriptor: int) -> None:
        held_locks.discard(descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_UN)

    def before_log(self, descriptor: int) -> contextlib.AbstractContextManager[None]:
        """What is held as long as the lock of an open log, and taken before it."""
        return contextlib.nullcontext()

    def connect(self, database: str) -> "sqlite3.Connection":
        """Open an SQLite database by its URI. Any thread may use the connection, and transactions begin explicitly.

        SQLite reads and writes the file by itself; tests make the connection fail.
        """
        import sqlite3

        return sqlite3.connect(database, timeout=10, isolation_level=None, check_same_thread=False, uri=True)

    def block_source(self, folder: Path) -> BlockSource | None:
        """The source of the blocks of a folder's chunks; None for a folder whose files are complete."""
        return None

    is_remote = False
    """Whether the folder is a copy of a remote store."""

    def refresh(self) -> None:
        """Copy what other processes have pushed to the remote."""

    def release(self) -> None:
        """Close the connections of `block_source`. Nothing is read from it afterwards."""

    def map(self, address: int, length: int, descriptor: int, *, write: bool = False) -> None:
        """Map a file, shared, over `length` bytes of reserved address space at exactly `address`."""
        _mmap(address, length, _READ_WRITE if write else mmap.PROT_READ, _SHARED_FIXED, descriptor)


PLAIN = Files()


@contextlib.contextmanager
def opened(path: Path | str, files: Files, *, write: bool = False) -> Iterator[int]:
    """The descriptor of an existing file, closed at the end of the context."""
    descriptor = files.open(path, write=write)
    try:
        yield descriptor
    finally:
        files.close(descriptor)


def ensure_folder(folder: Path, files: Files) -> None:
    """Create a folder and its missing parents, unless it exists. Their names are on the disk when this returns."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    if missing:
        with contextlib.suppress(FileExistsError):
            files.make_folder(folder)
    for path in reversed(missing):
        files.sync_folder(path.parent)


def open_or_create(path: Path, files: Files) -> int:
    """The descriptor of a file for reading and writing. A missing file is created."""
    try:
        return files.create(path)
    except FileExistsError:
        return files.open(path, write=True)


@contextlib.contextmanager
def file_lock(path: Path, files: Files, *, wait: bool = True, briefly: bool = False) -> Iterator[bool]:
    """Hold a lock between processes, on a file that is never replaced. Without `wait`, the context is False if another
    process holds the lock.

    briefly: what holds the lock is not interrupted, but waiting for it is. An interrupt as the context is entered or
    left would leave the lock taken as long as the error lives, and closing what is open would wait for it.
    """
    descriptor = open_or_create(path, files)
    try:
        is_locked = files.lock(descriptor, wait=wait)
        with uninterrupted() if briefly else contextlib.nullcontext():
            try:
                yield is_locked
            finally:
                if is_locked:
                    files.unlock(descriptor)  # closing is not enough: a child forked meanwhile shares the lock
    finally:
        files.close(descriptor)


_HUGE = getattr(mmap, "MADV_HUGEPAGE", None)
_SHARED = mmap.MAP_SHARED
_MAP_FIXED = 0x10  # on Linux and macOS; missing in the mmap module
_SHARED_FIXED = mmap.MAP_SHARED | _MAP_FIXED
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_PROT_NONE = 0
_MAP_NORESERVE = {"Linux": 0x4000, "Darwin": 0x40}[os.uname().sysname]
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MACOS = os.uname().sysname == "Darwin"
if not _MACOS:
    _libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]


def _mmap(address: int | None, length: int, protection: int, flags: int, descriptor: int, offset: int = 0) -> int:
    mapped = _libc.mmap(address, length, protection, flags, descriptor, offset)
    if mapped == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise OSError(code, f"mmap of {length:,} bytes: {os.strerror(code)}")
    return int(mapped)


def reserve(length: int) -> int:
    """Reserve `length` bytes of address space without memory, and return their address."""
    return _mmap(None, length, _PROT_NONE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE, -1)


def map_private(descriptor: int, offset: int, length: int) -> int:
    """Map part of a file, copy-on-write, and return its address. The offset is a multiple of the page size."""
    return _mmap(None, length, _READ_WRITE, mmap.MAP_PRIVATE, descriptor, offset)


def _punch(descriptor: int, offset: int, length: int) -> None:
    if _MACOS:
        # F_PUNCHHOLE of <sys/fcntl.h> takes a struct fpunchhole.
        fcntl.fcntl(descriptor, 99, struct.pack("IIqq", 0, 0, offset, length))
    elif _libc.fallocate(descriptor, 0x3, offset, length):  # FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE
        code = ctypes.get_errno()
        raise OSError(code, f"a hole of {length:,} bytes cannot be made: {os.strerror(code)}")


def advise(address: int, length: int, advice: int) -> None:
    """Tell the kernel how mapped bytes will be read. Errors are ignored."""
    start = address & -mmap.PAGESIZE
    _libc.madvise(start, address + length - start, advice)


def lies_in_memory(path: Path) -> bool:
    """Whether a file system keeps its files in memory, as tmpfs and ramfs do."""
    status = (ctypes.c_long * 64)()  # struct statfs of Linux, whose first field is the type, is smaller
    return not _MACOS and not _libc.statfs(os.fsencode(path), status) and status[0] in (0x01021994, 0x858458F6)


def release(address: int, length: int) -> None:
    """Release address space, with everything mapped in it."""
    _libc.munmap(address, length)


def modified_at(path: Path) -> float:
    """When a file was written last, in seconds since 1970; 0 if another process has removed it."""
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime
    return 0.0


def is_locked(path: Path) -> bool:
    """Whether a live process has locked a chunk. A writer's lock ends with its process."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        unlock_and_close(descriptor)
    return False


def unlock_and_close(descriptor: int) -> None:
    """Close a file, and give up its lock: a child that was forked meanwhile has the lock until both have closed it.

    For locks that were not taken by `Files.lock`.
    """
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def is_at(descriptor: int, path: Path) -> bool:
    """Whether `path` still names an open file or folder. It may have been removed or replaced."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), path.stat())
    return False


def is_read_only(error: OSError) -> bool:
    """Whether an error means that this process may not write to the file or folder."""
    return error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) or isinstance(error, PermissionError)


def write_failed(error: OSError, path: Path) -> WriteFailed:
    """The error to raise after a failed operation on a file that rows are written to."""
    if error.errno in (errno.EDEADLK, errno.ESTALE):
        return WriteFailed(error.errno, error.strerror, str(path))
    reason = errno.ENOENT if isinstance(error, FileNotFoundError) else errno.EIO  # of our own errors, which have none
    text = f"the disk refused a write ({error.strerror or error}); the rows are still pending"
    return WriteFailed(error.errno or reason, text, str(path))


def write_all(files: Files, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
    """Write all bytes of the buffers from `offset` on, with as many writes as needed. Returns the number of bytes.

    Raises:
        OSError: The disk refused. How much was written is unknown; the caller truncates the file.
    """
    views = [view for view in (memoryview(buffer).cast("B") for buffer in buffers) if len(view)]
    start = offset
    first = 0
    while first < len(views):
        written = files.write(descriptor, views[first : first + 512], offset)  # IOV_MAX is 1024 on Linux and macOS
        if not written:
            raise OSError(errno.EIO, "a write took nothing")
        offset += written
        while first < len(views) and written >= len(views[first]):
            written -= len(views[first])
            first += 1
        if written:
            views[first] = views[first][written:]
    return offset - start


class FileStream(io.RawIOBase):
    """A descriptor as a binary stream for libraries. Closing the stream closes the descriptor."""

    def __init__(self, files: Files, descriptor: int) -> None:
        self._files = files
        self._descriptor = descriptor
        self._offset = 0

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._files.read(self._descriptor, len(buffer), self._offset)
        buffer[: len(data)] = data
        self._offset += len(data)
        return len(data)

    def write(self, data: Any) -> int:
        written = write_all(self._files, self._descriptor, [data], self._offset)
        self._offset += written
        return written

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._files.close(self._descriptor)


def write_whole(files: Files, path: Path, data: Buffer, *, sync: bool = False) -> None:
    """Create a file with these bytes. With `sync`, return when they are on the disk."""
    descriptor = files.create(path)
    try:
        write_all(files, descriptor, [data], 0)
        if sync:
            files.sync(descriptor)
    finally:
        files.close(descriptor)


def read_whole(files: Files, path: Path) -> bytes:
    """All bytes of a file."""
    with opened(path, files) as descriptor:
        return files.read(descriptor, files.size(descriptor), 0)
