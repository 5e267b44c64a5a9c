"""RemoteChunk: a chunk at a remote, named by a hash of its blocks' hashes, so that each block can be checked alone."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

import xxhash

from warmstore.storage.block_source import BLOCK

PAGES = 1 << 15
"""The most blocks of a chunk. 1 GiB and a footer need half of them."""

_NAME = re.compile(r"[0-9a-f]{32}|[0-9a-f]{64}")
_SIDECAR = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class RemoteChunk:
    """The name and the size in bytes of a chunk at a remote; and the name of its sidecar, or None.

    A name of 32 digits is made of xxh3-64 hashes. One of 64 digits is made of SHA-256 hashes, which an adversary
    cannot match with other bytes.

    Raises:
        ValueError: an invalid name or size.
    """

    name: str
    size: int
    sidecar: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is not the name of a chunk")
        if type(self.size) is not int or not 0 <= self.size <= PAGES * BLOCK:
            raise ValueError(f"{self.size!r} is not the size of a chunk")
        if self.sidecar is not None and not (isinstance(self.sidecar, str) and _SIDECAR.fullmatch(self.sidecar)):
            raise ValueError(f"{self.sidecar!r} is not the name of a sidecar")

    @classmethod
    def of(cls, data: memoryview, *, signed: bool = False) -> tuple[RemoteChunk, bytes]:
        """The chunk with these bytes, and the hashes of its blocks. `signed`: a signature covers its name."""
        digest = _sha256 if signed else _xxh3
        hashes = b"".join(digest(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK))
        return cls(_name(len(data), hashes, signed=signed), len(data)), hashes

    @classmethod
    def of_hashes(cls, size: int, hashes: bytes, sidecar: str | None) -> RemoteChunk:
        """The chunk of some bytes whose blocks have these hashes."""
        return cls(_name(size, hashes, signed=len(hashes) >= 32 * -(-size // BLOCK)), size, sidecar)

    @property
    def is_signed(self) -> bool:
        return len(self.name) == 64

    @property
    def hash_size(self) -> int:
        """Bytes of the hash of a block."""
        return 32 if self.is_signed else 8

    @property
    def blocks(self) -> int:
        return -(-self.size // BLOCK)

    @property
    def object(self) -> str:
        """The name of the object with the chunk's bytes."""
        return f"chunks/{self.name}"

    @property
    def hashes_object(self) -> str:
        """The name of the object with the hashes of the blocks: its sidecar, or else a file of the hashes alone."""
        return f"chunks/{self.name}.hashes" if self.sidecar is None else f"sidecars/{self.sidecar}"

    def hashes(self, data: bytes | None) -> bytes | None:
        """The hashes of the blocks, if these bytes are they; None if they do not match the chunk's name."""
        if data is None or len(data) != self.hash_size * self.blocks:
            return None
        return data if _name(self.size, data, signed=self.is_signed) == self.name else None

    def is_block(self, hashes: bytes, block: int, data: bytes | memoryview) -> bool:
        """Whether these are the bytes of a block."""
        digest = _sha256 if self.is_signed else _xxh3
        return digest(data) == hashes[block * self.hash_size : (block + 1) * self.hash_size]


def _xxh3(data: bytes | memoryview) -> bytes:
    return xxhash.xxh3_64_intdigest(data).to_bytes(8, "little")


def _sha256(data: bytes | memoryview) -> bytes:
    return hashlib.sha256(data).digest()


def _name(size: int, hashes: bytes, *, signed: bool) -> str:
    whole = size.to_bytes(8, "little") + hashes
    return hashlib.sha256(whole).hexdigest() if signed else xxhash.xxh3_128_hexdigest(whole)
