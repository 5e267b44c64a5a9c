"""Named jobs: whether all artifacts of a job are in the store, so that a CI step knows that the next start is warm."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from warmstore.compiling.probes import probe
from warmstore.compiling.remote.remote_settings import RemoteSettings, open_tier
from warmstore.compiling.rules import choose
from warmstore.compiling.store.artifact_quota import UNLIMITED
from warmstore.compiling.store.artifact_store import ArtifactStore


@dataclass(frozen=True)
class Readiness:
    """How many of the `keys` of a job are `ready`: stored, undamaged and usable. `reasons`: why others are not."""

    job: str
    keys: int
    ready: int
    reasons: tuple[str, ...]


def prepare(folder: Path, job: str, remote: RemoteSettings | None, max_size: int) -> Readiness:
    """Fetch the artifacts of a job from the remote, then read and verify all of them, which fills the page cache.

    With a remote the store has at most `max_size` bytes from then on. Without one nothing is stored, nor evicted.
    Raises as `ArtifactStore`.
    """
    environment = probe()
    with ArtifactStore(folder, UNLIMITED if remote is None else max_size) as store:
        if (tier := open_tier(remote, store, environment, job)) is not None:
            try:
                tier.start()
                tier.fetch_job(job)
            finally:
                tier.close()
        used = set(store.job(job))
        ready, reasons = set(), []
        for key, group in groupby(store.all(job), key=lambda artifact: artifact.key):
            artifact, why = choose(group, environment)
            if artifact is None:
                reasons += [f"{key}: {reason}" for reason in why]
                continue
            try:
                store.read(artifact)
                ready.add(key)
                store.used([artifact])
            except (OSError, LookupError) as error:
                reasons.append(str(error))
        known = {artifact.key for artifact in store.all(job)}
        reasons += [f"{key} was evicted" for key in sorted(used - known)]
    return Readiness(job, len(used), len(ready), tuple(reasons))
