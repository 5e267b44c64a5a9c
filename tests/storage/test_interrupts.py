"""An error of a signal's handler as a lock is taken or left: the lock is free, even while the error lives."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import warmstore as ws
from warmstore.functions import large_values
from warmstore.loading.prefetch import shared_segments
from warmstore.replicate.fetch_process import FetchProcess
from warmstore.storage import interrupts
from warmstore.storage.files import PLAIN, file_lock
from warmstore.storage.interrupts import uninterrupted
from warmstore.storage.lease import is_locked
from warmstore.storage.locks import ReentrantFileLock
from warmstore.storage.memory import buffer_pool, private_pages
from warmstore.storage.reading_lease import ReadingLease

Made = tuple[AbstractContextManager[Any], Path]
"""A context that takes a lock, and the locked file."""


class Interrupted(Exception):
    """What the handler raises, as torch's for a worker that was killed."""


@contextlib.contextmanager
def raising(number: int) -> Iterator[None]:
    def handle(*ignored: Any) -> None:
        raise Interrupted

    before = signal.signal(number, handle)
    try:
        yield
    finally:
        signal.signal(number, before)


@contextlib.contextmanager
def coming_at(number: int, context: object, name: str, event: str) -> Iterator[None]:
    """The signal comes as a method of the context begins or ends: there Python looks for signals."""

    def trace(frame: FrameType, kind: str, argument: Any) -> Any:
        if frame.f_code.co_name != name or frame.f_locals.get("self") is not context:
            return None
        if kind == event:
            sys.settrace(None)
            signal.raise_signal(number)
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


@contextlib.contextmanager
def lock(folder: Path) -> Iterator[Made]:
    yield file_lock(folder / "lock", PLAIN, briefly=True), folder / "lock"


@contextlib.contextmanager
def reentrant(folder: Path) -> Iterator[Made]:
    yield ReentrantFileLock(folder / "lock", PLAIN).held(), folder / "lock"


@contextlib.contextmanager
def log(folder: Path) -> Iterator[Made]:
    with ws.RecordStore.create(folder / "s", {"x": ws.Array("int64")}) as store:
        generation = store._session.generation  # type: ignore[attr-defined]
        yield generation.log.locked(), generation.folder / "log"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGCHLD])
@pytest.mark.parametrize(("name", "event"), [("__enter__", "return"), ("__exit__", "call")])
@pytest.mark.parametrize("make", [lock, reentrant, log])
def test_a_lock_is_free_after_an_interrupt(
    make: Callable[[Path], AbstractContextManager[Made]],
    name: str,
    event: str,
    number: int,
    tmp_path: Path,
) -> None:
    with make(tmp_path) as (context, path), raising(number):
        with pytest.raises(Interrupted) as error, coming_at(number, context, name, event), context:
            assert is_locked(path)
        assert error.value.__traceback__ is not None
        assert not is_locked(path)


def test_both_signals_wait_for_the_end_and_ctrl_c_is_raised() -> None:
    done = []

    def section() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGCHLD)
            signal.raise_signal(signal.SIGINT)
            done.append(1)

    with raising(signal.SIGCHLD):
        with pytest.raises(KeyboardInterrupt):
            section()
        assert done
        with pytest.raises(Interrupted):
            signal.raise_signal(signal.SIGCHLD)  # handled as before


def test_the_third_ctrl_c_does_not_wait_and_a_killed_worker_is_told() -> None:
    done = []

    def section() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGCHLD)
            for number in range(3):
                signal.raise_signal(signal.SIGINT)
                done.append(number)

    with raising(signal.SIGCHLD), pytest.raises(Interrupted):
        section()
    assert done == [0, 1]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGCHLD])
def test_no_signal_is_held_back_for_ever_whatever_line_of_a_section_another_comes_at(number: int) -> None:
    def trace(frame: FrameType, kind: str, argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename != interrupts.__file__:
            return None
        if kind == "line":
            left -= 1
            if left == -1:
                signal.raise_signal(number)
        return trace

    def section() -> None:
        sys.settrace(trace)
        try:
            with uninterrupted():
                pass
        finally:
            sys.settrace(None)

    def held_back() -> None:
        with uninterrupted():
            signal.raise_signal(each)
            done.append(each)

    with raising(signal.SIGINT), raising(signal.SIGCHLD):
        line = left = 0
        while left <= 0:
            left = line
            with contextlib.suppress(Interrupted):
                section()
            for each in (signal.SIGINT, signal.SIGCHLD):
                done: list[int] = []
                with pytest.raises(Interrupted):
                    signal.raise_signal(each)
                with pytest.raises(Interrupted):
                    held_back()
                assert done == [each]
            line += 1
    assert line > 20


@pytest.mark.parametrize(
    "cls",
    [ReadingLease, buffer_pool.Lease, private_pages._Pages, shared_segments._Lent, large_values._Open, FetchProcess],
)
def test_an_object_ends_quietly_whose_constructor_was_interrupted(cls: Any) -> None:
    views = private_pages._Pages.count
    cls.__new__(cls).__del__()
    assert private_pages._Pages.count == views
