"""A quota of bytes: counted, reserved, evicted for and never exceeded, between threads and processes too."""

import contextlib
import os
import pickle
import signal
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests.faults.children import in_child, well

from warmstore.storage.files import Files
from warmstore.storage.locks import ReentrantFileLock
from warmstore.storage.quota import ByteQuota

pytestmark = pytest.mark.forks


@dataclass
class Sizes:
    """Things of some bytes each, of which the first goes first. pinned: how many at the end cannot go."""

    sizes: list[int]
    pinned: int = 0
    asked: list[int] = field(default_factory=list)

    def nbytes(self) -> int:
        return sum(self.sizes)

    def evict(self, excess: int) -> bool:
        self.asked.append(excess)
        if len(self.sizes) <= self.pinned:
            return False
        self.sizes.pop(0)
        return True

    def refusal(self, size: int) -> Exception:
        return OverflowError(f"no room for {size}")


def test_bytes_are_counted_anew_each_time() -> None:
    content = Sizes([10])
    quota = ByteQuota(100, content)
    assert (quota.used(), quota.free()) == (10, 90)
    content.sizes.append(20)
    assert (quota.used(), quota.free()) == (30, 70)


def test_what_fits_evicts_nothing() -> None:
    content = Sizes([30, 30, 30])
    with ByteQuota(100, content).reserve(10):
        assert content.sizes == [30, 30, 30]
    assert content.asked == []


def test_eviction_goes_on_until_there_is_room_and_no_further() -> None:
    content = Sizes([30, 30, 30])
    with ByteQuota(100, content).reserve(50):
        assert content.sizes == [30]
    assert content.asked == [40, 10]


def test_what_cannot_be_reserved_is_refused_and_the_lock_given_back() -> None:
    locked = [0]

    @contextlib.contextmanager
    def lock() -> Any:
        locked[0] += 1
        yield
        locked[0] -= 1

    quota = ByteQuota(100, Sizes([30, 30], pinned=1), lock)
    with quota.reserve(70):
        assert locked == [1]
    locked[0] = 0

    def reserve(size: int) -> None:
        with quota.reserve(size):
            pytest.fail("there was room")

    with pytest.raises(OverflowError, match="no room for 71"):
        reserve(71)


def test_free_evicts_what_it_can_and_says_what_is_left() -> None:
    quota = ByteQuota(100, Sizes([30, 30, 30], pinned=1))
    assert quota.free(60) == 70
    assert quota.free(90) == 70
    assert ByteQuota(20, Sizes([30], pinned=1)).free(0) == -10


def test_nothing_is_counted_or_evicted_for_nothing() -> None:
    """Over its limit already, say since that was lowered: who frees bytes must still get the lock."""
    content = Sizes([30, 30])
    with ByteQuota(10, content).reserve(0):
        assert content.sizes == [30, 30]


@dataclass(frozen=True)
class Numbered:
    """The files of a folder, of which the one with the least number goes first."""

    folder: Path

    def nbytes(self) -> int:
        return sum(path.stat().st_size for path in self.folder.glob("[0-9]*"))

    def evict(self, excess: int) -> bool:
        files = sorted(self.folder.glob("[0-9]*"), key=lambda path: int(path.name))
        for path in files[:1]:
            path.unlink()
        return bool(files)

    def refusal(self, size: int) -> Exception:
        return OverflowError(f"no room for {size}")


LIMIT, SIZE, FILES = 1000, 90, 40


def fill(quota: ByteQuota, folder: Path, writer: int) -> int:
    """Write files one after the other; return the most bytes that were there at once."""
    most = 0
    for number in range(FILES):
        with quota.reserve(SIZE):
            (folder / f"{number * 100 + writer}").write_bytes(bytes(SIZE))
            most = max(most, quota.used())
    return most


def quota_of(folder: Path) -> ByteQuota:
    return ByteQuota(LIMIT, Numbered(folder), ReentrantFileLock(folder / "lock", Files()).held)


def test_threads_and_processes_together_stay_within_it(tmp_path: Path) -> None:
    quota = quota_of(tmp_path)
    most: list[int] = []
    others = [
        threading.Thread(
            target=lambda writer=writer: most.extend(well(in_child(lambda say: say(fill(quota, tmp_path, writer)))))
        )
        for writer in (1, 2)
    ]
    threads = [
        threading.Thread(target=lambda writer=writer: most.append(fill(quota, tmp_path, writer))) for writer in (3, 4)
    ]
    for thread in (*others, *threads):
        thread.start()
    for thread in (*others, *threads):
        thread.join()
    assert len(most) == 4
    assert LIMIT - SIZE < max(most) <= LIMIT
    assert quota.used() <= LIMIT


def test_a_pickled_copy_is_the_same_quota(tmp_path: Path) -> None:
    quota = quota_of(tmp_path)
    copy = pickle.loads(pickle.dumps(quota))
    with quota.reserve(SIZE):
        (tmp_path / "1").write_bytes(bytes(SIZE))
    assert (copy.limit, copy.used()) == (LIMIT, SIZE)
    with copy.reserve(LIMIT):
        assert not (tmp_path / "1").exists()


def test_a_killed_writer_leaves_no_reservation(tmp_path: Path) -> None:
    def die(say: Any) -> None:
        with quota_of(tmp_path).reserve(SIZE):
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(die).signal == signal.SIGKILL
    with quota_of(tmp_path).reserve(LIMIT):
        pass
