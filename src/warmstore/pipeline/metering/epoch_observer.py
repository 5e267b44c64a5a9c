"""EpochObserver: collects the measurements of a loader's epochs for a plan."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from warmstore.loading.epoch_times import EpochTimes
from warmstore.pipeline.metering.epoch_meter import MeterReading, total
from warmstore.pipeline.metering.machine_pace import machine_pace

_LONG = 1.0  # seconds of an epoch from which on the machine's pace is measured after it


@dataclass(frozen=True)
class MeasuredEpoch:
    """One steady epoch.

    times: of the whole epoch, in the main process. reading: of all processes that made batches. pace: of the machine,
    measured last; see `machine_pace`.
    """

    times: EpochTimes
    reading: MeterReading
    pace: float

    @property
    def workers(self) -> int:
        """How many processes made the batches; 0 for the main process itself."""
        return self.times.processes


class EpochRecorder(Protocol):
    """Receives every epoch of a loader."""

    def epoch(self, times: EpochTimes, reading: MeterReading) -> None: ...

    def close(self) -> None:
        """The loader is closed."""


class EpochObserver:
    """Called by a loader after each epoch.

    Args:
        readings: returns what all processes have measured since its last call.
        measured: receives each steady epoch: complete ones, except the first.
        recorder: receives every epoch.
    """

    def __init__(
        self,
        readings: Callable[[], list[MeterReading]],
        measured: Callable[[MeasuredEpoch], object],
        recorder: EpochRecorder,
    ) -> None:
        self._readings = readings
        self._measured = measured
        self.recorder = recorder
        self._pace = machine_pace()

    def __call__(self, times: EpochTimes) -> None:
        reading = total(self._readings())
        self.recorder.epoch(times, reading)
        if times.is_steady:
            if times.seconds >= _LONG:
                self._pace = machine_pace()
            self._measured(MeasuredEpoch(times, reading, self._pace))

    def close(self) -> None:
        """The loader is closed."""
        self.recorder.close()
