"""Opens a plan: finds or creates its placements, so that a source can read and fill them."""

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.errors import UnsupportedType, WarmstoreError
from warmstore.identity.samples.sample_hashes import UInt64
from warmstore.pipeline.chain import Chain
from warmstore.pipeline.pipeline_source import PipelineSource
from warmstore.pipeline.plan.assignment import assign
from warmstore.pipeline.plan.plan import Plan
from warmstore.pipeline.plan.plan_figures import Placement
from warmstore.pipeline.step_identities import key_of
from warmstore.pipeline.tiers.remote_tier import RemoteTier
from warmstore.pipeline.tiers.sample_schema import SampleSchema
from warmstore.pipeline.tiers.sample_store import SampleStore, StoreLocation
from warmstore.pipeline.tiers.sample_stores import CacheLayout
from warmstore.pipeline.tiers.sample_table import Placements, SampleTable
from warmstore.pipeline.tiers.tier_folders import MemoryTier, Wanted, disk_folder, open_place, version_name
from warmstore.pipeline.tiers.tier_quota import tier_quota
from warmstore.pipeline.trials.trial import examples
from warmstore.storage.array_types import Bools
from warmstore.storage.lease import UsageLease
from warmstore.storage.quota import ByteQuota

_log = logging.getLogger("warmstore")

_EXAMPLES = 8  # samples computed to infer the schema of a new store


def source_of(chain: Chain, plan: Plan, seed: int, remote: RemoteTier | None = None) -> PipelineSource:
    """The source of a pipeline that reads and fills the tiers of a plan.

    Args:
        remote: samples that are about to be pulled.

    Raises:
        ValueError: the plan is for other samples or steps.
        NoFingerprint: a step with a forced tier has no identity.
    """
    chain.identities.refresh(patches=True)
    samples = chain.identities.states.look()
    _check(chain, plan)
    for placement in plan.placements:
        if placement.step and chain.steps[placement.step - 1].is_forced:
            chain.identities.require(placement.step)
    opening = _Opening(chain, plan, samples.each, remote)
    places = opening.places()
    steps = opening.steps[: max((place.step for place in places), default=0)]
    kept = CacheLayout(tuple(places), opening.assignment(places), samples.each, steps)
    source = PipelineSource(chain, seed, samples.name, kept, opening.held)
    for note in opening.notes:
        source.cached.tell(note)
    return source


class _Opening:
    """Opens the placements of one plan. held: tiers and leases to close after use."""

    def __init__(self, chain: Chain, plan: Plan, keys: UInt64, remote: RemoteTier | None) -> None:
        self.held: list[MemoryTier | UsageLease] = []
        self.notes: list[str] = []
        self._keys = keys
        self._remote = remote
        self._chain = chain
        self._plan = plan
        self.steps = chain.identities.descriptions()
        if chain.identities.trouble:
            self.notes.append(chain.identities.trouble)
        self._tiers: dict[str, tuple[Path, ByteQuota]] = {}

    def places(self) -> list[StoreLocation]:
        """The locations that can be opened. `notes` says why others cannot."""
        found = [self._place(number, placement) for number, placement in enumerate(self._plan.placements)]
        places = [place for place in found if place is not None]
        for place in places:
            with contextlib.suppress(OSError):  # its store needs a lease too, and says so
                self.held.append(UsageLease(place.folder))
        return places

    def assignment(self, places: Sequence[StoreLocation]) -> Placements:
        """The placement of each sample: see `assign`. Samples that are cached already keep their placement."""
        present = self._present_at(places)
        if self._evicts_surplus(present):
            present = self._present_at(places)
        offered: list[Bools | None] = [None] * len(self._plan.placements)
        if self._remote is not None:
            for place in places:
                offered[place.number] = self._remote.holds(place.folder.name, self._keys)
        return assign(self._plan, self._keys, present, offered).astype(np.int16)

    def _present_at(self, places: Sequence[StoreLocation]) -> list[Bools | None]:
        """For each placement which samples are cached."""
        present: list[Bools | None] = [None] * len(self._plan.placements)
        for place in places:
            present[place.number] = self._present(place)
        return present

    def _evicts_surplus(self, present: Sequence[Bools | None]) -> bool:
        """Evict what exceeds a budget that was lowered: more samples of this plan are cached than it has room for. What
        others have cached stays until its bytes are needed."""
        found = False
        for tier, (_, quota) in self._tiers.items():
            numbers = [number for number, placement in enumerate(self._plan.placements) if placement.tier == tier]
            cached = sum(int(known.sum()) for number in numbers if (known := present[number]) is not None)
            if cached > sum(sum(self._plan.counts[number]) for number in numbers):
                with contextlib.suppress(OSError), quota.reserve(0):
                    found |= quota.used() > quota.limit
                    quota.free()
        return found

    def _present(self, place: StoreLocation) -> Bools | None:
        """Which samples are cached at a location; None if its store cannot be read."""
        table = SampleTable(self._keys, np.full(len(self._keys), place.number, np.int16))
        try:
            store = SampleStore(place, table, lambda indices: np.zeros(len(indices), np.bool_))
        except (OSError, WarmstoreError) as error:
            _log.warning("%s: the store cannot be read, so its samples are computed anew: %s", place.name, error)
            return None
        store.abandon()
        present: Bools = table.rows >= 0
        _log.info("%s: %s of %s samples are cached", place.name, f"{int(present.sum()):,}", f"{len(present):,}")
        return present

    def _place(self, number: int, placement: Placement) -> StoreLocation | None:
        tier = placement.tier
        keepable = self._chain.identities.keepable
        stages = range(min(placement.step, keepable), min(placement.step, 1) - 1, -1)
        allowed = [step for step in stages if not step or tier in self._chain.steps[step - 1].tiers]
        for step in allowed:
            name = f"{tier} after {self._chain.steps[step - 1].name!r}" if step else f"{tier} of the source"
            schema = self._schema_of(placement, step)
            wanted = Wanted(number, step, name, tier, placement.codec, self.steps[:step], schema)
            try:
                place, reason = open_place(
                    wanted, *self._tier(tier), direct=self._plan.direct_io and placement.tier == "disk"
                )
            except UnsupportedType as error:
                instead = "samples are computed every time" if step == allowed[-1] else "an earlier stage is cached"
                self.notes.append(f"{self._stage_name(step)} cannot be stored, so {instead}: {error}")
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
                # Pipelines of the same steps and the same budget share one tier, such as those of two splits.
                memory = MemoryTier(
                    key_of([{"limit": plan.memory}, *self.steps]), max(0, plan.memory - plan.worker_bytes)
                )
                self.held.append(memory)
                self.notes += memory.notes
                folder, limit = memory.folder, memory.limit
            else:
                assert plan.folder is not None
                # Absolute, since the program may change its working directory.
                folder, limit = disk_folder(plan.folder.absolute()), plan.disk
            self._tiers[tier] = folder, tier_quota(folder, limit)
        return self._tiers[tier]

    def _schema_of(self, placement: Placement, step: int) -> Any:
        def schema() -> SampleSchema | None:
            name = version_name(step, placement.codec, self.steps[:step])
            if self._remote is not None and self._remote.forms(name):
                with contextlib.suppress(UnsupportedType):
                    return self._remote.schema(name)  # nothing needs to be computed
            number = self._plan.placements.index(placement)
            members = np.flatnonzero(assign(self._plan, self._keys) == number)
            chosen = members[np.linspace(0, len(members) - 1, min(_EXAMPLES, len(members)), dtype=np.int64)]
            identities = self._chain.identities
            with identities.calling(), identities.states.making(chosen):
                computed = list(examples(self._chain, chosen.tolist(), step))
            return SampleSchema.of(computed, placement.codec)

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


def checked_plan(plan: Any, *, makes_batches: bool = False) -> Any:
    """The plan, if it is one or None.

    Args:
        makes_batches: whether the method that takes the plan has a `batch_size` too.

    Raises:
        TypeError: it is anything else.
    """
    if plan is None or isinstance(plan, Plan):
        return plan
    hint = f": pass batch_size={plan!r} by name" if makes_batches and isinstance(plan, int) else ""
    raise TypeError(f"the first argument is a plan, as pipe.plan(...) makes one, or None; got {plan!r:.80}{hint}")
