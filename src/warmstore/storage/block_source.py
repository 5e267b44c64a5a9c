"""The source of the blocks of a chunk that are not in its local file yet.

A store may be a copy of a remote: its chunk files exist locally at full size, but their blocks are fetched when they
are read. The address space asks a `BlockSource` for blocks before it copies rows from them.
"""

import contextlib
from typing import Protocol

from warmstore.storage.array_types import Bools, Int64

BLOCK = 1 << 16
"""Bytes of one block, the unit in which chunks are fetched."""


class BlockSource(Protocol):
    """Fetches the blocks of one folder's chunks. Safe to use from several threads."""

    def base_index(self, chunk: int, /) -> int:
        """The index of a chunk's first block; -1 for a chunk whose file is complete.

        Creates the file of a chunk that comes from the remote, if it is missing.
        """

    def are_pinned(self, starts: Int64, lengths: Int64, /) -> Bools:
        """Which spans are in the local files whatever is evicted, and need no `pin`: bool [n].

        Args:
            starts: int64 [n], BLOCK times the index of a block, and the offset in it. lengths: int64 [n].
        """

    def pin(self, blocks: Int64, /) -> contextlib.AbstractContextManager[None]:
        """Fetch missing blocks, and keep all of `blocks` (int64 [n], any order) while the context is held.

        Raises:
            RemoteUnavailable, RemoteRefused: A block is missing and cannot be fetched.
            Damaged: The remote's bytes do not match their checksums.
            BadBudget: More blocks than the source may keep at once.
        """
