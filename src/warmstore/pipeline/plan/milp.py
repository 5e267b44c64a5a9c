"""The integer program: the samples per placement that minimise the time of an epoch, for one number of workers.

Variables are the numbers of samples per candidate and bucket, the seconds T of an epoch, and the seconds y of waiting
for the disks. For large data sets the linear relaxation is solved and rounded down: a basic solution has at most as
many fractional values as constraints, a handful of samples. The solver is HiGHS (Huangfu and Hall, "Parallelizing the
dual revised simplex method", Mathematical Programming Computation 10, 2018) through scipy.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from warmstore.extras import not_installed
from warmstore.pipeline.plan.cost_model import Candidate, EpochCost, Floats, Load, cost
from warmstore.storage.array_types import Bools

Counts = np.ndarray[Any, np.dtype[np.int64]]
_WHOLE = 200  # most samples for integer variables; beyond it the relaxation is solved
_SECONDS = 0.3  # limit per solution, which takes milliseconds; the best one found by then counts
_TIME_IS_UP = 1  # a status of `scipy.optimize.milp`
_SLACK = 1.003  # factor by which an epoch may be longer to keep more samples, or to take fewer bytes
_USEFUL = 0.01  # least share of the mean time of a sample that a placement must save for it to be kept for its own sake
_GAIN = 1.0001  # least speedup for which anything is cached


@dataclass(frozen=True)
class PlacementProblem:
    """The input: samples per bucket, candidates, budgets in bytes, a load, and the number of epochs.

    forced: which candidates belong to steps that must be cached; they get as many samples as fit before all others.
    closed: which candidates must stay empty. stored: which candidates have samples in the folder already. whole: every
    sample must be cached. at_least: samples placed already, or None. rounds: the same problem as of each of two
    measurements alone, or ().
    """

    counts: Counts
    candidates: Sequence[Candidate]
    memory: float
    disk: float
    load: Load
    epochs: int
    forced: tuple[bool, ...] = ()
    closed: tuple[bool, ...] = ()
    stored: tuple[bool, ...] = ()
    whole: bool = False
    at_least: Counts | None = None
    rounds: tuple["PlacementProblem", ...] = ()

    def total(self, solution: "Solution") -> float:
        """Seconds of all epochs and of the build."""
        return solution.cost.epoch * self.epochs + solution.cost.build

    def totals(self, solution: "Solution") -> list[float]:
        """`total` by both measurements together, and by each alone."""
        return [self.total(solution), *(each.total(each.solution(solution.counts)) for each in self.rounds)]

    def solution(self, counts: Counts) -> "Solution":
        """Counts [candidates, buckets] with their cost."""
        return Solution(counts, cost(self.load, self.candidates, counts))


@dataclass(frozen=True)
class Solution:
    """Samples per candidate and bucket, int64 [candidates, buckets], and the cost of an epoch with them."""

    counts: Counts
    cost: EpochCost


def solve(problem: PlacementProblem, *, fastest: bool = False) -> Solution | None:
    """Minimise epochs * T + build; among solutions nearly as good, keep the most samples, then take the fewest bytes.

    Nothing is cached if that is as good, such as where training is the limit. With `fastest` only the seconds count.

    Returns:
        None if `whole` is set and the samples do not fit.

    Raises:
        NotInstalled: scipy is not installed.
    """
    nothing = problem.solution(np.zeros((len(problem.candidates), len(problem.counts)), np.int64))
    if not problem.candidates:
        return None if problem.whole else nothing
    program = _Program(problem)
    rows = [program.budgets()]
    if any(problem.forced):
        chosen = np.repeat(np.asarray(problem.forced, float), len(problem.counts)) * program.unit
        most = program.minimise(program.of_counts(-chosen), rows)
        if most is not None:
            rows.append((program.of_counts(-chosen)[None], -np.inf, _kept(-float(most[:-2] @ chosen))))
    best = program.minimise(program.objective, rows)
    if best is None:
        return None
    unbound = not problem.whole and not any(problem.forced) and problem.at_least is None
    if unbound and problem.total(nothing) <= _GAIN * program.seconds(best):
        return nothing
    # The next objectives may lengthen the epoch and the total by the slack only.
    rows.append((program.objective[None], -np.inf, _SLACK * float(program.objective @ best)))
    rows.append((program.of_epoch[None], -np.inf, _SLACK * float(program.of_epoch @ best)))
    most_seconds = _SLACK * program.seconds(best)
    goals = (program.of_counts(-program.useful), program.of_counts(program.nbytes), program.objective)
    for goal in () if fastest else goals:
        found = program.minimise(goal, rows)
        if found is None:
            break
        best = found
        rows.append((goal[None], -np.inf, _kept(float(goal @ best))))
    counts = _within_budgets(problem, program.samples(best))
    return _filled_up(problem, problem.solution(counts), most_seconds)


Row = tuple[Floats, Any, Any]


def _kept(goal: float) -> float:
    """The bound that keeps the value of an earlier objective, with a solver's tolerance."""
    return goal + 1e-7 * abs(goal)


class _Program:
    """Arrays for scipy. The last two variables are T and y. The unit of time is the total work of an epoch."""

    def __init__(self, problem: PlacementProblem) -> None:
        self._problem = problem
        candidates, load = problem.candidates, problem.load
        buckets, places = len(problem.counts), len(candidates)
        on_disk = np.repeat([each.placement.tier == "disk" for each in candidates], buckets)
        self._unit = unit = max(load.cpu + load.wait + load.fixed, 1e-9)
        self._whole = problem.counts.sum() <= _WHOLE
        own = np.ones(buckets) if self._whole else np.maximum(problem.counts, 1).astype(float)
        self.unit = share = np.tile(own, places)  # for large data sets variables are shares: solvers drop tiny factors
        saved = np.concatenate([each.saved for each in candidates]) * share / unit
        wait_saved = np.concatenate([each.wait_saved for each in candidates]) * share / unit
        build = np.concatenate([each.build for each in candidates]) * share / unit
        self.useful = self.unit * useful(problem).reshape(-1)
        self.nbytes = np.concatenate([each.nbytes for each in candidates]) * share
        self._on_disk = on_disk
        disk_bytes = self.nbytes * on_disk
        alone = disk_bytes * np.repeat(load.disk_alone, buckets) / unit
        together = disk_bytes * np.repeat(load.disk_together, buckets) / unit
        self.of_epoch = self.of_counts(np.zeros(len(saved)), seconds=1.0)
        self.objective = self.of_counts(
            build / load.cores + disk_bytes * load.write / unit, seconds=float(problem.epochs)
        )
        self._rows: list[Row] = [
            # T >= (cpu left + y) / lanes + serial, T >= (cpu left + others) / cores, T >= disk, T >= fixed
            (self.of_counts(saved, load.lanes, -1.0), (load.cpu + load.serial * load.lanes) / unit, np.inf),
            (self.of_counts(saved, load.cores), (load.cpu + load.others) / unit, np.inf),
            (self.of_counts(-together, 1.0), -load.held_together / unit, np.inf),
            # y >= waiting left, y >= waiting left + disk - what the page cache holds of it
            (self.of_counts(wait_saved, 0.0, 1.0), load.wait / unit, np.inf),
            (self.of_counts(wait_saved - alone, 0.0, 1.0), (load.wait - load.held_alone) / unit, np.inf),
        ]
        for bucket, count in enumerate(problem.counts):
            row = np.zeros((places, buckets))
            row[:, bucket] = own[bucket]
            self._rows.append((self.of_counts(row.reshape(-1)), count if problem.whole else 0, count))
        low = np.zeros((places, buckets)) if problem.at_least is None else problem.at_least
        self._low = np.concatenate((low.reshape(-1) / share, [load.fixed / unit, 0.0]))
        high = np.tile(problem.counts, places) / share
        high[np.repeat(problem.closed or (False,) * places, buckets)] = 0
        self._high = np.concatenate((high, [np.inf, np.inf]))

    def seconds(self, found: Floats) -> float:
        """Seconds of all epochs and of the build with some variables."""
        return float(self.objective @ found) * self._unit

    def of_counts(self, values: Floats, seconds: float = 0.0, waiting: float = 0.0) -> Floats:
        """Coefficients of all variables."""
        return np.concatenate((values, [seconds, waiting]))

    def budgets(self) -> Row:
        """The constraints of both budgets."""
        memory = self.of_counts(self.nbytes * ~self._on_disk)
        disk = self.of_counts(self.nbytes * self._on_disk)
        return np.stack((memory, disk)), -np.inf, np.array([self._problem.memory, self._problem.disk])

    def samples(self, found: Floats) -> Counts:
        """A solution as samples, int64 [candidates, buckets]: rounded down, then up where the budgets allow."""
        problem, exact = self._problem, found[:-2] * self.unit
        counts = np.floor(exact + 1e-5).astype(np.int64)
        each, left = self.nbytes / self.unit, problem.counts - counts.reshape(-1, len(problem.counts)).sum(0)
        free = [
            budget - float(counts @ (each * in_tier))
            for in_tier, budget in ((~self._on_disk, problem.memory), (self._on_disk, problem.disk))
        ]
        fractional = np.flatnonzero(exact - counts > 1e-5)
        for at in fractional[np.argsort(counts[fractional] - exact[fractional])]:
            tier, bucket = int(self._on_disk[at]), at % len(left)
            if left[bucket] and each[at] <= free[tier]:
                counts[at] += 1
                left[bucket] -= 1
                free[tier] -= each[at]
        return counts.reshape(-1, len(left))

    def minimise(self, objective: Floats, more: Sequence[Row]) -> Floats | None:
        """The variables that minimise an objective; None if there is no solution."""
        try:
            from scipy.optimize import Bounds, LinearConstraint, milp
        except ImportError as error:
            raise not_installed("planning", error, "scipy") from None
        # One constraint of all rows: making one for each takes longer than solving them.
        rows, low, high = map(np.concatenate, zip(*map(_scaled, (*self._rows, *more)), strict=True))
        whole = np.full(len(objective), int(self._whole))
        whole[-2:] = 0
        solved = partial(
            milp,
            objective / (np.abs(objective).max() or 1.0),
            bounds=Bounds(self._low, self._high),
            constraints=LinearConstraint(rows, low, high),
        )
        found = solved(integrality=whole, options={"time_limit": _SECONDS, "mip_rel_gap": 1e-6})
        if found.x is None and found.status == _TIME_IS_UP:  # a busy machine: the relaxation needs no search
            found = solved(integrality=np.zeros(len(objective)))
        return None if found.x is None else np.asarray(found.x)


def _scaled(row: Row) -> Row:
    """Scale a constraint to a largest coefficient of 1. A solver's tolerances do not suit bytes beside seconds."""
    rows = np.atleast_2d(row[0])
    by = np.abs(rows).max(1)
    by[by == 0] = 1.0
    return rows / by[:, None], np.broadcast_to(row[1], by.shape) / by, np.broadcast_to(row[2], by.shape) / by


def _within_budgets(problem: PlacementProblem, counts: Counts) -> Counts:
    """Reduce counts to the exact budgets: a solver's tolerance may admit a sample too many."""
    for tier, budget in (("memory", problem.memory), ("disk", problem.disk)):
        places = [number for number, each in enumerate(problem.candidates) if each.placement.tier == tier]
        for number in reversed(places):
            for bucket in range(len(problem.counts)):
                taken = sum(float(counts[at] @ problem.candidates[at].nbytes) for at in places)
                if taken > budget and counts[number, bucket]:
                    size = max(problem.candidates[number].nbytes[bucket], 1e-9)
                    counts[number, bucket] -= min(counts[number, bucket], int(-(-(taken - budget) // size)))
    return counts


def useful(problem: PlacementProblem) -> Bools:
    """Where a sample saves time that is worth a placement, bool [candidates, buckets]."""
    saved = np.array([each.saved + each.wait_saved for each in problem.candidates])
    return saved > _USEFUL * (problem.load.cpu + problem.load.wait) / max(int(problem.counts.sum()), 1)


def _filled_up(problem: PlacementProblem, solution: Solution, seconds: float) -> Solution:
    """Add samples that rounding has left out, to the placements in use, while the total is at most `seconds`."""
    saved, worth = np.array([each.saved + each.wait_saved for each in problem.candidates]), useful(problem)
    for at in np.argsort(-saved, axis=None, kind="stable").tolist():
        number, bucket = divmod(at, len(problem.counts))
        size = max(float(problem.candidates[number].nbytes[bucket]), 1e-9)
        left = int(problem.counts[bucket] - solution.counts[:, bucket].sum())
        fitting = min(left, int(free_bytes(problem, solution.counts, problem.candidates[number].placement.tier) / size))
        if fitting and worth[number, bucket] and solution.counts[number].any():
            counts = solution.counts.copy()
            counts[number, bucket] += fitting
            more = problem.solution(counts)
            solution = more if problem.total(more) <= seconds else solution
    return solution


def free_bytes(problem: PlacementProblem, counts: Counts, tier: str) -> float:
    """Bytes that counts leave in a tier."""
    taken = sum(
        float(kept @ each.nbytes)
        for kept, each in zip(counts, problem.candidates, strict=True)
        if each.placement.tier == tier
    )
    return max(0.0, (problem.memory if tier == "memory" else problem.disk) - taken)
