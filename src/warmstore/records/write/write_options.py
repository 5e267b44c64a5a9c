"""Options of a writer. They belong to the process, not to the store."""

from dataclasses import dataclass

from warmstore.storage.humanize import parse_size
from warmstore.storage.memory.address_space import SLOT
from warmstore.storage.quota import Reserve
from warmstore.storage.threads import thread_count


@dataclass(frozen=True)
class WriteOptions:
    """chunk_size: bytes after which a chunk is sealed. threads: for compression.

    room: reserves the bytes of every write to a store with a quota; None for other stores.
    """

    chunk_size: int
    threads: int
    room: Reserve | None = None

    @classmethod
    def of(
        cls, chunk_size: int | str = SLOT, writer_threads: int | None = None, room: Reserve | None = None
    ) -> "WriteOptions":
        """Check the options of a user.

        Raises:
            ValueError: a size over 1 GiB, or less than one thread.
        """
        limit = parse_size(chunk_size)
        if limit > SLOT:
            raise ValueError(f"chunk_size is {chunk_size!r}; a chunk holds at most 1 GiB")
        is_count = isinstance(writer_threads, int) and not isinstance(writer_threads, bool) and writer_threads >= 1
        if writer_threads is not None and not is_count:
            raise ValueError(f"writer_threads is {writer_threads!r}; it must be at least 1, or None for one per core")
        return cls(limit, writer_threads or thread_count(), room)
