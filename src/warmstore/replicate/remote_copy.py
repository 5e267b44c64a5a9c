"""A local copy of a store at a remote: its log is copied when it is opened, blocks of its chunks when they are read.

Each copy has its own folder, which all processes of a machine share and later runs reuse. If the remote does not
answer, cached blocks can still be read.
"""

import contextlib
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import xxhash

from warmstore.errors import Damaged, Diverged, RemoteUnavailable
from warmstore.records.format.generation_log import open_log, open_numbers
from warmstore.records.format.manifest import NAME, read_manifest, write_manifest
from warmstore.records.log.log_entries import CLOSED, new_entry
from warmstore.records.log.log_files import create_log
from warmstore.remote.credentials import identity_of
from warmstore.remote.limits import RequestLimits
from warmstore.remote.location import Location, is_remote
from warmstore.remote.objects import Objects
from warmstore.replicate.block_cache import BlockCache
from warmstore.replicate.block_states import chunks_with_sidecars
from warmstore.replicate.fetch_process import FetchProcess
from warmstore.replicate.parts import PartLog
from warmstore.replicate.remote_chunk import RemoteChunk
from warmstore.replicate.remote_diff import find_copy, with_entries
from warmstore.replicate.remote_snapshot import RemoteSnapshot
from warmstore.storage import checked_json
from warmstore.storage.atomic import replace_file
from warmstore.storage.files import Files, file_lock, read_whole
from warmstore.storage.humanize import parse_size
from warmstore.storage.lease import UsageLease
from warmstore.storage.user_paths import user_path

_log = logging.getLogger("warmstore")

CHUNKS = "chunks.json"
"""File in a generation's folder that lists its remote chunks, by number."""

_LIMITS = RequestLimits(read_timeout=15, retries=4, request=60, failures=20, cooldown=5)


@dataclass(frozen=True)
class Remote:
    """How to reach a remote.

    url, options, anonymous: see `warmstore.remote.objects.Objects`. Options are never shown. sign: see `PartLog`.
    at: the number of the push of a record store whose state is read; None for the last one.
    """

    url: str | os.PathLike[str]
    options: Mapping[str, Any] | None = field(default=None, repr=False)
    anonymous: bool = False
    limits: RequestLimits = _LIMITS
    sign: bool = False
    at: int | None = None

    def __post_init__(self) -> None:
        Location.parse(self.url)

    @property
    def shown(self) -> str:
        """The URL without credentials."""
        return Location.parse(self.url).url

    @property
    def identity(self) -> str:
        """What names this remote in local files: see `credentials.identity_of`."""
        return identity_of(Location.parse(self.url), self.options or {}, anonymous=self.anonymous)

    def __repr__(self) -> str:
        return f"Remote({self.shown!r})"

    def below(self, name: str) -> "Remote":
        """The remote of a name below this URL."""
        part = quote(name, safe="") if is_remote(self.url) else name
        return replace(self, url=f"{os.fspath(self.url).rstrip('/')}/{part}")

    def open(self) -> Objects:
        """Connect to the remote."""
        return Objects(self.url, options=self.options, anonymous=self.anonymous, limits=self.limits, parallel=16)

    def part_log(self, cache_dir: Path | None = None) -> PartLog:
        """The log of the keyed store at this URL. What is fetched of it is kept in `cache_dir`."""
        folder = copy_folder(self, default_cache_dir() if cache_dir is None else cache_dir)
        return PartLog(folder.with_name(f"{folder.name}.log"), sign=self.sign)


class RemoteFiles(Files):
    """Files of a folder with remote chunks. Cached blocks take at most `max_size` bytes; None for no bound."""

    is_remote = True

    def __init__(self, remote: Remote, max_size: int | None, cache_dir: Path) -> None:
        self.remote = remote
        self.cache_dir = cache_dir
        self.max_size = max_size
        self._objects: tuple[int, Objects] | None = None
        self._block_caches: dict[Path, BlockCache] = {}
        self._fetching: tuple[int, FetchProcess] | None = None
        self._lease: UsageLease | None = None

    def __reduce__(self) -> Any:
        return type(self), (self.remote, self.max_size, self.cache_dir)

    @property
    def objects(self) -> Objects:
        """The connection of this process."""
        if self._objects is None or self._objects[0] != os.getpid():
            self._objects = os.getpid(), self.remote.open()
        return self._objects[1]

    def block_source(self, folder: Path) -> BlockCache:
        cache = self._block_caches.get(folder)
        if cache is None or not cache.is_own:
            read = partial(read_chunks, folder, self)
            cache = BlockCache(folder, read(), self.objects, self, self.max_size, read, self._elsewhere())
            self._block_caches[folder] = cache
        return cache

    def _elsewhere(self) -> FetchProcess:
        """What fetches for this process if it was forked from one that has used a remote."""
        if self._fetching is None or self._fetching[0] != os.getpid():
            self._fetching = os.getpid(), FetchProcess(self)
        return self._fetching[1]

    def hold(self, folder: Path) -> None:
        """Mark a copy as in use until `release`, so that garbage collections leave it alone."""
        with contextlib.suppress(OSError):  # a folder that is only read
            self._lease = UsageLease(folder)

    def release(self) -> None:
        if self._lease is not None:
            self._lease.release()
        if self._fetching is not None and self._fetching[0] == os.getpid():
            self._fetching[1].close()
        self._fetching = None
        if self._objects is not None and self._objects[0] == os.getpid():
            self._objects[1].close()
        self._objects = None
        self._block_caches.clear()


class CopyFiles(RemoteFiles):
    """Files of a copy of the store at a remote."""

    def refresh(self) -> None:
        open_copy(self)


def default_cache_dir() -> Path:
    """The default folder of copies."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "warmstore" / "remote"


def copy_folder(remote: Remote, cache_dir: Path) -> Path:
    """The folder of the copy of a remote."""
    url = remote.shown.rstrip("/")
    name = re.sub(r"[^A-Za-z0-9._-]", "_", url.rpartition("/")[2])[:60] or "store"
    pinned = "" if remote.at is None else f"@{remote.at}"
    digest = xxhash.xxh3_64_hexdigest(remote.identity.rstrip("/").encode())
    return cache_dir.absolute() / f"{name}-{digest}{pinned}"


def open_remote(
    remote: Remote, cache_dir: str | os.PathLike[str] | None, cache_size: int | str | None
) -> tuple[Path, CopyFiles]:
    """The folder of a copy, and the `Files` that read it; the arguments are those of `RecordStore.open`."""
    size = None if cache_size is None else parse_size(cache_size)
    files = CopyFiles(remote, size, default_cache_dir() if cache_dir is None else user_path(cache_dir))
    try:
        folder = open_copy(files)
        files.hold(folder)
        return folder, files
    except BaseException:
        files.release()
        raise


def open_copy(files: RemoteFiles) -> Path:
    """Create or update the local copy of a store, and return its folder. If the remote does not answer, return the
    last copy.

    Raises:
        NotAStore, StoreExists, Diverged, Damaged, NewerFormat: as `remote_diff.find_copy`.
        RemoteUnavailable, RemoteRefused: the remote cannot be read, and no copy exists.
    """
    folder = copy_folder(files.remote, files.cache_dir)
    refused = ""
    while True:
        try:
            head = find_copy(files.objects, at=files.remote.at)
        except RemoteUnavailable as error:
            copies = [path for path in folder.glob("[!.]*") if (path / NAME).is_file()]
            if not copies:
                raise
            _log.warning("%s; the last copy is read", error)
            return max(copies, key=lambda path: (path / NAME).stat().st_mtime)
        path = folder / head.manifest.id
        path.mkdir(parents=True, exist_ok=True)
        try:
            with file_lock(path / ".copy", files):
                take_head(path, head, files)
            return path
        except Diverged:
            if head.name == refused:
                raise
            refused = head.name  # another process may have copied a newer head since this one was read


def take_head(path: Path, head: RemoteSnapshot, files: Files) -> None:
    """Update a copy's log and manifest to a head. The caller holds the lock of the copy."""
    target = path / head.manifest.generation_folder
    known = read_manifest(path, files) if (path / NAME).exists() else None
    if known is not None and known.generation > head.manifest.generation:
        raise Diverged(f"{head.name} is older than the head before it; its owner pushed an old copy")
    if known is None or known.generation < head.manifest.generation:
        if target.exists():
            files.remove_folder(target)
        files.make_folder(target)
        write_chunks(target, head.chunks, files)
        create_log(target, files, head.log)
        open_numbers(path, head.manifest, files).take(head.numbers)
        files.sync_folder(path)  # before store.json names the new folder
        if known is not None:
            with open_log(path, known, files, write=True) as log, log.locked():
                log.append_locked(new_entry(CLOSED, 0))
        write_manifest(path, head.manifest, files)
        for old in path.glob("g[0-9]*"):
            # Other processes may still read the previous generation.
            if old != target and (known is None or old.name != known.generation_folder):
                with contextlib.suppress(OSError):
                    files.remove_folder(old)
        return
    with open_log(path, known, files, write=True) as log, log.locked():
        local_log = log.read(0).tobytes()
        if local_log == head.log:
            _mend_chunks(target, head.chunks, files)
        elif not head.log.startswith(local_log):
            if local_log.startswith(head.log):
                return  # another process copied a newer head
            raise Diverged(f"{head.name} does not continue the head before it; its owner pushed another copy")
        else:
            write_chunks(target, head.chunks, files)
            open_numbers(path, head.manifest, files).take(head.numbers)
            log.extend_locked(head.log)
    # The log may be that of a newer head too, with more metadata, which another process has copied.
    manifest = with_entries(replace(head.manifest, metadata=known.metadata), head.manifest.metadata)
    if known != manifest:
        write_manifest(path, manifest, files)


def _mend_chunks(folder: Path, chunks: Mapping[int, RemoteChunk], files: Files) -> None:
    """List the chunks of a copy again if its list was damaged."""
    with contextlib.suppress(Damaged):
        if read_chunks(folder, files) == chunks:
            return
    write_chunks(folder, chunks, files)


def read_chunks(folder: Path, files: Files) -> dict[int, RemoteChunk]:
    """The remote chunks of a generation's folder.

    Raises:
        Damaged: their list cannot be read.
    """
    path = folder / CHUNKS
    try:
        listed = checked_json.from_bytes(read_whole(files, path))
        return {int(number): RemoteChunk(*chunk) for number, chunk in listed.items()}
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError) as error:
        if found := chunks_with_sidecars(folder, files):  # a cache's
            return found
        raise Damaged(f"{path} cannot be read ({error}); open its remote again, which has it") from None


def add_chunks(folder: Path, chunks: Mapping[int, RemoteChunk], files: Files) -> None:
    """Add remote chunks to a generation's folder."""
    write_chunks(folder, {**read_chunks(folder, files), **chunks}, files)


def write_chunks(folder: Path, chunks: Mapping[int, RemoteChunk], files: Files) -> None:
    """List the remote chunks of a generation's folder."""
    listed = {str(number): [chunk.name, chunk.size, chunk.sidecar] for number, chunk in chunks.items()}
    replace_file(folder / CHUNKS, checked_json.to_bytes(listed), durable=True, files=files)
