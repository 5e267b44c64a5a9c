"""EpochMeter: what one process spends on the batches of an epoch, by term.

Sections follow each other without gaps: `lap` charges the time since the last call to a term. That takes one look at
the thread's CPU clock, about 0.3 µs.
"""

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, final, get_args

Term = Literal["source reads", "steps", "memory tier", "disk tier", "batches"]
TERMS: tuple[Term, ...] = get_args(Term)
TIER_TERMS: dict[str, Term] = {"memory": "memory tier", "disk": "disk tier"}


@dataclass(frozen=True)
class MeterReading:
    """Measurements of some batches.

    cpu: CPU seconds by term. seconds: from the beginning to the end of each batch, with waiting. samples: how many were
    made. computed: how many of them from their raw value. recorded: how many samples, and computed ones, are in the
    history already.
    """

    cpu: dict[str, float]
    seconds: float
    samples: int
    computed: int
    recorded: tuple[int, int] = (0, 0)

    @property
    def waits(self) -> float:
        """Seconds of waiting for disks, networks and cores."""
        return max(0.0, self.seconds - sum(self.cpu.values()))


def total(readings: Iterable[MeterReading]) -> MeterReading:
    """The sum of the readings of several processes."""
    found = list(readings)
    cpu: dict[str, float] = {term: sum(reading.cpu[term] for reading in found) for term in TERMS}
    return MeterReading(
        cpu,
        sum(reading.seconds for reading in found),
        sum(reading.samples for reading in found),
        sum(reading.computed for reading in found),
        (sum(reading.recorded[0] for reading in found), sum(reading.recorded[1] for reading in found)),
    )


@final
class EpochMeter:
    """Measures the batches that a process makes; for one thread at a time."""

    def __init__(self) -> None:
        self._clear()

    def begin(self, samples: int) -> None:
        """A batch begins."""
        self._samples += samples
        self.batch_computed = 0
        self._began, self._mark = time.perf_counter(), time.thread_time()

    def lap(self, term: Term) -> None:
        """Charge the CPU time since the last call to a term."""
        now = time.thread_time()
        self._cpu[term] += now - self._mark
        self._mark = now

    def compute(self, samples: int) -> None:
        """So many samples are computed from their raw values."""
        self._computed += samples
        self.batch_computed += samples

    def end(self) -> None:
        """The batch is finished; what is left counts for its term."""
        self.lap("batches")
        self._seconds += time.perf_counter() - self._began

    def take(self) -> MeterReading:
        """The reading since the last call."""
        reading = MeterReading(self._cpu, self._seconds, self._samples, self._computed)
        self._clear()
        return reading

    def _clear(self) -> None:
        self._cpu: dict[str, float] = dict.fromkeys(TERMS, 0.0)
        self._seconds = 0.0
        self._samples = self._computed = 0
        self.batch_computed = 0
        """How many samples of the last batch were computed."""
        self._began, self._mark = time.perf_counter(), time.thread_time()
