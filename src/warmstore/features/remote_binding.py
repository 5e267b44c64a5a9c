"""One cache at a remote, filled by many hosts: each pushes what it computed, and takes over what the others did."""

import contextlib
import logging
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from warmstore.errors import Damaged, ReadOnly, RemoteError, SchemaMismatch, StaleCache, StoreExists
from warmstore.features.cache_options import CacheOptions
from warmstore.features.keyed.cache_versions import difference
from warmstore.features.keyed.open_version import OpenVersion
from warmstore.features.outputs.output_schema import KEY
from warmstore.records.format.log_entries import Entries
from warmstore.records.format.manifest import NAME, Manifest, read_manifest
from warmstore.remote.limits import RequestLimits
from warmstore.remote.objects import Objects
from warmstore.replicate.attach import Keep, attach
from warmstore.replicate.pull import PullResult
from warmstore.replicate.pull import pull as pull_store
from warmstore.replicate.push import PushResult
from warmstore.replicate.push import push as push_store
from warmstore.replicate.record_store import RecordStore
from warmstore.replicate.remote_chunk import PAGES, RemoteChunk
from warmstore.replicate.remote_copy import Remote, RemoteFiles, add_chunks, copy_folder, default_cache_dir
from warmstore.replicate.remote_snapshot import RemoteSnapshot, read_heads
from warmstore.storage.block_source import BLOCK
from warmstore.storage.files import Files
from warmstore.storage.humanize import parse_size

_log = logging.getLogger("warmstore")

_LIMITS = RequestLimits(read_timeout=5, retries=2, request=10, failures=3, cooldown=30)
_PAUSE = 60.0  # seconds between two words on what goes wrong


def push(version: OpenVersion, remote: Remote, verify: bool, progress: bool | None) -> PushResult:
    """See `FeatureCache.push`."""
    store = version.settled_store()
    if store is None:
        return PushResult(0, 0, 0, 0)
    with contextlib.closing(remote.open()) as objects:
        for head in read_heads(objects):
            check_joins(store.manifest, head, remote)
        return push_store(store.path, objects, store.files, shared=True, verify=verify, progress=progress)


def pull(version: OpenVersion, remote: Remote, progress: bool | None) -> PullResult:
    """See `FeatureCache.pull`."""
    keep = lazily(version.files) if isinstance(version.files, RemoteFiles) else None
    with contextlib.closing(remote.open()) as objects:
        return join(version, objects, remote, progress, keep)


def join(
    version: OpenVersion, objects: Objects, remote: Remote, progress: bool | None, keep: Keep | None = None
) -> PullResult:
    """Adopt what all others have."""
    room = None if version.quota is None else version.quota.reserve
    done = PullResult(0, 0, 0)
    for head in read_heads(objects):
        store = _store_for(version, head.manifest)
        check_joins(store.manifest, head, remote)
        one = attach(store.path, head, objects, store.files, lazily=keep, room=room, progress=progress)
        done = PullResult(done.chunks + one.chunks, done.size + one.size, done.records + one.records)
    version.see_others()
    return done


def _store_for(version: OpenVersion, manifest: Manifest) -> RecordStore:
    """The store of a cache; one that is empty still becomes one for what another host wrote."""
    store = version.settled_store()
    if store is None:
        if not version.writes:
            raise ReadOnly(f"the cache {version.path} is only read by this process; open it for writing to pull")
        with contextlib.suppress(StoreExists):
            version.path.parent.mkdir(parents=True, exist_ok=True)
            RecordStore.create(version.path, manifest.fields, metadata=manifest.metadata, files=version.files).close()
        store = version.settled_store()
    assert store is not None
    return store


def lazily(files: RemoteFiles) -> Keep:
    """Leave chunks at the remote, but for what the key index needs: so all samples are found, whatever follows."""

    def keep(folder: Path, number: int, chunk: RemoteChunk, entries: Entries) -> None:
        add_chunks(folder, {number: chunk}, files)
        pages = files.block_source(folder)
        pages.base_index(number)
        # Keys are the first column: 16 bytes a row, and 8 of their checksums.
        first = entries["offset"].astype(np.int64)
        last = first + entries["header"] + 24 * entries["rows"].astype(np.int64) + 256
        last = np.minimum(last, chunk.size) - 1
        blocks = [np.arange(one // BLOCK, two // BLOCK + 1) for one, two in zip(first, last, strict=True)]
        pages.fetch(PAGES * number + np.unique(np.concatenate(blocks)))

    return keep


class RemoteBinding:
    """The remote of a cache that was opened by its URL: where its files are here, and what goes wrong, said once.

    remote: of all caches. files: with which this one is read.
    """

    def __init__(self, remote: Remote, options: CacheOptions) -> None:
        if options.max_size is not None:
            raise ValueError("max_size bounds a cache in a folder; of one at a remote, cache_size bounds what is here")
        self.remote = replace(remote, limits=_LIMITS)
        self._cache_dir = default_cache_dir() if options.cache_dir is None else Path(options.cache_dir)
        self._cache_size = None if options.cache_size is None else parse_size(options.cache_size)
        self._said = 0.0
        self.failures = 0

    @property
    def folder(self) -> Path:
        """Where its caches are here."""
        return copy_folder(self.remote, self._cache_dir)

    def files(self, name: str) -> RemoteFiles:
        """Those of one version of a cache."""
        return RemoteFiles(self.remote.below(name), self._cache_size, self._cache_dir)

    def pull_now(self, version: OpenVersion) -> None:
        """`pull` where a remote that fails is no error: the cache has what was here already."""
        try:
            pull(version, self.remote.below(version.path.name), False)
        except (RemoteError, Damaged) as error:
            self.failed(error)

    def push_now(self, version: OpenVersion) -> None:
        """`push` where a remote that fails is no error: what is here goes with a later push."""
        try:
            push(version, self.remote.below(version.path.name), False, False)
        except (RemoteError, Damaged) as error:
            _log.warning("%s; what was computed here stays here until the next push", error)

    def failed(self, error: Exception) -> None:
        """Count a failure, and say so once in a while."""
        self.failures += 1
        if time.monotonic() - self._said > _PAUSE or not self._said:
            self._said = time.monotonic()
            _log.warning("%s; what is not here is computed", error)


def push_folder(folder: Path, remote: Remote, *, verify: bool = False, progress: bool | None = None) -> PushResult:
    """Push what lies in a folder, a record store or a cache, to a place of its own."""
    files = Files()
    shared = _is_cache(read_manifest(folder, files))
    with contextlib.closing(remote.open()) as objects:
        if shared:
            for head in read_heads(objects):
                check_joins(read_manifest(folder, files), head, remote)
        return push_store(folder.absolute(), objects, files, shared=shared, verify=verify, progress=progress)


def pull_folder(
    folder: Path, remote: Remote, *, progress: bool | None = None, may_be_empty: bool = False
) -> PullResult:
    """Pull into a folder whatever is at a place, a record store or the parts of a cache."""
    files = Files()
    with contextlib.closing(remote.open()) as objects:
        heads = read_heads(objects)
        if not heads and may_be_empty:
            return PullResult(0, 0, 0)
        if not heads or not heads[0].shared:
            return pull_store(folder, objects, files, progress=progress)
        done = PullResult(0, 0, 0)
        if not (folder / NAME).exists():
            folder.absolute().parent.mkdir(parents=True, exist_ok=True)
            first = heads[0].manifest
            RecordStore.create(folder, first.fields, metadata=first.metadata).close()
        for head in heads:
            check_joins(read_manifest(folder, files), head, remote)
            one = attach(folder.absolute(), head, objects, files, progress=progress)
            done = PullResult(done.chunks + one.chunks, done.size + one.size, done.records + one.records)
        return done


def _is_cache(manifest: Manifest) -> bool:
    return manifest.metadata.get("structure") is not None and KEY in manifest.fields


def check_joins(mine: Manifest, head: RemoteSnapshot, remote: Remote) -> None:
    """Raise where what another host wrote is not what this one's module gives."""
    theirs = head.manifest
    changed = difference(theirs.metadata.get("fingerprint") or {}, mine.metadata.get("fingerprint") or {})
    if changed:
        raise StaleCache(
            f"{remote!r} holds outputs of another computation than this cache: {changed}. Use another cache id for the "
            "changed module, or versions='new'"
        )
    if (
        not head.shared
        or mine.fields != theirs.fields
        or mine.metadata.get("structure") != theirs.metadata.get("structure")
    ):
        raise SchemaMismatch(f"{remote!r} holds other outputs, or another codec, than this cache: use another cache id")
