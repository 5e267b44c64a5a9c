"""Sidecars: what lookups need of a chunk of a keyed store, in one small object beside it.

A sidecar has the chunk's log entries, the hashes of its blocks, and the bytes of the chunk that hold the headers and
the keys of its batches. Locally these bytes are written into the chunk's file and are never evicted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from warmstore.errors import Damaged
from warmstore.records.log.log_entries import BATCH, COPIED, ENTRY, SEALED, SIZE, Entries
from warmstore.storage.array_types import Int64

_MAGIC = b"WSSIDE01"
_COUNTS = np.dtype([("entries", "<u8"), ("hashes", "<u8"), ("ranges", "<u8")])
_KEY = 24  # bytes of a row's key and of its checksum; keys are the first column of a batch
_SLACK = 256  # bytes of padding between a header, keys and checksums


@dataclass(frozen=True)
class Sidecar:
    """What a sidecar holds.

    entries: of the log, of kinds BATCH and SEALED, with offsets in the chunk. hashes: those of its blocks.
    ranges: int64 [n, 2], offset and length of bytes of the chunk. data: these bytes, one after the other.
    """

    entries: Entries
    hashes: bytes
    ranges: Int64
    data: memoryview

    @classmethod
    def of(cls, chunk: memoryview, entries: Entries, hashes: bytes) -> Sidecar:
        """The sidecar of a chunk of a store whose first field is the key."""
        kept = entries[np.isin(entries["kind"], (BATCH, COPIED, SEALED))].copy()
        kept["kind"][kept["kind"] == COPIED] = BATCH
        batches = kept[kept["kind"] == BATCH]
        offsets = batches["offset"].astype(np.int64)
        wanted = batches["header"].astype(np.int64) + _KEY * batches["rows"].astype(np.int64) + _SLACK
        ranges = np.stack((offsets, np.minimum(wanted, len(chunk) - offsets)), axis=1)
        data = b"".join(chunk[start : start + length] for start, length in ranges.tolist())
        return cls(kept, hashes, ranges, memoryview(data))

    def tobytes(self) -> bytes:
        counts = np.array([(len(self.entries), len(self.hashes), len(self.ranges))], _COUNTS)
        ranges = self.ranges.astype("<i8")
        return b"".join((_MAGIC, counts.tobytes(), self.entries.tobytes(), self.hashes, ranges.tobytes(), self.data))

    @classmethod
    def parse(cls, data: bytes, name: str, chunk_size: int) -> Sidecar:
        """The sidecar of a chunk. Raises Damaged for bytes of another name, or that do not fit the chunk."""
        try:
            if name_of(data) != name:
                raise ValueError("it does not match its name")
            if not data.startswith(_MAGIC):
                raise ValueError("a newer warmstore wrote it")
            at = len(_MAGIC)
            entries, hashes, ranges = np.frombuffer(data, _COUNTS, 1, at)[0].tolist()
            at += _COUNTS.itemsize
            found = np.frombuffer(data, ENTRY, entries, at)
            at += SIZE * entries
            hashes_bytes, at = data[at : at + hashes], at + hashes
            spans = np.frombuffer(data, "<i8", 2 * ranges, at).reshape(-1, 2).astype(np.int64)
            sidecar = cls(found, hashes_bytes, spans, memoryview(data)[at + 16 * ranges :])
            sidecar._check(chunk_size)
        except (ValueError, OverflowError) as error:
            raise Damaged(f"the sidecar {name} of a chunk cannot be read: {error}") from None
        return sidecar

    def _check(self, chunk_size: int) -> None:
        starts, lengths = self.ranges[:, 0], self.ranges[:, 1]
        ends = self.entries["offset"] + self.entries["header"] + self.entries["body"]
        is_within = (starts >= 0).all() and (lengths >= 0).all() and (starts <= chunk_size - lengths).all()
        if not is_within or int(lengths.sum()) != len(self.data) or (ends > chunk_size).any():
            raise ValueError("it does not fit its chunk")
        if not np.isin(self.entries["kind"], (BATCH, SEALED)).all():
            raise ValueError("it has entries of another kind")

    @property
    def pieces(self) -> Iterator[tuple[int, memoryview]]:
        """The offset of each range in the chunk, and its bytes."""
        at = 0
        for start, length in self.ranges.tolist():
            yield start, self.data[at : at + length]
            at += length

    @property
    def rows(self) -> int:
        """Rows of the chunk."""
        return int(self.entries["rows"][self.entries["kind"] == BATCH].sum())


def name_of(data: bytes) -> str:
    """The name of a sidecar: the SHA-256 of its bytes, since signed segments name it."""
    return hashlib.sha256(data).hexdigest()


def sidecar_path(folder: Path, number: int) -> Path:
    """The local file of a chunk's sidecar."""
    return folder / f"{number:06d}.sidecar"
