"""Pushing versions of tiers to a remote, and pulling what other hosts have pushed.

Each host pushes the chunks that it wrote. A chunk of which this host lacks at least half of the rows is adopted as it
is; of other chunks the missing rows are copied. Both are as safe as filling a tier: a kill leaves complete chunks.
"""

import contextlib
import functools
import logging
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from warmstore.errors import StaleCache, UnsupportedType
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.pipeline.tiers.remote_tier import RemotePart, RemoteVersion
from warmstore.pipeline.tiers.sample_store import SampleStore
from warmstore.pipeline.tiers.tier_quota import QuotaFiles, is_quota_exceeded
from warmstore.pipeline.tiers.tier_store import KINDS
from warmstore.records.format.manifest import NAME
from warmstore.remote.objects import Objects
from warmstore.replicate.attach import STAGING, attach
from warmstore.replicate.pull import PullResult
from warmstore.replicate.push import PushResult
from warmstore.replicate.push_part import push_part
from warmstore.replicate.remote_copy import Remote
from warmstore.storage.disk_usage import on_disk
from warmstore.storage.files import Files
from warmstore.storage.lease import UsageLease

_log = logging.getLogger("warmstore")

_STAGED = 64 << 10  # most bytes besides the chunk while one is fetched: folders, the table of blocks, the log
_TRIES = 3
_AT_ONCE = 64  # rows that are fetched and copied at once


def push_version(folder: Path, remote: Remote, *, verify: bool, progress: bool | None) -> PushResult:
    """Push the chunks of one version of a tier that this host has written, except those with live writers.

    Raises:
        StaleCache: the URL holds something else. Diverged: a copy of this folder was pushed and written to.
        RemoteUnavailable, RemoteRefused: what the remote had before is unchanged.
    """
    lease = UsageLease(folder)  # it is not evicted as a whole
    try:
        return sum_of_pushes(
            _push_store(folder / kind, remote.below(folder.name), verify, progress)
            for kind in KINDS
            if (folder / kind / NAME).exists()
        )
    finally:
        lease.release()


def _push_store(store: Path, remote: Remote, verify: bool, progress: bool | None) -> PushResult:
    with contextlib.closing(remote.open()) as objects:
        log = remote.part_log()
        parts = log.read(objects)
        if any(part.manifest.metadata.get("kind") not in KINDS for part in parts.filled):
            raise StaleCache(f"{remote!r} holds no samples of a pipeline; push to another URL")
        send = functools.partial(
            push_part,
            *(store, objects, Files(), log, parts),
            forget_evicted=True,
            verify=verify,
            progress=progress,
        )
        for _ in range(_TRIES):
            # A process that fills the tier may evict a chunk meanwhile.
            with contextlib.suppress(FileNotFoundError):
                return send()
        return send()


def pull_version(store: SampleStore, version: RemoteVersion, progress: bool | None) -> PullResult:
    """Add the samples to a sample store that its table lacks and a remote has, as far as the quota allows.

    Raises:
        Damaged: the remote's bytes are not those that were pushed.
        RemoteUnavailable, RemoteRefused: what was pulled before stays; the next pull continues.
    """
    pulled = []
    for part in version.parts:
        with contextlib.closing(version.remote.open()) as objects:  # a failed fetch closes it
            pulled.append(_adopt(store, part, objects, progress))
    for part in version.parts:
        pulled.append(PullResult(0, 0, _copy(store, part)))
    return sum_of_pulls(pulled)


def _adopt(store: SampleStore, part: RemotePart, objects: Objects, progress: bool | None) -> PullResult:
    """Adopt the chunks of which at least half of the rows are missing."""
    pulled = [PullResult(0, 0, 0)]
    quota, schema = store.place.quota, store.schemas[part.kind]
    if schema is None or not schema.is_same(part.schema):
        return pulled[0]
    for number, rows in part.chunks.items():
        missing = store.table.samples_of(store.place.number, part.keys[rows]) >= 0
        if not missing.any() or 2 * int(missing.sum()) < len(missing):
            continue
        size = on_disk(part.pushed.chunks[number].chunk.size) + _STAGED
        if quota.free(size) < size:
            continue  # the rows that have room are copied
        target = store.store_of(part.kind)
        if target is None:
            break
        path = target.store.path
        try:
            pulled.append(attach(path, part.pushed, objects, QuotaFiles(quota), numbers=[number], progress=progress))
        except OSError as error:
            if not is_quota_exceeded(error):
                raise
            shutil.rmtree(path / STAGING, ignore_errors=True)
            break  # another process took the free bytes
        store.refresh()
    return sum_of_pulls(pulled)


def _copy(store: SampleStore, part: RemotePart) -> int:
    """Copy the rows of missing samples. Returns how many were copied."""
    copied = 0
    for rows in part.chunks.values():
        samples, first = np.unique(store.table.samples_of(store.place.number, part.keys[rows]), return_index=True)
        first, samples = first[samples >= 0] + rows.start, samples[samples >= 0]
        for at in range(0, len(samples), _AT_ONCE):
            if not store.writes:
                return copied
            try:
                _add(store, part, samples[at : at + _AT_ONCE], first[at : at + _AT_ONCE])
            except UnsupportedType as error:
                _log.warning("%s: some samples of the remote are left out: %s", store.place.name, error)
                return copied
        store.flush()
        copied += int((store.table.rows[samples] >= 0).sum())
    return copied


def _add(store: SampleStore, part: RemotePart, samples: Int64, rows: Int64) -> None:
    order = np.argsort(rows)  # neighbours are fetched together
    for sample, taken in zip(samples[order].tolist(), part.flattened(rows[order]), strict=True):
        store.add_taken(sample, *taken)


def sum_of_pulls(results: Iterable[PullResult]) -> PullResult:
    """The results of several pulls as one."""
    every = [*results]
    return PullResult(*(sum(getattr(one, name) for one in every) for name in ("chunks", "size", "records", "damaged")))


def sum_of_pushes(results: Iterable[PushResult]) -> PushResult:
    """The results of several pushes as one."""
    every = [*results]
    return PushResult(*(sum(getattr(one, name) for one in every) for name in ("chunks", "size", "present", "waiting")))
