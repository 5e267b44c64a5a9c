"""Planning: from a profile and budgets to a plan, by the joint program or by a baseline.

For each measured number of workers, the integer program distributes the memory that they leave. The number of workers
with the cheapest plan is taken.
"""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from warmstore.errors import BadRank
from warmstore.loading.steps.cursor import MOST_EPOCH
from warmstore.loading.validation import integer
from warmstore.pipeline.chain import Chain
from warmstore.pipeline.plan import plan_notes
from warmstore.pipeline.plan.budgets import Budget, available_on_disk, disk_budget, memory_budget
from warmstore.pipeline.plan.cost_model import Candidate, as_measured, candidates_of
from warmstore.pipeline.plan.load import load_of, page_cache_bytes, worker_bytes
from warmstore.pipeline.plan.milp import PlacementProblem, Solution, free_bytes
from warmstore.pipeline.plan.plan import Plan
from warmstore.pipeline.plan.strategies import RULES, Strategy, are_faster, nothing
from warmstore.pipeline.profile.profile import Profile
from warmstore.pipeline.profile.source_sizes import buckets_of
from warmstore.pipeline.steps import TIERS, Tier, deterministic
from warmstore.pipeline.tiers.tier_folders import stored_bytes, version_name
from warmstore.pipeline.tiers.tier_overhead import tier_overhead
from warmstore.storage.user_paths import user_path

_WORTH_WORKERS = 1.05  # least speedup by more workers
_WORTH_FILLING = 1.0  # least seconds that other workers must save while cached samples are missing
_STORED = 0.1  # share of the largest version from which on a version counts as stored


def plan(
    chain: Chain,
    profile: Profile | None = None,
    *,
    memory: int | str | None = None,
    disk: int | str | None = None,
    folder: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    epochs: int = 30,
    step_seconds: float = 0.0,
    world_size: int = 1,
    direct_io: bool = False,
    strategy: Strategy = "joint",
    progress: bool | None = None,
) -> Plan:
    """Find the plan with the shortest epochs within the budgets.

    Args:
        chain, profile: the source with its steps, and their profile; None measures it now, or loads it from the folder.
        memory: bytes for cached samples and for the workers with their batches; None or 0: no memory tier, and workers
            are not counted.
        disk: bytes on the disk of `folder`; None or 0: no disk tier. Both budgets are for all ranks of this machine
            together.
        folder: of the disk tier.
        workers: processes that make batches, per rank; None: the best number.
        epochs: number of epochs in which filling the tiers must pay off.
        step_seconds: seconds of training per batch, a lower bound of the epoch.
        world_size: ranks on this machine. They share tiers, disk and cores, and each makes its part of the epoch.
        direct_io: whether the disk tier is read past the page cache.
        strategy: "joint": one program for both tiers. Baselines: "sequential", memory first, then the disk for the
            rest (HyCache, 2025); "single", one step and one codec for all cached samples; "presto", the same for all
            samples or none (Isenko et al., "Where Is My Training Bottleneck?", SIGMOD 2022); "page-cache", only the
            system's page cache; "none", no cache at all.
        progress: show a bar while the steps are measured; None shows one on a terminal or in a notebook.

    Raises:
        BadBudget: a budget is below zero, above the device's size, or for a disk without a folder.
        NoFingerprint: a step with a forced tier has no identity.
        ValueError: another argument is out of range, or the profile is of another pipeline.
        NotInstalled: scipy is not installed.
    """
    where = None if folder is None else user_path(folder)
    if strategy not in get_args(Strategy):
        raise ValueError(f"strategy={strategy!r}; it must be one of {', '.join(get_args(Strategy))}")
    workers = None if workers is None else integer("workers", workers, 0, 2**16)
    epochs = integer("epochs", epochs, 1, MOST_EPOCH)
    if not 0 <= step_seconds < math.inf:
        raise ValueError(f"step_seconds={step_seconds!r}; it must be seconds per batch, 0 or more and finite")
    step_seconds = float(step_seconds)  # the history has no numbers of NumPy
    world_size = _world_size(world_size)
    budget = Budget(memory_budget(memory), disk_budget(disk, where))
    if profile is None:
        from warmstore.pipeline.profile.profiler import profile as measured

        profile = measured(chain, folder=where, progress=progress)
    _check_profile(chain, profile)
    notes: list[str] = []
    if where is not None and (available := available_on_disk(where, budget.disk)) < budget.disk:
        notes.append(f"Only {available:,} bytes are available on the disk; the plan uses no more.")
        budget = replace(budget, disk=available)
    identities = chain.identities
    identities.refresh(patches=True)
    for at, step in enumerate(chain.steps[: chain.cacheable], 1):
        if step.is_forced:
            identities.require(at)
    if identities.trouble:
        notes.append(identities.trouble)
    is_warm = strategy != "none" and profile.source_nbytes <= page_cache_bytes(budget)
    candidates, reasons = candidates_of(profile, chain.steps, identities.keepable, is_warm=is_warm)
    stored = _stored(candidates, where, chain) if budget.disk and where is not None else ()
    rounds = profile.rounds()
    found: list[_Choice] = []
    for count in _worker_counts(profile, workers, world_size):
        loads = [
            load_of(each, candidates, count, world_size, step_seconds, budget, direct_io, is_warm)
            for each in (profile, *rounds)
        ]
        taken = count * world_size * worker_bytes(profile, count)
        if budget.counts_workers and taken > budget.memory and count:
            continue
        problem = PlacementProblem(
            np.array(profile.counts, np.int64),
            candidates,
            max(0, budget.memory - taken),
            budget.disk,
            loads[0],
            epochs,
            tuple(_is_forced(candidate, chain.steps) for candidate in candidates),
            stored=stored,
        )
        problem = replace(
            problem,
            rounds=tuple(
                replace(problem, candidates=as_measured(candidates, each), load=load)
                for each, load in zip(rounds, loads[1:], strict=True)
            ),
        )
        found.append(_Choice(count, taken, *_within(problem, RULES[strategy], count * world_size)))
        if workers is not None:
            break
    best = _fastest(found)
    filling = best.workers if workers is not None else _fill_workers(found, best, budget)
    notes += plan_notes.of_workers(profile, best.workers, workers, budget, world_size)
    notes += plan_notes.of_varying(profile, deterministic(chain.steps))
    if strategy not in ("none", "page-cache"):
        notes += plan_notes.of_forced(chain.steps, reasons, best.problem, best.solution, budget)
        notes += plan_notes.of_empty_tiers(best.problem, best.solution, budget, best.worker_bytes)
    return _as_plan(
        chain, profile, best, filling, budget, where, epochs, world_size, direct_io, strategy, reasons, notes
    )


@dataclass(frozen=True)
class _Choice:
    workers: int
    worker_bytes: int
    problem: PlacementProblem
    solution: Solution


def _fastest(found: Sequence[_Choice]) -> _Choice:
    """The choice with the shortest epochs, where more workers are worth it by each measurement.

    Args:
        found: by ascending numbers of workers.
    """
    best, *others = found
    for other in others:
        if are_faster(other.problem.totals(other.solution), best.problem.totals(best.solution), _WORTH_WORKERS):
            best = other
    return best


def _fill_workers(found: Sequence[_Choice], best: _Choice, budget: Budget) -> int:
    """Workers while cached samples are missing: those of the fastest uncached epoch that the memory budget holds too.

    Samples are worth many processes to compute, but often none to read.
    """
    counts = best.solution.counts
    if not counts.any():
        return best.workers
    spare = free_bytes(best.problem, counts, "memory") + best.worker_bytes if budget.counts_workers else math.inf
    uncached = {each.workers: nothing(each.problem).cost.epoch for each in found if each.worker_bytes <= spare}
    fastest = min(uncached, key=uncached.__getitem__, default=best.workers)
    slow = nothing(best.problem).cost.epoch
    return fastest if uncached.get(fastest, slow) < slow - _WORTH_FILLING else best.workers


def _within(
    budgets: PlacementProblem, rule: Callable[[PlacementProblem], Solution], writers: int
) -> tuple[PlacementProblem, Solution]:
    """The problem less the bytes that the tiers take themselves, and its solution by a rule.

    These bytes grow with the placements in a tier, so a solution with more of them than expected is solved again.
    """
    placements = dict.fromkeys(TIERS, 1)
    while True:
        left = {tier: _left(budgets, tier, writers, count) for tier, count in placements.items()}
        problem = replace(budgets, memory=left["memory"], disk=left["disk"])
        solution = rule(problem)
        used = [each for each, taken in zip(problem.candidates, solution.counts, strict=True) if taken.any()]
        found = {tier: sum(each.placement.tier == tier for each in used) for tier in TIERS}
        if all(found[tier] <= placements[tier] for tier in TIERS):
            return problem, solution
        placements = {tier: max(found[tier], placements[tier]) for tier in TIERS}


def _stored(candidates: Sequence[Candidate], folder: Path, chain: Chain) -> tuple[bool, ...]:
    """Which candidates have a good part of the samples that the folder has of this pipeline."""
    steps = chain.identities.descriptions()
    nbytes = [
        stored_bytes(folder, version_name(place.step, place.codec, steps[: place.step])) if place.tier == "disk" else 0
        for place in (each.placement for each in candidates)
    ]
    return tuple(size > max(nbytes) * _STORED for size in nbytes)


def _left(budgets: PlacementProblem, tier: Tier, writers: int, placements: int) -> float:
    """Bytes of a tier for the records of samples."""
    own = [each for each in budgets.candidates if each.placement.tier == tier]
    limit = budgets.memory if tier == "memory" else budgets.disk
    overhead = tier_overhead(
        int(limit),
        writers,
        placements,
        sample=max((float(each.nbytes.max()) for each in own), default=0.0),
        per_chunk=max((each.per_chunk for each in own), default=0.0),
        per_batch=max((each.per_batch for each in own), default=0.0),
    )
    return max(0.0, limit - overhead)


def _is_forced(candidate: Candidate, steps: Any) -> bool:
    step = candidate.placement.step
    return bool(step) and steps[step - 1].is_forced


def _worker_counts(profile: Profile, workers: int | None, world_size: int) -> list[int]:
    """Numbers of workers to try. For a given number: it and its halves, of which the first that fits is taken."""
    if workers is not None:
        return [workers, *(workers // 2**power for power in range(1, workers.bit_length() + 1))]
    return sorted({0, *(entry.workers // world_size for entry in profile.scaling)})


def _world_size(given: int) -> int:
    try:
        return integer("world_size", given, 1, 2**31)
    except ValueError as error:
        raise BadRank(str(error)) from None


def _check_profile(chain: Chain, profile: Profile) -> None:
    if profile.total != len(chain):
        raise ValueError(
            f"the profile is of {profile.total:,} samples, and the pipeline has {len(chain):,}: profile it"
        )
    measured, steps = ([step.name for step in each] for each in (profile.stages[1:], chain.steps))
    if measured != steps:
        raise ValueError(
            f"the profile is of other steps ({', '.join(measured)}) than the pipeline ({', '.join(steps)}): profile it"
        )


def _as_plan(
    chain: Chain,
    profile: Profile,
    best: _Choice,
    fill_workers: int,
    budget: Budget,
    folder: Path | None,
    epochs: int,
    world_size: int,
    direct_io: bool,
    strategy: str,
    reasons: tuple[str, ...],
    notes: Sequence[str],
) -> Plan:
    candidates, solution = best.problem.candidates, best.solution
    used = sorted((each.placement, number) for number, each in enumerate(candidates) if solution.counts[number].any())
    taken = {
        tier: sum(
            float(solution.counts[number] @ candidates[number].nbytes) for place, number in used if place.tier == tier
        )
        for tier in TIERS
    }
    return Plan(
        placements=tuple(place for place, _ in used),
        counts=tuple(tuple(map(int, solution.counts[number])) for _, number in used),
        samples=profile.total,
        buckets=buckets_of(chain.source, profile.edges),
        memory=budget.memory,
        disk=budget.disk,
        folder=folder,
        workers=best.workers,
        fill_workers=fill_workers,
        direct_io=direct_io,
        batch_size=profile.batch_size,
        world_size=world_size,
        strategy=strategy,
        epochs=epochs,
        epoch_seconds=solution.cost.epoch,
        uncached_seconds=nothing(best.problem).cost.epoch,
        build_seconds=solution.cost.build,
        limits=solution.cost.limits,
        memory_used=int(taken["memory"]),
        disk_used=int(taken["disk"]),
        worker_bytes=best.worker_bytes,
        steps=chain.steps,
        profile=profile,
        reasons=reasons,
        notes=tuple(notes),
    )
