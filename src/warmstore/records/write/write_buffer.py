"""Pending rows: appended, and not yet on the disk."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import xxhash

from warmstore.errors import SchemaMismatch
from warmstore.records.format.encoded_rows import EncodedRows, absent_rows, join
from warmstore.records.format.fields import Fields, suggestion
from warmstore.records.format.value_encoding import encode
from warmstore.storage.array_types import Int64


class _Pending(NamedTuple):
    """A block, and how many rows and bytes there are up to its end."""

    rows: dict[str, EncodedRows]
    end: int
    nbytes: int


class WriteBuffer:
    """A queue of encoded blocks of the same fields. They are joined when they are read or written.

    It changes in single steps: an interrupt may come between any two, and other threads read `count`.
    """

    def __init__(self) -> None:
        self._blocks: list[_Pending] = []
        self._hashed: tuple[dict[str, EncodedRows], bytes] | None = None

    @property
    def count(self) -> int:
        blocks = self._blocks
        return blocks[-1].end if blocks else 0

    @property
    def nbytes(self) -> int:
        blocks = self._blocks
        return blocks[-1].nbytes if blocks else 0

    def add(self, block: dict[str, EncodedRows]) -> None:
        """Append one block. One without rows is dropped: it would keep the fields of its time.

        Raises:
            SchemaMismatch: its fields have unequal counts.
        """
        if added := row_count(block):
            nbytes = self.nbytes + sum(rows.nbytes for rows in block.values())
            self._blocks.append(_Pending(block, self.count + added, nbytes))

    def joined(self) -> dict[str, EncodedRows]:
        """All pending rows as one block."""
        if len(self._blocks) > 1:
            rows = {name: join([block.rows[name] for block in self._blocks]) for name in self._blocks[0].rows}
            self._blocks = [_Pending(rows, self.count, self.nbytes)]
        return self._blocks[0].rows

    def digest(self) -> bytes:
        """A hash of all pending rows, 16 bytes. It is computed once for each change."""
        if not self._blocks:
            return bytes(16)
        block, hashed = self.joined(), self._hashed
        if hashed is None or hashed[0] is not block:
            hashed = self._hashed = block, _digest_of(block)
        return hashed[1]

    def take(self, name: str, which: Int64) -> EncodedRows:
        """Some rows of one field, in the order asked for."""
        rows = self.joined()[name]
        if rows.offsets is None:
            return EncodedRows(len(which), rows.data[which], absent=None if rows.absent is None else rows.absent[which])
        return join([rows.slice(at, at + 1) for at in which.tolist()] or [rows.slice(0, 0)])

    def head(self, limit: int) -> tuple[int, dict[str, EncodedRows]]:
        """The count and a block of the first rows, at least one, that together take about `limit` bytes."""
        block = self.joined()
        count = self.count
        if self.nbytes > limit:
            count = max(1, count * limit // self.nbytes)
            while count > 1 and sum(rows.slice(0, count).nbytes for rows in block.values()) > limit:
                count //= 2
        return count, {name: rows.slice(0, count) for name, rows in block.items()}

    def taken(self, limit: int, *, rest: bool = False) -> Iterator[dict[str, EncodedRows]]:
        """Take out blocks of about `limit` bytes, while there is so much; with `rest` until nothing is left."""
        while self.nbytes >= limit or (rest and self.count):
            count, block = self.head(limit)
            yield block
            self.drop(count)

    def drop(self, count: int) -> None:
        """Forget the first `count` rows: they are committed."""
        rest = {name: rows.slice(count, rows.count) for name, rows in self.joined().items()}
        left = self.count - count
        self._blocks = [_Pending(rest, left, sum(rows.nbytes for rows in rest.values()))] if left else []


def _digest_of(block: dict[str, EncodedRows]) -> bytes:
    digest = xxhash.xxh3_128()
    for name, rows in sorted(block.items()):
        digest.update(f"{name!r} {rows.count}\n".encode("utf-8", "surrogatepass"))
        for part in (rows.data, rows.offsets, rows.shapes, rows.absent):
            digest.update(b"none\n" if part is None else f"{part.nbytes}\n".encode())
            if part is not None:
                digest.update(part.reshape(-1).view(np.uint8).data)
    return digest.digest()


def row_count(block: dict[str, EncodedRows]) -> int:
    """The number of records of a block.

    Raises:
        SchemaMismatch: its fields have unequal counts.
    """
    counts = {name: rows.count for name, rows in block.items()}
    if len(set(counts.values())) > 1:
        raise SchemaMismatch(f"all fields of a batch need the same number of records; got {counts}")
    return next(iter(counts.values()))


def largest_record(block: dict[str, EncodedRows]) -> int:
    """Bytes of the largest record of a block, over all its fields."""
    fixed, varying = 0, []
    for rows in block.values():
        if rows.offsets is None:
            fixed += rows.data.shape[1]
        else:
            varying.append(np.diff(rows.offsets))
    return fixed + int(np.max(sum(varying), initial=0)) if varying else fixed


def block_of(fields: Fields, columns: dict[str, Any]) -> dict[str, EncodedRows]:
    """Encode a batch given as a dict of values per field. An omitted field is absent in every record.

    Raises:
        SchemaMismatch: a field is unknown, lengths differ, or values do not fit.
    """
    if not isinstance(columns, dict) or not columns:
        given = "none" if isinstance(columns, dict) else type(columns).__name__
        raise SchemaMismatch(f"a record has the fields {list(fields)}; got {given}")
    for name in columns:
        if name not in fields:
            raise SchemaMismatch(f"there is no field {name!r}{suggestion(name, fields)}; a record has {list(fields)}")
    encoded = {name: encode(name, fields[name], values) for name, values in columns.items()}
    count = next(iter(encoded.values())).count
    block = {name: encoded.get(name) or absent_rows(field, count) for name, field in fields.items()}
    row_count(block)
    return block
