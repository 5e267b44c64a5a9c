"""Measurements of a pipeline on this machine: the input of a plan.

Stage k is a sample after k steps; stage 0 is the raw value. Samples are grouped by the size of their raw value into
buckets of nearly equal cost. Figures that vary are means per bucket.
"""

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from warmstore.pipeline.profile.profile_options import ProfileOptions
from warmstore.storage import checked_json
from warmstore.storage.atomic import replace_file
from warmstore.storage.files import Files, read_whole
from warmstore.storage.user_paths import user_path

Codec = Literal["raw", "zstd"]
CODECS: tuple[Codec, ...] = ("raw", "zstd")
_FORMAT = 5


@dataclass(frozen=True)
class StoredStage:
    """A stage in a record store with one codec. One number per bucket, except `spread`, `per_chunk` and `per_batch`.

    read_rounds: `read` as of two measurements alone, or () for one.
    nbytes: bytes per sample in total. spread: relative standard error of their mean. read: CPU seconds per sample to
    read from memory and decompress. write: CPU seconds per sample to compress and write. per_chunk, per_batch: bytes
    of the header of a chunk and of a batch.
    """

    nbytes: tuple[float, ...]
    spread: float
    read: tuple[float, ...]
    write: tuple[float, ...]
    per_chunk: float = 0.0
    per_batch: float = 0.0
    read_rounds: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True)
class Stage:
    """One stage, and the step that computes it. One number per bucket, except `spread`.

    seconds: CPU seconds of the step (of reading the source, for stage 0). wait: seconds of waiting on top.
    spread: the standard deviation of `seconds` over all samples, in seconds.
    nbytes: bytes of the value in memory. stored: by codec; empty where `trouble` says why it cannot be stored.
    seconds_rounds: `seconds` as of the first and of the second half of the measured samples, or ().
    warm: those seconds of waiting in which no bytes came from a disk, as of a network; () for none.
    varies: whether the step gave two different values for one sample, and no earlier step did.
    """

    name: str
    seconds: tuple[float, ...]
    wait: tuple[float, ...]
    spread: float
    nbytes: tuple[float, ...]
    stored: dict[str, StoredStage]
    trouble: str = ""
    varies: bool = False
    warm: tuple[float, ...] = ()
    seconds_rounds: tuple[tuple[float, ...], ...] = ()

    def waiting(self, *, is_warm: bool) -> tuple[float, ...]:
        """Seconds of waiting per bucket; with `is_warm`, those that remain if the page cache has the files."""
        return (self.warm or (0.0,) * len(self.wait)) if is_warm else self.wait


@dataclass(frozen=True)
class Scaling:
    """The uncached pipeline with some number of workers; with 0, the main process makes the samples.

    rate: samples a second. nbytes: private memory of one worker.
    """

    workers: int
    rate: float
    nbytes: int


@dataclass(frozen=True)
class Disk:
    """Bandwidth of a disk past the page cache, in bytes a second, for random reads of `request` bytes each.

    alone: of one reader. together: of one reader per core. write: of writing and syncing.
    """

    request: tuple[int, ...]
    alone: tuple[float, ...]
    together: tuple[float, ...]
    write: float

    def bandwidth(self, nbytes: float, readers: int) -> float:
        """Bytes a second of some readers at a request size, interpolated by its logarithm."""
        at = np.log(max(nbytes, 1.0))
        sizes = np.log(self.request)
        alone, together = (float(np.interp(at, sizes, rates)) for rates in (self.alone, self.together))
        return max(alone, min(together, alone * max(readers, 1)))


@dataclass(frozen=True)
class Profile:
    """The measurements of a pipeline.

    key: of the pipeline and the machine; a profile with another key is not used.
    samples: number of measured samples, of `total`. batch_size: of the measured batches.
    edges: raw sizes in bytes that separate the buckets. counts: samples per bucket. stages: the raw value, and each
    step. scaling: by the number of workers. disk: that of the folder; None if it was not measured.
    alone: CPU seconds per sample beyond the steps (lookup, stacking) without workers. overhead: the same in a worker,
    with the transfer. delivery: CPU seconds per sample for the main process to receive it from a worker.
    took: seconds of profiling. options: those that it was made with. pace: of the machine, see
    `machine_pace`; 0 if unknown.
    """

    key: str
    samples: int
    total: int
    batch_size: int
    edges: tuple[int, ...]
    counts: tuple[int, ...]
    stages: tuple[Stage, ...]
    scaling: tuple[Scaling, ...]
    alone: float
    overhead: float
    delivery: float
    disk: Disk | None
    took: float
    options: ProfileOptions = field(default_factory=ProfileOptions)
    pace: float = 0.0

    @property
    def source_nbytes(self) -> float:
        """Bytes of all raw values: about what their files take in the page cache."""
        return float(np.dot(self.counts, self.stages[0].nbytes))

    def at(self, workers: int) -> Scaling:
        """Throughput with some workers: linear between the measured numbers, constant beyond them."""
        measured = [entry for entry in self.scaling if entry.workers] if workers else list(self.scaling[:1])
        if not measured:
            return Scaling(workers, self.scaling[0].rate, self.scaling[0].nbytes)
        counts = [entry.workers for entry in measured]
        rate = float(np.interp(workers, counts, [entry.rate for entry in measured]))
        return Scaling(workers, rate, max(entry.nbytes for entry in measured))

    def rounds(self) -> tuple[Self, ...]:
        """The profile as of each of its two measurements alone; () if it has no two of a figure."""
        if any(not each.read_rounds for stage in self.stages for each in stage.stored.values()):
            return ()
        if any(not stage.seconds_rounds for stage in self.stages):
            return ()
        return tuple(replace(self, stages=tuple(_as_of(stage, number) for stage in self.stages)) for number in range(2))

    def save(self, path: Path, files: Files | None = None) -> None:
        """Write the profile as JSON, atomically."""
        path.parent.mkdir(parents=True, exist_ok=True)
        content = checked_json.to_bytes({"format": _FORMAT, **asdict(self)}, indent=1) + b"\n"
        replace_file(path, content, durable=False, files=files or Files())

    @classmethod
    def load(cls, path: str | os.PathLike[str], key: str | None = None, files: Files | None = None) -> Self | None:
        """Read a saved profile; None if there is none, it is damaged, or its key or format differs."""
        try:
            found = checked_json.from_bytes(read_whole(files or Files(), user_path(path)))
            if found.pop("format") != _FORMAT or (key is not None and found["key"] != key):
                return None
            stages = tuple(
                Stage(
                    **{
                        **stage,
                        "stored": {codec: StoredStage(**_tuples(entry)) for codec, entry in stage["stored"].items()},
                    }
                )
                for stage in map(_tuples, found.pop("stages"))
            )
            scaling = tuple(Scaling(**entry) for entry in found.pop("scaling"))
            disk = found.pop("disk")
            disk = None if disk is None else Disk(**_tuples(disk))
            options = ProfileOptions(**found.pop("options"))
            return cls(**_tuples(found), stages=stages, scaling=scaling, disk=disk, options=options)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


def _as_of(stage: Stage, number: int) -> Stage:
    """A stage as of one of its measurements."""
    stored = {codec: replace(each, read=each.read_rounds[number]) for codec, each in stage.stored.items()}
    return replace(stage, seconds=stage.seconds_rounds[number], stored=stored)


def mean_of(counts: Sequence[int], values: Sequence[float]) -> float:
    """The mean over all samples of a figure per bucket. counts: samples per bucket."""
    return float(np.dot(counts, values)) / max(sum(counts), 1)


def _tuples(found: dict[str, Any]) -> dict[str, Any]:
    return {name: _tuple(value) for name, value in found.items()}


def _tuple(value: Any) -> Any:
    return tuple(map(_tuple, value)) if isinstance(value, list) else value
