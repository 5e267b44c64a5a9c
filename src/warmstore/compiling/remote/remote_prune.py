"""Garbage collection in a remote: removes old artifacts, and those beyond a total size.

The collector publishes one manifest of the artifacts that stay, removes the manifests that it replaces, and then the
blobs. A running program that read an old manifest may find a blob missing, which is a miss. Blobs that no manifest
names are removed too, unless they are new: their writer may be about to publish a manifest.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from warmstore.compiling.artifact import Artifact
from warmstore.compiling.remote.remote_index import merged
from warmstore.compiling.remote.remote_memory import RemoteMemory
from warmstore.compiling.remote.signed_manifests import (
    BLOBS,
    Loaded,
    SignedManifest,
    blob_name,
    load,
    publish,
)
from warmstore.errors import NotTrusted, RemoteUnavailable
from warmstore.remote.objects import Entry, Objects
from warmstore.remote.signing import Keyring

_JUST_PUT = 3600.0  # most seconds from the upload of a blob to its manifest


@dataclass(frozen=True)
class Pruned:
    """Artifacts, blobs and bytes that `prune` removed or would remove; artifacts and bytes that stay."""

    artifacts: int
    blobs: int
    size: int
    kept: int
    kept_size: int


def prune(
    objects: Objects,
    keyring: Keyring,
    memory: RemoteMemory,
    *,
    older_than: float | None = None,
    max_size: int | None = None,
    dry_run: bool = False,
) -> Pruned:
    """Remove artifacts from a remote: those made more than `older_than` seconds ago, then the oldest until `max_size`
    bytes are left; and blobs that no manifest names.

    Manifests of other keys stay. If there are any, only blobs that manifests of these keys name are removed.

    Raises:
        NotTrusted: No key can sign.
        RemoteUnavailable, RemoteRefused: A request failed. Some blobs may have been removed.
    """
    if not any(key.is_secret for key in keyring.keys):
        raise NotTrusted(None, "none of the keys can sign, which the new manifests need", objects.location.url)
    found = objects.run(load(objects, keyring, None, memory.objection))
    if found.failed:
        raise RemoteUnavailable(f"{found.failed[0]}; nothing was removed")
    every = [artifact for manifest in found.manifests for artifact in manifest.artifacts]
    known = merged([], sorted(every, key=attrgetter("created")))
    kept = _within(known, older_than, max_size)
    used = {artifact.digest: artifact.size for artifact in kept}
    named = {artifact.digest for artifact in every}
    blobs = {entry.name: entry for entry in objects.run(objects.entries_async(BLOBS))}
    unused = [entry for entry in blobs.values() if _is_unused(entry, used, named, foreign=bool(found.refused))]
    if not dry_run:
        with memory.lock:
            for namespace in {manifest.namespace for manifest in found.manifests}:
                _replace(objects, keyring, memory, found, namespace, kept)
        objects.delete(entry.name for entry in unused)
    removed = sum(entry.size for entry in unused)
    return Pruned(len(known) - len(kept), len(unused), removed, len(kept), sum(used.values()))


def _within(known: Sequence[Artifact], older_than: float | None, max_size: int | None) -> list[Artifact]:
    """The artifacts that stay, sorted by key."""
    since = 0.0 if older_than is None else time.time() - older_than
    left = float("inf") if max_size is None else max_size
    kept: list[Artifact] = []
    counted: set[str] = set()
    for artifact in sorted(known, key=attrgetter("created"), reverse=True):
        size = 0 if artifact.digest in counted else artifact.size
        if artifact.created < since or size > left:
            break
        left -= size
        counted.add(artifact.digest)
        kept.append(artifact)
    return merged([], kept)


def _is_unused(entry: Entry, used: Collection[str], named: Collection[str], *, foreign: bool) -> bool:
    digest = entry.name.rpartition("/")[2]
    if digest in used or entry.name != blob_name(digest):
        return False
    return digest in named or (not foreign and entry.modified < time.time() - _JUST_PUT)


def _replace(
    objects: Objects, keyring: Keyring, memory: RemoteMemory, found: Loaded, namespace: str, kept: Iterable[Artifact]
) -> None:
    """Publish one manifest of the kept artifacts of a namespace, and remove those that it replaces."""
    identity = attrgetter("key", "kind", "environment.digest")
    old = [manifest for manifest in found.manifests if manifest.namespace == namespace]
    listed = {identity(artifact) for manifest in old for artifact in manifest.artifacts}
    left = [artifact for artifact in kept if identity(artifact) in listed]
    if len(old) == 1 and len(left) == len(old[0].artifacts):
        return
    keys = {artifact.key for artifact in left}
    jobs: dict[str, set[str]] = {}
    for manifest in old:
        for job, used in manifest.jobs.items():
            jobs.setdefault(job, set()).update(keys.intersection(used))
    writer = memory.writer()
    sequences = [manifest.sequence for manifest in old if manifest.writer == writer]
    last = max([memory.sequence(f"{namespace}/{writer}"), *sequences])
    new = SignedManifest(namespace, writer, last + 1, left, {job: sorted(used) for job, used in jobs.items() if used})
    published = objects.run(publish(objects, keyring, new))
    if published is None:
        raise RemoteUnavailable(f"{objects.location.url}: another process of this host is publishing; try again")
    memory.saw([published])
    objects.delete(replaced.name for manifest in old for replaced in found.listed[manifest.series])
