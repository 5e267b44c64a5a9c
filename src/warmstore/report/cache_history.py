"""CacheHistory: the records of one history, summed by run and epoch.

Histories are files that anybody may have damaged: a figure that is no finite number counts as zero, and a text that is
none as "".
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

SUMMED = (
    *("seconds", "hits", "misses", "computed", "computed_seconds", "read_seconds", "waited_seconds", "saved_seconds"),
    *("bytes_read", "bytes_written", "evicted_files", "evicted_bytes", "damaged", "evicted", "made", "restored"),
    *("predicted_seconds", "uncached_seconds", "bytes", "left"),
)
"""The figures of records that are summed. "bytes" are those of `evicted` records; of `use` it is a size."""

_EPOCHS = ("use", "epoch", "part", "fill", "lookups")  # the events that stand for work
_LARGEST = 1e18
_LATEST = 1e11  # seconds since 1970: the year 5138


@dataclass(frozen=True)
class RecordedRun:
    """One process. began: time of the first record."""

    id: str
    began: float
    program: str
    host: str
    pid: int
    rank: int | None


@dataclass(frozen=True)
class RecordedEpoch:
    """Some work of one run: an epoch or several, what was read in the middle of one, a fill, or lookups of compilers.

    event: of the records. name: of the pipeline's steps, or of the compiled job; "" for feature caches. first, last:
    the epochs, from 0. at: time of the last record. figures: the sums of `SUMMED`. is_steady: whether it may be
    compared with a plan's prediction.
    """

    run: str
    event: str
    name: str
    first: int
    last: int
    at: float
    figures: Mapping[str, float]
    is_steady: bool = False

    def __getitem__(self, figure: str) -> float:
        return self.figures[figure]

    @property
    def count(self) -> int:
        """How many epochs."""
        return self.last - self.first + 1

    @property
    def work_seconds(self) -> float:
        """Seconds that the program spent on what is cached: computing, reading, or waiting for batches."""
        if self.event == "epoch":
            return self["waited_seconds"]
        return self["seconds"] if self.event == "fill" else self["computed_seconds"] + self["read_seconds"]

    @property
    def uncached_seconds(self) -> float:
        """Seconds that the same would have taken without a cache. A fill is work of the cache alone."""
        return 0.0 if self.event == "fill" else max(self.work_seconds - self["read_seconds"] + self["saved_seconds"], 0)

    @property
    def rest_seconds(self) -> float:
        """Seconds of the program beside, such as training."""
        if self.event not in ("use", "epoch"):
            return 0.0
        return max(self["seconds"] - self.work_seconds, 0.0)

    def __add__(self, other: "RecordedEpoch") -> "RecordedEpoch":
        """Both together; of one run."""
        figures = {name: self[name] + other[name] for name in SUMMED}
        first, last, at = min(self.first, other.first), max(self.last, other.last), max(self.at, other.at)
        return RecordedEpoch(self.run, self.event, self.name, first, last, at, figures, self.is_steady)


@dataclass(frozen=True)
class Refusal:
    """A module that a cache refused. changed: what differs."""

    run: str
    at: float
    changed: str


@dataclass
class CacheHistory:
    """The history of one cache. plans: the last record of each plan, by name. reasons: misses of compilers by reason.
    entries, size: of a feature cache, as of the last record; None if there is no such record."""

    runs: dict[str, RecordedRun] = field(default_factory=dict)
    epochs: list[RecordedEpoch] = field(default_factory=list)
    refusals: list[Refusal] = field(default_factory=list)
    plans: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    evicted_bytes: float = 0.0
    evicted: float = 0.0
    entries: int | None = None

    @classmethod
    def of(cls, records: Iterable[Mapping[str, Any]]) -> Self:
        """Sum records, given in the order of their file. The clock may have been set back between two runs."""
        history, records = cls(), list(records)
        for record in records:
            if record["event"] == "plan":
                history.plans[text(record, "name")] = record
            elif record["event"] == "use":
                history.entries = int(number(record, "entries"))
        epochs: dict[tuple[str, str, str, int], RecordedEpoch] = {}
        for record in sorted(records, key=lambda record: (_time_of(record), number(record, "n"))):
            history._add_run(record)
            run, event, at = record["run"], record["event"], _time_of(record)
            if event == "stale":
                history.refusals.append(Refusal(run, at, text(record, "changed")))
            elif event in _EPOCHS:
                epoch = _epoch_of(record)
                key = run, event, epoch.name, epoch.first
                epochs[key] = epochs[key] + epoch if key in epochs else epoch
            if event == "lookups" and isinstance(record.get("reasons"), dict):
                history.reasons.update({reason: int(number(record["reasons"], reason)) for reason in record["reasons"]})
            history.evicted += number(record, "evicted_files") + number(record, "evicted") + (event == "evicted")
            history.evicted_bytes += number(record, "evicted_bytes")
            history.evicted_bytes += number(record, "bytes") if event == "evicted" else 0
        history.epochs = list(epochs.values())
        return history

    def sum(self, figure: str) -> float:
        """The sum of a figure over all epochs."""
        return sum(epoch[figure] for epoch in self.epochs)

    @property
    def last_at(self) -> float:
        """The time of the last work; 0 without any."""
        return max((epoch.at for epoch in self.epochs), default=0.0)

    def _add_run(self, record: Mapping[str, Any]) -> None:
        run = record["run"]
        if run not in self.runs:
            rank = record.get("rank")
            self.runs[run] = RecordedRun(
                run,
                _time_of(record),
                text(record, "program"),
                text(record, "host"),
                int(number(record, "pid")),
                rank if isinstance(rank, int) else None,
            )


def number(record: Mapping[str, Any], name: str) -> float:
    """A figure of a record; 0 if it is missing, or no finite number below 10**18."""
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return value if abs(value) < _LARGEST and math.isfinite(value) else 0


def _time_of(record: Mapping[str, Any]) -> float:
    """When a record was written, in seconds since 1970; 0 for what is no time."""
    at = number(record, "at")
    return at if 0 <= at < _LATEST else 0


def text(record: Mapping[str, Any], name: str) -> str:
    """A text of a record; "" if it is missing or no text."""
    value = record.get(name)
    return value if isinstance(value, str) else ""


def _epoch_of(record: Mapping[str, Any]) -> RecordedEpoch:
    figures = {name: number(record, name) for name in SUMMED}
    first = int(number(record, "epoch"))
    last = first + max(int(number(record, "epochs")), 1) - 1
    name = text(record, "job" if record["event"] == "lookups" else "name")
    steady = record.get("is_steady") is True
    return RecordedEpoch(record["run"], record["event"], name, first, last, _time_of(record), figures, steady)
