"""The index of an artifact store: one SQLite file in WAL mode, and the meaning of its errors."""

from __future__ import annotations

import ctypes
import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from functools import cache
from pathlib import Path

from warmstore.errors import NewerFormat
from warmstore.storage.atomic import draft_of
from warmstore.storage.disk_usage import BLOCK, on_disk
from warmstore.storage.files import PLAIN, Files

FORMAT = 1
_NAME = "index.sqlite"

_SCHEMA = f"""
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA journal_mode = WAL;
BEGIN IMMEDIATE;
CREATE TABLE format (version INTEGER NOT NULL);
INSERT INTO format VALUES ({FORMAT});
CREATE TABLE environments (digest TEXT PRIMARY KEY, record TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE blobs (digest TEXT PRIMARY KEY, size INTEGER NOT NULL, ready INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX unfinished ON blobs (digest) WHERE NOT ready;
CREATE TABLE artifacts (
    id INTEGER PRIMARY KEY, key TEXT NOT NULL, kind TEXT NOT NULL, environment TEXT NOT NULL,
    requirements TEXT NOT NULL, digest TEXT NOT NULL, size INTEGER NOT NULL, created REAL NOT NULL,
    host TEXT NOT NULL, seconds REAL NOT NULL, seal BLOB NOT NULL,
    UNIQUE (key, kind, environment, requirements));
CREATE INDEX of_blob ON artifacts (digest);
CREATE TABLE uses (id INTEGER PRIMARY KEY, hits INTEGER NOT NULL, last_used REAL NOT NULL);
CREATE TABLE jobs (job TEXT, key TEXT, used REAL NOT NULL, PRIMARY KEY (job, key)) WITHOUT ROWID;
CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE claims (name TEXT PRIMARY KEY, size INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE totals (blobs INTEGER NOT NULL, size INTEGER NOT NULL);
INSERT INTO totals VALUES (0, 0);
CREATE TRIGGER blob_added AFTER INSERT ON blobs BEGIN
    UPDATE totals SET blobs = blobs + 1, size = size + (new.size + {BLOCK - 1}) / {BLOCK} * {BLOCK}; END;
CREATE TRIGGER blob_removed AFTER DELETE ON blobs BEGIN
    UPDATE totals SET blobs = blobs - 1, size = size - (old.size + {BLOCK - 1}) / {BLOCK} * {BLOCK}; END;
PRAGMA user_version = {FORMAT};
COMMIT;
"""

# No statement breaks a constraint or names a missing table, unless the file is damaged.
_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT}
_REFUSED = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM}


_TABLES = {"format", "environments", "blobs", "artifacts", "uses", "jobs", "counters", "claims", "totals"}
_MOST_LOST = 4  # tables that damage may rename


class IndexDamaged(sqlite3.DatabaseError):
    """The file is damaged or missing."""


def is_refusal(error: sqlite3.Error) -> bool:
    """Whether an error means that this process may not write the file."""
    return (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF in _REFUSED


def is_index(folder: Path, files: Files = PLAIN) -> bool:
    """Whether the SQLite file of a folder, intact or damaged, is the index of a store, and not of another program.

    Nothing in the folder changes. Where no table can be read, the lock file says that the folder is a store's.
    """
    names: set[object] = set()
    unreadable = sqlite3.Error, UnicodeDecodeError
    with suppress(*unreadable), closing(files.connect(f"{uri_of(folder / _NAME)}?mode=ro&immutable=1")) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    return len(_TABLES - names) <= _MOST_LOST if names else (folder / "lock").exists()


class Index:
    """A connection to the SQLite file of a folder, renewed after the file was replaced. `opened` is its `identity`.

    With `read_only` nothing in the folder changes, and a missing or damaged file is an index without rows.
    """

    def __init__(self, folder: Path, files: Files, *, read_only: bool = False) -> None:
        self.files = files
        self.path = folder / _NAME
        self.aside = folder / "index.damaged"
        self._read_only = read_only
        self._connection: sqlite3.Connection | None = None
        self.opened: tuple[int, int] | None = None

    def connection(self) -> sqlite3.Connection:
        """The open connection. Raises NewerFormat, and sqlite3.Error for a missing, damaged or locked file."""
        if self._connection is None or self.opened != self.identity():
            self.close()
            self.opened = self.identity()
            self._connection = self._open_to_read() if self._read_only else self._open()
        return self._connection

    def identity(self) -> tuple[int, int] | None:
        """Device and inode of the file, which differ for a replacement; None for a missing file."""
        try:
            state = self.path.stat()
        except OSError:
            return None
        return state.st_dev, state.st_ino

    def create(self) -> None:
        """Create the file with empty tables. The caller holds the lock of the store."""
        new = self.path.with_suffix(".new")
        for path in (new, *beside(new)):
            self.files.remove(path)
        with (
            draft_of(self.path, draft=new, files=self.files),
            closing(self.files.connect(uri_of(new))) as connection,
        ):
            connection.executescript(_SCHEMA)

    def _open(self) -> sqlite3.Connection:
        if self.opened is None:
            raise IndexDamaged("the file is missing")
        connection = self._checked(self.files.connect(f"{uri_of(self.path)}?mode=rw"))
        connection.executescript(
            "PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 256; PRAGMA journal_size_limit = 1048576;"
        )
        return connection

    def _open_to_read(self) -> sqlite3.Connection:
        if self.opened is None:
            return _empty()
        # Without the files of its WAL, SQLite only reads a file that it may treat as immutable.
        for options in ("mode=ro", "mode=ro&immutable=1"):
            with suppress(sqlite3.Error):
                return self._checked(self.files.connect(f"{uri_of(self.path)}?{options}"))
        return _empty()

    def _checked(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        """The connection, after a check of format and tables. It is closed if the check fails."""
        with ExitStack() as stack:
            stack.callback(self._end, connection)
            version = number(connection, "SELECT version FROM format")
            if version != number(connection, "PRAGMA user_version"):
                raise IndexDamaged("its two format numbers differ")
            if version > FORMAT:
                raise NewerFormat.of(self.path, version, FORMAT)
            if _tables(connection) != _expected():
                raise IndexDamaged("its tables differ from the schema")
            stack.pop_all()
        return connection

    def is_damage(self, error: sqlite3.Error) -> bool:
        """Whether an error means that the file is damaged, rather than a full disk or a locked file."""
        code = getattr(error, "sqlite_errorcode", None)
        if code == sqlite3.SQLITE_READONLY:  # a damaged header has this error too
            return os.access(self.path, os.W_OK)
        return code is None or code & 0xFF in _DAMAGE or code == sqlite3.SQLITE_IOERR_SHORT_READ

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._end(connection)

    def _end(self, connection: sqlite3.Connection) -> None:
        """Close a connection. One whose file was replaced stays open: as it closes, SQLite may remove the files of the
        WAL by their names (it does where the old file is empty), and these belong to the new file by now."""
        if self.identity() not in (self.opened, None):
            _leave_open(connection)
            return
        with suppress(sqlite3.Error):
            connection.close()

    def forget(self) -> None:
        """In a forked child: drop the parent's connection without closing it."""
        if self._connection is not None:
            _leave_open(self._connection)
        self._connection = None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """A transaction, rolled back if the block raises an error."""
        connection = self.connection()
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    def shrink(self) -> None:
        """Return free pages to the disk, in steps that keep the WAL small."""
        db = self.connection()
        while number(db, "PRAGMA freelist_count"):
            db.execute("PRAGMA incremental_vacuum(32)").fetchall()
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def size(self) -> int:
        """Bytes of the index on the disk, in whole blocks."""
        return sum(on_disk(_size(path)) for path in (self.path, *beside(self.path), self.aside))

    def move_aside(self) -> None:
        """Rename a damaged file to `aside`, over an earlier one."""
        for path, aside in zip((self.path, *beside(self.path)), (self.aside, *beside(self.aside)), strict=True):
            self.files.remove(aside)
            with suppress(FileNotFoundError):
                self.files.rename(path, aside)


def number(connection: sqlite3.Connection, statement: str, values: tuple[object, ...] = ()) -> int:
    """The integer that a statement selects. Raises IndexDamaged for another result."""
    row = connection.execute(statement, values).fetchone()
    if row is None or not isinstance(row[0], int):
        raise IndexDamaged(f"{statement} has the result {row!r}")
    return row[0]


def check_whole(connection: sqlite3.Connection) -> None:
    """Read the whole file. Raises IndexDamaged if anything is wrong, such as a row that its SQL index lacks."""
    (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise IndexDamaged(str(found))


def uri_of(path: Path) -> str:
    """The URI of a database file for `Files.connect`."""
    return path.absolute().as_uri()


def beside(path: Path) -> tuple[Path, Path]:
    """The files of the WAL of a database file."""
    return Path(f"{path}-wal"), Path(f"{path}-shm")


def _empty() -> sqlite3.Connection:
    connection = PLAIN.connect(":memory:")
    connection.executescript(_SCHEMA)
    return connection


def _tables(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
    return connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name").fetchall()


@cache
def _expected() -> list[tuple[object, ...]]:
    with closing(_empty()) as connection:
        return _tables(connection)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _leave_open(connection: sqlite3.Connection) -> None:
    """Let go of a connection that must never be closed: neither by the garbage collector, nor as the process ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
