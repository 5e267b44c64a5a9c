"""Garbage collection in a remote: artifacts that are too old or too many leave the manifests first, then the blobs go.

The collector publishes one manifest of the artifacts that stay and removes the manifests that it replaces. A running
program that read an old manifest may find a blob missing, which is a miss. Blobs that no manifest names are removed
too, unless they are new: their writer may be about to name them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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

_JUST_PUT = 3600.0  # seconds that a writer may take to name a blob in a manifest


@dataclass(frozen=True)
class Pruned:
    """What `prune` removed, or would: artifacts, blobs and their bytes; and the artifacts and bytes that stay."""

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
    """Remove artifacts from a remote: those made more than `older_than` seconds ago, then the oldest, until `max_size`
    bytes are left; and blobs that belong to nothing.

    Manifests of other keys are not touched, and where there are any, no blob is removed that these keys never named.

    Raises:
        NotTrusted: there is no key that can sign.
        RemoteUnavailable, RemoteRefused: the remote does not do it; what was removed so far, is.
    """
    if not any(key.is_secret for key in keyring.keys):
        raise NotTrusted(None, "none of the keys can sign, and what stays must be signed anew", objects.location.url)
    found = objects.run(load(objects, keyring, None, memory.objection))
    if found.failed:
        raise RemoteUnavailable(f"{found.failed[0]}; nothing was removed")
    every = sorted((one for manifest in found.manifests for one in manifest.artifacts), key=lambda one: one.created)
    known = merged([], every)
    kept = _within(known, older_than, max_size)
    stays = {one.digest for one in kept}
    named = {one.digest for one in every}
    blobs = {entry.name: entry for entry in objects.run(objects.entries_async(BLOBS))}
    gone = [entry for entry in blobs.values() if _may_go(entry, stays, named, foreign=bool(found.refused))]
    if not dry_run:
        with memory.lock:
            for namespace in {one.namespace for one in found.manifests}:
                _replace(objects, keyring, memory, found, namespace, kept)
        objects.delete(entry.name for entry in gone)
    size = sum({one.digest: one.size for one in kept}.values())
    return Pruned(len(known) - len(kept), len(gone), sum(one.size for one in gone), len(kept), size)


def _within(known: Sequence[Artifact], older_than: float | None, max_size: int | None) -> list[Artifact]:
    """The artifacts that may stay, by key."""
    since = 0.0 if older_than is None else time.time() - older_than
    left = float("inf") if max_size is None else max_size
    kept: list[Artifact] = []
    counted: set[str] = set()
    for one in sorted(known, key=lambda one: one.created, reverse=True):
        size = 0 if one.digest in counted else one.size
        if one.created < since or size > left:
            break
        left -= size
        counted.add(one.digest)
        kept.append(one)
    return merged([], kept)


def _may_go(entry: Entry, stays: set[str], named: set[str], *, foreign: bool) -> bool:
    digest = entry.name.rpartition("/")[2]
    if digest in stays or entry.name != blob_name(digest):
        return False
    return digest in named or (not foreign and entry.modified < time.time() - _JUST_PUT)


def _replace(
    objects: Objects, keyring: Keyring, memory: RemoteMemory, found: Loaded, namespace: str, kept: Iterable[Artifact]
) -> None:
    """Publish one manifest with what stays of a namespace, and remove those that it replaces."""
    old = [one for one in found.manifests if one.namespace == namespace]
    ours = {(one.key, one.kind, one.environment.digest) for manifest in old for one in manifest.artifacts}
    left = [one for one in kept if (one.key, one.kind, one.environment.digest) in ours]
    if len(old) == 1 and len(left) == len(old[0].artifacts):
        return
    keys = {one.key for one in left}
    jobs: dict[str, set[str]] = {}
    for manifest in old:
        for job, used in manifest.jobs.items():
            jobs.setdefault(job, set()).update(keys.intersection(used))
    writer = memory.writer()
    last = max([memory.sequence(f"{namespace}/{writer}"), *(one.sequence for one in old if one.writer == writer)])
    new = SignedManifest(namespace, writer, last + 1, left, {job: sorted(used) for job, used in jobs.items() if used})
    published = objects.run(publish(objects, keyring, new))
    if published is None:
        raise RemoteUnavailable(f"{objects.location.url}: another process of this host publishes; try again")
    memory.saw([published])
    objects.delete(replaced.name for manifest in old for replaced in found.listed[manifest.series])
