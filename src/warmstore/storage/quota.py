"""A quota of bytes that holds at every moment, whoever writes.

A writer reserves bytes before it writes them: it takes the lock that all writers share, counts what is there, evicts
until there is room, and holds the lock while it writes. Nothing else keeps account, so a killed process leaves no wrong
count behind. Leaving the `with` of `reserve` is the release: what was written is counted, what was not is free again.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

Reserve = Callable[[int], AbstractContextManager[object]]
"""`ByteQuota.reserve`, as it is handed to writers below: called with the bytes that are about to be written."""


class Evictable(Protocol):
    """What a quota limits: how much there is, and what goes first."""

    def nbytes(self) -> int:
        """Bytes that are there now, written by any process."""

    def evict(self, excess: int) -> bool:
        """Remove about `excess` bytes, what is worth least first. False where nothing could be removed."""

    def refusal(self, size: int) -> Exception:
        """The error to raise where `size` bytes have no room though everything that could go has gone."""


class ByteQuota:
    """At most `limit` bytes of `content`. For several threads and processes; can be pickled if its content can.

    Args:
        lock: gives the lock that all writers of the content share, which a thread may take again while it holds it. By
            default none, for callers that hold such a lock already.
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
        """Bytes that are taken now."""
        return self._content.nbytes()

    def free(self, wanted: int = 0) -> int:
        """Bytes that are left, after evicting until `wanted` are left or nothing more can go."""
        while (left := self.limit - self.used()) < wanted and self._content.evict(wanted - left):
            pass
        return left

    def make_room(self, size: int) -> None:
        """Evict until `size` bytes are free. Only for the holder of the lock.

        Raises:
            The content's `refusal`: they cannot be.
        """
        if self.free(size) < size:
            raise self._content.refusal(size)

    @contextlib.contextmanager
    def reserve(self, size: int) -> Iterator[None]:
        """Let the content grow by `size` bytes inside a `with`; nobody else writes meanwhile. 0 evicts nothing.

        Raises:
            The content's `refusal`: there is no room.
        """
        with self._lock():
            if size:
                self.make_room(size)
            yield
