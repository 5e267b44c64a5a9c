"""Sharing the tiers of a plan in a team: `Pipeline.push` and `Pipeline.pull`."""

import contextlib

from warmstore.pipeline.chain import Chain
from warmstore.pipeline.pipeline_source import PipelineSource
from warmstore.pipeline.plan.plan import Plan
from warmstore.pipeline.plan_opening import source_of
from warmstore.pipeline.tiers.remote_tier import RemoteTier
from warmstore.pipeline.tiers.tier_folders import scratch_folder
from warmstore.pipeline.tiers.tier_sharing import pull_version, push_version, sum_of_pulls, sum_of_pushes
from warmstore.replicate.pull import PullResult
from warmstore.replicate.push import PushResult
from warmstore.replicate.remote_copy import Remote


def push(chain: Chain, plan: Plan, remote: Remote, *, verify: bool, progress: bool | None) -> PushResult:
    """See `Pipeline.push`."""
    source = source_of(chain, plan, 0)
    try:
        return sum_of_pushes(
            push_version(place.folder, remote, verify=verify, progress=progress) for place in source.places
        )
    finally:
        source.release()


def pull(chain: Chain, plan: Plan, remote: Remote, *, progress: bool | None) -> tuple[PullResult, PipelineSource]:
    """See `Pipeline.pull`. Also returns the source, which holds the plan's memory tier."""
    with scratch_folder() as scratch, contextlib.closing(RemoteTier(remote, scratch)) as tier:
        source = source_of(chain, plan, 0, tier)
        try:
            stores = source.open_stores()
            pulled = sum_of_pulls(
                pull_version(store, tier.version(store.place.folder.name), progress)
                for store in (() if stores is None else stores.by_number.values())
            )
            source.close_stores()
        except BaseException:
            source.release()
            raise
    return pulled, source
