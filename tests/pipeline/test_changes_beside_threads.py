"""A program that changes its steps and data while threads of a loader make samples of them."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.pipeline.edited_steps import KNOBS, SOURCES, TRAP, PipelinePlot, replace_text
from tests.pipeline.making import plan_of
from tests.pipeline.programs import RunningProgram
from tests.slow import thinned

import warmstore as ws

COUNT = 12
SETTINGS = {"scale": 2}


class Lazy:
    """A sample that decodes itself when it is first read."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.image: Any = None

    def content(self) -> Any:
        if self.image is None:
            self.image = np.full(3, self.number)
        return self.image


class Gate:
    """Lets the program change something while a sample is made; no part of any identity."""

    def __init__(self) -> None:
        self.at: int | None = None
        self.inside, self.go_on = threading.Event(), threading.Event()
        self.calls = 0

    def __identity__(self) -> str:
        return "gate"

    def enter(self, number: int) -> None:
        self.calls += 1
        if number == self.at:
            self.at = None
            self.inside.set()
            assert self.go_on.wait(60)

    def while_inside(self, change: Callable[[], Any]) -> None:
        assert self.inside.wait(60)
        change()
        self.go_on.set()


GATE = Gate()


def number_of(sample: Any) -> int:
    if isinstance(sample, Lazy):
        return int(sample.content()[0])
    return int(sample["number"]) if isinstance(sample, dict) else int(np.ravel(sample)[0])


class Scaled:
    """Reads what it scales by after it was let in."""

    def __init__(self, scale: int = 2) -> None:
        self.scale, self.table = scale, np.full(3, scale)

    def __call__(self, sample: Any) -> Any:
        GATE.enter(number_of(sample))
        return np.array([number_of(sample) * self.scale, *self.table])


def by_settings(sample: Any) -> Any:
    GATE.enter(number_of(sample))
    return np.array([number_of(sample) * SETTINGS["scale"]])


def as_it_is(sample: Any) -> Any:
    GATE.enter(number_of(sample))
    return np.array([number_of(sample)])


def numbers() -> list[int]:
    return list(range(COUNT))


def dicts() -> list[Any]:
    return [{"number": number, "more": []} for number in range(COUNT)]


def lazy() -> list[Any]:
    return [Lazy(number) for number in range(COUNT)]


def rows() -> Any:
    return np.arange(2 * COUNT).reshape(COUNT, 2)


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[], Any], Callable[[Any, Any], Any]]] = {
    "an attribute": (numbers, Scaled, lambda source, step: setattr(step, "scale", 3)),
    "an array": (numbers, Scaled, lambda source, step: step.table.fill(3)),
    "a global": (numbers, lambda: by_settings, lambda source, step: SETTINGS.update(scale=3)),
    "dicts": (dicts, lambda: as_it_is, lambda source, step: [each.update(number=99) for each in source]),
    "rows": (rows, lambda: as_it_is, lambda source, step: source.fill(99)),
    "numbers": (numbers, lambda: as_it_is, lambda source, step: source.__setitem__(slice(None), [99] * COUNT)),
}


@pytest.fixture(autouse=True)
def as_it_was() -> Any:
    yield
    SETTINGS["scale"] = 2
    GATE.__init__()  # type: ignore[misc]


def loader_of(source: Any, step: Any, folder: Path) -> tuple[Any, Any]:
    pipe = ws.Pipeline(source).step(step, name="step")
    data = pipe.dataset(plan_of(pipe, [(1, "disk", "raw")], folder=folder))
    return data, ws.Loader(data, 2, ws.Sequential(), workers=2, prefetch=2)


def check(source: Any, step: Any, got: list[Any]) -> None:
    np.testing.assert_array_equal(np.concatenate(got), [step(sample) for sample in source])


@pytest.mark.filterwarnings("ignore:.*make a new loader:RuntimeWarning")
@pytest.mark.parametrize("at", [1, 5, COUNT - 1])
@pytest.mark.parametrize("change", CHANGES)
def test_no_sample_of_before_is_found_after_a_change(tmp_path: Path, change: str, at: int) -> None:
    """It counted as an effect of the call: samples stayed as they were, and new ones were found by who has the old."""
    make_source, make_step, edit = CHANGES[change]
    source, step = make_source(), make_step()
    data, loader = loader_of(source, step, tmp_path)
    with data, loader:
        GATE.at = number_of(source[at])
        program = threading.Thread(target=lambda: GATE.while_inside(lambda: edit(source, step)))
        program.start()
        list(loader)
        program.join()
        for _ in range(2):
            check(source, step, list(loader))
    data, loader = loader_of(source, step, tmp_path)
    with data, loader:  # as it is now
        check(source, step, list(loader))
    SETTINGS["scale"] = 2
    source, step = make_source(), make_step()
    data, loader = loader_of(source, step, tmp_path)
    with data, loader:  # as it was
        check(source, step, list(loader))


class Remembering:
    """Opens what it needs in the first call, and counts what it has done."""

    def __init__(self) -> None:
        self.table: Any = None
        self.seen: dict[int, int] = {}

    def __call__(self, sample: Any) -> Any:
        GATE.enter(number_of(sample))
        if self.table is None:
            self.table = np.arange(100)
        self.seen[number_of(sample)] = len(self.seen)
        return self.table[number_of(sample) : number_of(sample) + 1]


@pytest.mark.parametrize("has_begun", [False, True])
@pytest.mark.parametrize("samples", [numbers, dicts, lazy])
def test_what_steps_remember_is_no_change(tmp_path: Path, samples: Callable[[], Any], *, has_begun: bool) -> None:
    if has_begun:  # by a process of before, which ended early
        data, loader = loader_of(samples(), Remembering(), tmp_path)
        with data, loader:
            next(iter(loader))
    GATE.calls = 0
    source, step = samples(), Remembering()
    data, loader = loader_of(source, step, tmp_path)
    with data, loader:
        list(loader)
        assert 0 < GATE.calls <= 2 * COUNT
        GATE.calls = 0
        for _ in range(2):
            got = list(loader)
        assert GATE.calls == 0
        check(source, step, got)


class Meanwhile:
    """Does something in the n-th call of a step, in the program's thread, and waits for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self.change = -1, threading.Event()
        self.done = threading.Event()
        monkeypatch.setattr(TRAP, "hit", self.hit)

    def hit(self, where: str) -> None:
        self.left -= where == "step"
        if self.left == 0:
            self.change.set()
            assert self.done.wait(60)

    def run(self, at: int, read: Callable[[], Any], change: Callable[[], Any]) -> None:
        self.left = at + 1
        with ThreadPoolExecutor(1) as program:
            changed = program.submit(lambda: (self.change.wait(60), change(), self.done.set()))
            read()
            changed.result()
        self.left = -1


def program_of(work: Path, *, source: str = "ints", knob: str = "code") -> RunningProgram:
    knobs = {"decode": knob, "shift": "code", "filter": "code"}
    plot = PipelinePlot(source, "array", knobs, "raise", False, True, False, False)
    numbers = list(range(COUNT))
    if source == "store" and not (work / "store").exists():
        with ws.RecordStore.create(work / "store", {"number": ws.Array("int64")}) as store:
            store.extend({"number": numbers})
    for number in numbers:
        replace_text(work / f"{number}.txt", number)
    for name in knobs:
        replace_text(work / f"{name}.txt", 0)
    program = RunningProgram(plot, numbers, work)
    program.define(dict.fromkeys(knobs, 0))
    return program


@pytest.mark.filterwarnings("ignore:.*make a new loader:RuntimeWarning")
@pytest.mark.parametrize("step", thinned(2, [1, 3]))
@pytest.mark.parametrize("at", thinned(2, [3, 12]))
@pytest.mark.parametrize(
    ("source", "knob"),
    [*(("ints", knob) for knob in KNOBS if knob != "argument"), *((source, "") for source in SOURCES)],
)
def test_every_kind_of_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, knob: str, at: int, step: int
) -> None:
    """Of a constant of a step, or of the data. An epoch after it equals one without tiers, and one of the program as it
    was finds nothing of it."""

    def change() -> None:
        if knob == "file":
            replace_text(tmp_path / "decode.txt", 1)
        elif knob:
            program.turn(0, "decode", 1)
        elif source == "files":
            replace_text(tmp_path / "2.txt", 99)
            replace_text(tmp_path / "9.txt", 99)
        elif source == "store":
            with ws.RecordStore.open(tmp_path / "store", "a") as store:
                store.update([2, 9], {"number": [99, 99]})
            program.source.refresh()
        else:
            program.assign(2, 99)
            program.assign(9, 99)

    def epoch(of: RunningProgram, *, is_cached: bool = True) -> Any:
        pipe = of.cells[0].pipe
        data = pipe.dataset(plan_of(pipe, [(step, "disk", "raw")], folder=tmp_path / "cache") if is_cached else None)
        with data, ws.Loader(data, 3, workers=2, prefetch=2) as loader:
            return np.concatenate(list(loader))

    meanwhile = Meanwhile(monkeypatch)
    before = epoch(program_of(tmp_path, source=source, knob=knob or "code"), is_cached=False)
    program = program_of(tmp_path, source=source, knob=knob or "code")
    pipe = program.cells[0].pipe
    plan = plan_of(pipe, [(step, "disk", "raw")], folder=tmp_path / "cache")
    with pipe.dataset(plan) as data, ws.Loader(data, 3, workers=2, prefetch=2) as loader:
        meanwhile.run(at, lambda: list(loader), change)
        after = epoch(program, is_cached=False)
        assert not np.array_equal(before, after)
        for _ in range(2):
            np.testing.assert_array_equal(np.concatenate(list(loader)), after)
    np.testing.assert_array_equal(epoch(program), after)
    if source != "store":
        was = program_of(tmp_path, source=source, knob=knob or "code")
        np.testing.assert_array_equal(epoch(was), before)
