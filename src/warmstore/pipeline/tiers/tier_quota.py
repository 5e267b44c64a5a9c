"""The quota of a tier: one limit for all pipelines that share its folder.

When a pipeline needs bytes, versions that no process uses are evicted, oldest first. Then, in the versions in use,
chunks are evicted that no present plan needs.
"""

import contextlib
import errno
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from warmstore.pipeline.tiers.chunk_leases import evict_unneeded
from warmstore.records.format.manifest import NAME
from warmstore.records.log.log_entries import ENTRY
from warmstore.replicate.attach import STAGING
from warmstore.storage.disk_usage import BLOCK, folder_bytes, on_disk
from warmstore.storage.files import HUGE_PAGE, Buffer, Files, modified_at
from warmstore.storage.folder_removal import sweep_hidden
from warmstore.storage.history import History
from warmstore.storage.lease import SUFFIX, remove_unused
from warmstore.storage.locks import ReentrantFileLock
from warmstore.storage.quota import ByteQuota

SAMPLES = "warmstore-samples"
"""The name of a disk tier's folder, in the folder of plans."""

ABOUT = "about.json"
"""The file that describes a version of a tier. A folder without it is not ours, and never removed."""

_COMMIT = 8 * ENTRY.itemsize  # bytes that a log grows by at once, at most
_SPARE = 32 << 20  # free bytes from which on files are not extended ahead of their writes


class QuotaExceeded(OSError):
    """A write would take a tier over its quota."""


def is_quota_exceeded(error: BaseException | None) -> bool:
    """Whether a write failed because of the quota."""
    while error is not None and not isinstance(error, QuotaExceeded):
        error = error.__cause__
    return error is not None


@dataclass(frozen=True)
class TierVersions:
    """The versions in a tier's folder, each with its usage lease beside it. Bytes are counted in whole blocks.

    evicts: whether versions and chunks may be removed to make room.
    """

    folder: Path
    limit: int
    evicts: bool = True

    def nbytes(self) -> int:
        return folder_bytes(self.folder)

    def evict(self, excess: int) -> bool:
        removed = sweep_hidden(self.folder)
        if not self.evicts:
            return removed > 0
        for lock in sorted(self.folder.glob("*" + SUFFIX), key=modified_at):
            version = lock.with_suffix("")
            if removed >= excess or not (version / ABOUT).is_file():
                continue
            size = folder_bytes(version)
            with contextlib.suppress(OSError):
                removed += size if remove_unused(version) else 0
        if removed < excess:
            removed += sum(map(_remove_staging, self.stores()))
        if removed < excess:
            removed += evict_unneeded(self.stores(), excess - removed)
        if removed and self.folder.name == SAMPLES:
            History(self.folder.parent, "pipelines").append("evicted", bytes=removed)
        return removed > 0

    def stores(self) -> Iterator[Path]:
        """The record stores of all versions."""
        return (path.parent for path in self.folder.glob(f"[!.]*/*/{NAME}"))

    def refusal(self, size: int) -> Exception:
        return QuotaExceeded(errno.ENOSPC, f"the tier's budget of {self.limit:,} bytes is used up", str(self.folder))


def tier_quota(folder: Path, limit: int, *, evicts: bool = True) -> ByteQuota:
    """The quota of a tier: `limit` bytes for its folder and everything in it. evicts: see `TierVersions`."""
    return ByteQuota(limit, TierVersions(folder, limit, evicts), ReentrantFileLock(folder / "room.lock", Files()).held)


class QuotaFiles(Files):
    """Files that reserve the bytes they grow by, and leave syncing to the kernel.

    Checksums find what a power failure leaves half written; it is computed again.
    """

    def __init__(self, quota: ByteQuota) -> None:
        self.quota = quota

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        with self._growing(descriptor, offset + sum(map(len, buffers))):
            return super().write(descriptor, buffers, offset)

    def allocate(self, descriptor: int, offset: int, length: int) -> None:
        with self._growing(descriptor, offset + length):
            super().allocate(descriptor, offset, length)

    def truncate(self, descriptor: int, length: int) -> None:
        with self._growing(descriptor, length):
            super().truncate(descriptor, length)

    def extend(self, descriptor: int, offset: int) -> bool:
        """Extend a file, unless the bytes may be needed for other samples soon."""
        growth = offset + HUGE_PAGE - self.size(descriptor)
        with self.quota.reserve(0):
            if self.quota.free() < growth + min(_SPARE, self.quota.limit // 4):
                return False
            return super().extend(descriptor, offset)

    def make_folder(self, folder: Path) -> None:
        missing = sum(not path.exists() for path in (folder, *folder.parents))
        with self.quota.reserve(BLOCK * missing):
            super().make_folder(folder)

    def sync(self, descriptor: int) -> None:
        """Do nothing: see the class."""

    def sync_folder(self, folder: Path) -> None:
        """Do nothing: see the class."""

    @contextlib.contextmanager
    def before_log(self, descriptor: int) -> Iterator[None]:
        """The lock of the quota, and room for the log if there can be any. Whoever evicts a chunk of its store holds
        the quota and waits for the lock of the log: taken inside of it, both would wait for ever, or one for itself."""
        with self.quota.reserve(0):
            if -self.size(descriptor) % BLOCK < _COMMIT:
                self.quota.free(2 * BLOCK)  # the log and its copy
            yield

    def _growing(self, descriptor: int, end: int) -> contextlib.AbstractContextManager[None]:
        growth = on_disk(end) - on_disk(self.size(descriptor))
        return self.quota.reserve(growth) if growth > 0 else contextlib.nullcontext()


def _remove_staging(store: Path) -> int:
    """Remove what a killed pull has left in a store. Returns the bytes."""
    staging = store / STAGING
    size = folder_bytes(staging)
    with contextlib.suppress(OSError):
        return size if size and remove_unused(staging, without_lock=False) else 0
    return 0
