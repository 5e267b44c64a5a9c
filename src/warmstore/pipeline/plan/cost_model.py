"""The cost model: the time of an epoch as a linear function of the samples per placement.

An uncached sample is read and runs through all steps. A sample cached after step k is read from its tier and runs
through the steps after k. Both take CPU seconds and seconds of waiting for a disk; some costs are fixed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from warmstore.pipeline.plan.plan_figures import Placement
from warmstore.pipeline.profile.profile import CODECS, Codec, Disk, Profile, StoredStage, mean_of
from warmstore.pipeline.steps import TIERS, Step, deterministic

Floats = np.ndarray[Any, np.dtype[np.float64]]
_SHRUNK = 0.95  # share of the raw bytes below which a codec saves any
_MARGIN = 2.0  # standard errors added to mean bytes, as a safety margin


@dataclass(frozen=True)
class Candidate:
    """A placement that a plan may use. Figures are per sample, one per bucket.

    saved: CPU seconds saved, minus those of reading. wait_saved: saved seconds of waiting for the source.
    nbytes: upper bound of the mean bytes. build: CPU seconds to write a sample.
    per_chunk, per_batch: see `StoredStage`.
    """

    placement: Placement
    saved: Floats
    wait_saved: Floats
    nbytes: Floats
    build: Floats
    per_chunk: float = 0.0
    per_batch: float = 0.0


@dataclass(frozen=True)
class Load:
    """The costs of an epoch with some number of workers.

    cpu, wait: CPU seconds and seconds of waiting in an uncached epoch, by all processes that make samples.
    others: CPU seconds of the main processes. lanes: samples made at once, at most. cores: CPU seconds that the machine
    provides a second. fixed: lower bound of an epoch in seconds. serial: seconds added to those of making samples if
    one process does both. disk_alone, disk_together: seconds to read a byte with one reader and with all, by candidate.
    held_alone, held_together: such seconds saved by the page cache. write: disk seconds to write a byte.
    """

    cpu: float
    wait: float
    others: float
    lanes: float
    cores: float
    fixed: float
    serial: float
    disk_alone: Floats
    disk_together: Floats
    held_alone: float
    held_together: float
    write: float


@dataclass(frozen=True)
class EpochCost:
    """Seconds of an epoch. limits: lower bounds by resource; the largest applies. build: seconds to fill the tiers."""

    limits: dict[str, float]
    build: float

    @property
    def epoch(self) -> float:
        return max(self.limits.values())

    @property
    def bound(self) -> str:
        """The resource that limits the epoch."""
        return max(self.limits, key=self.limits.__getitem__)


def cost(load: Load, candidates: Sequence[Candidate], counts: np.ndarray[Any, Any]) -> EpochCost:
    """The cost of counts [candidates, buckets] under a load."""
    amount = np.asarray(counts, np.float64)
    cpu, wait, build = load.cpu, load.wait, 0.0
    alone, together = -load.held_alone, -load.held_together
    for number, candidate in enumerate(candidates):
        cpu -= float(amount[number] @ candidate.saved)
        wait -= float(amount[number] @ candidate.wait_saved)
        build += float(amount[number] @ candidate.build) / load.cores
        if candidate.placement.tier == "disk":
            taken = float(amount[number] @ candidate.nbytes)
            alone += taken * load.disk_alone[number]
            together += taken * load.disk_together[number]
            build += taken * load.write
    limits = {
        "workers": (cpu + max(wait + max(alone, 0.0), 0.0)) / load.lanes + load.serial,
        "cores": (cpu + load.others) / load.cores,
        "disk": max(together, 0.0),
        "training steps or delivery": load.fixed,
    }
    return EpochCost(limits, build)


def candidates_of(
    profile: Profile, steps: Sequence[Step], keepable: int | None = None, *, is_warm: bool = False
) -> tuple[list[Candidate], tuple[str, ...]]:
    """The useful candidates, and for each stage why it has none, or "".

    keepable: the last stage that may be cached, since later ones have no identity; None: all may. is_warm: whether the
    page cache has the source's files.
    """
    stages = profile.stages
    work = np.array([stage.seconds for stage in stages])  # [stages, buckets]
    waits = np.array([stage.waiting(is_warm=is_warm) for stage in stages])
    done, waited = work.cumsum(0), waits.cumsum(0)
    found: list[Candidate] = []
    reasons = [""] * len(stages)
    for k, stage in enumerate(stages):
        if k > deterministic(steps):
            reasons[k] = "random" if steps[k - 1].random else "comes after a random step"
        elif keepable is not None and k > keepable:
            reasons[k] = "it has no identity"
        elif not stage.stored:
            reasons[k] = stage.trouble or "cannot be stored"
        elif k and not steps[k - 1].tiers:
            reasons[k] = "cache='never'"
        else:
            own = [
                Candidate(
                    Placement(k, tier, codec),
                    done[k] - np.array(stored.read),
                    waited[k],
                    np.array(stored.nbytes) * (1 + _MARGIN * stored.spread),
                    np.array(stored.write),
                    stored.per_chunk,
                    stored.per_batch,
                )
                for tier in (steps[k - 1].tiers if k else TIERS)
                for codec in _shrinking(stage.stored)
                for stored in [stage.stored[codec]]
            ]
            forced = k > 0 and steps[k - 1].is_forced
            useful = [each for each in own if forced or ((each.saved + each.wait_saved) > 0).any()]
            if not useful:
                reasons[k] = "reading it back costs more than computing it"
            found += useful
    return _folded(found, steps, reasons), tuple(reasons)


def as_measured(candidates: Sequence[Candidate], profile: Profile) -> list[Candidate]:
    """Candidates with the seconds of another measurement of the same pipeline."""
    done = np.array([stage.seconds for stage in profile.stages]).cumsum(0)
    return [
        replace(each, saved=done[place.step] - np.array(profile.stages[place.step].stored[place.codec].read))
        for each in candidates
        for place in [each.placement]
    ]


def _shrinking(stored: Mapping[str, StoredStage]) -> list[Codec]:
    """The codecs that a stage is worth storing with: raw, and those that save bytes. A noisy profile prefers any."""
    raw = stored.get("raw")
    return [
        codec
        for codec in CODECS
        if codec in stored
        and (codec == "raw" or raw is None or min(np.divide(stored[codec].nbytes, raw.nbytes)) < _SHRUNK)
    ]


def bytes_per_request(profile: Profile, candidate: Candidate) -> float:
    """Mean bytes of the disk read of one sample."""
    return mean_of(profile.counts, candidate.nbytes.tolist())


def seconds_per_byte(profile: Profile, candidates: Sequence[Candidate], disk: Disk | None, readers: int) -> Floats:
    """Disk seconds to read a byte with some readers, float64 [candidates]; zeros without a disk."""
    if disk is None:
        return np.zeros(len(candidates))
    return np.array([1 / disk.bandwidth(bytes_per_request(profile, each), readers) for each in candidates])


def _folded(found: list[Candidate], steps: Sequence[Step], reasons: list[str]) -> list[Candidate]:
    """Drop candidates that another one dominates in time and bytes, such as a step before one that keeps the size."""
    kept = []
    for candidate in found:
        k = candidate.placement.step
        better = [other for other in found if _beats(other, candidate)]
        if not better or (k and steps[k - 1].is_forced):
            kept.append(candidate)
        elif later := [other.placement.step for other in better if other.placement.step > k]:
            reasons[k] = f"folded into {steps[max(later) - 1].name}: it saves more and takes no more bytes"
        else:
            reasons[k] = f"{better[0].placement.codec} saves more and takes no more bytes"
    for candidate in kept:
        reasons[candidate.placement.step] = ""
    return kept


def _beats(other: Candidate, candidate: Candidate) -> bool:
    if other.placement.tier != candidate.placement.tier or other.placement == candidate.placement:
        return False
    at_least = (
        (other.saved >= candidate.saved).all()
        and (other.wait_saved >= candidate.wait_saved).all()
        and (other.nbytes <= candidate.nbytes).all()
        and (other.build <= candidate.build * 1.1).all()
    )
    equal = (other.saved == candidate.saved).all() and (other.nbytes == candidate.nbytes).all()
    return bool(at_least and not (equal and other.placement < candidate.placement))
