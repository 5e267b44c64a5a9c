"""What a user would do instead of a plan: nothing, a dict in RAM, joblib.Memory, datasets.map, PRESTO, memory first."""

from __future__ import annotations

import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import warmstore as ws
from benchmarks import pipeline_data, pipeline_steps
from benchmarks.pipeline_cases import BATCH, CORES, limit_of, pipelines
from benchmarks.pipeline_parts import PARTS, parts_of
from benchmarks.private_memory import anonymous_bytes
from benchmarks.report import Bar, Report, Table
from benchmarks.settings import Settings
from warmstore.loading.collate import stack
from warmstore.pipeline.plan.planner import Strategy

_ROUNDS = 5  # steady epochs of each way
_APPENDED = 0.01
_FOLDS = 5


@dataclass(frozen=True)
class Case:
    """A pipeline, its profile, and the size of its batches."""

    name: str
    pipe: ws.Pipeline
    profile: ws.Profile
    batch: int


class Way(ABC):
    """A way to get the batches of an epoch. prepare: what a user runs once, before training."""

    def __init__(self, case: Case, folder: Path) -> None:
        self.case = case
        self.folder = folder

    @abstractmethod
    def prepare(self) -> None:
        """Whatever is needed before the first epoch."""

    @abstractmethod
    def batches(self) -> Iterator[Any]:
        """The batches of an epoch."""

    @abstractmethod
    def close(self) -> None:
        """End worker processes."""


class Planned(Way):
    """warmstore with a plan; no plan for `rule` None."""

    def __init__(self, case: Case, folder: Path, rule: Strategy | None, *, on_disk: bool = False) -> None:
        super().__init__(case, folder)
        self.rule = rule
        self.on_disk = on_disk
        self._loader: ws.Loader | None = None

    def prepare(self) -> None:
        pipe, plan = self.case.pipe, None
        if self.rule is not None:
            room = "3GB"
            plan = pipe.plan(
                profile=self.case.profile, memory=None if self.on_disk else room, disk=room if self.on_disk else None,
                folder=self.folder, strategy=self.rule,
            )  # fmt: skip
        self._loader = pipe.loader(plan, self.case.batch, seed=0, workers=CORES if plan is None else None)

    def batches(self) -> Iterator[Any]:
        assert self._loader is not None
        return iter(self._loader)

    def close(self) -> None:
        assert self._loader is not None
        self._loader.close()


class _Samples:
    """A map-style data set around a function of the raw value, as users write it. The random steps follow."""

    def __init__(self, case: Case, prepared: Callable[[int], Any]) -> None:
        self._case = case
        self._prepared = prepared
        self.epoch = 0

    def __len__(self) -> int:
        return len(self._case.pipe)

    def __getitem__(self, index: int) -> Any:
        pipe = self._case.pipe
        return pipe.run(self._prepared(index), index, epoch=self.epoch, first=pipe.cacheable)


class OfTorch(Way):
    """torch's DataLoader over samples of `prepared`."""

    workers = CORES

    def prepare(self) -> None:
        import torch.utils.data

        self._loader = torch.utils.data.DataLoader(
            _Samples(self.case, self.prepared),  # type: ignore[arg-type]
            self.case.batch, shuffle=True, num_workers=self.workers, collate_fn=_stacked,
            persistent_workers=self.workers > 0, multiprocessing_context="fork" if self.workers else None,
        )  # fmt: skip

    def prepared(self, index: int) -> Any:
        """A sample before the random steps."""
        return self.case.pipe.run(self.case.pipe.source[index], index, last=self.case.pipe.cacheable)

    def batches(self) -> Iterator[Any]:
        return iter(self._loader)

    def close(self) -> None:
        del self._loader


class Dict(OfTorch):
    """A dict in RAM, filled while the first epoch runs, in the process that trains."""

    workers = 0

    def prepare(self) -> None:
        self._kept: dict[int, Any] = {}
        super().prepare()

    def prepared(self, index: int) -> Any:
        if index not in self._kept:
            self._kept[index] = super().prepared(index)
        return self._kept[index]


class Joblib(OfTorch):
    """joblib.Memory around the deterministic steps."""

    def prepare(self) -> None:
        import joblib

        memory = joblib.Memory(self.folder / "joblib", verbose=0)
        pipe = self.case.pipe

        def prepared(index: int) -> Any:
            return pipe.run(pipe.source[index], index, last=pipe.cacheable)

        self._cached = memory.cache(prepared)
        super().prepare()

    def prepared(self, index: int) -> Any:
        return self._cached(index)


class Mapped(OfTorch):
    """`datasets.map` with its Arrow cache, read in NumPy's format."""

    def prepare(self) -> None:
        import datasets

        datasets.disable_progress_bars()
        pipe = self.case.pipe

        def prepared(row: dict[str, Any]) -> dict[str, Any]:
            return {"value": pipe.run(pipe.source[row["at"]], row["at"], last=pipe.cacheable)}

        rows = datasets.Dataset.from_dict({"at": np.arange(len(pipe))})
        cache = str(self.folder / "map.arrow")
        self._rows = rows.map(prepared, cache_file_name=cache, new_fingerprint="1", writer_batch_size=100)
        self._rows = self._rows.with_format("numpy", columns=["value"])
        super().prepare()

    def prepared(self, index: int) -> Any:
        return self._rows[index]["value"]


def _stacked(samples: list[Any]) -> Any:
    return stack(samples)


_WAYS: dict[str, Callable[[Case, Path], Way]] = {
    "no cache": lambda case, folder: Planned(case, folder, None),
    "page cache": lambda case, folder: Planned(case, folder, "page-cache"),
    "warmstore": lambda case, folder: Planned(case, folder, "joint"),
    "warmstore, disk": lambda case, folder: Planned(case, folder, "joint", on_disk=True),
    "PRESTO": lambda case, folder: Planned(case, folder, "presto"),
    "memory first": lambda case, folder: Planned(case, folder, "sequential"),
    "dict in RAM": Dict,
    "joblib.Memory": Joblib,
    "datasets.map": Mapped,
}


@dataclass(frozen=True)
class Outcome:
    """Seconds: to prepare, of the first epoch, of a steady one (median), and of the first epoch of another run.

    nbytes: of the way's folder.
    """

    prepared: float
    first: float
    steady: float
    again: float
    nbytes: int


def run(settings: Settings) -> Report:
    cases = list(_cases(settings))
    found = {case.name: _outcomes(case, settings) for case in cases}
    limits = {case.name: limit_of(case.pipe, case.batch) for case in cases}
    grown = {case.name: _grown(case, settings) for case in cases}
    parts = [(case.name, *parts_of(case.pipe, _in_memory(case), case.batch)) for case in cases]
    tiny = _tiny(settings)
    tables = [_table(case, found[case.name], limits[case.name]) for case in cases]
    rows = [(name, *counts) for name, counts in grown.items()]
    columns = ("", "samples", "appended", "computed", f"computed by {_FOLDS} folds")
    tables.append(Table("Samples that are computed when a cached list grows, and by its folds", columns, tuple(rows)))
    title = "Where a steady epoch goes: CPU µs per sample, all samples in memory"
    tables.append(Table(title, ("", *PARTS), tuple(parts)))
    rate, nbytes, count = tiny
    tables.append(
        Table(
            "Many tiny samples in memory, without a random step, in batches of 1,024",
            ("samples", "bytes each", "samples/s", "bytes of the process per sample"),
            ((count, 100, rate, nbytes),),
        )
    )
    bars = [
        Bar.at_most(f"{name} in memory: a steady epoch over the limit", found[name]["warmstore"].steady / limit, 1.5)
        for name, limit in limits.items()
    ]
    bars += [
        Bar.at_most(f"{name}: the first epoch of a second run over a steady one", one.again / one.steady, 1.5)
        for name in found
        for one in [found[name]["warmstore, disk"]]
    ]
    computed = max((made / max(new, 1) for _, new, made, _ in grown.values()), default=0.0)
    folds = max((one[3] for one in grown.values()), default=0)
    bars += [
        Bar.at_most("samples computed over samples appended", computed, 1.0),
        Bar.at_most("samples computed by folds of a cached list", folds, 0),
        Bar.at_least("tiny samples a second", rate, 1e6),
        Bar.at_most("bytes of a process per tiny sample", nbytes, 32),
    ]
    return Report(
        "pipeline_peers",
        "What users would do instead of a plan: batches from a dict, from cached functions, from a mapped data set.",
        tuple(tables),
        tuple(bars),
        (
            f"Steady epochs of all ways in turn, medians of {_ROUNDS}. The limit: gather the cached values from a list "
            f"and run the random steps, on one core, divided by the {CORES} cores. again: a new loader over what is on "
            "the disk or, for tiers in memory, over nothing.",
            f"no cache, joblib.Memory and datasets.map have {CORES} worker processes, the dict none; plans choose. "
            "Everything fits in memory.",
            "FFCV is not on PyPI as a wheel, and needs libturbojpeg and OpenCV to build. DALI caches decoded "
            "images on GPUs only. Neither is here.",
        ),
    )


def _cases(settings: Settings) -> Iterator[Case]:
    for name, pipe in pipelines(settings):
        yield _case(name, pipe, BATCH, settings)
    yield _case("table", pipeline_steps.table(pipeline_data.lines(settings.pick(100_000, 500))), 256, settings)


def _case(name: str, pipe: ws.Pipeline, batch: int, settings: Settings) -> Case:
    profile = pipe.profile(
        folder=settings.folder / name, batch_size=batch, seconds=settings.pick(12, 1), progress=False
    )
    return Case(name, pipe, profile, batch)


def _outcomes(case: Case, settings: Settings) -> dict[str, Outcome]:
    """All ways beside each other."""
    found: dict[str, Way] = {}
    prepared: dict[str, float] = {}
    first: dict[str, float] = {}
    took: dict[str, list[float]] = {}
    with ExitStack() as stack:
        for name, make in _WAYS.items():
            folder = settings.folder / case.name / name.replace(" ", "-").replace(",", "")
            folder.mkdir(parents=True)
            found[name] = make(case, folder)
            began = time.perf_counter()
            found[name].prepare()
            prepared[name] = time.perf_counter() - began
            stack.callback(found[name].close)
            first[name], took[name] = _epoch(found[name]), []
        for _ in range(settings.pick(_ROUNDS, 1)):
            for name, way in found.items():
                took[name].append(_epoch(way))
    again = {}
    for name, way in found.items():
        way.prepare()
        again[name] = _epoch(way)
        way.close()
    return {
        name: Outcome(prepared[name], first[name], statistics.median(took[name]), again[name], _nbytes(way.folder))
        for name, way in found.items()
    }


def _in_memory(case: Case) -> ws.Plan:
    return case.pipe.plan(profile=case.profile, memory="3GB")


def _epoch(way: Way) -> float:
    began = time.perf_counter()
    for _ in way.batches():
        pass
    return time.perf_counter() - began


def _nbytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _grown(case: Case, settings: Settings) -> tuple[int, int, int, int]:
    """Samples, those appended, those computed for it, and those computed by the folds of the list."""
    folder = settings.folder / case.name / "grown"
    source, steps = case.pipe.source, case.pipe.steps
    new = max(1, int(_APPENDED * len(source)))

    def computed(part: Sequence[Any]) -> int:
        pipe = ws.Pipeline(part, steps)
        profile = pipe.profile(
            folder=folder, batch_size=case.batch, samples=50, seconds=1, max_workers=1, progress=False
        )
        with pipe:
            return pipe.fill(pipe.plan(profile=profile, disk="3GB", folder=folder), workers=0, progress=False).computed

    computed(source[:-new])
    made = computed(source)
    return len(source), new, made, sum(computed(source[fold::_FOLDS]) for fold in range(_FOLDS))


def _tiny(settings: Settings) -> tuple[float, float, int]:
    """Samples a second in steady epochs, bytes of the process per sample, and the number of samples."""
    count = settings.pick(1_000_000, 20_000)
    pipe = ws.Pipeline(np.arange(count)).step(pipeline_steps.tiny)
    profile = pipe.profile(batch_size=1024, samples=2000, seconds=2, max_workers=1, progress=False)
    plan = pipe.plan(profile=profile, memory="400MB")
    before = anonymous_bytes()
    with pipe.loader(plan, 1024, workers=0, seed=0) as loader:
        seconds = []
        for _ in range(settings.pick(_ROUNDS, 2) + 1):
            began = time.perf_counter()
            for _ in loader:
                pass
            seconds.append(time.perf_counter() - began)
        grown = anonymous_bytes() - before
    return count / statistics.median(seconds[1:]), grown / count, count


def _table(case: Case, found: dict[str, Outcome], limit: float) -> Table:
    rows = [
        (
            name, one.prepared, one.first, one.steady, one.steady / limit, found["no cache"].steady / one.steady,
            one.again, one.nbytes / 1e6,
        )
        for name, one in found.items()
    ]  # fmt: skip
    title = f"{case.name}, {len(case.pipe):,} samples: seconds; the limit is {limit:.3g} s"
    columns = ("", "prepare", "first", "steady", "x limit", "x faster", "again", "MB on disk")
    return Table(title, columns, tuple(rows))
