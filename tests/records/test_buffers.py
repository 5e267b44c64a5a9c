"""Memory that is used again: never while anybody can still see it."""

import gc
import os
import threading
from typing import Any

import numpy as np
import pytest
import torch

from warmstore.records.buffers import LARGE, Recycler, take


def address(array: Any) -> int:
    return int(array.ctypes.data)


def test_memory_that_was_dropped_serves_again() -> None:
    recycler = Recycler()
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
    recycler = Recycler()
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
    recycler = Recycler()
    for length in (LARGE, LARGE + 1, 2 * LARGE, LARGE):
        one, other = recycler.take(length), recycler.take(length)
        one[:], other[:] = 1, 2
        assert len(one) == len(other) == length
        assert (one == 1).all()
        del one, other


def test_a_small_array_does_not_sit_on_a_large_block() -> None:
    recycler = Recycler()
    large = recycler.take(8 * LARGE)
    place = address(large)
    del large
    assert address(recycler.take(LARGE)) != place
    assert address(recycler.take(8 * LARGE)) == place


def test_what_is_kept_is_bounded() -> None:
    recycler = Recycler(kept=4 * LARGE)
    arrays = [recycler.take(LARGE) for _ in range(16)]
    del arrays
    assert sum(map(len, recycler._free)) <= 4 * LARGE


def test_small_arrays_are_left_to_numpy() -> None:
    assert take(LARGE - 1).base is None


def test_many_threads() -> None:
    recycler = Recycler()
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
