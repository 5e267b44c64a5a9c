"""One cache at a remote, filled by many hosts: each host pushes its samples and attaches the chunks of the others."""

import contextlib
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from warmstore.errors import (
    Damaged,
    DataError,
    MismatchError,
    NotTrusted,
    ReadOnly,
    RemoteError,
    SchemaMismatch,
    StaleCache,
    StoreExists,
)
from warmstore.features.keyed.cache_options import CacheOptions
from warmstore.features.keyed.cache_quota import rebalance
from warmstore.features.keyed.cache_store import UNSIGNED, check_signed, holds_pickles, is_cache
from warmstore.features.keyed.cache_versions import difference
from warmstore.features.keyed.open_version import OpenVersion
from warmstore.features.outputs.output_schema import KEY
from warmstore.records.format.manifest import NAME, Manifest, read_manifest
from warmstore.records.keyed_store import IndexedStore
from warmstore.records.local_store import LocalStore
from warmstore.remote.limits import RequestLimits
from warmstore.remote.objects import Objects
from warmstore.replicate.attach import Keep, attach
from warmstore.replicate.keys_first import keys_first
from warmstore.replicate.parts import Part, PartLog, has_parts
from warmstore.replicate.pull import PullResult
from warmstore.replicate.pull import pull as pull_store
from warmstore.replicate.push import PushResult
from warmstore.replicate.push import push as push_store
from warmstore.replicate.push_part import push_part
from warmstore.replicate.record_store import RecordStore
from warmstore.replicate.remote_copy import Remote, RemoteFiles, copy_folder, default_cache_dir
from warmstore.replicate.remote_snapshot import read_heads
from warmstore.storage.files import Files, is_read_only
from warmstore.storage.humanize import parse_size
from warmstore.storage.registry import STORE, register
from warmstore.storage.user_paths import user_path

_log = logging.getLogger("warmstore")

_LIMITS = RequestLimits(read_timeout=5, retries=2, request=10, failures=3, cooldown=30)
_PAUSE = 60.0  # seconds between two warnings about a remote that fails


def push(version: OpenVersion, remote: Remote, verify: bool, progress: bool | None) -> PushResult:
    """See `FeatureCache.push`."""
    store = version.settled_store()
    if store is None:
        return PushResult(0, 0, 0, 0)
    reader = version.reader
    if reader is not None and version.writes:
        if version.remote is not None:
            reader.keyed.put_in_order()  # a rebalance would fetch the values of all hosts
        elif version.quota is None:  # else what replaces a row is in a chunk that was begun later
            _keep_last_rows(reader.keyed, progress)
    with contextlib.closing(remote.open()) as objects:
        log = _log_of(version, remote)
        parts = log.read(objects)
        manifest = read_manifest(store.path, store._files)  # another process may have pulled into it
        if remote.sign:
            check_signed(manifest.metadata, store.path)
        for part in parts.filled:
            check_joins(manifest, part, remote)
        return push_part(store.path, objects, store._files, log, parts, verify=verify, progress=progress)


def _keep_last_rows(keyed: IndexedStore, progress: bool | None) -> None:
    """Leave one row a key if values were replaced or deleted: others adopt the chunks one by one."""
    if keyed.has_replaced():
        rebalance(keyed, None, progress)


def pull(version: OpenVersion, remote: Remote, progress: bool | None) -> PullResult:
    """See `FeatureCache.pull`."""
    keep = keys_first(version.files) if isinstance(version.files, RemoteFiles) else None
    with contextlib.closing(remote.open()) as objects:
        return _join(version, objects, remote, progress, keep)


def _log_of(version: OpenVersion, remote: Remote) -> PartLog:
    """The log of a version at a remote, which remembers what it has read."""
    cache_dir = version.files.cache_dir if isinstance(version.files, RemoteFiles) else None
    return version.logs.setdefault((remote.identity, remote.sign), remote.part_log(cache_dir))


def _join(
    version: OpenVersion, objects: Objects, remote: Remote, progress: bool | None, keep: Keep | None = None
) -> PullResult:
    """Attach the chunks that all other hosts pushed."""
    room = None if version.quota is None else version.quota.reserve
    pulled = []
    for part in _log_of(version, remote).read(objects).filled:
        store = _store_for(version, part.manifest)
        check_joins(read_manifest(store.path, store._files), part, remote)  # another process may have bound a module
        if (fingerprint := part.manifest.metadata.get("fingerprint")) is not None and store.mode == "a":
            store.annotate("fingerprint", fingerprint)  # a part that `put_batch` alone has filled takes the others'
        if part.manifest.id != store._manifest.id and not remote.sign:
            store.annotate(UNSIGNED, True)
        pulled.append(attach(store.path, part, objects, store._files, keep_remote=keep, room=room, progress=progress))
    version.see_others()
    return _sum(pulled)


def _sum(parts: list[PullResult]) -> PullResult:
    return PullResult(
        sum(part.chunks for part in parts),
        sum(part.size for part in parts),
        sum(part.records for part in parts),
        sum(part.damaged for part in parts),
    )


def _store_for(version: OpenVersion, manifest: Manifest) -> LocalStore:
    """The store of a version. A version without one gets a store with the fields of another host's manifest."""
    store = version.settled_store()
    if version.remote is None and not (version.writes if store is None else store.mode == "a"):
        raise ReadOnly(f"the cache {version.path} is only read by this process; open it for writing to pull")
    if store is None:
        with contextlib.suppress(StoreExists):
            version.path.parent.mkdir(parents=True, exist_ok=True)
            metadata = metadata_of(manifest)
            RecordStore.create(version.path, manifest.fields, metadata=metadata, files=version.files).close()
        store = version.settled_store()
    assert store is not None
    return store


class RemoteBinding:
    """The remote of a cache that was opened by its URL: its local folder, and warnings if the remote fails.

    remote: the folder of all caches at the remote. failures: number of failed requests.
    """

    def __init__(self, remote: Remote, options: CacheOptions) -> None:
        if options.max_size is not None:
            raise ValueError("max_size bounds a cache in a folder; for a cache at a URL, pass cache_size")
        self.remote = replace(remote, limits=_LIMITS)
        self._cache_dir = default_cache_dir() if options.cache_dir is None else user_path(options.cache_dir)
        self._cache_size = None if options.cache_size is None else parse_size(options.cache_size)
        self._last_warning = 0.0
        self.failures = 0

    @property
    def folder(self) -> Path:
        """The local folder of all caches of the remote."""
        return copy_folder(self.remote, self._cache_dir)

    def files(self, name: str) -> RemoteFiles:
        """The files of one version of a cache."""
        return RemoteFiles(self.remote.below(name), self._cache_size, self._cache_dir)

    def pull_now(self, version: OpenVersion) -> None:
        """`pull`. If the remote fails, the local rows are used; a process that stores nothing needs no local folder."""
        try:
            pull(version, self.remote.below(version.path.name), False)
        except (RemoteError, Damaged) as error:
            self.failed(error)
        except OSError as error:
            if version.writes or not is_read_only(error) or isinstance(error, NotTrusted):
                raise
            self.failed(error)

    def push_now(self, version: OpenVersion) -> None:
        """`push`. If the remote fails, or others have filled it with other outputs, the samples stay local."""
        try:
            push(version, self.remote.below(version.path.name), False, False)
        except (RemoteError, DataError, MismatchError, StoreExists, NotTrusted) as error:
            _log.warning("%s; samples computed on this host stay local until the next push", error)

    def failed(self, error: Exception) -> None:
        """Count a failure, and log a warning at most once a minute."""
        self.failures += 1
        if time.monotonic() - self._last_warning > _PAUSE or not self._last_warning:
            self._last_warning = time.monotonic()
            _log.warning("%s; every sample that is not local is computed", error)


def push_folder(folder: Path, remote: Remote, *, verify: bool = False, progress: bool | None = None) -> PushResult:
    """Push a folder that holds a record store or a version of a cache. A cache with pickles is signed."""
    files = Files()
    manifest = read_manifest(folder, files)
    with contextlib.closing(remote.open()) as objects:
        if not is_cache(manifest):
            return push_store(folder.absolute(), objects, files, verify=verify, progress=progress)
        remote = _signed_for(remote, [manifest])
        if remote.sign:
            check_signed(manifest.metadata, folder)
        log = remote.part_log()
        parts = log.read(objects)
        for part in parts.filled:
            check_joins(manifest, part, remote)
        with (
            contextlib.suppress(ReadOnly),
            contextlib.closing(IndexedStore(LocalStore._open_folder(folder, "a", files=files), KEY)) as keyed,
        ):
            if keyed.store._snapshot.gaps is None:  # else a cache with `max_size`
                _keep_last_rows(keyed, progress)
        return push_part(folder.absolute(), objects, files, log, parts, verify=verify, progress=progress)


def pull_folder(
    folder: Path, remote: Remote, *, progress: bool | None = None, may_be_empty: bool = False
) -> PullResult:
    """Pull a record store, or all hosts' parts of a version of a cache, into a folder; if it has pickles the signed."""
    files = Files()
    with contextlib.closing(remote.open()) as objects:
        if not has_parts(objects):
            if may_be_empty and not read_heads(objects):
                return PullResult(0, 0, 0)
            pulled_rows = pull_store(folder, objects, files, progress=progress)
            register(STORE, folder)
            return pulled_rows
        parts = remote.part_log().read(objects).filled
        signed = _signed_for(remote, [part.manifest for part in parts])
        if signed != remote:
            parts = signed.part_log().read(objects).filled
        return pull_parts(folder, parts, objects, signed, progress=progress)


def _signed_for(remote: Remote, manifests: list[Manifest]) -> Remote:
    """The remote, with signatures if a cache there has pickles: without them nobody could read its samples."""
    return replace(remote, sign=remote.sign or any(map(holds_pickles, filter(is_cache, manifests))))


def pull_parts(
    folder: Path, parts: list[Part], objects: Objects, remote: Remote, *, progress: bool | None = None
) -> PullResult:
    """Pull parts of a version of a cache into a folder, which is created if it does not exist."""
    files = Files()
    if not (folder / NAME).exists() and parts:
        folder.absolute().parent.mkdir(parents=True, exist_ok=True)
        first = parts[0].manifest
        RecordStore.create(folder, first.fields, metadata=metadata_of(first)).close()
    pulled = []
    for part in parts:
        manifest = read_manifest(folder, files)
        check_joins(manifest, part, remote)
        is_unsigned = part.manifest.id != manifest.id and not remote.sign
        notes = {"fingerprint": part.manifest.metadata.get("fingerprint"), UNSIGNED: is_unsigned or None}
        notes = {name: note for name, note in notes.items() if note is not None and manifest.metadata.get(name) is None}
        if notes and is_cache(manifest):
            with RecordStore.open(folder, "a") as store:
                for name, note in notes.items():
                    store.annotate(name, note)
        pulled.append(attach(folder.absolute(), part, objects, files, progress=progress))
    return _sum(pulled)


def metadata_of(manifest: Manifest) -> dict[str, Any]:
    """The metadata of a part that another host's store is created with."""
    return {name: value for name, value in manifest.metadata.items() if name != UNSIGNED}


def check_joins(local: Manifest, part: Part, remote: Remote) -> None:
    """Raise if another host's part of a cache has another fingerprint, or other fields, than the local store.

    A part that `put_batch` alone has filled has no fingerprint. It joins any part, as rows in one folder do.
    """
    pushed = part.manifest
    theirs, ours = pushed.metadata.get("fingerprint"), local.metadata.get("fingerprint")
    changed = difference(theirs, ours) if theirs is not None and ours is not None else ""
    if changed:
        raise StaleCache(
            f"{remote!r} holds outputs of another computation than this cache: {changed}. Use another cache id for the "
            "changed module, or versions='new'"
        )
    same_outputs = local.metadata.get("structure") == pushed.metadata.get("structure")
    if local.fields != pushed.fields or not same_outputs:
        raise SchemaMismatch(f"{remote!r} holds other outputs, or another codec, than this cache: use another cache id")
