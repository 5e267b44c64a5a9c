"""A quota of bytes that holds at every moment, for all writers together.

A writer reserves bytes before it writes them: it takes the lock that all writers share, counts the existing bytes,
evicts until there is room, and holds the lock while it writes. No count is stored, so a killed process leaves no wrong
count.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

Reserve = Callable[[int], AbstractContextManager[object]]
"""The type of `ByteQuota.reserve`: called with the number of bytes that are about to be written."""


class Evictable(Protocol):
    """The content that a quota limits."""

    def nbytes(self) -> int:
        """The current bytes, written by any process."""

    def evict(self, excess: int) -> bool:
        """Remove about `excess` bytes, the least valuable first. False if nothing could be removed."""

    def refusal(self, size: int) -> Exception:
        """The error to raise if `size` bytes have no room after all possible evictions."""


class ByteQuota:
    """At most `limit` bytes of `content`. Safe for several threads and processes; can be pickled if its content can.

    Args:
        lock: Returns the reentrant lock that all writers of the content share. Default: no lock, for callers that hold
            such a lock.
    """

    def __init__(
        self,
        limit: int,
        content: Evictable,
        lock: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        self.limit = limit
        self._content = content
        self._lock = lock

    def used(self) -> int:
        """The bytes in use."""
        return self._content.nbytes()

    def free(self, wanted: int = 0) -> int:
        """The free bytes, after evicting until `wanted` are free or nothing more can be evicted."""
        while (left := self.limit - self.used()) < wanted and self._content.evict(wanted - left):
            pass
        return left

    def make_room(self, size: int) -> None:
        """Evict until `size` bytes are free. The caller holds the lock. Raises the content's `refusal`."""
        if self.free(size) < size:
            raise self._content.refusal(size)

    @contextlib.contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Reserve `size` bytes for a `with` block, during which no other process writes. 0 evicts nothing. Raises the
        content's `refusal`."""
        with self._lock():
            if size:
                self.make_room(size)
            yield
