"""A lock between processes that a thread may take again."""

import contextlib
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
from tests.faults.children import in_child, well

from warmstore.storage.files import Files, file_lock
from warmstore.storage.locks import ReentrantFileLock

pytestmark = pytest.mark.forks


def is_free(path: Path) -> bool:
    with file_lock(path, Files(), wait=False) as held:
        return held


def test_a_thread_may_take_it_again(tmp_path: Path) -> None:
    lock = ReentrantFileLock(tmp_path / "lock", Files())
    with lock.held():
        with lock.held():
            assert not is_free(tmp_path / "lock")
        assert not is_free(tmp_path / "lock")
    assert is_free(tmp_path / "lock")


def test_an_error_gives_it_back(tmp_path: Path) -> None:
    lock = ReentrantFileLock(tmp_path / "lock", Files())
    for _ in range(2):
        with contextlib.suppress(KeyError), lock.held(), lock.held():
            raise KeyError
        assert is_free(tmp_path / "lock")


def test_threads_wait_for_each_other(tmp_path: Path) -> None:
    lock = ReentrantFileLock(tmp_path / "lock", Files())
    inside, most = [0], [0]

    def work() -> None:
        for _ in range(50):
            with lock.held(), lock.held():
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                os.sched_yield()
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1]


class Impatient(Files):
    """Takes no lock that somebody holds, and counts how often one was asked for."""

    asked = 0

    def lock(self, descriptor: int, *, wait: bool = True) -> bool:
        self.asked += 1
        return super().lock(descriptor, wait=False)


def test_a_forked_child_does_not_hold_what_its_parent_holds(tmp_path: Path) -> None:
    files = Impatient()
    lock = ReentrantFileLock(tmp_path / "lock", files)

    def child(say: Any) -> None:
        with lock.held():
            say(files.asked)

    with lock.held():
        assert well(in_child(child)) == [2]
        assert not is_free(tmp_path / "lock")
    assert is_free(tmp_path / "lock")


def test_a_forked_child_does_not_wait_for_threads_of_its_parent(tmp_path: Path) -> None:
    lock = ReentrantFileLock(tmp_path / "lock", Impatient())
    taken, through = threading.Event(), threading.Event()

    def hold() -> None:
        with lock.held():
            taken.set()
            through.wait()

    def child(say: Any) -> None:
        with lock.held():
            say("in")

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    try:
        assert well(in_child(child)) == ["in"]
    finally:
        through.set()
        thread.join()


def test_a_pickled_copy_is_a_lock_of_the_same_file(tmp_path: Path) -> None:
    lock = ReentrantFileLock(tmp_path / "lock", Files())
    with lock.held():
        copy = pickle.loads(pickle.dumps(lock.held)).__self__
        assert not is_free(copy._path)
    with copy.held():
        assert not is_free(tmp_path / "lock")
