"""The metadata of an artifact store: one SQLite file in WAL mode that many processes share.

Every change is made under the store's file lock, so SQLite's own locks are hardly ever waited for. A file that SQLite
finds damaged is moved aside and made anew from the rows that can still be read; each row carries a seal, because a
changed byte inside a value is nothing that SQLite would notice.
"""

from __future__ import annotations

import json
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from blake3 import blake3

from warmstore.errors import NewerFormat

FORMAT = 1
APPLICATION = 0x7741726D
BLOCK = 4096
"""What a file takes on a disk is counted in blocks of so many bytes."""

_SCHEMA = f"""
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA journal_mode = WAL;
BEGIN IMMEDIATE;
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
PRAGMA application_id = {APPLICATION};
PRAGMA user_version = {FORMAT};
COMMIT;
"""

_DAMAGE = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_ERROR}

_log = logging.getLogger("warmstore")


def is_damage(error: sqlite3.Error) -> bool:
    """Whether an error says that the file is not what it should be; a full disk or a busy file is not that."""
    code = getattr(error, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _DAMAGE and code not in _WRITE_ERRORS


_WRITE_ERRORS = {
    sqlite3.SQLITE_IOERR_WRITE,
    sqlite3.SQLITE_IOERR_FSYNC,
    sqlite3.SQLITE_IOERR_TRUNCATE,
    sqlite3.SQLITE_IOERR_SHMSIZE,
    sqlite3.SQLITE_IOERR_NOMEM,
}


def seal(key: str, kind: str, environment: str, requirements: str, digest: str, size: int, seconds: float) -> bytes:
    """16 bytes that tell whether a row is still what was written."""
    whole = json.dumps([key, kind, environment, requirements, digest, size, seconds])
    return blake3(whole.encode(errors="surrogatepass")).digest(length=16)


class Index:
    """Connections to the SQLite file of a folder: one a process, made again after a fork or when the file was replaced.

    With `read_only`, nothing in the folder is changed; a folder without the file is an index without rows.
    """

    def __init__(self, folder: Path, *, read_only: bool) -> None:
        self.path = folder / "index.sqlite"
        self.aside = folder / "index.damaged"
        self._read_only = read_only
        self._connection: sqlite3.Connection | None = None
        self._opened: tuple[int, int] | None = None

    def files(self) -> list[Path]:
        """Everything that the index may have on the disk."""
        return [self.path, Path(f"{self.path}-wal"), Path(f"{self.path}-shm"), self.aside]

    def connection(self) -> sqlite3.Connection:
        """The open connection.

        Raises:
            NewerFormat: a newer warmstore made the file.
            sqlite3.Error: the file is damaged, locked or out of reach.
        """
        if self._connection is not None and self._opened == _identity(self.path):
            return self._connection
        self.close()
        self._connection = self._open_to_read() if self._read_only else self._open()
        self._opened = _identity(self.path)
        return self._connection

    def _open(self) -> sqlite3.Connection:
        connection = _connect(f"{self.path}")
        try:
            version = connection.execute("PRAGMA user_version").fetchone()[0]
            if not version and not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
                connection.executescript(_SCHEMA)
            self._check_version(version)
            connection.executescript(
                "PRAGMA synchronous = NORMAL; PRAGMA wal_autocheckpoint = 64; PRAGMA journal_size_limit = 262144;"
            )
        except BaseException:
            connection.close()
            raise
        return connection

    def _open_to_read(self) -> sqlite3.Connection:
        if not self.path.exists():
            connection = _connect(":memory:")
            connection.executescript(_SCHEMA)
            return connection
        uri = self.path.absolute().as_uri()
        # Without the files of its WAL beside it, SQLite reads only what it may take as never changing.
        for options in ("mode=ro", "mode=ro&immutable=1"):
            connection = _connect(f"{uri}?{options}", uri=True)
            try:
                self._check_version(connection.execute("PRAGMA user_version").fetchone()[0])
                connection.execute("SELECT 1 FROM artifacts LIMIT 1").fetchone()
            except sqlite3.OperationalError:
                connection.close()
                if "immutable" in options:
                    raise
            except BaseException:
                connection.close()
                raise
            else:
                return connection
        raise AssertionError

    def _check_version(self, version: int) -> None:
        if version > FORMAT:
            raise NewerFormat(
                f"{self.path} has format {version}, and this warmstore knows {FORMAT}; upgrade warmstore, "
                "or let it use another folder"
            )

    def close(self) -> None:
        """Let go of the file."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(sqlite3.Error):
                connection.close()

    def forget(self) -> None:
        """Let go without closing: in a forked child, where the connection is the parent's."""
        if self._connection is not None:
            _inherited.append(self._connection)
        self._connection = None

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing of what is done inside."""
        connection = self.connection()
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    def size(self) -> int:
        """Bytes that the index takes on the disk, in whole blocks."""
        return sum(on_disk(_size(path)) for path in self.files())

    def move_aside(self) -> None:
        """Put a damaged file where it is in nobody's way; what was aside before is removed."""
        self.close()
        _, wal, shm, aside = self.files()
        with suppress(FileNotFoundError):
            self.path.replace(aside)
        for path in (wal, shm):
            path.unlink(missing_ok=True)

    def salvaged(self) -> list[dict[str, Any]]:
        """The rows of the file aside that can be read and whose seal is whole, each with its environment's record."""
        rows: list[dict[str, Any]] = []
        with suppress(sqlite3.Error, OSError), closing(_connect(f"{self.aside}")) as connection:
            connection.row_factory = sqlite3.Row
            records = {}
            with suppress(sqlite3.Error):
                for digest, record in connection.execute("SELECT digest, record FROM environments"):
                    if isinstance(record, str) and blake3(record.encode()).hexdigest(length=16) == digest:
                        records[digest] = record
            for (last,) in connection.execute("SELECT max(id) FROM artifacts").fetchall():
                for number in range(1, (last or 0) + 1):
                    with suppress(sqlite3.Error, TypeError, ValueError):
                        row = connection.execute("SELECT * FROM artifacts WHERE id = ?", (number,)).fetchone()
                        if row and sealed(row) and row["environment"] in records:
                            rows.append({**dict(row), "record": records[row["environment"]]})
        return rows


def sealed(row: sqlite3.Row) -> bool:
    """Whether a row of `artifacts` is as it was written."""
    names = ("key", "kind", "environment", "requirements", "digest", "size", "seconds")
    return bool(row["seal"] == seal(*(row[name] for name in names)))


def on_disk(size: int) -> int:
    """What a file of `size` bytes takes on the disk."""
    return -(-size // BLOCK) * BLOCK


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _connect(path: str, *, uri: bool = False) -> sqlite3.Connection:
    return sqlite3.connect(path, timeout=10, isolation_level=None, check_same_thread=False, uri=uri)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        state = path.stat()
    except OSError:
        return None
    return state.st_dev, state.st_ino


_inherited: list[sqlite3.Connection] = []
"""Connections of a parent process, kept so that no collection closes them here."""
