"""Planning: from a profile and budgets to a plan, by the joint program or by a baseline.

For each measured number of workers, the integer program distributes the memory that they leave. The number of workers
with the cheapest plan is taken.
"""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import psutil

from warmstore.errors import BadRank
from warmstore.pipeline.chain import Chain
from warmstore.pipeline.plan.budgets import available_on_disk, disk_budget, memory_budget
from warmstore.pipeline.plan.cost_model import Candidate, Load, candidates_of, seconds_per_byte
from warmstore.pipeline.plan.milp import PlacementProblem, Solution, solve
from warmstore.pipeline.plan.plan import Plan
from warmstore.pipeline.profile.profile import TIERS, Profile, mean_of
from warmstore.pipeline.profile.source_sizes import buckets_of
from warmstore.pipeline.steps import deterministic

_log = logging.getLogger("warmstore")

Strategy = Literal["joint", "sequential", "single", "presto", "page-cache", "none"]
PREFETCH = 2  # batches a worker makes ahead: torch's default
STORE_BYTES = 1 << 20  # overhead of a tier: log, description, unused end of the last chunk
_WORTH = 1.03  # least speedup of a mixed plan over one step in one codec
_CACHE_SHARE = 0.8  # share of the free memory that the page cache is expected to keep


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

    Raises:
        BadBudget: a budget is below zero, above the device's size, or for a disk without a folder.
        NoFingerprint: a step with a forced tier has no identity.
        ValueError: another argument is out of range, or the profile is of another pipeline.
        NotInstalled: scipy is not installed.
    """
    where = None if folder is None else Path(folder)
    _check(workers, epochs, step_seconds, world_size, strategy)
    budget = _Budget(memory_budget(memory), disk_budget(disk, where))
    if profile is None:
        from warmstore.pipeline.profile.profiler import profile as measured

        profile = measured(chain, folder=where)
    _check_profile(chain, profile)
    notes: list[str] = []
    if where is not None and (available := available_on_disk(where, budget.disk)) < budget.disk:
        notes.append(f"Only {available:,} bytes are available on the disk; the plan uses no more.")
        budget = replace(budget, disk=available)
    identities = chain.identities
    identities.refresh(patches=True)
    for at, step in enumerate(chain.steps[: chain.cacheable], 1):
        if step.cache in TIERS:
            identities.require(at)
    if identities.trouble:
        notes.append(identities.trouble)
    candidates, reasons = candidates_of(profile, chain.steps, identities.keepable)
    rule = _RULES[strategy]
    found: list[_Choice] = []
    for count in _worker_counts(profile, workers, world_size):
        load = _load(profile, candidates, count, world_size, step_seconds, budget, direct_io, strategy)
        taken = count * world_size * _worker_bytes(profile, count)
        if budget.counts_workers and taken > budget.memory and count:
            continue
        problem = PlacementProblem(
            np.array(profile.counts, np.int64),
            candidates,
            max(0.0, budget.memory - taken - STORE_BYTES),
            max(0.0, budget.disk - STORE_BYTES),
            load,
            epochs,
            tuple(_is_forced(candidate, chain.steps) for candidate in candidates),
        )
        found.append(_Choice(count, taken, load, problem, rule(problem)))
        if workers is not None:
            break
    best = min(found, key=lambda choice: choice.problem.total(choice.solution) * (1 + 0.01 * choice.workers))
    notes += _notes(profile, best, workers, budget, world_size)
    notes += _notes_of_varying(profile, deterministic(chain.steps))
    return _as_plan(chain, profile, best, budget, where, epochs, world_size, direct_io, strategy, reasons, notes)


@dataclass(frozen=True)
class _Budget:
    memory: int
    disk: int

    @property
    def counts_workers(self) -> bool:
        return self.memory > 0


@dataclass(frozen=True)
class _Choice:
    workers: int
    worker_bytes: int
    load: Load
    problem: PlacementProblem
    solution: Solution


def joint(problem: PlacementProblem) -> Solution:
    """One program for both tiers, or one step in one codec if that is nearly as good.

    A mixed plan relies on more measurements, each with noise, so it must be faster by `_WORTH`.
    """
    best = _solved(problem)
    if any(problem.forced):
        return best
    plain = single(problem)
    return plain if problem.total(plain) <= _WORTH * problem.total(best) else best


def sequential(problem: PlacementProblem) -> Solution:
    """Memory as if there were no disk, then the disk for the remaining samples."""
    first = _solved(replace(problem, disk=0.0))
    return _solved(replace(problem, forced=(), at_least=first.counts))


def single(problem: PlacementProblem) -> Solution:
    """As many samples as fit into both tiers, all after one step, raw or compressed."""
    return _best(problem, [_only(problem, form) for form in _forms(problem)])


def presto(problem: PlacementProblem) -> Solution:
    """All samples in both tiers after one step, raw or compressed, or none."""
    return _best(problem, [replace(_only(problem, form), whole=True) for form in _forms(problem)])


def nothing(problem: PlacementProblem) -> Solution:
    """No caches."""
    found = solve(replace(problem, candidates=()))
    assert found is not None
    return Solution(np.zeros((len(problem.candidates), len(problem.counts)), np.int64), found.cost)


_RULES: dict[str, Callable[[PlacementProblem], Solution]] = {
    "joint": joint,
    "sequential": sequential,
    "single": single,
    "presto": presto,
    "page-cache": nothing,
    "none": nothing,
}


def _solved(problem: PlacementProblem) -> Solution:
    found = solve(problem)
    return found if found is not None else nothing(problem)


def _forms(problem: PlacementProblem) -> list[tuple[int, str]]:
    return sorted({(each.placement.step, each.placement.codec) for each in problem.candidates})


def _only(problem: PlacementProblem, form: tuple[int, str]) -> PlacementProblem:
    """The problem restricted to one step and one codec."""
    closed = tuple((each.placement.step, each.placement.codec) != form for each in problem.candidates)
    return replace(problem, closed=closed, forced=())


def _best(problem: PlacementProblem, ways: Sequence[PlacementProblem]) -> Solution:
    found = [nothing(problem), *(solution for way in ways if (solution := solve(way)) is not None)]
    return min(found, key=problem.total)


def _is_forced(candidate: Candidate, steps: Any) -> bool:
    step = candidate.placement.step
    return bool(step) and steps[step - 1].cache in TIERS


def _worker_counts(profile: Profile, workers: int | None, world_size: int) -> list[int]:
    """Numbers of workers to try. For a given number: it and its halves, of which the first that fits is taken."""
    if workers is not None:
        return [workers, *(workers // 2**power for power in range(1, workers.bit_length() + 1))]
    return sorted({0, *(entry.workers // world_size for entry in profile.scaling)})


def _worker_bytes(profile: Profile, workers: int) -> int:
    """Bytes of one worker and of the batches it makes ahead."""
    if not workers:
        return 0
    batch = profile.batch_size * mean_of(profile.counts, profile.stages[-1].nbytes)
    return int(profile.at(workers).nbytes + PREFETCH * batch)


def _load(
    profile: Profile,
    candidates: Sequence[Candidate],
    workers: int,
    world_size: int,
    step_seconds: float,
    budget: _Budget,
    direct_io: bool,
    strategy: str,
) -> Load:
    counts = np.array(profile.counts, float)
    steps = float(sum(counts @ np.array(stage.seconds) for stage in profile.stages))
    waits = float(sum(counts @ np.array(stage.wait) for stage in profile.stages))
    total, batches = profile.total, profile.total / profile.batch_size
    free = max(0.0, _CACHE_SHARE * (psutil.virtual_memory().available - budget.memory))
    if strategy != "none" and profile.source_nbytes <= free:
        waits = 0.0
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


def _per_sample(profile: Profile) -> float:
    """CPU seconds per uncached sample in a worker."""
    return sum(mean_of(profile.counts, stage.seconds) for stage in profile.stages) + profile.overhead


def _lanes(profile: Profile, processes: int) -> float:
    """The equivalent number of undisturbed workers, by the measured rate of the uncached pipeline.

    One worker makes a batch, so at the end of an epoch of few batches some workers are idle.
    """
    batches = profile.total / profile.batch_size
    busy = batches / (max(1, -(-batches // processes)) * processes)
    return max(profile.at(processes).rate * _per_sample(profile) * min(busy, 1.0), 1e-9)


def _cores(profile: Profile) -> float:
    """CPU seconds a second that the machine provides to workers and main process."""
    measured = [entry for entry in profile.scaling if entry.workers]
    return max([1.0, *(entry.rate * (_per_sample(profile) + profile.delivery) for entry in measured)])


def _check(workers: int | None, epochs: int, step_seconds: float, world_size: int, strategy: str) -> None:
    if strategy not in get_args(Strategy):
        raise ValueError(f"strategy={strategy!r}; it must be one of {', '.join(get_args(Strategy))}")
    if workers is not None and workers < 0:
        raise ValueError(f"workers={workers!r}; it must be 0 or more, or None for the best number")
    if epochs < 1:
        raise ValueError(f"epochs={epochs!r}; it must be 1 or more")
    if not step_seconds >= 0:
        raise ValueError(f"step_seconds={step_seconds!r}; it must be seconds per batch, 0 or more")
    if world_size < 1:
        raise BadRank(f"world_size={world_size!r}; it must be 1 or more")


def _check_profile(chain: Chain, profile: Profile) -> None:
    if profile.total != len(chain):
        raise ValueError(
            f"the profile is of {profile.total:,} samples, and the pipeline has {len(chain):,}: profile it"
        )
    if len(profile.stages) != len(chain.steps) + 1:
        measured, steps = (", ".join(step.name for step in each) for each in (profile.stages[1:], chain.steps))
        raise ValueError(f"the profile is of other steps ({measured}) than the pipeline ({steps}): profile it")


def _notes(profile: Profile, best: _Choice, workers: int | None, budget: _Budget, world_size: int) -> list[str]:
    notes = []
    most = max(entry.workers for entry in profile.scaling) // world_size if workers is None else workers
    each = _worker_bytes(profile, most)
    if budget.counts_workers and most * world_size * each > budget.memory:
        ranks = f" on each of {world_size} ranks" if world_size > 1 else ""
        notes.append(
            f"A worker with its batches takes {each:,} bytes: the memory budget cannot hold {most}{ranks}, "
            f"so the plan takes {best.workers or 'none'}."
        )
    return notes


def _notes_of_varying(profile: Profile, last: int) -> list[str]:
    """A note on the first step that is random but not marked so."""
    varying = next((k for k, stage in enumerate(profile.stages[: last + 1]) if stage.varies), None)
    if varying is None:
        return []
    advice = "mark it random=True, or its cached results will be the same in every epoch"
    if not varying:
        advice = "if a step changes its argument in place, copy it first"
    note = f"{profile.stages[varying].name!r} made two different values of one sample: {advice}."
    _log.warning("%s", note)
    return [note]


def _as_plan(
    chain: Chain,
    profile: Profile,
    best: _Choice,
    budget: _Budget,
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
