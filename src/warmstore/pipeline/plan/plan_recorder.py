"""PlanRecorder: writes a plan, and what its epochs took, into the history in the plan's folder.

An epoch without a cache is the plan's prediction, for as many samples as the epoch had. The seconds saved are those
that a program waits less for batches: they are negative for an epoch that fills the tiers.
"""

import os
from collections import Counter
from dataclasses import dataclass
from typing import Any

from warmstore.loading.epoch_times import EpochTimes
from warmstore.loading.fill_result import FillResult
from warmstore.pipeline.metering.epoch_meter import MeterReading
from warmstore.pipeline.metering.part_recorder import PartRecorder
from warmstore.pipeline.plan.plan_figures import PlanFigures
from warmstore.storage.history import History, Pace


@dataclass(frozen=True)
class PlanUsage:
    """The use of a plan by the loaders of this process, in whole epochs, and by `Pipeline.fill`.

    hits, misses: samples. computed_seconds: of processors in the source and the steps; of a fill, on the clock.
    seconds_saved: see above.
    """

    hits: int = 0
    misses: int = 0
    computed_seconds: float = 0.0
    seconds_saved: float = 0.0


class PlanRecorder:
    """Records the use of a plan by this process. Plans without a folder are counted, and not recorded.

    The records of short epochs are rate limited: after the first ones, at most one a second is written, of all epochs
    since the last one. `close` writes the rest.
    """

    def __init__(self, plan: PlanFigures) -> None:
        self._history = None if plan.folder is None else History(plan.folder, "pipelines")
        self._plan = plan
        self._pace = Pace()
        self._waiting: dict[str, Any] = {}  # the figures of epochs that are not recorded yet
        self._is_told = False
        self._use, self._process = PlanUsage(), os.getpid()
        # Plans of several splits may share a folder.
        self._name = f"{' -> '.join(step.name for step in plan.steps)} ({plan.samples:,} samples)"
        self.name = "-".join(step.name for step in plan.steps) or "source"

    @property
    def usage(self) -> PlanUsage:
        """The use by this process; in a forked child, that of its parent does not count."""
        return self._use if self._process == os.getpid() else PlanUsage()

    def _tell(self, history: History) -> None:
        """Record the plan before its first epoch."""
        if not self._is_told:
            self._is_told = True
            plan = self._plan
            history.append(
                "plan",
                name=self._name,
                samples=plan.samples,
                epoch_seconds=plan.epoch_seconds,
                sample_seconds=plan.epoch_seconds / max(plan.samples, 1),
                uncached_seconds=plan.uncached_seconds,
                build_seconds=plan.build_seconds,
                band=list(plan.band),
                limited_by=plan.bound,
                memory=plan.memory,
                disk=plan.disk,
                memory_used=int(plan.memory_used),
                disk_used=int(plan.disk_used),
                workers=plan.workers,
                batch_size=plan.batch_size,
                placements=[
                    {
                        "after": plan.steps[place.step - 1].name if place.step else "source",
                        "tier": place.tier,
                        "codec": place.codec,
                        "samples": plan.samples_in(number),
                    }
                    for number, place in enumerate(plan.placements)
                ],
            )

    def epoch(self, times: EpochTimes, reading: MeterReading) -> None:
        """Record an epoch of a loader that has ended."""
        plan = self._plan
        share = reading.samples * plan.world_size / max(plan.samples, 1)
        uncached = plan.uncached_seconds * share
        waited = max(times.seconds - times.outside, 0.0)
        without = max(uncached - times.outside, 0.0) if times.processes else uncached
        computing = reading.cpu["source reads"] + reading.cpu["steps"]
        self._count(reading.samples - reading.computed, reading.computed, computing, without - waited)
        if self._history is None:
            return
        recorded, recorded_computed = reading.recorded
        self._add(
            self._history.begin_epoch(self._name),
            {
                "seconds": times.seconds,
                "waited_seconds": waited,
                "cpu_seconds": Counter({term: seconds for term, seconds in reading.cpu.items() if seconds}),
                "hits": reading.samples - reading.computed - (recorded - recorded_computed),
                "misses": reading.computed - recorded_computed,
                "predicted_seconds": plan.epoch_seconds * share,
                "uncached_seconds": uncached,
                "saved_seconds": without - waited,
            },
            {"is_steady": times.is_steady, "workers": times.processes},
        )
        if self._pace.may_end():
            self.close()

    def _add(self, epoch: int, sums: dict[str, Any], last: dict[str, Any]) -> None:
        """Add an epoch to those that are not recorded yet."""
        waiting = self._waiting
        if waiting:
            sums = {name: waiting[name] + figure for name, figure in sums.items()}
            last["is_steady"] = last["is_steady"] and waiting["is_steady"]
        first, epochs = waiting.get("epoch", epoch), waiting.get("epochs", 0) + 1  # others of this name are between
        self._waiting = {"epoch": first, "epochs": epochs, **sums, **last}

    def close(self) -> None:
        """Record the epochs that are not recorded yet."""
        waiting, self._waiting = self._waiting, {}
        if waiting and self._history is not None and self._process == os.getpid():
            self._pace.wrote()
            self._tell(self._history)
            epochs = waiting.pop("epochs")
            self._history.append("epoch", name=self._name, **waiting, epochs=epochs if epochs > 1 else None)

    def parts(self) -> PartRecorder | None:
        """A recorder for what is read before an epoch ends; None for plans without a folder."""
        if self._history is None:
            return None
        self._tell(self._history)
        return PartRecorder(self._history, self._name)

    def filled(self, result: FillResult, seconds: float) -> None:
        """Record that `Pipeline.fill` has computed samples."""
        self._count(result.found, result.computed, seconds, 0.0)
        if self._history is not None:
            self._tell(self._history)
            self._history.append("fill", name=self._name, seconds=seconds, computed=result.computed, hits=result.found)

    def _count(self, hits: int, misses: int, computed_seconds: float, seconds_saved: float) -> None:
        if self._process != os.getpid():  # a forked child: what was counted before is its parent's
            self._use, self._waiting, self._process = PlanUsage(), {}, os.getpid()
        use = self._use
        self._use = PlanUsage(
            use.hits + hits,
            use.misses + misses,
            use.computed_seconds + computed_seconds,
            use.seconds_saved + seconds_saved,
        )
