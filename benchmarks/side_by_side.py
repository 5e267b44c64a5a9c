"""The one way a benchmark measures: contestants take turns, call by call, in one process and one run.

A busy machine then slows all of them alike, and the ratio between two of them stays true where their times do not.
A contestant that returns wrong values gets no figure, and one that cannot be imported gets a row that says so:
nothing is ever silently missing.
"""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any, Literal

import numpy as np

Call = Callable[[Any], Any]
Role = Literal["limit", "warmstore", "peer"]


class WrongValuesError(Exception):
    """A contestant returned something else than the source data; also raised by set-ups and clean-ups that check."""


@dataclass(frozen=True)
class Contestant:
    """One way of doing the work. `setup()` is a context manager that gives the call to be timed.

    Exactly one contestant of a run has the role "limit": the fastest the hardware and torch or the kernel allow.
    `prepare(ask)` runs untimed before each call, for work that uses up what it works on; not for `reads`.
    """

    name: str
    setup: Callable[[], AbstractContextManager[Call]]
    role: Role = "peer"
    note: str = ""
    prepare: Callable[[Any], None] | None = None


@dataclass(frozen=True)
class Row:
    """Seconds each of a contestant's calls took, and its median over the limit's; or the `trouble` it had instead."""

    name: str
    role: Role
    seconds: tuple[float, ...] = ()
    ratio: float | None = None
    note: str = ""
    trouble: str = ""

    @property
    def median(self) -> float | None:
        return float(np.median(self.seconds)) if self.seconds else None

    @property
    def mean(self) -> float | None:
        return float(np.mean(self.seconds)) if self.seconds else None

    @property
    def p99(self) -> float | None:
        return float(np.percentile(self.seconds, 99)) if self.seconds else None

    @property
    def worst(self) -> float | None:
        return max(self.seconds) if self.seconds else None


@dataclass
class _Running:
    contestant: Contestant
    cleanup: ExitStack = field(default_factory=ExitStack)
    call: Call | None = None
    asks: Iterator[Any] = field(default_factory=lambda: iter(()))
    seconds: list[float] = field(default_factory=list)
    trouble: str = ""

    def attempt(self, work: Callable[[], Any]) -> Any:
        """Do `work`, unless there was trouble before: that is kept for the row, and ends a contestant's part.

        Trouble of the limit is raised: there is nothing to compare with then. A clean-up happens all the same.
        """
        if self.trouble and work != self.cleanup.close:
            return None
        try:
            return work()
        except Exception as error:
            if self.contestant.role == "limit":
                raise
            self.trouble = self.trouble or describe(error)
            return None

    def turn(self, ask: Any) -> Any:
        began = time.perf_counter()
        result = self.call(ask)  # type: ignore[misc]
        self.seconds.append(time.perf_counter() - began)
        return result


def side_by_side(
    contestants: Sequence[Contestant],
    asks: Sequence[Any],
    right: Callable[[Any, Any], bool],
    *,
    reads: bool = False,
    loop: int = 1,
    check_every: int = 20,
    pause: float = 0,
) -> list[Row]:
    """Give as many asks as there are to every contestant, in turn: a b c a b c ...

    `right(ask, result)` compares a result with the source data; it sees the first result and every `check_every`-th
    after it, outside the timing. A warm-up is the set-up's affair.

    `reads` says that asks may come in any order and be repeated. Each contestant then has an order of its own, lest one
    finds in the processor's cache what another has just read from the same memory (`rows.take` just after `rows[...]`
    on one file: 24 us for 66). A turn is `loop` untimed calls and then as many timed ones: the untimed ones end what is
    left of whoever came before, its data in the caches and its threads, which may go on running for milliseconds (the
    limit after a peer with a thread pool: 139 us for 48; a gather after torch's: 60 for 42). Who comes after whom is
    drawn anew each time: what is left may last longer.

    `pause` is how many seconds pass before each timed call: a program does other things between two of them, and then
    threads that waited for more have gone to sleep.
    """
    running = [_Running(contestant) for contestant in contestants]
    for place, one in enumerate(running):
        order = np.random.default_rng(place).permutation(len(asks)) if reads else np.arange(len(asks))
        one.asks = cycle([asks[int(at)] for at in order])
    try:
        for one in running:
            one.call = one.attempt(lambda one=one: one.cleanup.enter_context(one.contestant.setup()))
        gc.collect()
        gc.disable()  # as timeit does: a collection would be charged to whoever it happens to hit
        draws = random.Random(0)
        for first in range(0, len(asks), loop):
            for one in draws.sample(running, len(running)) if reads else running:
                for ask in islice(one.asks, loop if reads else 0):
                    one.attempt(lambda one=one, ask=ask: one.call(ask))
                for number, ask in enumerate(islice(one.asks, min(loop, len(asks) - first)), first):
                    if prepare := one.contestant.prepare:
                        one.attempt(lambda prepare=prepare, ask=ask: prepare(ask))
                    if pause:
                        time.sleep(pause)
                    result = one.attempt(lambda one=one, ask=ask: one.turn(ask))
                    if number % check_every == 0 and not one.trouble and not right(ask, result):
                        one.trouble = describe(WrongValuesError(f"in call {number}"))
                    del result  # the next one may have its memory
    finally:
        gc.enable()
        for one in running:
            one.attempt(one.cleanup.close)
    limit = next(float(np.median(one.seconds)) for one in running if one.contestant.role == "limit")
    return [_row(one, limit) for one in running]


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """While this lasts, so many processes do nothing but count."""
    with _ordinary_priority():
        running = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
        time.sleep(0.5)
        try:
            yield
        finally:
            for one in running:
                one.kill()
                one.wait()


@contextmanager
def _ordinary_priority() -> Iterator[None]:
    """Of this thread and what it starts. At a real-time priority (`chrt`) processes do not take turns."""
    if not hasattr(os, "sched_setscheduler"):
        yield
        return
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    try:
        yield
    finally:
        os.sched_setscheduler(0, policy, parameters)


def named(rows: Sequence[Row], name: str) -> Row:
    """The row of that contestant."""
    return next(row for row in rows if row.name == name)


def over(row: Row, other: Row, figure: Literal["median", "mean", "p99"] = "median") -> float | None:
    """How many times the other's median, mean or p99 the row's is."""
    mine, theirs = getattr(row, figure), getattr(other, figure)
    return mine / theirs if mine and theirs else None


def describe(error: Exception) -> str:
    """One line for a table: what kept a contestant from having a figure."""
    if isinstance(error, ModuleNotFoundError):
        return f"not installed ({error.name})"
    if isinstance(error, ImportError):
        return f"not installed ({error})"
    if isinstance(error, WrongValuesError):
        return f"wrong values {error}".rstrip()
    return " ".join(f"failed: {type(error).__name__}: {error}".split())[:120]


def _row(one: _Running, limit: float) -> Row:
    who = one.contestant
    if one.trouble:
        return Row(who.name, who.role, note=who.note, trouble=one.trouble)
    return Row(who.name, who.role, tuple(one.seconds), float(np.median(one.seconds)) / limit, who.note)
