"""A state machine that has programs of `programs` and what is true of them: it tells them what to do, and compares."""

import gc
import logging
import re
import shutil
import signal
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import note
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from tests.pipeline.edited_steps import (
    CHANGING,
    ERRORS,
    KINDS,
    KNOBS,
    LOG,
    SOURCES,
    TRAP,
    Boxed,
    BrokenSample,
    PipelinePlot,
    replace_text,
    spring,
)
from tests.pipeline.programs import PATIENCE, Opening, Placed, RunningProgram, Told
from tests.pipeline.run_models import CellModel, LoaderModel, PipelineTruth, ProgramModel, SourceModel

import warmstore as ws
from warmstore.errors import BadState, Closed, SampleSkipped
from warmstore.pipeline.encoders.registry import REGISTRY
from warmstore.storage.disk_usage import folder_bytes
from warmstore.storage.files import Files

NAMES = ("decode", "shift", "filter")
NUMBERS = st.sampled_from([0, 1, 2, 3, 24, 7, 11])
"""Few, so that some samples are equal, and some are changed back."""

_LEAST = 16 << 10
"""Bytes of the smallest tier."""


@st.composite
def plots(draw: st.DrawFn) -> PipelinePlot:
    kind = draw(st.sampled_from(KINDS))
    return PipelinePlot(
        source=draw(st.sampled_from(SOURCES)),
        kind=kind,
        knobs={name: draw(st.sampled_from(KNOBS)) for name in ("decode", "filter", "shift")},
        on_error=draw(st.sampled_from(ERRORS)),
        has_filter=draw(st.booleans()),
        writes=draw(st.booleans()),
        is_random=draw(st.booleans()),
        is_batched=kind == "array" and draw(st.booleans()),
    )


BUDGETS = st.sampled_from([64 << 20] * 9 + [120_000, 60_000, 1])
PLACEMENTS = st.tuples(
    st.sampled_from([2, 1, 3, 0]), st.sampled_from(["disk", "disk", "memory"]), st.sampled_from(["raw", "raw", "zstd"])
)
OPENINGS = st.builds(
    Opening,
    placements=st.sampled_from([True] * 6 + [False]).flatmap(
        lambda is_cached: (
            st.lists(PLACEMENTS, min_size=1, max_size=3, unique=True).map(tuple) if is_cached else st.none()
        )
    ),
    counts=st.tuples(*[st.sampled_from([20, 20, 5, 2, 0])] * 3),
    memory=BUDGETS,
    disk=BUDGETS,
    folder=st.sampled_from([0, 0, 0, 1, 2]),
    batch_size=st.integers(1, 5),
    seed=st.integers(0, 1),
    shuffles=st.booleans(),
    rank=st.sampled_from([(0, 1), (0, 1), (0, 1), (0, 2), (1, 2)]),
    workers=st.sampled_from([0] * 6 + [2]),
    resumes=st.booleans(),
)
"""Openings for any example: of folders they have a number."""


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class RunsMachine(RuleBasedStateMachine):
    """programs: those that are running, as models; the first one is this process's.

    constants: as they stand in the program's text. numbers: the data of a program that starts. limits: the largest
    budgets that the folders have had. was_edited, is_damaged: whether constants were edited, and whether anything was
    removed, damaged or refused.
    """

    def __init__(self) -> None:
        super().__init__()
        self.work = Path(tempfile.mkdtemp())
        self.folders = [self.work / "one"]
        self.limits: dict[Path, int] = {}
        self.programs: list[ProgramModel] = []
        self.last = self.steps = 0
        self.openings: list[Opening] = []
        self.states: list[tuple[Any, LoaderModel, int, int]] = []
        self.was_edited = self.is_damaged = False
        self.descriptors, self.threads = descriptors(), set(threading.enumerate())
        self.patches = pytest.MonkeyPatch()
        for name in CHANGING:
            self.patches.setattr(Files, name, spring(name))
        TRAP.disarm()
        TRAP.is_broken = False
        logger = logging.getLogger("warmstore")
        logger.addHandler(LOG)
        self.patches.setattr(logger, "propagate", False)  # pytest keeps what is logged, and errors keep their programs

    def set_up(self, plot: PipelinePlot, numbers: list[int], by: int) -> None:
        """Write the files, and run the program in this process."""
        self.plot, self.numbers, self.constants = plot, numbers, dict.fromkeys(NAMES, by)
        self.truth = PipelineTruth(plot, SourceModel([]), dict(self.constants))
        self.store = ws.RecordStore.create(self.work / "store", {"number": ws.Array("int64")})
        self.store.extend({"number": numbers})
        self.store.flush()
        for index, number in enumerate(numbers):
            self.write_file(index, number)
        for name in self.constants:
            replace_text(self.work / f"{name}.txt", by)
        self.programs.append(ProgramModel(RunningProgram(plot, numbers, self.work), SourceModel(list(numbers))))
        self.define(self.programs[0])

    def write_file(self, index: int, number: int) -> None:
        replace_text(self.work / f"{index}.txt", number)
        self.truth.files.numbers[index : index + 1] = [number]

    def refresh(self, running: ProgramModel) -> None:
        """Let a program see what its store has now."""
        self.store.flush()
        self.numbers = self.store["number"][:].tolist()
        for index, number in enumerate(running.data.numbers):
            if number != self.numbers[index]:
                for loader in running.loaders.values():
                    if running.cells[loader.cell].data is running.data:
                        loader.older.setdefault(index, []).append(number)
        self.well(running.program.do("refresh"))
        running.data.numbers[:] = self.numbers

    # What came of a command

    def told(self, told: Told | None) -> Told:
        assert told is not None, "the child has died"
        for warning in told.warnings:
            self.check_warning(warning)
        return told

    def well(self, told: Told | None) -> Any:
        told = self.told(told)
        if told.error is not None:
            raise told.error
        return told.result

    def check_warning(self, warning: str) -> None:
        """Fail if a warning says what is not so."""
        note(f"warning: {warning}")
        plot = self.plot
        causes = {
            "budget of": True,
            "make a new loader to cache": self.was_edited,
            "cannot be kept": plot.kind == "refused" or plot.source == "files",
            "cannot be stored, so": plot.kind == "refused" or plot.source == "files",
            "bad sample": TRAP.is_broken,
            "are computed anew": self.was_edited,
            "cannot be restored": plot.kind == "boxed" and self.was_edited,
            "so the pipeline is empty": plot.has_filter,
        }
        assert self.is_damaged or any(holds for text, holds in causes.items() if text in warning), warning
        assert not re.search(r"step '\w+' is now", warning), warning

    def took(self, running: ProgramModel, number: int, got: list[Any], trapped: str = "") -> None:
        """Compare the batches that came. trapped: what has been set up to go wrong."""
        loader = running.loaders[number]
        for each in got:
            assert loader.parts is not None
            if isinstance(each, str):
                for part, _ in loader.parts:
                    assert self.truth.may_be_empty(running, loader, part), "ended too soon"
                if loader.parts or loader.is_bare:
                    loader.epoch, loader.place = loader.running + 1, 0
                loader.parts = None
                return
            if isinstance(each, BaseException):
                self.failed(running, number, each, trapped)
                return
            batch = each
            if isinstance(each, Placed):
                self.leave_out(running, loader, each)
                batch = each.batch
            assert loader.parts, ("one batch too many", batch)
            part, _ = loader.parts[0]
            wanted = self.truth.batches_of(running, loader, part)
            assert self.truth.is_one_of(batch, wanted), (batch, next(self.truth.batches_of(running, loader, part)))
            loader.hand_out()
            if isinstance(each, Placed):
                assert (loader.epoch, loader.place) == (each.epoch, each.place)

    def leave_out(self, running: ProgramModel, loader: LoaderModel, placed: Placed) -> None:
        """Leave out the parts before the one of a batch."""
        parts = loader.parts or []
        at = placed.place if placed.epoch == loader.running else None
        while parts[1:] and parts[0][1] != at:
            part, _ = parts.pop(0)
            assert self.truth.may_be_empty(running, loader, part), (part, placed)

    def failed(self, running: ProgramModel, number: int, error: BaseException, trapped: str) -> None:
        loader = running.loaders[number]
        parts, loader.parts = loader.parts or [], None
        if isinstance(error, KeyboardInterrupt):
            assert trapped == "interrupt"
        elif isinstance(error, SampleSkipped):
            for part, _ in parts:
                assert self.truth.may_be_empty(running, loader, part)
        elif isinstance(error, BrokenSample):
            assert any(self.truth.may_fail(running, loader, part) for part, _ in parts[:1]), error
        else:
            raise error
        state = self.well(running.program.do("state", number))
        places = [(loader.epoch, loader.place), *((loader.running, after) for _, after in parts[:-1])]
        found = state["epoch"], state["place"]
        possible = places if self.plot.on_error == "skip" else places[:1]
        if trapped == "interrupt" and parts:  # at the `yield` of a batch that counts, where a trap may be but no signal
            possible = [*possible, (loader.running, parts[0][1]) if parts[1:] else (loader.running + 1, 0)]
        assert found in possible, (found, possible)
        loader.epoch, loader.place = found
        loader.is_loaded &= found == places[0]

    # Programs

    def end_last(self, *, kills: bool) -> None:
        running = self.programs.pop()
        if kills:
            running.program.kill()
        else:
            self.well(running.program.do("end"))
            assert running.program.wait() == 0

    def pick(self, which: int) -> ProgramModel:
        return self.programs[which % len(self.programs)]

    def any_loader(self, which: int) -> tuple[ProgramModel, int]:
        found = [(running, number) for running in self.programs for number in running.loaders]
        return found[which % len(found)]

    def define(self, running: ProgramModel) -> None:
        """The cell with the pipeline is run again."""
        self.well(running.program.do("define", self.constants))
        running.cells.append(CellModel(running.data, dict(self.constants)))

    def read(self, running: ProgramModel, number: int, count: int | None) -> None:
        if running.loaders[number].parts is None:
            running.loaders[number].begin()
        self.took(running, number, self.well(running.program.do("take", number, count)))

    # Loaders

    def here(self, opening: Opening, running: ProgramModel) -> Opening:
        """An opening as it is in this example."""
        folder = self.folders[opening.folder % len(self.folders)]
        places = opening.placements
        if places is not None:
            places = tuple(dict.fromkeys((min(step, self.plot.cacheable), tier, codec) for step, tier, codec in places))
            if any(tier == "disk" for _, tier, _ in places):
                self.limits[folder] = max(self.limits.get(folder, 0), opening.disk)
        workers = 0 if running.is_child else opening.workers
        return replace(
            opening, placements=places, counts=opening.counts[: len(places or ())], folder=folder, workers=workers
        )

    def reopened(self, opening: Opening, running: ProgramModel, again: int | None) -> Opening:
        """An opening as it is in this example, or an earlier one."""
        if again is None or not self.openings:
            self.openings.append(self.here(opening, running))
            return self.openings[-1]
        found = self.openings[-1 - again % len(self.openings)]
        return replace(found, workers=0 if running.is_child else found.workers)

    def open_one(self, running: ProgramModel, at: int, opening: Opening, count: int | None) -> bool:
        """Open a loader and read some batches; False if a sample is broken and no loader is opened."""
        chosen = self.truth.chosen(running.cells[at])
        self.last += 1
        told = self.told(running.program.do("open", self.last, at, opening))
        if isinstance(told.error, BrokenSample):
            assert TRAP.is_broken
            return False
        length = self.well(told)
        assert length == len(chosen), (length, chosen)
        numbers = [self.truth.number(running.cells[at], index) for index in chosen]
        running.loaders[self.last] = LoaderModel(at, opening, chosen, numbers)
        if count != 0:
            self.read(running, self.last, count)
        return True

    def save_one(self, running: ProgramModel, number: int) -> None:
        """Take the state of a loader."""
        loader = running.loaders[number]
        state = self.well(running.program.do("state", number))
        assert (state["epoch"], state["place"]) == (loader.epoch, loader.place)
        if loader.place or not self.states:  # most states in an epoch's middle
            self.states.append((state, loader, loader.epoch, loader.place))

    def load(self, running: ProgramModel, number: int, state: int) -> None:
        """Load a state, the last one for 0, which is refused only if data, order or seed are others."""
        loader = running.loaders[number]
        saved, other, epoch, place = self.states[-1 - state % len(self.states)]
        told = self.told(running.program.do("load", number, saved))
        one, two = loader.opening, other.opening
        is_same = len(loader.chosen) == len(other.chosen) and one.shuffles == two.shuffles
        is_same &= one.seed == two.seed or not one.shuffles
        if isinstance(told.error, BadState):
            is_same &= loader.data == other.data and loader.chosen == other.chosen and one.seed == two.seed
            assert not is_same, told.error
            return
        self.well(told)
        assert is_same
        loader.epoch, loader.place, loader.is_loaded = epoch, place, bool(place)

    def leave_one(self, running: ProgramModel, number: int) -> None:
        if running.loaders[number].parts is not None:
            self.well(running.program.do("leave", number))
            running.loaders[number].parts = None

    def close_one(self, running: ProgramModel, number: int) -> None:
        self.well(running.program.do("close", number))
        loader = running.loaders.pop(number)
        if loader.parts is not None:
            (ended,) = self.well(running.program.do("take", number, 1))
            assert isinstance(ended, Closed) or (ended == "end" and not loader.parts)

    def may_trap(self, running: ProgramModel, trap: tuple[str, int, str]) -> bool:
        """Whether something may go wrong so: this process is not killed, and steps have errors of their own."""
        where, _, how = trap
        return {"interrupt": True, "kill": running.is_child, "error": where == "file"}[how]

    def trapped(self, running: ProgramModel, trap: tuple[str, int, str], method: str, *arguments: Any) -> Told | None:
        """What a command tells that runs into a trap, or not; None where it has killed the child."""
        self.is_damaged |= trap[2] == "error"
        told: Told | None = running.program.do(method, *arguments, trap=trap)
        if told is None:
            assert running.program.wait() == signal.SIGKILL
            assert trap[2] == "kill"
            self.programs.remove(running)
            return None
        return self.told(told)

    # Folders

    @rule(which=st.integers(0, 3), how=st.sampled_from(["copy", "move"]))
    def copy_folder(self, which: int, how: str) -> None:
        """A folder is copied or moved while it is open, and used there."""
        old = self.folders[which % len(self.folders)]
        if not old.exists() or len(self.folders) > 3:
            return
        new = self.work / f"folder {len(self.folders)}"
        if how == "move":
            self.is_damaged = True
            old.rename(new)
        else:
            shutil.copytree(old, new)
        self.folders.append(new)
        if old in self.limits:
            self.limits[new] = self.limits[old]

    @rule(
        which=st.integers(0, 3),
        part=st.sampled_from(["folder", "tier", "version", "file", "bytes"]),
        at=st.integers(0, 40),
    )
    def remove(self, which: int, part: str, at: int) -> None:
        """A part of a folder is removed or damaged while it is open."""
        folder = self.folders[which % len(self.folders)]
        tier = folder / "warmstore-samples"
        if not tier.exists():
            return
        self.is_damaged = True
        if part in ("folder", "tier"):
            shutil.rmtree(folder if part == "folder" else tier)
            return
        found = sorted(tier.iterdir() if part == "version" else tier.rglob("*"))
        found = [path for path in found if path.is_dir() == (part == "version")]
        if not found:
            return
        path = found[at % len(found)]
        if part == "version":
            shutil.rmtree(path)
        elif part == "file":
            path.unlink()
        elif content := path.read_bytes():
            with path.open("r+b") as file:
                file.seek(at * 37 % len(content))
                file.write(b"x")

    # What must hold after every step

    @invariant()
    def budgets_are_kept(self) -> None:
        for folder, limit in self.limits.items():
            tier = folder / "warmstore-samples"
            if tier.exists() and not self.plot.has_filter:  # whose answers make no room for themselves
                assert folder_bytes(tier) <= max(limit, _LEAST)

    def teardown(self) -> None:
        try:
            while len(self.programs) > 1:
                self.end_last(kills=False)
            if self.programs:
                here = self.programs.pop()
                self.store.close()
                self.well(here.program.do("end"))
                del here
            gc.collect()
            for thread in {*threading.enumerate()} - self.threads:
                if thread.name != "tqdm_monitor":
                    thread.join(PATIENCE)
                    assert not thread.is_alive(), thread
            for warning in LOG.take():  # of what ended after the last command
                self.check_warning(warning)
            assert descriptors() <= self.descriptors + 3
        finally:
            for running in self.programs[1:]:
                running.program.kill()
            self.patches.undo()
            REGISTRY.remove(Boxed)
            logging.getLogger("warmstore").removeHandler(LOG)
            LOG.take()
            TRAP.disarm()
            TRAP.is_broken = False
            shutil.rmtree(self.work)
