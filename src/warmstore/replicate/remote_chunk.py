"""RemoteChunk: a chunk at a remote, named by a hash of its blocks' hashes, so that each block can be checked alone."""

import re
from dataclasses import dataclass

import numpy as np
import xxhash

from warmstore.storage.array_types import UInt64
from warmstore.storage.block_source import BLOCK

PAGES = 1 << 15
"""The most blocks of a chunk. 1 GiB and a footer need half of them."""

_NAME = re.compile(r"[0-9a-f]{32}")

Hashes = UInt64


@dataclass(frozen=True)
class RemoteChunk:
    """The name and the size in bytes of a chunk at a remote.

    Raises:
        ValueError: an invalid name or size.
    """

    name: str
    size: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is not the name of a chunk")
        if type(self.size) is not int or not 0 <= self.size <= PAGES * BLOCK:
            raise ValueError(f"{self.size!r} is not the size of a chunk")

    @classmethod
    def of(cls, data: memoryview) -> "tuple[RemoteChunk, Hashes]":
        """The chunk with these bytes, and the xxh3-64 of each block, uint64 [blocks]."""
        digest = xxhash.xxh3_64_intdigest
        hashes = np.array([digest(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)], np.uint64)
        return cls(_name(len(data), hashes), len(data)), hashes

    @property
    def blocks(self) -> int:
        return -(-self.size // BLOCK)

    @property
    def object(self) -> str:
        """The name of the object with the chunk's bytes."""
        return f"chunks/{self.name}"

    @property
    def hashes_object(self) -> str:
        """The name of the object with the hashes of the blocks: 8 bytes each, little-endian."""
        return f"chunks/{self.name}.hashes"

    def hashes(self, data: bytes | None) -> Hashes | None:
        """Parse the hashes of the blocks; None if they do not match the chunk's name."""
        if data is None or len(data) != 8 * self.blocks:
            return None
        hashes: Hashes = np.frombuffer(data, "<u8")
        return hashes if _name(self.size, hashes) == self.name else None


def _name(size: int, hashes: Hashes) -> str:
    return xxhash.xxh3_128_hexdigest(size.to_bytes(8, "little") + hashes.astype("<u8").tobytes())
