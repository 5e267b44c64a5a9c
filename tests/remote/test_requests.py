"""The thread of requests when its caller is interrupted: the interrupt is raised, and nothing is left running."""

import asyncio
import gc
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from tests.slow import either

from warmstore.remote.requests import Requests
from warmstore.storage.threads import Thread


@pytest.fixture
def requests() -> Iterator[Requests]:
    with closing(Requests("memory://", at_exit=False)) as made:
        yield made


class Endless:
    """A coroutine that ends when it is cancelled."""

    def __init__(self) -> None:
        self.began, self.ended = threading.Event(), threading.Event()

    async def run(self) -> None:
        try:
            self.began.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # as requests do, which are closed
            self.ended.set()

    def is_over(self) -> bool:
        """Whether it was cancelled, or has not begun."""
        return not self.began.is_set() or self.ended.wait(20)


async def answer() -> int:
    return 3


def interrupted_after(call: Callable[..., Any], wait: Callable[[], Any] = bool) -> Callable[..., Any]:
    """A function, and a Ctrl-C when it has returned and another one, too."""

    def both(*arguments: Any, **options: Any) -> Any:
        try:
            return call(*arguments, **options)
        finally:
            wait()
            signal.raise_signal(signal.SIGINT)

    return both


@pytest.mark.parametrize("wait", [True, False])
def test_an_interrupt_while_the_thread_begins(requests: Requests, wait: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Thread, "start", interrupted_after(Thread.start))
    endless = Endless()
    with pytest.raises(KeyboardInterrupt):
        requests.run(endless.run()) if wait else requests.submit(endless.run())
    monkeypatch.undo()
    assert endless.is_over()
    assert requests.run(answer()) == 3
    assert [thread.name for thread in threading.enumerate()].count("warmstore-remote") <= 1


@pytest.mark.parametrize("wait", [True, False])
def test_an_interrupt_after_a_coroutine_was_started(
    requests: Requests, wait: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests.run(answer())
    endless = Endless()
    begin = interrupted_after(asyncio.run_coroutine_threadsafe, endless.began.wait)
    monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", begin)
    with pytest.raises(KeyboardInterrupt):
        requests.run(endless.run()) if wait else requests.submit(endless.run())
    monkeypatch.undo()
    assert endless.is_over()
    assert requests.run(answer()) == 3


@pytest.mark.filterwarnings("ignore:coroutine 'Endless.run' was never awaited")
def test_an_interrupt_at_any_time() -> None:
    """By a timer: before the coroutine is submitted, while the thread begins, and later."""
    before = signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
    timer = signal.getitimer(signal.ITIMER_REAL)
    started = [Endless() for _ in range(either(100, 3000))]
    made, interrupts = [], 0  # all of them are kept: an interrupt in a destructor is lost
    gc.disable()
    try:
        for at, endless in enumerate(started):
            with closing(Requests("memory://", at_exit=False)) as requests:
                made.append(requests)
                if at % 2:
                    requests.run(answer())
                try:
                    signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + at % 100))
                    requests.run(endless.run())
                except KeyboardInterrupt:
                    interrupts += 1
                assert requests.run(answer()) == 3
                assert endless.is_over()
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, *timer)
    assert interrupts == len(started)
    assert "warmstore-remote" not in [thread.name for thread in threading.enumerate()]


def test_a_result_that_comes_after_the_end(requests: Requests) -> None:
    """A thread of obstore delivers it though the request was cancelled, and prints what the loop raises."""

    async def running_loop() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    loop = requests.run(running_loop())
    requests.close()
    loop.call_soon_threadsafe(pytest.fail, "it is called")
