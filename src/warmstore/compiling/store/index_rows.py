"""Rows of an index: inserting, removing, reading as artifacts, and salvaging from a damaged file.

Each row has a seal, a hash of its values. SQLite does not notice a changed byte in a value, and in a key such a change
would cause a wrong hit.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from blake3 import blake3

from warmstore.compiling.artifact import Artifact
from warmstore.compiling.environment import Environment
from warmstore.compiling.store.artifact_index import beside, uri_of
from warmstore.errors import BadArtifact
from warmstore.storage.files import Files

_UNREADABLE = (sqlite3.Error, TypeError, ValueError, OverflowError, IndexError)
COLUMNS = ("key", "kind", "environment", "requirements", "digest", "size", "created", "host", "seconds")
"""The columns of `artifacts`, without the id and the seal."""


def seal(*values: object) -> bytes:
    """The seal of a row of `artifacts`: 16 bytes of the BLAKE3 of its values, in the order of `COLUMNS`."""
    return blake3(json.dumps(values).encode()).digest(length=16)


def is_whole(row: sqlite3.Row) -> bool:
    """Whether a row of `artifacts` agrees with its seal."""
    try:
        return bool(row["seal"] == seal(*(row[name] for name in COLUMNS)))
    except TypeError:  # bytes instead of text
        return False


def insert_environment(db: sqlite3.Connection, digest: str, record: str) -> None:
    """Add an environment, or repair its record."""
    db.execute(
        "INSERT INTO environments VALUES (?, ?) ON CONFLICT DO UPDATE SET record = excluded.record "
        "WHERE record IS NOT excluded.record",
        (digest, record),
    )


def insert(db: sqlite3.Connection, *values: Any) -> list[str]:
    """Add a row to `artifacts`, its values in the order of `COLUMNS`, and remove the row that it replaces.

    Returns the digests of that row, if no other has them.
    """
    replaced = db.execute(
        "SELECT id FROM artifacts WHERE key = ? AND kind = ? AND environment = ? AND requirements = ?", values[:4]
    ).fetchall()
    unused = remove(db, [number for (number,) in replaced])
    row = db.execute(
        "INSERT INTO artifacts VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", (*values, seal(*values))
    ).lastrowid
    db.execute("INSERT OR REPLACE INTO uses VALUES (?, 0, ?)", (row, values[6]))
    return unused


def remove(db: sqlite3.Connection, ids: list[int]) -> list[str]:
    """Remove rows of `artifacts`. Returns the digests that no row refers to any longer."""
    marks = ",".join("?" * len(ids))
    digests = [digest for (digest,) in db.execute(f"SELECT DISTINCT digest FROM artifacts WHERE id IN ({marks})", ids)]
    db.execute(f"DELETE FROM artifacts WHERE id IN ({marks})", ids)
    db.execute(f"DELETE FROM uses WHERE id IN ({marks})", ids)
    used = "SELECT 1 FROM artifacts WHERE digest = ?"
    return [digest for digest in digests if not db.execute(used, (digest,)).fetchone()]


def salvaged(path: Path, files: Files) -> list[dict[str, Any]]:
    """The readable rows of a damaged index that agree with their seal, each with its environment's record."""
    rows: list[dict[str, Any]] = []
    records: dict[str, str] = {}
    with suppress(*_UNREADABLE), closing(files.connect(uri_of(path))) as connection:
        connection.row_factory = sqlite3.Row
        with suppress(*_UNREADABLE):
            for digest, record in connection.execute("SELECT digest, record FROM environments"):
                if isinstance(record, str) and blake3(record.encode()).hexdigest(length=16) == digest:
                    records[digest] = record
        last = 0
        with suppress(*_UNREADABLE):
            last = int(connection.execute("SELECT max(id) FROM artifacts").fetchone()[0])
        for number in range(1, min(last, 1 << 20) + 1):
            with suppress(*_UNREADABLE):
                row = connection.execute("SELECT * FROM artifacts WHERE id = ?", (number,)).fetchone()
                if row and is_whole(row) and row["environment"] in records:
                    rows.append({name: row[name] for name in COLUMNS} | {"record": records[row["environment"]]})
    for left in beside(path):
        files.remove(left)
    return rows


class ArtifactRows:
    """Reads artifacts from an index. Environments, which many artifacts share, are read once."""

    def __init__(self) -> None:
        self._environments: dict[str, Environment] = {}

    def select(
        self,
        db: sqlite3.Connection,
        condition: str,
        values: tuple[object, ...],
        order: str = "a.key, a.kind, a.created",
    ) -> list[Artifact]:
        """The artifacts with a complete blob whose row `a` meets a condition, sorted by key or in another order."""
        cursor = db.cursor()
        cursor.row_factory = sqlite3.Row
        rows = cursor.execute(
            "SELECT a.*, e.record, u.hits, u.last_used FROM artifacts a JOIN uses u ON u.id = a.id "
            "JOIN environments e ON e.digest = a.environment JOIN blobs b ON b.digest = a.digest "
            f"WHERE b.ready AND {condition} ORDER BY {order}",
            values,
        ).fetchall()
        return [artifact for row in rows if is_whole(row) and (artifact := self._artifact(row))]

    def _artifact(self, row: sqlite3.Row) -> Artifact | None:
        environment = self._environments.get(row["environment"])
        if environment is None:
            try:
                environment = Environment.from_json(row["record"])
            except BadArtifact:
                return None
            if blake3(row["record"].encode()).hexdigest(length=16) != row["environment"]:
                return None
            self._environments[row["environment"]] = environment
        return Artifact(
            row["key"], row["kind"], row["digest"], row["size"], environment, json.loads(row["requirements"]),
            row["created"], row["host"], row["seconds"], row["hits"], row["last_used"],
        )  # fmt: skip
