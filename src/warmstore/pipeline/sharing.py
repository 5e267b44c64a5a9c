"""Sharing cached samples in a team: `Pipeline.push` and `Pipeline.pull`, and the same for a folder of tiers."""

import contextlib
import logging
from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from warmstore.identity.samples.sample_hashes import UInt64
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.pipeline.chain import Chain
from warmstore.pipeline.pipeline_source import PipelineSource
from warmstore.pipeline.plan.plan import Plan
from warmstore.pipeline.plan_opening import source_of
from warmstore.pipeline.profile.profile import CODECS
from warmstore.pipeline.step_identities import Description
from warmstore.pipeline.tiers.push_pull import pull_version, push_version, sum_of_pulls, sum_of_pushes
from warmstore.pipeline.tiers.remote_tier import RemoteTier, RemoteVersion
from warmstore.pipeline.tiers.sample_store import SampleStore
from warmstore.pipeline.tiers.sample_stores import SampleStores
from warmstore.pipeline.tiers.sample_table import SampleTable
from warmstore.pipeline.tiers.tier_folders import (
    Wanted,
    disk_folder,
    open_place,
    parsed_version,
    version_name,
)
from warmstore.pipeline.tiers.tier_inspection import find_tier, named_versions
from warmstore.pipeline.tiers.tier_quota import is_quota_exceeded, tier_quota
from warmstore.replicate.pull import PullResult
from warmstore.replicate.push import PushResult
from warmstore.replicate.remote_copy import Remote
from warmstore.storage.array_types import Bools
from warmstore.storage.quota import ByteQuota
from warmstore.storage.temporary_folder import TemporaryFolder

_log = logging.getLogger("warmstore")


def push(chain: Chain, plan: Plan, remote: Remote, *, verify: bool, progress: bool | None) -> PushResult:
    """See `Pipeline.push`."""
    source = source_of(chain, plan, 0)
    try:
        places = () if source.cached.layout is None else source.cached.layout.places
        return sum_of_pushes(push_version(place.folder, remote, verify=verify, progress=progress) for place in places)
    finally:
        source.release()


def pull(chain: Chain, plan: Plan, remote: Remote, *, progress: bool | None) -> tuple[PullResult, PipelineSource]:
    """See `Pipeline.pull`. Also returns the source, which holds the plan's memory tier."""
    with _remote_tier(remote) as tier:
        source = source_of(chain, plan, 0, tier)
        try:
            pulled = []
            if source.cached.layout is not None:
                with contextlib.closing(SampleStores(source.cached.layout, _any)) as stores:
                    for store in stores.by_number.values():
                        for version in tier.forms(store.place.folder.name):
                            pulled.append(pull_version(store, version, progress))
        except BaseException:
            source.release()
            raise
    return sum_of_pulls(pulled), source


def push_folder(
    folder: Path, names: Collection[str], remote: Remote, *, verify: bool, progress: bool | None
) -> dict[str, PushResult]:
    """Push versions of the disk tier in a folder: those with the names, or all. Returns the results by name."""
    states = named_versions(find_tier(folder), names)
    return {
        state.path.name: push_version(state.path, remote, verify=verify, progress=progress)
        for state in states
        if state.steps is not None
    }


def pull_folder(
    folder: Path, disk: int, remote: Remote, *, chain: Chain | None = None, progress: bool | None
) -> dict[str, PullResult]:
    """Pull versions into the disk tier in a folder. Returns the results by name.

    Args:
        disk: the budget of the folder, in bytes.
        chain: pull samples of this pipeline, and remove what no process uses if there is no room. None: pull what has
            room, and remove nothing.
    """
    with _remote_tier(remote) as remote_tier, contextlib.ExitStack() as opened:
        names = [name for name in remote_tier.names() if chain is None or _is_of(chain, name)]
        tier = disk_folder(folder.absolute())
        quota = tier_quota(tier, disk, evicts=chain is not None)
        stores: dict[str, SampleStore | None] = {}
        for name in names:  # all are open at once, so that none is evicted for another
            stores[name] = _opened(remote_tier.version(name), tier, quota, chain)
            if (store := stores[name]) is not None:
                opened.callback(store.close)
        return {
            name: PullResult(0, 0, 0) if store is None else pull_version(store, remote_tier.version(name), progress)
            for name, store in stores.items()
        }


def _opened(version: RemoteVersion, tier: Path, quota: ByteQuota, chain: Chain | None) -> SampleStore | None:
    """The local store of a version, with a table of the samples to pull; None if there is no room for its folder."""
    found = parsed_version(version.name)
    if found is None or not version.parts:
        return None
    step, codec = int(found["step"]), found["codec"]
    steps: tuple[Description, ...] = version.steps
    keys: UInt64 = version.keys
    if chain is not None:
        steps, keys = chain.identities.descriptions()[:step], chain.identities.states.look().each
    name = f"disk after {steps[-1]['name']!r}" if steps else "disk of the source"
    if chain is not None and version.schema is not None and version.schema.objection:
        _log.warning("%s: the samples of the remote are left out: %s", name, version.schema.objection)
        return None
    wanted = Wanted(0, step, name, "disk", codec, steps, lambda: version.schema, decodes=chain is not None)
    try:
        place, _ = open_place(wanted, tier, quota, direct=False)
    except OSError as error:
        if not is_quota_exceeded(error):
            raise
        return None
    return SampleStore(place, SampleTable(keys, np.zeros(len(keys), np.int16)), _any)


def _is_of(chain: Chain, name: str) -> bool:
    """Whether a version has results of this pipeline."""
    found, steps = parsed_version(name), chain.identities.descriptions()
    step = -1 if found is None else int(found["step"])
    return (
        found is not None
        and 0 <= step <= chain.identities.keepable
        and name == version_name(step, found["codec"], steps[:step])
    )


def _any(indices: Int64) -> Bools:
    """All pulled samples may be written: their keys say what they are made from."""
    return np.ones(len(indices), np.bool_)


@contextlib.contextmanager
def _remote_tier(remote: Remote) -> Iterator[RemoteTier]:
    with TemporaryFolder("pull") as scratch, contextlib.closing(RemoteTier(remote, scratch, CODECS)) as tier:
        yield tier
