"""Bars of processes that are killed, or forked beside a thread that shows a bar of its own."""

import io
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.faults.children import in_child, well
from tqdm import tqdm

from warmstore.storage.progress import new_bar


class Deadly(io.StringIO):
    """Output that kills its process at the first write: in the middle of a bar."""

    def write(self, text: str) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return len(text)


class Slow(io.StringIO):
    """Output whose first write waits until it may end."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.may_end = threading.Event(), threading.Event()

    def write(self, text: str) -> int:
        self.begun.set()
        self.may_end.wait()
        return super().write(text)


def show_a_bar(say: Callable[[Any], None]) -> None:
    """What a child does, which ends after 30 seconds if it waits for a lock."""
    signal.alarm(30)
    text = io.StringIO()
    with new_bar(range(3), shown=True, file=text) as bar:
        say(list(bar))
    say("3/3" in text.getvalue())
    signal.alarm(0)


@pytest.mark.forks
def test_a_process_killed_in_the_middle_of_a_bar_keeps_nobody_waiting() -> None:
    new_bar(shown=False).close()
    ended = in_child(lambda _: new_bar(shown=True, file=Deadly(), total=1))
    assert ended.signal == signal.SIGKILL
    assert well(in_child(show_a_bar)) == [[0, 1, 2], True]


@pytest.mark.forks
@pytest.mark.parametrize("other", [new_bar, lambda *, shown, **options: tqdm(disable=not shown, **options)])
def test_a_child_forked_in_the_middle_of_a_bar_shows_its_own(other: Callable[..., Any]) -> None:
    slow = Slow()
    thread = threading.Thread(target=lambda: other(shown=True, file=slow, total=1).close())
    thread.start()
    slow.begun.wait()
    try:
        ended = in_child(show_a_bar)
    finally:
        slow.may_end.set()
        thread.join()
    assert well(ended) == [[0, 1, 2], True]


def test_bars_of_threads_and_the_users_share_their_lock_and_their_places() -> None:
    with tqdm(total=1, file=io.StringIO()) as users, new_bar(shown=True, file=io.StringIO(), total=1) as bar:
        assert abs(bar.pos) == abs(users.pos) + 1
        taken = threading.Event()
        with type(bar).get_lock():
            thread = threading.Thread(target=lambda: (users.refresh(), taken.set()))
            thread.start()
            assert not taken.wait(0.2)
        thread.join()


def test_a_bar_leaves_the_start_method_to_the_user() -> None:
    code = """
import multiprocessing
from warmstore.storage.progress import new_bar
with new_bar(shown=True, total=1) as bar:
    bar.update(1)
multiprocessing.set_start_method("spawn")
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
