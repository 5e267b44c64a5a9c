"""Programs that read a pipeline, in this process or in a forked child: data, cells with pipelines, and loaders.

A `RunningProgram` does what it is told and compares nothing. `ProgramInChild` is one in another process, which may be
killed.
"""

import contextlib
import json
import os
import pickle
import signal
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
from tests.pipeline.edited_steps import (
    LOG,
    TRAP,
    Constants,
    PipelinePlot,
    decoded,
    doubled,
    encode_boxed,
    kept,
    shifted,
    substitute,
    with_knob,
)
from tests.pipeline.functions import change_in_place, shake
from tests.pipeline.making import plan_of

import warmstore as ws
from warmstore.loading.collate import stack
from warmstore.pipeline.pipeline import Pipeline

PATIENCE = 60
"""Seconds that another process or thread may take for one command; more is a hang."""


class NumbersDataset:
    """A data set that counts as a whole: it has a list of its samples."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> int:
        return self.numbers[index]


@dataclass(frozen=True)
class Opening:
    """How a loader is opened. placements, counts, memory, disk, folder: of its plan; None for none. rank: and world."""

    placements: tuple[tuple[int, str, str], ...] | None
    counts: tuple[int, ...]
    memory: int
    disk: int
    folder: Any
    batch_size: int
    seed: int
    shuffles: bool
    rank: tuple[int, int]
    workers: int
    resumes: bool

    @property
    def order(self) -> ws.Sampler:
        return ws.Shuffle(seed=self.seed) if self.shuffles else ws.Sequential()


@dataclass
class PipelineCell:
    """A pipeline as a cell of a notebook makes it, and what sets the constants of its steps."""

    pipe: Pipeline
    knobs: dict[str, Any]


@dataclass
class Told:
    """What came of a command: a result or an error, and what was warned of."""

    result: Any = None
    error: BaseException | None = None
    warnings: list[str] = field(default_factory=list)


@dataclass
class Placed:
    """A batch, and where its loader stood then."""

    batch: Any
    epoch: int
    place: int


class RunningProgram:
    """One process's data, pipelines and loaders."""

    def __init__(self, plot: PipelinePlot, numbers: list[int], work: Path) -> None:
        self.plot, self.work = plot, work
        self.numbers = list(numbers)
        self.source = self._source()
        self.cells: list[PipelineCell] = []
        self.loaders: dict[int, ws.Loader] = {}
        self.epochs: dict[int, Iterator[Any]] = {}
        self.encode(0)

    # Data

    def _path(self, index: int) -> Path:
        return self.work / f"{index}.txt"

    def _source(self) -> Any:
        numbers = self.numbers
        if self.plot.source == "dicts":
            return [{"number": number, "x": np.full(2, number)} for number in numbers]
        if self.plot.source == "array":
            return np.array([[number, 7] for number in numbers])
        if self.plot.source == "files":
            return [self._path(index) for index in range(len(numbers))]
        if self.plot.source == "object":
            return NumbersDataset(numbers)
        if self.plot.source == "store":
            return ws.RecordStore.open(self.work / "store")
        if self.plot.source == "parts":
            import torch.utils.data

            half = len(numbers) // 2
            self.parts: list[Any] = [list(numbers[:half]), list(numbers[half:])]
            chosen: Any = torch.utils.data.Subset(self.parts[1], list(range(len(numbers) - half)))
            return torch.utils.data.ConcatDataset([self.parts[0], chosen]) if half else chosen
        return list(numbers)

    def renew(self, numbers: list[int]) -> None:
        """Other data, for pipelines that are made from now on."""
        self.numbers = list(numbers)
        self.source = self._source()

    def assign(self, index: int, number: int) -> None:
        """Change one sample in place; one of a file is changed by whoever writes the file."""
        self.numbers[index] = number
        kind = self.plot.source
        if kind == "dicts":
            self.source[index].update(number=number)
            self.source[index]["x"][:] = number
        elif kind == "array":
            self.source[index, 0] = number
        elif kind == "parts":
            half = len(self.numbers) // 2
            self.parts[index >= half][index - half * (index >= half)] = number
        elif kind == "ints":
            self.source[index] = number

    def refresh(self) -> None:
        """Read the records that the store has now."""
        self.source.refresh()

    def append(self, number: int) -> None:
        """Let the list grow in place."""
        self.numbers.append(number)
        if self.plot.source == "ints":
            self.source.append(number)
        elif self.plot.source == "dicts":
            self.source.append({"number": number, "x": np.full(2, number)})
        elif self.plot.source == "files":
            self.source.append(self._path(len(self.numbers) - 1))

    def encode(self, variant: int) -> None:
        """Run the cell that registers an encoder."""
        if self.plot.kind == "boxed":
            encode_boxed(variant)

    # Pipelines

    def define(self, constants: Constants) -> None:
        """Run the cell that makes the pipeline, with new functions."""
        plot, knobs = self.plot, {}

        def knob(name: str, inner: Any) -> tuple[Any, dict[str, Any]]:
            file = self.work / f"{name}.txt"
            function, arguments, knobs[name] = with_knob(plot.knobs[name], inner, constants[name], file)
            return function, arguments

        kind = plot.kind
        function, arguments = knob("decode", lambda raw, by: decoded(raw, by, kind))
        on_error: Any = substitute if plot.on_error == "substitute" else plot.on_error
        pipe = ws.Pipeline(self.source).step(function, name="decode", on_error=on_error, args=arguments)
        if plot.has_filter:
            function, arguments = knob("filter", kept)
            pipe = pipe.filter(function, name="filter", args=arguments)
        function, arguments = knob("shift", shifted)
        pipe = pipe.step(function, name="shift", args=arguments)
        if plot.writes:
            pipe = pipe.step(change_in_place, name="write")
        if plot.is_random:
            pipe = pipe.step(shake, random=True, name="shake")
        if plot.is_batched:
            pipe = pipe.step(doubled, batched=True, name="double")
        self.cells.append(PipelineCell(pipe, knobs))

    def turn(self, cell: int, name: str, by: int) -> None:
        """Set the constant of a step of a pipeline that is there."""
        self.cells[cell].knobs[name](by)

    def plan(self, cell: int, opening: Opening) -> Any:
        if opening.placements is None:
            return None
        pipe = self.cells[cell].pipe
        count, counts = len(pipe._resolve(opening.folder)), list[int]()
        for wanted in opening.counts:
            counts.append(min(wanted, count - sum(counts)))
        return plan_of(
            pipe, opening.placements, counts, memory=opening.memory, disk=opening.disk, folder=opening.folder
        )

    # Loaders

    def open(self, number: int, cell: int, opening: Opening) -> int:
        (rank, world), order = opening.rank, opening.order
        loader = self.cells[cell].pipe.loader(
            self.plan(cell, opening), opening.batch_size, workers=opening.workers, seed=opening.seed, sampler=order,
            rank=rank, world_size=world, uneven="allow", start_method="fork", resume_partial=opening.resumes,
        )  # fmt: skip
        self.loaders[number] = loader
        return len(loader._source)

    def take(self, number: int, count: int | None) -> list[Any]:
        """The next batches of an epoch, which begins where none is running; None: all that are left, and "end".

        Where samples may be left out, each comes as a `Placed`: equal samples do not tell which of them it has.
        """
        loader = self.loaders.get(number)  # none where it is closed in the middle of an epoch
        if number not in self.epochs:
            self.epochs[number] = iter(self.loaders[number])
        got: list[Any] = []
        try:
            while count is None or len(got) < count:
                got.append(next(self.epochs[number]))
                if loader is not None and self.plot.on_error == "skip":
                    with TRAP.suspended():
                        state = loader.state_dict()
                    got[-1] = Placed(got[-1], state["epoch"], state["place"])
        except StopIteration:
            del self.epochs[number]
            got.append("end")
        except BaseException as error:
            del self.epochs[number]
            got.append(error)
        return got

    def leave(self, number: int) -> None:
        """Break off the epoch that is running."""
        self.epochs.pop(number).close()  # type: ignore[attr-defined]

    def state(self, number: int) -> Any:
        return json.loads(json.dumps(self.loaders[number].state_dict()))

    def load(self, number: int, state: Any) -> None:
        self.loaders[number].load_state_dict(state)

    def close(self, number: int) -> None:
        self.loaders.pop(number).close()

    def fill(self, cell: int, opening: Opening) -> tuple[int, int]:
        pipe = self.cells[cell].pipe
        result = pipe.fill(self.plan(cell, opening), opening.batch_size, workers=opening.workers, start_method="fork")
        pipe.close()
        return result.computed, result.found

    def dataset(self, cell: int, opening: Opening, epoch: int, way: str) -> list[Any]:
        """An epoch in order, through a data set."""
        from torch.utils.data import ConcatDataset, DataLoader, Subset

        plan, pipe = self.plan(cell, opening), self.cells[cell].pipe
        with pipe.dataset(plan, seed=opening.seed) as data:
            count = len(data)
            data.set_epoch(epoch)
            if way == "loader":
                with ws.Loader(data, opening.batch_size, workers=2) as loader:
                    return list(loader)
            whole: Any = data
            if way == "parts":
                half = count // 2
                whole = ConcatDataset([Subset(whole, range(half)), Subset(whole, range(half, count))])
            workers: dict[str, Any] = (
                {"num_workers": opening.workers, "multiprocessing_context": "fork"} if opening.workers else {}
            )
            return list(DataLoader(whole, opening.batch_size, collate_fn=stacked, **workers))

    def end(self) -> None:
        for epoch in self.epochs.values():
            epoch.close()  # type: ignore[attr-defined]
        self.epochs.clear()
        for loader in self.loaders.values():
            loader.close()
        self.loaders.clear()

    def do(self, method: str, *arguments: Any, trap: tuple[str, int, str] = ("", 0, "")) -> Told:
        """Call a method, in which something may be set up to go wrong; what it raises is told."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            told = Told()
            try:
                with TRAP.armed(*trap):
                    told.result = getattr(self, method)(*arguments)
            except BaseException as error:
                told.error = error
        told.warnings = [*LOG.take(), *(f"{each.category.__name__}: {each.message}" for each in caught)]
        return told


def stacked(samples: Any) -> Any:
    """The rows of a data set as a batch of arrays."""
    return stack(list(samples))


class ProgramInChild:
    """A program in a forked child."""

    def __init__(self, program: Callable[[], RunningProgram]) -> None:
        self.end, theirs = Pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if not self.pid:
            self.end.close()
            with contextlib.suppress(BaseException):
                serve(theirs, program())
            os._exit(0)
        theirs.close()

    def do(self, method: str, *arguments: Any, trap: tuple[str, int, str] = ("", 0, "")) -> Told | None:
        """What the program tells; None where it was killed by it."""
        try:
            self.end.send((method, arguments, trap))
            if not self.end.poll(PATIENCE):
                os.kill(self.pid, signal.SIGALRM)  # which shows where its threads stand
                raise AssertionError(f"the child hangs in {method}")
            return pickle.loads(self.end.recv_bytes())  # type: ignore[no-any-return]
        except (EOFError, BrokenPipeError, ConnectionResetError):
            return None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait(self) -> int:
        """Let it end; the signal that ended it, or 0."""
        with contextlib.suppress(BrokenPipeError):
            self.end.send(None)  # other children have this end of the pipe too, so closing it tells nothing
        self.end.close()
        return os.WTERMSIG(os.waitpid(self.pid, 0)[1])


def serve(end: Connection, program: RunningProgram) -> None:
    while True:
        if (command := end.recv()) is None:
            return
        method, arguments, trap = command
        told = program.do(method, *arguments, trap=trap)
        try:
            data = pickle.dumps(told)
        except Exception:
            data = pickle.dumps(Told(error=RuntimeError(repr(told.error)), warnings=told.warnings))
        end.send_bytes(data)
