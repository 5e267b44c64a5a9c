"""Memory that is used again: never while anybody can still see it."""

import gc
import os
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest
import torch

from warmstore.storage.memory.buffer_pool import LARGE, Arena, BufferPool, take, together

pytestmark = pytest.mark.forks


def address(array: Any) -> int:
    return int(array.ctypes.data)


def test_memory_that_was_dropped_serves_again() -> None:
    recycler = BufferPool()
    first = recycler.take(LARGE)
    place = address(first)
    del first
    assert address(recycler.take(LARGE)) == place


@pytest.mark.parametrize(
    "hold",
    [
        lambda array: array[5:9],
        lambda array: array.reshape(2, -1).view(np.int32)[:, ::2],
        lambda array: memoryview(array)[3:4],
        lambda array: torch.from_numpy(array)[::7],
        lambda array: np.frombuffer(array, np.uint16),
        lambda array: np.asarray(torch.from_numpy(array).view(torch.int64)),
    ],
    ids=["slice", "view", "memoryview", "tensor", "frombuffer", "array of tensor"],
)
def test_memory_in_sight_is_never_given_again(hold: Any) -> None:
    recycler = BufferPool()
    array = recycler.take(LARGE)
    place = address(array)
    held = hold(array)
    del array
    others = [recycler.take(LARGE) for _ in range(4)]
    assert all(address(other) != place for other in others)
    del held
    gc.collect()
    assert address(recycler.take(LARGE)) == place


def test_two_batches_at_a_time_share_nothing() -> None:
    recycler = BufferPool()
    for length in (LARGE, LARGE + 1, 2 * LARGE, LARGE):
        one, other = recycler.take(length), recycler.take(length)
        one[:], other[:] = 1, 2
        assert len(one) == len(other) == length
        assert (one == 1).all()
        del one, other


def test_a_small_array_does_not_sit_on_a_large_block() -> None:
    recycler = BufferPool()
    large = recycler.take(8 * LARGE)
    place = address(large)
    del large
    assert address(recycler.take(LARGE)) != place
    assert address(recycler.take(8 * LARGE)) == place


def test_what_is_kept_is_bounded() -> None:
    recycler = BufferPool(kept=4 * LARGE)
    arrays = [recycler.take(LARGE) for _ in range(16)]
    del arrays
    assert sum(len(free) for free, _ in recycler._free) <= 4 * LARGE


class Clock:
    """Seconds, which a test lets pass."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.parametrize("length", [LARGE, 10])
def test_sizes_that_are_over_are_not_kept(length: int) -> None:
    """A program whose results change their sizes, or a validation with larger ones, has memory for those of now."""
    clock = Clock()
    recycler = BufferPool(clock=clock)
    for large in range(2 * LARGE, 20 * LARGE, 5 * LARGE):
        recycler.take(large)
    assert sum(len(free) for free, _ in recycler._free) > 20 * LARGE
    for _ in range(8):
        clock.now += 1
        recycler.take(length)
    assert sum(len(free) for free, _ in recycler._free) == (LARGE + LARGE // 4 if length == LARGE else 0)


def test_memory_given_back_drops_what_nothing_uses() -> None:
    clock = Clock()
    recycler = BufferPool(clock=clock)
    held = recycler.take(LARGE)
    recycler.take(4 * LARGE)
    clock.now += 60
    del held
    assert [len(free) for free, _ in recycler._free] == [LARGE + LARGE // 4]


def test_small_results_drop_nothing_that_was_used_lately() -> None:
    clock = Clock()
    recycler = BufferPool(clock=clock)
    place = address(recycler.take(LARGE))
    for _ in range(10):
        clock.now += 4
        recycler.take(10)
        assert address(recycler.take(LARGE)) == place


def test_two_sizes_in_turn_both_serve_again() -> None:
    clock = Clock()
    recycler = BufferPool(clock=clock)
    for step in range(495):  # a large one in the end would be next
        recycler.take(LARGE if step % 45 else 4 * LARGE)
        clock.now += 0.1
    assert sorted(len(free) for free, _ in recycler._free) == [LARGE + LARGE // 4, 5 * LARGE]


def test_all_results_of_a_batch_serve_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many they are: the next batch is made before the last one is dropped."""
    recycler = BufferPool(kept=1000 * LARGE)
    made = []
    empty = np.empty
    monkeypatch.setattr(np, "empty", lambda *arguments: made.append(arguments) or empty(*arguments))
    for _ in range(8):
        batch = [recycler.take(LARGE) for _ in range(100)]
    assert len(batch) == 100
    assert len(made) == 200


def test_small_arrays_are_left_to_numpy() -> None:
    assert take(LARGE - 1).base is None


def test_many_threads() -> None:
    recycler = BufferPool()
    wrong = []

    def work(number: int) -> None:
        for _ in range(200):
            array = recycler.take(LARGE)
            array[::4096] = number
            if not (array[::4096] == number).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_forked_child_has_its_own() -> None:
    held = take(LARGE)
    held[:] = 7
    child = os.fork()
    if not child:
        mine = take(LARGE)
        mine[:] = 9
        os._exit(0 if (held == 7).all() and address(mine) != address(held) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert (held == 7).all()


def test_memory_that_outlives_the_module_is_left_to_the_end_of_the_process() -> None:
    code = """
import os
from warmstore.storage.memory import buffer_pool
os.held = buffer_pool.take(buffer_pool.LARGE), buffer_pool
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_copies_in_an_arena_lie_together() -> None:
    arena = Arena(LARGE)
    values = [np.arange(at, at + 600, dtype=np.float32).reshape(20, 30) for at in range(5)]
    copies = [arena.copy(one) for one in values]
    for one in values:
        one[:] = -1
    joined = together(copies)
    assert joined is not None
    assert np.shares_memory(joined, copies[0])
    assert joined.view(np.float32).reshape(5, 20, 30)[:, 0, 0].tolist() == [0, 1, 2, 3, 4]


def test_what_does_not_lie_together_is_not_said_to() -> None:
    arena, other = Arena(1000), Arena(1000)
    first, second, third = (arena.copy(np.full(10, at, np.int32)) for at in range(3))
    assert together([first, third]) is None  # a gap
    assert together([second, first]) is None
    assert together([first[::2], second]) is None
    assert together([first, other.copy(second)]) is None
    assert together([np.zeros(3), np.zeros(3)]) is None
    assert together([first.copy(), second]) is None
    assert together([second, third]) is not None


def test_an_arena_that_is_full_goes_on_in_other_memory() -> None:
    arena = Arena(100)
    copies = [arena.copy(np.full(30, at, np.uint8)) for at in range(10)]
    large = arena.copy(np.full(1000, 77, np.uint8))
    assert [set(one.tolist()) for one in copies] == [{at} for at in range(10)]
    assert set(large.tolist()) == {77}
    assert together(copies[:3]) is not None
    assert together(copies[2:4]) is None


def test_an_arena_gives_numbers_a_place_that_suits_them() -> None:
    arena = Arena(1000)
    arena.copy(np.zeros(3, np.uint8))
    assert arena.copy(np.zeros(3, np.float64)).flags.aligned


def test_threads_share_an_arena_without_sharing_a_place() -> None:
    arena, copies = Arena(LARGE), []

    def work(at: int) -> None:
        copies.extend((at, arena.copy(np.full(100, at, np.int64))) for _ in range(500))

    threads = [threading.Thread(target=work, args=(at,)) for at in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((one == at).all() for at, one in copies)


def test_where_memory_is_short_free_blocks_are_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no quarter more is taken."""
    recycler = BufferPool()
    recycler.take(4 * LARGE)  # free again, and too large for what follows
    assert len(recycler._free) == 1
    empty = np.empty

    def short(length: int, dtype: Any) -> Any:
        if recycler._free or length > LARGE:
            raise MemoryError
        return empty(length, dtype)

    monkeypatch.setattr(np, "empty", short)
    assert len(recycler.take(LARGE)) == LARGE
    with pytest.raises(MemoryError):
        recycler.take(LARGE + 1)
