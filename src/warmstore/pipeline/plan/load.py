"""The load of an epoch: what a profile predicts for a number of workers."""

import os
from collections.abc import Sequence

import numpy as np

from warmstore.pipeline.plan.budgets import Budget
from warmstore.pipeline.plan.cost_model import Candidate, Load, seconds_per_byte
from warmstore.pipeline.profile.profile import Profile, mean_of
from warmstore.storage.memory.memory_limits import available_memory

PREFETCH = 2  # batches a worker makes ahead: torch's default
_CACHE_SHARE = 0.8  # share of the free memory that the page cache is expected to keep


def load_of(
    profile: Profile,
    candidates: Sequence[Candidate],
    workers: int,
    world_size: int,
    step_seconds: float,
    budget: Budget,
    direct_io: bool,
    is_warm: bool,
) -> Load:
    """The load of an epoch. is_warm: see `candidates_of`. For the other arguments see `plan`."""
    counts = np.array(profile.counts, float)
    steps = float(sum(counts @ np.array(stage.seconds) for stage in profile.stages))
    waits = float(sum(counts @ np.array(stage.waiting(is_warm=is_warm)) for stage in profile.stages))
    total, batches = profile.total, profile.total / profile.batch_size
    free = page_cache_bytes(budget)
    processes = workers * world_size
    alone = seconds_per_byte(profile, candidates, profile.disk, 1)
    together = seconds_per_byte(profile, candidates, profile.disk, max(processes, world_size))
    kept = 0.0 if direct_io else free
    makes = steps + total * (profile.overhead if workers else profile.alone)
    per_rank = batches * step_seconds / world_size
    delivery = total * profile.delivery / world_size if workers else 0.0
    return Load(
        cpu=makes,
        wait=waits,
        others=total * profile.delivery if workers else 0.0,
        lanes=_lanes(profile, processes) if workers else float(world_size),
        cores=_cores(profile) if workers else max(1.0, min(float(world_size), _cores(profile))),
        fixed=max(per_rank, delivery),
        serial=0.0 if workers else per_rank,
        disk_alone=alone,
        disk_together=together,
        held_alone=kept * float(alone.min()) if len(alone) else 0.0,
        held_together=kept * float(together.min()) if len(together) else 0.0,
        write=0.0 if profile.disk is None else 1 / profile.disk.write,
    )


def page_cache_bytes(budget: Budget) -> float:
    """Bytes that the page cache is expected to have space for."""
    return max(0.0, _CACHE_SHARE * (available_memory() - budget.memory))


def _per_sample(profile: Profile) -> float:
    """CPU seconds per uncached sample in a worker."""
    return sum(mean_of(profile.counts, stage.seconds) for stage in profile.stages) + profile.overhead


def _waiting(profile: Profile) -> float:
    """Seconds of waiting per uncached sample while the rates of workers were measured, with files in the page cache."""
    return sum(mean_of(profile.counts, stage.waiting(is_warm=True)) for stage in profile.stages)


def _lanes(profile: Profile, processes: int) -> float:
    """The equivalent number of undisturbed workers, by the measured rate of the uncached pipeline.

    One worker makes a batch, so at the end of an epoch of few batches some workers are idle.
    """
    batches = profile.total / profile.batch_size
    busy = batches / (max(1, -(-batches // processes)) * processes)
    return max(profile.at(processes).rate * (_per_sample(profile) + _waiting(profile)) * min(busy, 1.0), 1e-9)


def _cores(profile: Profile) -> float:
    """CPU seconds a second that the machine provides to workers and main process."""
    measured = [entry for entry in profile.scaling if entry.workers]
    if _waiting(profile) > _per_sample(profile):
        return float(os.cpu_count() or 1)  # workers that mostly wait do not show it
    return max([1.0, *(entry.rate * (_per_sample(profile) + profile.delivery) for entry in measured)])


def worker_bytes(profile: Profile, workers: int) -> int:
    """Bytes of one worker and of the batches it makes ahead."""
    if not workers:
        return 0
    batch = profile.batch_size * mean_of(profile.counts, profile.stages[-1].nbytes)
    return int(profile.at(workers).nbytes + PREFETCH * batch)
