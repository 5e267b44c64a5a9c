"""Pipelines with their caches against pipelines without any: programs of runs that share a folder over time.

Some programs, in this process and in forked children, make pipelines, edit what these are made of, and read epochs by
plans that change. Whatever is cached where, each batch must be that of the steps' functions, bit for bit.
"""

import threading
import warnings
from copy import deepcopy
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis.stateful import initialize, invariant, precondition, rule
from tests.pipeline.edited_steps import TRAP, BrokenSample, PipelinePlot, replace_text
from tests.pipeline.programs import PATIENCE, Opening, ProgramInChild, RunningProgram
from tests.pipeline.run_models import LoaderModel, ProgramModel, SourceModel, as_rows
from tests.pipeline.runs_machine import NAMES, NUMBERS, OPENINGS, RunsMachine, plots
from tests.slow import either
from tests.state_machines import run_machine

from warmstore.errors import Closed

pytestmark = pytest.mark.forks

PROGRAMS, CELLS, LOADERS = st.integers(0, 2), st.integers(0, 3), st.integers(0, 8)
"""Which of those that there are, counted round."""

AGAIN = st.sampled_from([0, 0, 0, 1, 2, None, None])
"""Which of the earlier openings; None for another one."""

TRAPS = st.tuples(
    st.sampled_from(["step", "file", "line", "line"]),
    st.integers(0, 30),
    st.sampled_from(["interrupt", "error", "kill"]),
)
"""What goes wrong: where, at which call, and how."""


def has_loaders(machine: Any) -> bool:
    return any(running.loaders for running in machine.programs)


class PipelineMachine(RunsMachine):
    """What programs may do, in any order."""

    @initialize(
        plot=plots(),
        numbers=st.lists(NUMBERS, min_size=1, max_size=12),
        by=st.integers(0, 2),
        openings=st.lists(OPENINGS, min_size=1, max_size=2),
    )
    def begin(self, plot: PipelinePlot, numbers: list[int], by: int, openings: list[Opening]) -> None:
        self.set_up(plot, numbers, by)
        for opening in openings:
            self.open_one(self.programs[0], 0, self.reopened(replace(opening, workers=0), self.programs[0], None), None)

    @invariant()
    def everybody_reads(self) -> None:
        """One batch of each loader, after every other step."""
        self.steps += 1
        if self.steps % 2:
            return
        for running in list(self.programs):
            for number in list(running.loaders):
                self.read(running, number, 1)

    @precondition(lambda self: len(self.programs) < 3)
    @rule()
    def start(self) -> None:
        """A second process starts the program as it is now."""
        numbers = self.numbers
        child = ProgramInChild(lambda: RunningProgram(self.plot, numbers, self.work))
        self.programs.append(ProgramModel(child, SourceModel(list(numbers))))
        self.define(self.programs[-1])

    @precondition(lambda self: len(self.programs) < 3)
    @rule()
    def fork(self) -> None:
        """This process forks, and the child goes on with all that is open."""
        here = self.programs[0]
        if any(loader.opening.workers for loader in here.loaders.values()):
            return
        self.is_damaged = True  # the parent removes its tiers in memory
        child = ProgramInChild(lambda: here.program)
        copied = deepcopy(ProgramModel(None, here.data, here.cells, here.loaders))
        copied.program = child
        self.programs.append(copied)

    @precondition(lambda self: len(self.programs) > 1)
    @rule(kills=st.booleans())
    def end(self, kills: bool) -> None:
        """The last one ends, or is killed."""
        self.end_last(kills=kills)

    # Edits

    @rule(
        which=PROGRAMS,
        cell=CELLS,
        name=st.sampled_from(NAMES),
        by=st.integers(0, 2),
        live=st.booleans(),
    )
    def edit(self, which: int, cell: int, name: str, by: int, *, live: bool) -> None:
        """A constant is edited: in the text of the program, in its file of settings, or in a program that runs."""
        knob = self.plot.knobs[name]
        if name == "filter" and not self.plot.has_filter:
            return
        self.was_edited = True
        self.constants = {**self.constants, name: by}
        if knob == "file":
            self.before_a_change()
            for running in self.programs:
                for loader in running.loaders.values():
                    loader.constants.append(self.truth.constants_of(running.cells[loader.cell]))
            self.truth.in_files[name] = by
            replace_text(self.work / f"{name}.txt", by)
        elif live and knob != "argument":
            self.before_a_change()
            running = self.pick(which)
            at = cell % len(running.cells)
            self.well(running.program.do("turn", at, name, by))
            running.cells[at].constants = {**running.cells[at].constants, name: by}

    def before_a_change(self) -> None:
        """Worker processes have what there was when they were started: their loaders are closed before a change."""
        for running in self.programs:
            for number, loader in list(running.loaders.items()):
                if loader.opening.workers:
                    self.close_one(running, number)

    @precondition(has_loaders)
    @rule(which=PROGRAMS, at=st.integers(0, 20), number=NUMBERS)
    def assign(self, which: int, at: int, number: int) -> None:
        """A sample is changed in place."""
        self.before_a_change()
        running = self.pick(which)
        if self.plot.source == "files":
            index = at % len(self.truth.files.numbers)
            for each in self.programs:
                for loader in each.loaders.values():
                    loader.older.setdefault(index, []).append(self.truth.files.numbers[index])
            self.write_file(index, number)
            self.numbers = [*self.numbers[:index], number, *self.numbers[index + 1 :]]
            return
        index = at % len(running.data.numbers)
        if self.plot.source == "store":
            self.store.update(index, {"number": number})
            self.refresh(running)
            return
        for loader in running.loaders.values():
            if running.cells[loader.cell].data is running.data:
                loader.older.setdefault(index, []).append(running.data.numbers[index])
        self.well(running.program.do("assign", index, number))
        running.data.numbers[index] = number

    @rule(which=PROGRAMS, number=NUMBERS)
    def append(self, which: int, number: int) -> None:
        """A list or a store grows in place."""
        if self.plot.source not in ("ints", "dicts", "store"):
            return
        self.before_a_change()
        running = self.pick(which)
        if self.plot.source == "store":
            self.store.append({"number": number})
            self.refresh(running)
        elif len(running.data.numbers) < 20:
            self.well(running.program.do("append", number))
            running.data.numbers.append(number)

    @precondition(has_loaders)
    @rule(
        numbers=st.lists(NUMBERS, min_size=1, max_size=12),
        grows=st.booleans(),
        which=PROGRAMS,
    )
    def renew(self, numbers: list[int], grows: bool, which: int) -> None:
        """The next program, and what this one makes from now on, has other data."""
        self.before_a_change()
        if grows:
            numbers = (self.numbers + numbers)[:20]
        if self.plot.source == "store":
            self.store.extend({"number": numbers[:1]})
            self.store.flush()
            numbers = self.store["number"][:].tolist()
        elif self.plot.source == "files":
            for index in range(len(self.truth.files.numbers), len(numbers)):
                self.write_file(index, numbers[index])
            numbers = self.truth.files.numbers[: len(numbers)]
        self.numbers = numbers
        running = self.pick(which)
        self.well(running.program.do("renew", numbers))
        running.data = SourceModel(list(numbers))
        self.define(running)

    @precondition(lambda self: self.plot.kind == "boxed")
    @rule(which=PROGRAMS, variant=st.integers(0, 1))
    def encode(self, which: int, variant: int) -> None:
        """Another encoder of the values is registered."""
        self.before_a_change()
        self.was_edited = True
        self.well(self.pick(which).program.do("encode", variant))

    @rule()
    def break_or_mend(self) -> None:
        """Some files cannot be decoded for a time."""
        if len(self.programs) == 1 and not self.plot.has_filter:  # which keeps the answers of before
            self.before_a_change()
            TRAP.is_broken = not TRAP.is_broken

    # Loaders

    @precondition(lambda self: sum(len(running.loaders) for running in self.programs) < 4)
    @rule(
        which=PROGRAMS,
        cell=st.none() | st.integers(0, 3),
        opening=OPENINGS,
        again=AGAIN,
        count=st.sampled_from([None, 0, 1, 2]),
    )
    def open(self, which: int, cell: int | None, opening: Opening, again: int | None, count: int | None) -> None:
        """A loader is opened, perhaps of the pipeline of a cell that is run again, and some of its batches are read."""
        running = self.pick(which)
        if cell is None:
            self.define(running)
        at = -1 % len(running.cells) if cell is None else cell % len(running.cells)
        self.open_one(running, at, self.reopened(opening, running, again), count)

    @precondition(has_loaders)
    @rule(which=LOADERS, count=st.sampled_from([None, None, 1, 2, 3]))
    def take(self, which: int, count: int | None) -> None:
        """Read batches, or the rest of the epoch."""
        self.read(*self.any_loader(which), count)

    @precondition(has_loaders)
    @rule(which=LOADERS, epochs=st.integers(1, 3))
    def train(self, which: int, epochs: int) -> None:
        """Whole epochs."""
        for _ in range(epochs):
            self.read(*self.any_loader(which), None)

    @precondition(has_loaders)
    @rule(which=LOADERS)
    def leave(self, which: int) -> None:
        """Break off an epoch."""
        self.leave_one(*self.any_loader(which))

    @precondition(has_loaders)
    @rule(which=LOADERS, breaks=st.booleans())
    def close(self, which: int, breaks: bool) -> None:
        if breaks:
            self.leave_one(*self.any_loader(which))
        self.close_one(*self.any_loader(which))

    @precondition(has_loaders)
    @rule(which=LOADERS)
    def save(self, which: int) -> None:
        self.save_one(*self.any_loader(which))

    @precondition(lambda self: self.states and has_loaders(self))
    @rule(which=LOADERS, state=st.integers(0, 8))
    def resume(self, which: int, state: int) -> None:
        """Load a state, perhaps of another loader or process."""
        running, number = self.any_loader(which)
        self.leave_one(running, number)
        self.load(running, number, state)

    @rule(
        which=PROGRAMS,
        edit=st.none() | st.tuples(st.sampled_from(NAMES), st.integers(0, 2)),
        opening=OPENINGS,
        again=AGAIN,
        loads=st.booleans(),
        count=st.sampled_from([None, None, 1, 2]),
    )
    def script(
        self,
        which: int,
        edit: tuple[str, int] | None,
        opening: Opening,
        again: int | None,
        loads: bool,
        count: int | None,
    ) -> None:
        """A script is edited, or not, runs for an epoch or some batches, perhaps from a state on, and leaves one."""
        running = self.pick(which)
        if edit is not None:
            self.edit(which, 0, *edit, live=False)
        self.define(running)
        if self.open_one(running, -1 % len(running.cells), self.reopened(opening, running, again), 0):
            if loads and self.states:
                self.load(running, self.last, 0)
            self.read(running, self.last, count)
            self.save_one(running, self.last)
            self.leave_one(running, self.last)
            self.close_one(running, self.last)

    @rule(which=PROGRAMS, cell=CELLS, opening=OPENINGS, again=AGAIN)
    def fill(self, which: int, cell: int, opening: Opening, again: int | None) -> None:
        """Fill the tiers of a plan."""
        running = self.pick(which)
        opening = self.reopened(opening, running, again)
        if opening.placements is not None:
            told = self.told(running.program.do("fill", cell % len(running.cells), opening))
            assert (isinstance(told.error, BrokenSample) and TRAP.is_broken) or self.well(told)

    @rule(
        which=PROGRAMS,
        cell=CELLS,
        opening=OPENINGS,
        again=AGAIN,
        epoch=st.integers(0, 2),
        way=st.sampled_from(["whole", "parts", "loader"]),
    )
    def dataset(self, which: int, cell: int, opening: Opening, again: int | None, epoch: int, way: str) -> None:
        """An epoch through a data set, by torch's DataLoader or by threads."""
        running = self.pick(which)
        at, opening = cell % len(running.cells), self.reopened(opening, running, again)
        chosen = self.truth.chosen(running.cells[at])
        if self.plot.on_error == "skip" or not chosen:
            return
        told = self.told(running.program.do("dataset", at, opening, epoch, way))
        if isinstance(told.error, BrokenSample) and TRAP.is_broken:
            return
        batches = self.well(told)
        loader, size = LoaderModel(at, opening, chosen, [], running=epoch), opening.batch_size
        parts = [part.tolist() for part in np.split(np.arange(len(chosen)), range(size, len(chosen), size))]
        assert len(parts) == len(batches)
        for part, batch in zip(parts, batches, strict=True):
            wanted = (as_rows(one, len(part), way) for one in self.truth.batches_of(running, loader, part))
            assert self.truth.is_one_of(batch, wanted), (part, batch)

    # What goes wrong

    @precondition(has_loaders)
    @rule(which=LOADERS, trap=TRAPS)
    def trip(self, which: int, trap: tuple[str, int, str]) -> None:
        """The rest of an epoch, in which the n-th call of a step or change of a file goes wrong."""
        running, number = self.any_loader(which)
        if not self.may_trap(running, trap) or running.loaders[number].opening.workers:
            return
        if running.loaders[number].parts is None:
            running.loaders[number].begin()
        told = self.trapped(running, trap, "take", number, None)
        if told is not None:
            self.took(running, number, self.well(told), trap[2])

    @rule(which=PROGRAMS, opening=OPENINGS, trap=TRAPS, method=st.sampled_from(["open", "fill"]))
    def trip_opening(self, which: int, opening: Opening, trap: tuple[str, int, str], method: str) -> None:
        """A loader is opened, or tiers are filled, and something goes wrong."""
        running = self.pick(which)
        opening = replace(self.here(opening, running), workers=0)
        if not self.may_trap(running, trap) or opening.placements is None or len(running.loaders) >= 3:
            return
        self.last += 1
        arguments = (self.last, 0, opening) if method == "open" else (0, opening)
        chosen = self.truth.chosen(running.cells[0])
        told = self.trapped(running, trap, method, *arguments)
        if told is None or isinstance(told.error, KeyboardInterrupt):
            assert told is None or trap[2] == "interrupt"
            return
        if isinstance(told.error, BrokenSample) and TRAP.is_broken:
            return
        self.well(told)
        if method == "open":
            numbers = [self.truth.number(running.cells[0], index) for index in chosen]
            running.loaders[self.last] = LoaderModel(0, opening, chosen, numbers)

    @rule(which=LOADERS, other=LOADERS, closes=st.booleans())
    def two_threads(self, which: int, other: int, closes: bool) -> None:
        """Two threads read epochs of two loaders; or one closes the loader that the other reads."""
        here = self.programs[0]
        numbers = [number for number, loader in here.loaders.items() if not loader.opening.workers]
        if not numbers:
            return
        one, two = numbers[which % len(numbers)], numbers[other % len(numbers)]
        if one == two and not closes:
            return
        for number in {one} if closes else {one, two}:
            if here.loaders[number].parts is None:
                here.loaders[number].begin()
        told: dict[int, list[Any]] = {}
        thread = threading.Thread(target=lambda: told.update({one: here.program.take(one, None)}))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            thread.start()
            if closes:
                here.program.close(one)
            else:
                told[two] = here.program.take(two, None)
            thread.join(PATIENCE)
        assert not thread.is_alive()
        for warning in caught:
            self.check_warning(str(warning.message))
        if closes:
            if isinstance(told[one][-1], Closed) or (isinstance(told[one][-1], BrokenSample) and TRAP.is_broken):
                told[one].pop()
            self.took(here, one, told[one])
            del here.loaders[one]
        else:
            for number, got in told.items():
                self.took(here, number, got)


def test_a_cached_pipeline_equals_an_uncached_one() -> None:
    run_machine(PipelineMachine, either(5, 80), either(30, 40))
