"""The figures of a plan: what it decides and predicts, for the plan itself, its table and its plot."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.pipeline.metering.epoch_observer import MeasuredEpoch
from warmstore.pipeline.profile.profile import Codec, Profile
from warmstore.pipeline.steps import Step, Tier

_ERROR = 0.15  # of predictions, relative
_START = 0.09  # seconds of a short epoch that are not predicted, at most


@dataclass(frozen=True, order=True)
class Placement:
    """Where samples are cached: after `step` steps (0: the raw value), in a tier, with a codec."""

    step: int
    tier: Tier
    codec: Codec


@dataclass(frozen=True, eq=False, repr=False)
class PlanFigures:
    """What a plan decides and predicts.

    placements, counts: the placements, and the samples per bucket of the profile that each gets.
    samples: total number. buckets: int8 [samples], the bucket of each; None if there is one.
    memory, disk: budgets in bytes, never exceeded. folder: of the disk tier. workers: processes that make batches;
    0 for none. fill_workers: the same while cached samples are missing. direct_io: the disk tier is read past the page
    cache. batch_size: assumed by the plan. world_size: ranks on this machine that share the budgets; both numbers of
    workers count for each.
    strategy: how the plan was found. epochs: number of epochs in which filling the tiers must pay off.
    epoch_seconds: of a steady epoch, predicted; uncached_seconds: of one without caches. build_seconds: extra time of
    the first epoch, predicted. limits: lower bounds of a steady epoch in seconds, by name.
    memory_used, disk_used, worker_bytes: bytes planned for both tiers and for the workers with their batches.
    steps, profile: what was planned, and the measurements it was planned by.
    notes: for the user, such as why a step cannot be cached. reasons: for each stage, why nothing is cached there.
    measured: seconds of the steady epochs that were run, added by the loader. epochs_run: their measurements by term.
    """

    placements: tuple[Placement, ...]
    counts: tuple[tuple[int, ...], ...]
    samples: int
    buckets: np.ndarray[Any, np.dtype[np.int8]] | None
    memory: int
    disk: int
    folder: Path | None
    workers: int
    fill_workers: int
    direct_io: bool
    batch_size: int
    world_size: int
    strategy: str
    epochs: int
    epoch_seconds: float
    uncached_seconds: float
    build_seconds: float
    limits: dict[str, float]
    memory_used: int
    disk_used: int
    worker_bytes: int
    steps: tuple[Step, ...]
    profile: Profile
    reasons: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    measured: list[float] = field(default_factory=list)
    epochs_run: list[MeasuredEpoch] = field(default_factory=list)

    def _add_epoch(self, epoch: MeasuredEpoch) -> None:
        """Add a steady epoch; for a loader."""
        self.measured.append(epoch.times.seconds)
        self.epochs_run.append(epoch)

    @property
    def band(self) -> tuple[float, float]:
        """Seconds between which a steady epoch is expected.

        They are 15 % from the prediction. An epoch below a second also has costs that are not predicted: starting it,
        and waiting for the first batch and for a core.
        """
        predicted = self.epoch_seconds
        short = min(1.0, max(0.0, 2 * (1 - predicted)))
        least = max((1 - _ERROR) * predicted - short * _START / 3, (1 - 2.5 * _ERROR) * predicted)
        return least, (1 + _ERROR) * predicted + short * _START

    def samples_in(self, placement: int) -> int:
        """How many samples a placement gets, all buckets together."""
        return sum(self.counts[placement])

    def nbytes_of(self, placement: int) -> float:
        """Bytes a placement is planned to take."""
        place = self.placements[placement]
        return float(np.dot(self.counts[placement], self.profile.stages[place.step].stored[place.codec].nbytes))

    @property
    def bound(self) -> str:
        """The resource that limits a steady epoch."""
        return max(self.limits, key=self.limits.__getitem__) if self.limits else "nothing"

    def mean(self, values: tuple[float, ...]) -> float:
        """The mean over all samples of a figure per bucket."""
        return float(np.dot(self.profile.counts, values)) / max(self.samples, 1)


def other_reason(plan: PlanFigures) -> str:
    """Why a plan caches nothing after a step that has no reason of its own."""
    if plan.placements:
        return "other steps save more per byte"
    if plan.strategy in ("none", "page-cache"):
        return f"the rule is {plan.strategy!r}"
    return "see the notes" if plan.memory or plan.disk else "the plan has no budget"
