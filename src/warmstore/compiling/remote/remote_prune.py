"""Garbage collection in a remote: removes old artifacts, and those beyond a total size.

The collector publishes one manifest of the artifacts that stay, removes the manifests that it replaces, and then the
blobs. A running program that read an old manifest may find a blob missing, which is a miss. Blobs that no manifest
names are removed too, unless they are new: their writer may be about to publish a manifest.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from warmstore.compiling.artifact import Artifact
from warmstore.compiling.remote.remote_index import merged
from warmstore.compiling.remote.remote_memory import RemoteMemory
from warmstore.compiling.remote.signed_manifests import (
    BLOBS,
    MANIFESTS,
    Loaded,
    SignedManifest,
    blob_name,
    load,
    log_of,
    payload_of,
)
from warmstore.errors import NotTrusted
from warmstore.remote.objects import Entry, Objects
from warmstore.remote.segment_log import SegmentLog
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
        why = "none of the keys can sign" if keyring else "there is no key that can sign"
        raise NotTrusted(
            errno.EPERM,
            f"{why}, which the new manifests need: set WARMSTORE_SIGNING_KEY or WARMSTORE_SIGNING_KEY_FILE",
            objects.location.url,
        )
    since = 0.0 if older_than is None else time.time() - older_than  # of the call: requests may take long
    names = [entry.name.removeprefix(f"{MANIFESTS}/") for entry in objects.entries(MANIFESTS)]
    logs = {name: log_of(name, keyring, None) for name in sorted({name.partition("/")[0] for name in names})}
    found = {name: objects.run(load(objects, log, name, memory.replaced)) for name, log in logs.items()}
    every = [artifact for loaded in found.values() for manifest in loaded.manifests for artifact in manifest.artifacts]
    known = merged([], sorted(every, key=attrgetter("created")))
    kept = _within(known, since, max_size)
    used = {artifact.digest: artifact.size for artifact in kept}
    named = {artifact.digest for artifact in every}
    blobs = {entry.name: entry for entry in objects.entries(BLOBS)}
    is_foreign = any(loaded.refused for loaded in found.values())
    recent = 0.0
    if not is_foreign and not blobs.keys() <= {blob_name(digest) for digest in named}:
        recent = objects.run(objects.clock_async()) - _JUST_PUT
    unused = [entry for entry in blobs.values() if _is_unused(entry, used, named, recent)]
    if not dry_run:
        for name, log in logs.items():
            _replace(objects, log, memory, name, found[name], kept)
        objects.delete(entry.name for entry in unused)
    removed = sum(entry.size for entry in unused)
    return Pruned(len(known) - len(kept), len(unused), removed, len(kept), sum(used.values()))


def _within(known: Sequence[Artifact], since: float, max_size: int | None) -> list[Artifact]:
    """The artifacts that stay, sorted by key."""
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


def _is_unused(entry: Entry, used: Collection[str], named: Collection[str], recent: float) -> bool:
    """`recent`: the time since which blobs stay that no manifest names."""
    digest = entry.name.rpartition("/")[2]
    if digest in used or entry.name != blob_name(digest):
        return False
    return digest in named or entry.modified < recent


def _replace(
    objects: Objects, log: SegmentLog, memory: RemoteMemory, namespace: str, found: Loaded, kept: Iterable[Artifact]
) -> None:
    """Publish one manifest of the kept artifacts of a namespace, and remove those that it replaces."""
    identity = attrgetter("key", "kind", "environment.digest")
    listed = {identity(artifact) for manifest in found.manifests for artifact in manifest.artifacts}
    left = [artifact for artifact in kept if identity(artifact) in listed]
    if len(found.manifests) <= 1 and len(left) == sum(len(manifest.artifacts) for manifest in found.manifests):
        return
    keys = {artifact.key for artifact in left}
    jobs: dict[str, set[str]] = {}
    for manifest in found.manifests:
        for job, used in manifest.jobs.items():
            jobs.setdefault(job, set()).update(keys.intersection(used))
    new = SignedManifest(namespace, left, {job: sorted(used) for job, used in jobs.items() if used})
    segment = objects.run(log.rewrite(objects, payload_of(new), found.state))
    memory.saw(segment.replaces)
