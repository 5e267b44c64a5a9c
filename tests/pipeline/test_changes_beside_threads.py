"""A program that changes its steps and data while threads of a loader make samples of them."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.pipeline.making import plan_of

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
