"""What an epoch costs as a linear function of how many samples are cached where: the arithmetic of a plan.

A sample that is not cached is read and put through every step; one cached after step k is read from its tier and put
through the steps after k. All of it is work of the cores, some of it waiting for a disk, and the rest is fixed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from warmstore.pipeline.plan.plan import Placement
from warmstore.pipeline.profile.profile import CODECS, TIERS, Disk, Profile
from warmstore.pipeline.steps import Step, deterministic

Floats = np.ndarray[Any, np.dtype[np.float64]]
_MARGIN = 2.0  # standard errors of the mean bytes that a budget has to spare


@dataclass(frozen=True)
class Candidate:
    """A place where samples may be cached. Figures are per sample, one per bucket.

    saved: CPU seconds it saves, reading deducted. wait_saved: seconds of waiting for the source that it saves.
    nbytes: bytes a sample is sure to take at most, in the mean. build: CPU seconds to write one.
    """

    placement: Placement
    saved: Floats
    wait_saved: Floats
    nbytes: Floats
    build: Floats


@dataclass(frozen=True)
class Load:
    """What a number of workers makes of an epoch.

    cpu, wait: seconds of work and of waiting in an uncached epoch, by all processes that make samples.
    others: CPU seconds of the main processes beside it. lanes: how many samples are made at once, at most. cores: CPU
    seconds that the machine gives a second. fixed: seconds below which no epoch falls. serial: seconds that come on top
    of making the samples, where the same process does both. disk: seconds to read a byte, where one reads and where
    all do, by candidate. cached_bytes: bytes of the disk tier that the page cache holds. write: disk seconds a byte.
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
    """An epoch of a plan, in seconds. `limits` by what bounds it; the epoch takes the largest of them."""

    limits: dict[str, float]
    build: float

    @property
    def epoch(self) -> float:
        return max(self.limits.values())


def cost(load: Load, candidates: Sequence[Candidate], counts: np.ndarray[Any, Any]) -> EpochCost:
    """What counts [candidates, buckets] cost under a load."""
    amount = np.asarray(counts, np.float64)
    cpu, wait, build, together = load.cpu, load.wait - load.held_alone, 0.0, -load.held_together
    for number, candidate in enumerate(candidates):
        cpu -= float(amount[number] @ candidate.saved)
        wait -= float(amount[number] @ candidate.wait_saved)
        build += float(amount[number] @ candidate.build) / load.cores
        if candidate.placement.tier == "disk":
            taken = float(amount[number] @ candidate.nbytes)
            wait += taken * load.disk_alone[number]
            together += taken * load.disk_together[number]
            build += taken * load.write
    limits = {
        "workers": (cpu + max(wait, 0.0)) / load.lanes + load.serial,
        "cores": (cpu + load.others) / load.cores,
        "disk": max(together, 0.0),
        "delivery and consumer": load.fixed,
    }
    return EpochCost(limits, build)


def candidates_of(
    profile: Profile, steps: Sequence[Step], keepable: int | None = None
) -> tuple[list[Candidate], tuple[str, ...]]:
    """Where samples may be cached to any use, and per stage why not, "" where they may.

    keepable: after so many steps at most, since of others it cannot be told whether they change; None: after all.
    """
    stages = profile.stages
    work = np.array([stage.seconds for stage in stages])  # [stages, buckets]
    waits = np.array([stage.wait for stage in stages])
    done, waited = work.cumsum(0), waits.cumsum(0)
    wanted = [_wanted(step.cache) for step in steps]
    found: list[Candidate] = []
    reasons = [""] * len(stages)
    for k, stage in enumerate(stages):
        if k > deterministic(steps):
            reasons[k] = "random" if steps[k - 1].random else "comes after a random step"
        elif keepable is not None and k > keepable:
            reasons[k] = "it cannot be told whether it changes"
        elif not stage.stored:
            reasons[k] = stage.trouble or "cannot be stored"
        elif k and not wanted[k - 1]:
            reasons[k] = "cache='never'"
        else:
            own = [
                Candidate(
                    Placement(k, tier, codec),
                    done[k] - np.array(stored.read),
                    waited[k],
                    np.array(stored.nbytes) * (1 + _MARGIN * stored.spread),
                    np.array(stored.write),
                )
                for tier in (wanted[k - 1] if k else TIERS)
                for codec in CODECS
                if (stored := stage.stored.get(codec))
            ]
            forced = k > 0 and steps[k - 1].cache in TIERS
            useful = [one for one in own if forced or ((one.saved + one.wait_saved) > 0).any()]
            if not useful:
                reasons[k] = "reading it back costs more than computing it"
            found += useful
    return _folded(found, steps, reasons), tuple(reasons)


def bytes_per_request(profile: Profile, candidate: Candidate) -> float:
    """The mean bytes that reading one sample asks the disk for."""
    return float(np.dot(profile.counts, candidate.nbytes)) / max(profile.total, 1)


def seconds_per_byte(profile: Profile, candidates: Sequence[Candidate], disk: Disk | None, readers: int) -> Floats:
    """Disk seconds a byte costs each candidate when so many read, float64 [candidates]; zeros without a disk."""
    if disk is None:
        return np.zeros(len(candidates))
    return np.array([1 / disk.bandwidth(bytes_per_request(profile, one), readers) for one in candidates])


def bucket_of(sizes: np.ndarray[Any, Any], edges: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int8]]:
    """The bucket of each source size, int8 [n]."""
    return np.searchsorted(np.asarray(edges), sizes, side="right").astype(np.int8)


def _wanted(cache: str) -> tuple[Any, ...]:
    return {"auto": TIERS, "never": ()}.get(cache, (cache,))


def _folded(found: list[Candidate], steps: Sequence[Step], reasons: list[str]) -> list[Candidate]:
    """Without those that another one beats in time and bytes alike: a step that keeps the size, before a later one."""
    kept = []
    for one in found:
        k = one.placement.step
        better = [other for other in found if _beats(other, one)]
        if not better or (k and steps[k - 1].cache in TIERS):
            kept.append(one)
        elif later := [other.placement.step for other in better if other.placement.step > k]:
            reasons[k] = f"folded into {steps[max(later) - 1].name}: no more bytes, and more is done"
        else:
            reasons[k] = f"{better[0].placement.codec} saves more and takes no more bytes"
    for one in kept:
        reasons[one.placement.step] = ""
    return kept


def _beats(other: Candidate, one: Candidate) -> bool:
    if other.placement.tier != one.placement.tier or other.placement == one.placement:
        return False
    at_least = (
        (other.saved >= one.saved).all()
        and (other.wait_saved >= one.wait_saved).all()
        and (other.nbytes <= one.nbytes).all()
        and (other.build <= one.build * 1.1).all()
    )
    equal = (other.saved == one.saved).all() and (other.nbytes == one.nbytes).all()
    return bool(at_least and not (equal and other.placement < one.placement))
