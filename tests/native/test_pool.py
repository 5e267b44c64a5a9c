"""The helper threads of the floor: callers at once, threads that come and go, forks in the middle of a copy."""

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.slow import either

from warmstore._native import twin
from warmstore._native.chosen import floor, is_compiled

pytestmark = [pytest.mark.forks, pytest.mark.skipif(not is_compiled, reason="the floor was not compiled here")]
ROWS, WIDTH = 2000, 2048
TASKS = Path("/proc/self/task")
MEMORY = np.random.default_rng(0).integers(0, 256, ROWS * WIDTH, np.uint8)


def gather(seed: int, threads: int = 3, count: int = 256) -> bool:
    """Whether a gather gives what NumPy gives."""
    rows = np.random.default_rng(seed).integers(0, ROWS, count)
    out = np.full((count, WIDTH), 7, np.uint8)
    floor.gather(MEMORY, rows * WIDTH, WIDTH, out, threads)
    return bool((out == MEMORY.reshape(ROWS, WIDTH)[rows]).all())


def test_one_caller_after_the_other() -> None:
    """Pauses of all lengths: a helper is awake, about to sleep, or asleep when a job comes."""
    for seed in range(600):
        assert gather(seed)
        time.sleep((seed % 7) * 2e-5)


def test_callers_at_the_same_time() -> None:
    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(gather, range(800)))


def test_beside_busy_processes() -> None:
    """A helper is stopped in the middle of what it does, and comes late to the next job."""
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        assert all(gather(seed) for seed in range(400))
    finally:
        for one in busy:
            one.kill()
            one.wait()


def test_thousands_of_threads_come_and_go() -> None:
    found: list[bool] = []
    rounds = either(100, 500)
    for _ in range(rounds):
        threads = [threading.Thread(target=lambda: found.append(gather(1, count=16))) for _ in range(20)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
    assert len(found) == 20 * rounds
    assert all(found)
    assert threading.active_count() < 20
    if TASKS.is_dir():
        assert len(list(TASKS.iterdir())) < 200


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_forks_in_the_middle_of_copies() -> None:
    """The child has none of the parent's helpers, and starts its own."""
    stop = threading.Event()

    def go_on() -> None:
        while not stop.is_set():
            gather(2)

    threads = [threading.Thread(target=go_on) for _ in range(3)]
    for one in threads:
        one.start()
    try:
        for number in range(either(15, 40)):
            child = os.fork()
            if child == 0:
                os._exit(0 if all(gather(seed) for seed in range(5)) else 1)
            _, status = os.waitpid(child, 0)
            assert status == 0, f"fork {number}"
            assert gather(number)
    finally:
        stop.set()
        for one in threads:
            one.join()


def test_signals_are_not_for_helpers() -> None:
    """A handler runs while a gather with helpers goes on, in the main thread."""
    code = f"""
import os, signal, threading, time
import numpy as np
from tests.slow import either
from warmstore._native import floor
memory, out = np.zeros({1 << 22}, np.uint8), np.empty((256, 2048), np.uint8)
floor.gather(memory, np.zeros(256, np.int64), 2048, out, 3)
seen = []
signal.signal(signal.SIGUSR1, lambda *_: seen.append(threading.current_thread() is threading.main_thread()))
for _ in range(20):
    os.kill(os.getpid(), signal.SIGUSR1)
    floor.gather(memory, np.zeros(256, np.int64), 2048, out, 3)
time.sleep(0.1)
print(len(seen) > 0 and all(seen))
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "True"


def test_the_lock_of_python_is_let_go() -> None:
    """Another thread counts on while large copies run."""
    big = np.zeros(1 << 26, np.uint8)
    counted = [0]
    stop = threading.Event()

    def count() -> None:
        while not stop.is_set():
            counted[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    out = np.empty((64, 1 << 20), np.uint8)
    try:
        floor.gather(big, np.zeros(64, np.int64), 1 << 20, out, 1)
        before = counted[0]
        for _ in range(5):
            floor.gather(big, np.zeros(64, np.int64), 1 << 20, out, 1)
        assert counted[0] > before
    finally:
        stop.set()
        thread.join()


def test_helpers_sleep_when_there_is_nothing_to_do() -> None:
    assert gather(3, threads=3)
    deadline = time.monotonic() + 120
    while floor.helpers_awake() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert floor.helpers_awake() == 0
    assert twin.helpers_awake() == 0


@pytest.mark.slow
def test_helpers_that_are_idle_end() -> None:
    """All of them, whichever was idle first, and as many start again."""
    before = len(list(TASKS.iterdir()))
    for seed in range(3):
        assert gather(seed, threads=40, count=2000)
        assert gather(seed, threads=3)
        assert len(list(TASKS.iterdir())) >= before + 31  # as many as there are pieces
        deadline = time.monotonic() + 120
        while len(list(TASKS.iterdir())) > before and time.monotonic() < deadline:
            time.sleep(0.1)
        assert len(list(TASKS.iterdir())) <= before


def test_checksums_and_spans_have_helpers_too() -> None:
    random = np.random.default_rng(4)
    for _ in range(100):
        starts = random.integers(0, len(MEMORY) - 40_000, 100)
        lengths = random.integers(0, 40_000, 100)
        for name, make in _CALLS.items():
            mine, theirs = make(starts, lengths), make(starts, lengths)
            getattr(floor, name)(*mine, 4)
            getattr(twin, name)(*theirs, 1)
            assert (mine[-1] == theirs[-1]).all()


_CALLS: dict[str, Any] = {
    "gather_spans": lambda starts, lengths: (MEMORY, starts, lengths, np.zeros(int(lengths.sum()), np.uint8)),
    "span_checksums": lambda starts, lengths: (
        MEMORY, starts, lengths, np.arange(len(starts), dtype=np.uint64), np.zeros(len(starts), np.uint64)
    ),
}  # fmt: skip
