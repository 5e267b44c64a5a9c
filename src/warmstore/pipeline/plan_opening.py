"""Opens a plan: finds or creates its placements, so that a source can read and fill them."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.errors import UnsupportedType
from warmstore.pipeline.chain import Chain
from warmstore.pipeline.pipeline_source import CacheLayout, PipelineSource
from warmstore.pipeline.plan.plan import Plan
from warmstore.pipeline.plan.plan_figures import Placement
from warmstore.pipeline.step_identities import key_of
from warmstore.pipeline.tiers.sample_schema import SampleSchema
from warmstore.pipeline.tiers.sample_store import StoreLocation
from warmstore.pipeline.tiers.tier_folders import MemoryTier, Wanted, disk_folder, open_place
from warmstore.pipeline.tiers.tier_quota import tier_quota
from warmstore.pipeline.trials.trial import examples
from warmstore.storage.lease import UsageLease, remove_unused
from warmstore.storage.quota import ByteQuota

_log = logging.getLogger("warmstore")

_EXAMPLES = 8  # samples computed to infer the schema of a new store
_TOO_STALE = 4  # a store with more than one stale record in this many is removed


def source_of(chain: Chain, plan: Plan, seed: int) -> PipelineSource:
    """The source of a pipeline that reads and fills the tiers of a plan.

    Raises:
        ValueError: the plan is for other samples or steps.
    """
    chain.identities.refresh(patches=True)
    samples = chain.identities.states.look()
    name = samples.name
    _check(chain, plan)
    opening = _Opening(chain, plan, name)
    places = opening.places()
    kept = CacheLayout(
        tuple(places),
        opening.assignment,
        samples.each.copy(),
        opening.steps[: max((place.step for place in places), default=0)],
    )
    source = PipelineSource(chain, seed, name, kept, opening.held)
    if opening.remove_stale(source, places):
        source.close_stores()
        kept = replace(kept, places=tuple(opening.places()))
        source = PipelineSource(chain, seed, name, kept, opening.held)
    for note in opening.notes:
        source.tell(note)
    return source


class _Opening:
    """Opens the placements of one plan. held: tiers and leases to close after use."""

    def __init__(self, chain: Chain, plan: Plan, source: str) -> None:
        self.held: list[MemoryTier | UsageLease] = []
        self.notes: list[str] = []
        self.assignment = plan.assignment(np.arange(len(chain))).astype(np.int16)
        self._chain = chain
        self._plan = plan
        self.steps = chain.identities.descriptions()
        self._lineage = key_of([{"source": source, "steps": [step["name"] for step in self.steps]}])
        if chain.identities.trouble:
            self.notes.append(chain.identities.trouble)
        self._tiers: dict[str, tuple[Path, ByteQuota]] = {}

    def places(self) -> list[StoreLocation]:
        """The locations that can be opened. `notes` says why others cannot."""
        found = [self._place(number, placement) for number, placement in enumerate(self._plan.placements)]
        places = [place for place in found if place is not None]
        self.held += [UsageLease(place.folder) for place in places]
        return places

    def remove_stale(self, source: PipelineSource, places: list[StoreLocation]) -> bool:
        """Remove stores with too many stale records; return whether any store has stale ones."""
        stores = source.open_stores()
        assert stores is not None
        stale = {number: (store.stale, store.records) for number, store in stores.by_number.items()}
        stale |= dict.fromkeys(stores.broken, (1, 1))
        if not any(count for count, _ in stale.values()):
            return False
        source.close_stores()
        for lease in [lease for lease in self.held if isinstance(lease, UsageLease)]:
            lease.release()
            self.held.remove(lease)
        for place in places:
            count, records = stale.get(place.number, (0, 0))
            if count:
                _log.warning(
                    "%s: %s of %s cached samples have changed inputs, are in another placement of the plan, or are "
                    "damaged; they are computed anew",
                    place.name,
                    f"{count:,}",
                    f"{records:,}",
                )
            if count * _TOO_STALE > records:
                remove_unused(place.folder)
        return True

    def _place(self, number: int, placement: Placement) -> StoreLocation | None:
        tier = placement.tier
        keepable = self._chain.identities.keepable
        for step in range(min(placement.step, keepable), min(placement.step, 1) - 1, -1):
            name = f"{tier} after {self._chain.steps[step - 1].name!r}" if step else f"{tier} of the source"
            wanted = Wanted(number, step, name, placement.codec, self.steps[:step], self._schema_of(placement, step))
            try:
                place, reason = open_place(
                    wanted, *self._tier(tier), direct=self._plan.direct_io and placement.tier == "disk"
                )
            except UnsupportedType as error:
                self.notes.append(f"{self._stage_name(step)} cannot be stored, so an earlier stage is cached: {error}")
                continue
            except OSError as error:
                self.notes.append(f"{name}: it cannot be opened, so samples are computed every time: {error}")
                return None
            if reason:
                _log.warning("%s: %s, so samples are computed anew", name, reason)
            return place
        return None

    def _stage_name(self, step: int) -> str:
        return f"the result of step {self._chain.steps[step - 1].name!r}" if step else "the raw value"

    def _tier(self, tier: str) -> tuple[Path, ByteQuota]:
        """The folder and the quota of a tier."""
        if tier not in self._tiers:
            plan = self._plan
            if tier == "memory":
                in_tier = [each for each in plan.placements if each.tier == tier]
                wanted = {
                    "of": self._lineage,
                    "kept": [[each.step, each.codec] for each in in_tier],
                    "limit": plan.memory,
                }
                key = key_of([wanted, *self.steps[: max(each.step for each in in_tier)]])
                memory = MemoryTier(key, max(0, plan.memory - plan.worker_bytes))
                self.held.append(memory)
                self.notes += memory.notes
                folder, limit = memory.folder, memory.limit
            else:
                assert plan.folder is not None
                # Absolute, since the program may change its working directory.
                folder, limit = disk_folder(plan.folder.absolute(), self._lineage), plan.disk
            self._tiers[tier] = folder, tier_quota(folder, limit)
        return self._tiers[tier]

    def _schema_of(self, placement: Placement, step: int) -> Any:
        def schema() -> SampleSchema | None:
            number = self._plan.placements.index(placement)
            members = np.flatnonzero(self.assignment == number)
            chosen = members[np.linspace(0, len(members) - 1, min(_EXAMPLES, len(members)), dtype=np.int64)]
            identities = self._chain.identities
            with identities.calling(), identities.states.making(chosen):
                found = list(examples(self._chain, chosen.tolist(), step))
            return SampleSchema.of(found, placement.codec)

        return schema


def _check(chain: Chain, plan: Plan) -> None:
    if plan.samples != len(chain):
        raise ValueError(f"the plan is for {plan.samples:,} samples, and the pipeline has {len(chain):,}: plan again")
    last = max((placement.step for placement in plan.placements), default=0)
    planned, steps = ([step.name for step in owner.steps[:last]] for owner in (plan, chain))
    for placement in plan.placements:
        if placement.step > chain.cacheable:
            random = chain.steps[chain.cacheable].name if chain.cacheable < len(chain.steps) else None
            why = f"{random!r} is random" if random else f"the pipeline has {len(chain.steps)} steps"
            raise ValueError(f"the plan keeps samples after {placement.step} steps, but {why}: plan again")
        if placement.tier == "disk" and plan.folder is None:
            raise ValueError("the plan keeps samples on the disk and names no folder; plan again with folder=")
    if planned != steps:
        raise ValueError(f"the plan is for the steps {planned}, and the pipeline has {steps}: plan again")
