"""Files that record what they do: each operation of a story, in order, for the states that a power cut may leave.

Nothing is synced; the record says when the story wanted it. What is written through shared writable mappings is found
by comparing their files before the next operation. What a story makes without these files (lock files, folders) is
taken into the record when it is seen first, as not synced.
"""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.faults.power import (
    ROOT,
    SECTOR,
    Data,
    Hole,
    Names,
    Operation,
    Promise,
    Resize,
    Sync,
    SyncFolder,
    Version,
    Write,
)

from warmstore.storage.files import HUGE_PAGE, Buffer, Files

_Real = type("_Real", (), dict(Files.__dict__))
"""The operations of `Files`, also while `everywhere` replaces them."""

SEAM = (
    "open",
    "create",
    "close",
    "size",
    "read",
    "write",
    "sync",
    "sync_folder",
    "allocate",
    "truncate",
    "extend",
    "punch",
    "rename",
    "remove",
    "make_folder",
    "remove_folder",
    "map",
    "connect",
)
"""The operations that `everywhere` replaces."""


@contextlib.contextmanager
def everywhere(files: Any) -> Iterator[None]:
    """Give what every `Files` of this process does to some others, whoever made it; subclasses still come first."""

    def given(name: str) -> Any:
        operation = getattr(files, name)
        return lambda self, *arguments, **options: operation(*arguments, **options)

    real = {name: getattr(Files, name) for name in SEAM}
    for name in SEAM:
        setattr(Files, name, given(name))
    try:
        yield
    finally:
        for name, operation in real.items():
            setattr(Files, name, operation)


DATABASES = (".sqlite", ".new")
"""Ends of the names of SQLite databases, whose bytes SQLite writes."""


class Recorder(_Real):  # type: ignore[misc, valid-type]
    """Records the operations below a folder, which exists. What it contains at first is on the disk."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.operations: list[Operation] = []
        self.states: list[Any] = []  # of the data, as a story tells them
        self.outside: list[str] = []  # paths that were made without these files
        self._lock = threading.RLock()
        self._nodes = 1
        self._names: dict[tuple[int, str], int] = {}
        self._folders = {ROOT}
        self._open: dict[int, int] = {}
        self._foreign: dict[int, bytes] = {}  # content of files that were made without these files
        self._last: dict[int, bytes] = {}  # version of a database
        self._mapped: dict[int, tuple[int, bytearray]] = {}  # by node: a descriptor, and the bytes that are recorded
        for path in sorted(root.rglob("*")):
            self._adopt(path)
        for node in (*self._folders, *range(1, self._nodes)):
            self.operations.append(SyncFolder(node) if node in self._folders else Sync(node))
        self.outside.clear()
        self.start = len(self.operations)

    def __reduce__(self) -> Any:
        raise TypeError("a recorder stays in its process")

    def promise(self, least: int, most: int) -> None:
        """From now on the states `least` to `most` of the data may be found."""
        with self._lock:
            self._look()
            self.operations.append(Promise(least, most))

    def finish(self) -> None:
        """Record what was made without these files since the last promise."""
        with self._lock:
            self._look()

    # Operations

    def open(self, path: Path | str, *, write: bool = False, append: bool = False) -> int:
        descriptor = _Real.open(self, path, write=write, append=append)
        self._opened(descriptor, Path(path))
        return descriptor

    def create(self, path: Path) -> int:
        with self._lock:
            descriptor = _Real.create(self, path)
            if (place := self._place(path)) is not None:
                self._names.pop(place, None)  # removed without these files
                node = self._add(place, is_folder=False)
                self._open[descriptor] = node
        return descriptor

    def close(self, descriptor: int) -> None:
        with self._lock:
            self._look_at_mappings()
            node = self._open.pop(descriptor, None)
            if node in self._mapped and self._mapped[node][0] == descriptor:
                del self._mapped[node]
            _Real.close(self, descriptor)

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        with self._lock:
            taken = _Real.write(self, descriptor, buffers, offset)
            data = b"".join(buffers)[:taken]
            self._change(descriptor, lambda node: Write(node, offset, data))
        return taken

    def sync(self, descriptor: int) -> None:
        with self._lock:
            self._change(descriptor, Sync)

    def sync_folder(self, folder: Path) -> None:
        with self._lock:
            os.close(os.open(folder, os.O_RDONLY))
            node = self._node(folder)
            if node is not None:
                self._look_at_mappings()
                self.operations.append(SyncFolder(node))

    def allocate(self, descriptor: int, offset: int, length: int) -> None:
        with self._lock:
            _Real.allocate(self, descriptor, offset, length)
            size = self.size(descriptor)
            self._change(descriptor, lambda node: Resize(node, size))

    def truncate(self, descriptor: int, length: int) -> None:
        with self._lock:
            _Real.truncate(self, descriptor, length)
            self._change(descriptor, lambda node: Resize(node, length))

    def extend(self, descriptor: int, offset: int) -> bool:
        with self._lock:
            done = _Real.extend(self, descriptor, offset)
            if done:
                self._change(descriptor, lambda node: Resize(node, offset + HUGE_PAGE))
        return done

    def punch(self, descriptor: int, offset: int, length: int) -> None:
        with self._lock:
            _Real.punch(self, descriptor, offset, length)
            self._change(descriptor, lambda node: Hole(node, offset, length))

    def rename(self, source: Path, target: Path) -> None:
        with self._lock:
            places = self._place(source), self._place(target)
            node = self._node(source)
            _Real.rename(self, source, target)
            old, new = places
            if old is not None and new is not None and node is not None:
                self._append(Names(((*old, None), (*new, node))))

    def remove(self, path: Path) -> None:
        with self._lock:
            existed = os.path.lexists(path)
            place = self._place(path)
            _Real.remove(self, path)
            if existed and place is not None:
                self._append(Names(((*place, None),)))

    def make_folder(self, folder: Path) -> None:
        with self._lock:
            missing = [path for path in (folder, *folder.parents) if not path.exists()]
            _Real.make_folder(self, folder)
            for path in reversed(missing):
                if (place := self._place(path)) is not None:
                    self._names.pop(place, None)
                    self._add(place, is_folder=True)

    def remove_folder(self, folder: Path) -> None:
        with self._lock:
            below = sorted(folder.rglob("*"), key=lambda path: (-len(path.parts), path.name))
            for path in below:
                self._node(path)
            _Real.remove_folder(self, folder)
            for path in (*below, folder):
                if (place := self._place(path)) is not None:
                    self._append(Names(((*place, None),)))

    def map(self, address: int, length: int, descriptor: int, *, write: bool = False) -> None:
        _Real.map(self, address, length, descriptor, write=write)
        if write:
            with self._lock:
                node = self._open.get(descriptor)
                if node is not None:
                    self._mapped[node] = descriptor, bytearray(self.read(descriptor, self.size(descriptor), 0))

    def connect(self, database: str) -> sqlite3.Connection:
        """A connection that records the database after each transaction."""
        path = Path(database.removeprefix("file://").partition("?")[0])
        recorder = self

        class Connection(sqlite3.Connection):
            def execute(self, *arguments: Any) -> sqlite3.Cursor:
                found = super().execute(*arguments)
                self._noted()
                return found

            def executescript(self, script: str, /) -> sqlite3.Cursor:
                found = super().executescript(script)
                self._noted()
                return found

            def _noted(self) -> None:
                if not self.in_transaction:
                    recorder._version(path, self)

        return sqlite3.connect(
            database, timeout=10, isolation_level=None, check_same_thread=False, uri=True, factory=Connection
        )

    def _version(self, path: Path, connection: sqlite3.Connection) -> None:
        with self._lock:
            node = self._node(path)
            data = connection.serialize() if node is not None else b""
            if node is not None and data and self._last.get(node) != data:
                self._last[node] = data
                self.operations.append(Version(node, data))

    # Nodes

    def _opened(self, descriptor: int, path: Path) -> None:
        with self._lock:
            node = self._node(path)
            if node is not None:
                self._open[descriptor] = node
                self._foreign.pop(node, None)

    def _place(self, path: Path) -> tuple[int, str] | None:
        """The node of a path's folder, and its name; None outside of the root."""
        path = path.absolute()
        if path == self.root or not path.is_relative_to(self.root):
            return None
        folder = self._node(path.parent)
        return None if folder is None else (folder, path.name)

    def _node(self, path: Path) -> int | None:
        path = path.absolute()
        if path == self.root:
            return ROOT
        place = self._place(path)
        if place is None:
            return None
        if place not in self._names:
            if not path.exists():
                return None
            self._adopt(path)
        return self._names[place]

    def _adopt(self, path: Path) -> None:
        """Record a file or folder that was made without these files."""
        place = self._place(path)
        if place is None or place in self._names:
            return
        self.outside.append(str(path.relative_to(self.root)))
        node = self._add(place, is_folder=path.is_dir())
        if path.is_file() and not path.name.endswith(DATABASES):
            self._foreign[node] = path.read_bytes()
            self.operations.append(Write(node, 0, self._foreign[node]))

    def _add(self, place: tuple[int, str], *, is_folder: bool) -> int:
        node, self._nodes = self._nodes, self._nodes + 1
        if is_folder:
            self._folders.add(node)
        self._append(Names(((*place, node),), is_folder))
        return node

    def _append(self, operation: Names) -> None:
        self._look_at_mappings()
        for folder, name, node in operation.changes:
            if node is None:
                self._names.pop((folder, name), None)
            else:
                self._names[folder, name] = node
        self.operations.append(operation)

    def _change(self, descriptor: int, made: Any) -> None:
        self._look_at_mappings()
        node = self._open.get(descriptor)
        if node is not None:
            operation: Data | Sync = made(node)
            self.operations.append(operation)
            if node in self._mapped and not isinstance(operation, Sync):
                self._mapped[node] = descriptor, bytearray(self.read(descriptor, self.size(descriptor), 0))

    def _look_at_mappings(self) -> None:
        """Record what was written to mappings since the last operation."""
        for node, (descriptor, known) in list(self._mapped.items()):
            with contextlib.suppress(OSError):
                now = self.read(descriptor, self.size(descriptor), 0)
                if now == known:
                    continue
                for first in range(0, len(now), SECTOR):
                    part = now[first : first + SECTOR]
                    if part != known[first : first + SECTOR]:
                        self.operations.append(Write(node, first, part))
                self._mapped[node] = descriptor, bytearray(now)

    def _look(self) -> None:
        """Record what was made or removed without these files."""
        self._look_at_mappings()
        for path in sorted(self.root.rglob("*")):
            if not path.name.endswith(("-wal", "-shm")):
                self._node(path)
        places = {node: place for place, node in self._names.items()}
        for place in list(self._names):
            path, node = self._path(place, places), self._names[place]
            if not os.path.lexists(path):
                self._append(Names(((*place, None),)))
            elif node in self._foreign and path.read_bytes() != self._foreign[node]:
                self._foreign[node] = path.read_bytes()
                self.operations += [Resize(node, len(self._foreign[node])), Write(node, 0, self._foreign[node])]

    def _path(self, place: tuple[int, str], places: dict[int, tuple[int, str]]) -> Path:
        folder, name = place
        return (self.root if folder == ROOT else self._path(places[folder], places)) / name
