"""Strategies: how samples are distributed to the placements, by the joint program or by a baseline."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from warmstore.pipeline.plan.milp import PlacementProblem, Solution, solve

Strategy = Literal["joint", "sequential", "single", "presto", "page-cache", "none"]
_WORTH = 1.03  # least speedup of a mixed plan over one step in one codec
_WORTH_AGAIN = 1.5  # least speedup of a plan over one with the forms that are stored


def joint(problem: PlacementProblem) -> Solution:
    """One program for both tiers, or one step in one codec if that is nearly as good and keeps as many samples.

    A mixed plan relies on more measurements, each with noise. So it must be faster by `_WORTH` by each of two
    measurements, or keep all samples where one step cannot: then no epoch reads the source. Other steps and codecs than
    those that are stored on the disk already must be faster by `_WORTH_AGAIN`: they would be computed again, and two
    profiles of one machine differ.
    """
    best = _solved(problem)
    ways = []
    if any(problem.stored):
        ways.append((_WORTH_AGAIN, joint(replace(problem, closed=_not_stored(problem), stored=()))))
    if not any(problem.forced):
        ways.append((_WORTH, single(problem)))
    totals, is_whole = problem.totals(best), best.counts.sum() == problem.counts.sum()
    for worth, way in ways:
        if not are_faster(totals, problem.totals(way), worth) and way.counts.sum() >= is_whole * best.counts.sum():
            return way
    return best


def are_faster(totals: Sequence[float], others: Sequence[float], worth: float) -> bool:
    """Whether a solution is more than `worth` times as fast as another, by each measurement; see `totals`."""
    return all(theirs > worth * own for own, theirs in zip(totals, others, strict=True))


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


RULES: dict[str, Callable[[PlacementProblem], Solution]] = {
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


def _not_stored(problem: PlacementProblem) -> tuple[bool, ...]:
    """Which candidates of the disk have no samples there. Steps that are forced there and have none stay open."""
    steps = {each.placement.step for each, stored in zip(problem.candidates, problem.stored, strict=True) if stored}
    forced = problem.forced or (False,) * len(problem.candidates)
    return tuple(
        each.placement.tier == "disk" and not stored and (not must or each.placement.step in steps)
        for each, stored, must in zip(problem.candidates, problem.stored, forced, strict=True)
    )


def _only(problem: PlacementProblem, form: tuple[int, str]) -> PlacementProblem:
    """The problem restricted to one step and one codec."""
    shut = problem.closed or (False,) * len(problem.candidates)
    closed = tuple(
        closed or (each.placement.step, each.placement.codec) != form
        for each, closed in zip(problem.candidates, shut, strict=True)
    )
    return replace(problem, closed=closed, forced=())


def _best(problem: PlacementProblem, ways: Sequence[PlacementProblem]) -> Solution:
    plain = nothing(problem)
    found = [(way, solution) for way in ways if (solution := solve(way, fastest=True)) is not None]
    if not found:
        return plain
    way, fastest = min(found, key=lambda each: problem.total(each[1]))
    return min(plain, solve(way) or fastest, key=problem.total)
