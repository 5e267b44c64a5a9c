"""How many threads a copy has: one, unless processors are idle or the copy is large."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.native.control_groups import mount

from warmstore._native import thread_counts


@pytest.fixture(autouse=True)
def _four(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_counts, "most_threads", lambda: 4)
    monkeypatch.setattr(thread_counts, "_idle_until", 0.0)
    monkeypatch.setattr(thread_counts, "_asked", 0.0)


@pytest.mark.parametrize(("idle", "expected"), [(-3, 1), (0, 1), (1, 2), (2, 3), (100, 4)])
def test_helpers_are_for_idle_processors(monkeypatch: pytest.MonkeyPatch, idle: int, expected: int) -> None:
    monkeypatch.setattr(thread_counts, "_count_idle", lambda: idle)
    assert thread_counts.threads_for(1 << 22) == expected
    assert thread_counts.threads_for(1000) == 1
    assert thread_counts.threads_for(1 << 24) == 4


def test_small_copies_have_helpers_in_loops_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are awake there; waking them takes as long as the copy."""
    clock = [100.0]
    monkeypatch.setattr(thread_counts.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(thread_counts, "_count_idle", lambda: 1)
    counts = []
    for pause in (1.0, *[0.0001] * 9, 0.0004, *[0.0001] * 7, 0.002):
        clock[0] += pause
        counts.append(thread_counts.threads_for(1 << 19))
    assert counts == [*[1] * 8, 2, 2, *[1] * 9]


def test_what_the_system_said_holds_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(thread_counts, "_count_idle", lambda: asked.append(1) or 1)
    monkeypatch.setattr(thread_counts, "_KNOWN_FOR", 3600)
    assert [thread_counts.threads_for(1 << 22) for _ in range(5)] == [2] * 5
    assert len(asked) == 1


def test_busy_processes_are_seen() -> None:
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        counts = [thread_counts._count_idle() for _ in range(50)]
        assert sorted(counts)[25] <= 0
    finally:
        for one in busy:
            one.kill()
            one.wait()


@pytest.mark.parametrize(
    ("code", "env"),
    [
        ("", {"OMP_NUM_THREADS": "1"}),
        ("import torch; torch.set_num_threads(1)", {}),
        ("import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])", {}),
    ],
)
def test_what_the_user_has_said_counts(code: str, env: dict[str, str]) -> None:
    said = f"{code}\nfrom warmstore._native import most_threads\nprint(most_threads())"
    done = subprocess.run(
        [sys.executable, "-c", said], env={**os.environ, **env}, check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "1"


@pytest.mark.parametrize(
    ("own", "files", "processors"),
    [
        ("0::/job/step\n", {"job/cpu.max": "150000 100000\n", "job/step/cpu.max": "max 100000\n"}, 2),
        ("0::/\n", {"cpu.max": "100000 100000\n"}, 1),
        ("3:cpu:/job\n", {"cpu/job/cpu.cfs_quota_us": "100000\n", "cpu/job/cpu.cfs_period_us": "100000\n"}, 1),
        ("3:cpu:/job\n", {"cpu/job/cpu.cfs_quota_us": "-1\n", "cpu/job/cpu.cfs_period_us": "100000\n"}, 8),
        ("0::/\n", {}, 8),
    ],
)
def test_processors_that_groups_allow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, files: dict[str, str], processors: int
) -> None:
    mount(tmp_path, monkeypatch, own, files)
    monkeypatch.setattr(thread_counts.os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert thread_counts._processors.__wrapped__() == processors


def test_a_worker_process_has_one_and_a_rank_its_own() -> None:
    code = """
import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from warmstore._native import most_threads
if __name__ == "__main__":
    for how in ("fork", "spawn"):
        context = multiprocessing.get_context(how)
        with context.Pool(1) as pool, ProcessPoolExecutor(1, context) as ranks:
            print(pool.apply(most_threads), ranks.submit(most_threads).result() == most_threads())
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["1", "True"] * 2
