"""Files that fail, stop short or kill: what the fault tests hand to a store instead of the real operations."""

import errno
import os
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from warmstore.storage.files import Buffer, Files

CHANGING = (
    "create",
    "write",
    "sync",
    "sync_folder",
    "allocate",
    "truncate",
    "rename",
    "remove",
    "make_folder",
    "remove_folder",
)
"""The operations that change what is on the disk."""


class Watched(Files):
    """Calls `before(name)` and `after(name)` around every operation that changes something."""

    def before(self, name: str) -> None: ...

    def after(self, name: str) -> None: ...

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        self.before("write")
        taken = self.write_now(descriptor, buffers, offset)
        self.after("write")
        return taken

    def write_now(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        return super().write(descriptor, buffers, offset)


def _watching(name: str) -> Callable[..., Any]:
    real = getattr(Files, name)

    def watched(self: Watched, *arguments: Any, **options: Any) -> Any:
        self.before(name)
        result = real(self, *arguments, **options)
        self.after(name)
        return result

    return watched


for _name in CHANGING:
    if _name != "write":
        setattr(Watched, _name, _watching(_name))


class Counting(Watched):
    """Keeps the names of all operations that went well."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def after(self, name: str) -> None:
        self.seen.append(name)


class Killing(Watched):
    """Kills the process at its n-th operation, counted from 0: "before", "middle" or "after" it.

    In the middle half of a write is done, half of the files of a removed folder are gone.
    """

    def __init__(self, at: int, moment: str) -> None:
        self.left = at
        self.moment = moment

    def before(self, name: str) -> None:
        if self.left == 0 and self.moment == "before":
            _kill()

    def write_now(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        if self.left == 0 and self.moment == "middle":
            data = b"".join(buffers)
            os.pwrite(descriptor, data[: len(data) // 2], offset)
            _kill()
        return super().write_now(descriptor, buffers, offset)

    def remove_folder(self, folder: Path) -> None:
        if self.left == 0 and self.moment == "middle" and folder.exists():
            # Chunks first: a log without its chunks is the worst that can be found.
            content = sorted(folder.iterdir(), key=lambda path: path.name == "log")
            for path in content[: -(-len(content) // 2)]:
                path.unlink()
            _kill()
        super().remove_folder(folder)

    def after(self, name: str) -> None:
        if self.left == 0:
            _kill()
        self.left -= 1


class FullDisk(Files):
    """A disk with `room` more bytes; None for one that never fills."""

    def __init__(self, room: int | None = None) -> None:
        self.room = room

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        if self.room is None:
            return super().write(descriptor, buffers, offset)
        if not self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        taken = super().write(descriptor, [b"".join(buffers)[: self.room]], offset)
        self.room -= taken
        return taken


class Refusing(Watched):
    """Refuses the n-th operation from when `at` is set, and with `forever` all after it."""

    def __init__(self, code: int = errno.EIO, *, forever: bool = False) -> None:
        self.at: int | None = None
        self.code = code
        self.forever = forever
        self.refused: list[str] = []

    def before(self, name: str) -> None:
        if self.at is None:
            return
        if self.at == 0 or (self.forever and self.at < 0):
            self.refused.append(name)
            self.at -= 1
            raise OSError(self.code, os.strerror(self.code))
        self.at -= 1


class OneByte(Files):
    """Writes one byte at a time."""

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        return super().write(descriptor, [memoryview(buffers[0])[:1]], offset)


class Calling(Watched):
    """Calls `check` around every operation that changes something, and at every open, size, read and map."""

    check: Callable[[], None] | None = None

    def before(self, name: str) -> None:
        if self.check is not None:
            self.check()

    after = before

    def open(self, path: Path, *, write: bool = False, append: bool = False) -> int:
        self.before("open")
        return super().open(path, write=write, append=append)

    def size(self, descriptor: int) -> int:
        self.before("size")
        return super().size(descriptor)

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        self.before("read")
        return super().read(descriptor, length, offset)

    def map(self, address: int, length: int, descriptor: int, *, write: bool = False) -> None:
        self.before("map")
        super().map(address, length, descriptor, write=write)


class Removing(Calling):
    """Removes a folder in the n-th of some calls, counted from 0, from `start` until `stop`, which tells whether."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.left: int | None = None
        self.check = self._count_down

    def start(self, at: int) -> None:
        self.left = at

    def stop(self) -> bool:
        assert self.left is not None
        has_removed, self.left = self.left < 0, None
        return has_removed

    def _count_down(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left == -1:
                shutil.rmtree(self.folder, ignore_errors=True)


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
