"""What was measured of a pipeline on this machine: the numbers a plan is made from.

Stage k is a sample after k steps; stage 0 is the raw value of the source. Samples are grouped by the size of their
source into buckets, of nearly equal cost each; every figure that varies is a mean per bucket.
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np

from warmstore.storage.atomic import replace_file
from warmstore.storage.files import Files, read_whole

Codec = Literal["raw", "zstd"]
Tier = Literal["memory", "disk"]
CODECS: tuple[Codec, ...] = ("raw", "zstd")
TIERS: tuple[Tier, ...] = ("memory", "disk")
_FORMAT = 2


@dataclass(frozen=True)
class StoredStage:
    """The samples of a stage in a record store, under one codec. A number per bucket, but for `spread`.

    nbytes: bytes a sample takes, all told. spread: the standard error of the mean of those bytes, relative to it.
    read: CPU seconds to read one from memory, decompressed. write: CPU seconds to compress and write one.
    """

    nbytes: tuple[float, ...]
    spread: float
    read: tuple[float, ...]
    write: tuple[float, ...]


@dataclass(frozen=True)
class Stage:
    """A sample after so many steps, and the step that made it. A number per bucket, but for `spread`.

    seconds: CPU seconds of the step (of reading the source, for stage 0). wait: seconds it took beyond those, waiting.
    spread: the standard deviation of `seconds` over all samples, in seconds.
    nbytes: bytes of the value in memory. stored: by codec; empty where `trouble` says why it cannot be stored.
    varies: whether it made two different values of one sample, though the stages before it did not.
    """

    name: str
    seconds: tuple[float, ...]
    wait: tuple[float, ...]
    spread: float
    nbytes: tuple[float, ...]
    stored: dict[str, StoredStage]
    trouble: str = ""
    varies: bool = False


@dataclass(frozen=True)
class Scaling:
    """The uncached pipeline with so many worker processes; 0: none, the main process does it all.

    rate: samples a second. nbytes: memory of one worker's own.
    """

    workers: int
    rate: float
    nbytes: int


@dataclass(frozen=True)
class Disk:
    """The disk of the folder, past the page cache, for random reads of `request` bytes each: bytes a second.

    alone: of one reader. together: of as many readers as there are cores. write: of writing and syncing.
    """

    request: tuple[int, ...]
    alone: tuple[float, ...]
    together: tuple[float, ...]
    write: float

    def bandwidth(self, nbytes: float, readers: int) -> float:
        """Bytes a second of so many readers at a request size, between the measured ones by its logarithm."""
        at = np.log(max(nbytes, 1.0))
        sizes = np.log(self.request)
        alone, together = (float(np.interp(at, sizes, rates)) for rates in (self.alone, self.together))
        return max(alone, min(together, alone * max(readers, 1)))


@dataclass(frozen=True)
class Profile:
    """A pipeline, measured.

    key: what it was measured of and on; another key, and it is measured anew.
    samples: how many were measured, of `total`. batch_size: of the batches that were delivered.
    edges: sizes of the source, in bytes, where one bucket ends and the next begins; counts: samples a bucket has.
    alone: CPU seconds a sample costs beyond its steps where there are no workers: looking up, stacking. overhead: what
    it costs a worker, handing over included. delivery: what taking it from a worker costs the main process.
    took: seconds.
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

    @property
    def source_nbytes(self) -> float:
        """Bytes of all raw values together: what the page cache would hold of their files, about."""
        return float(np.dot(self.counts, self.stages[0].nbytes))

    def at(self, workers: int) -> Scaling:
        """How so many worker processes fare; between those measured by straight lines, beyond them no better."""
        several = [one for one in self.scaling if one.workers] if workers else list(self.scaling[:1])
        if not several:
            return Scaling(workers, self.scaling[0].rate, self.scaling[0].nbytes)
        counts = [one.workers for one in several]
        rate = float(np.interp(workers, counts, [one.rate for one in several]))
        return Scaling(workers, rate, max(one.nbytes for one in several))

    def save(self, path: Path, files: Files | None = None) -> None:
        """Write it as JSON; the file appears whole or not at all."""
        path.parent.mkdir(parents=True, exist_ok=True)
        content = json.dumps({"format": _FORMAT, **asdict(self)}, indent=1) + "\n"
        replace_file(path, content.encode(), durable=False, files=files or Files())

    @classmethod
    def load(cls, path: str | os.PathLike[str], key: str | None = None, files: Files | None = None) -> Self | None:
        """The profile saved there; None where there is none, or one of another key or an older warmstore."""
        try:
            found: dict[str, Any] = json.loads(read_whole(files or Files(), Path(path)))
            if found.pop("format") != _FORMAT or (key is not None and found["key"] != key):
                return None
            stages = tuple(
                Stage(
                    **{
                        **stage,
                        "stored": {codec: StoredStage(**_tuples(one)) for codec, one in stage["stored"].items()},
                    }
                )
                for stage in map(_tuples, found.pop("stages"))
            )
            scaling = tuple(Scaling(**one) for one in found.pop("scaling"))
            disk = found.pop("disk")
            return cls(
                **_tuples(found), stages=stages, scaling=scaling, disk=None if disk is None else Disk(**_tuples(disk))
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None


def _tuples(found: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in found.items()}
