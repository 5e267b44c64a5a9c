"""The notes of a plan: what the user asked for and does not get, with the reason."""

import logging
from collections.abc import Sequence

from warmstore.pipeline.plan.budgets import Budget
from warmstore.pipeline.plan.load import worker_bytes
from warmstore.pipeline.plan.milp import PlacementProblem, Solution
from warmstore.pipeline.profile.profile import Profile
from warmstore.pipeline.steps import TIERS, Step, Tier
from warmstore.storage.humanize import format_size

_log = logging.getLogger("warmstore")
_WHERE: dict[Tier, str] = {"memory": "in memory", "disk": "on disk"}
_ADVICE: dict[Tier, str] = {"memory": "pass memory=", "disk": "pass disk= and folder="}


def of_workers(profile: Profile, chosen: int, workers: int | None, budget: Budget, world_size: int) -> list[str]:
    """A note if the memory budget cannot hold the workers that were asked for, or the best number of them."""
    most = max(entry.workers for entry in profile.scaling) // world_size if workers is None else workers
    each = worker_bytes(profile, most)
    if not budget.counts_workers or most * world_size * each <= budget.memory:
        return []
    ranks = f" on each of {world_size} ranks" if world_size > 1 else ""
    return [
        f"A worker with its batches takes {each:,} bytes: the memory budget cannot hold {most}{ranks}, "
        f"so the plan takes {chosen or 'none'}."
    ]


def of_varying(profile: Profile, last: int) -> list[str]:
    """A note on the first step that is random but not marked so. last: the last stage to look at."""
    varying = next((k for k, stage in enumerate(profile.stages[: last + 1]) if stage.varies), None)
    if varying is None:
        return []
    advice = "mark it random=True, or its cached results will be the same in every epoch"
    if not varying:
        advice = "if a step changes its argument in place, copy it first"
    note = f"{profile.stages[varying].name!r} made two different values of one sample: {advice}."
    _log.warning("%s", note)
    return [note]


def of_forced(
    steps: Sequence[Step], reasons: Sequence[str], problem: PlacementProblem, solution: Solution, budget: Budget
) -> list[str]:
    """Notes on steps with a forced tier of which no samples are cached. reasons: see `candidates_of`."""
    notes = []
    for k, step in enumerate(steps, 1):
        if not step.is_forced or _samples_of(problem, solution, k):
            continue
        (tier,) = step.tiers
        if reasons[k]:
            why = reasons[k]
        elif not getattr(budget, tier):
            why = f"the plan has no {tier} budget; {_ADVICE[tier]}"
        else:
            why = f"no sample fits into the {tier} budget"
        notes.append(f"Step {step.name!r} has cache={tier!r}, but none of its samples are cached: {why}.")
    return notes


def of_empty_tiers(problem: PlacementProblem, solution: Solution, budget: Budget, workers_take: int) -> list[str]:
    """A note for each tier with a budget in which nothing is cached, unless the other tier holds all samples.

    workers_take: bytes of the memory budget for workers.
    """
    notes = []
    kept = solution.counts.sum(axis=1)
    for tier in TIERS:
        total, left = getattr(budget, tier), getattr(problem, tier)
        own = [number for number, each in enumerate(problem.candidates) if each.placement.tier == tier]
        if not total or kept[own].any() or kept.sum() == problem.counts.sum():
            continue
        smallest = min((float(problem.candidates[number].nbytes.min()) for number in own), default=0.0)
        if not own:
            why = "the table has the reasons, step by step"
        elif smallest > left:
            taken = f"{format_size(total - left)} of {format_size(total)} are for the store itself"
            if tier == "memory" and workers_take:
                taken = f"{format_size(workers_take)} of {format_size(total)} are for workers and their batches"
            why = f"{taken}, and the smallest sample takes {format_size(smallest)}"
        else:
            why = f"it would not shorten the epochs, which are bounded by {solution.cost.bound}"
        notes.append(f"Nothing is cached {_WHERE[tier]}: {why}.")
    return notes


def _samples_of(problem: PlacementProblem, solution: Solution, step: int) -> int:
    return sum(
        int(counts.sum())
        for each, counts in zip(problem.candidates, solution.counts, strict=True)
        if each.placement.step == step
    )
