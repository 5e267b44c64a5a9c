"""Segments of workers are used again, and never while anybody refers to a batch in them."""

import gc
import os
import pickle
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from tests.faults.children import in_child, well
from tests.faults.limit_campaign import Limit

import warmstore as ws
from warmstore.loading.prefetch import shared_segments
from warmstore.loading.prefetch.process_prefetcher import MOST
from warmstore.loading.prefetch.shared_segments import WorkerSegments
from warmstore.loading.source import Source

pytestmark = pytest.mark.forks

SIDE = 1000


class Rows(Source):
    """Rows of their own numbers, made in memory that a worker hands over."""

    def __len__(self) -> int:
        return 400

    def read(self, positions: Any) -> Any:
        from warmstore.loading.prefetch.shared_memory import empty

        made = empty((len(positions), SIDE), np.dtype(np.int64))
        made[...] = positions[:, None]
        return made


@pytest.fixture
def loader() -> Iterator[ws.Loader]:
    with ws.Loader(Rows(), 10, ws.Sequential(), workers=0, processes=2, epochs=None) as made:
        yield made


def is_right(batch: Any, step: int) -> bool:
    return bool((np.asarray(batch) == 10 * (step % 40) + np.arange(10)[:, None]).all())


def segments() -> int:
    return len(shared_segments._received_segments)


def test_few_segments_for_many_batches(loader: ws.Loader) -> None:
    seen = set()
    for _ in range(3):
        for step, batch in enumerate(loader):
            assert is_right(batch, step)
            seen.add(batch.__array_interface__["data"][0])
            del batch
    assert len(seen) <= segments() <= 6 * MOST  # two workers with two messages ahead each, those in use and being built
    loader.close()
    assert segments() == 0


def test_a_batch_that_is_held_stays_as_it_is(loader: ws.Loader) -> None:
    """As itself, as a view, as a tensor, and after the loader was closed."""
    held: list[Any] = []
    for step, batch in enumerate(loader):
        held.append((batch, batch[3:], torch.from_numpy(batch), batch[2, 5:])[step % 4])
    for step, each in enumerate(held):
        wanted = 10 * step + np.arange(10)[:, None]
        rows = {0: wanted, 1: wanted[3:], 2: wanted, 3: wanted[2]}[step % 4]
        assert (np.asarray(each) == rows).all()
    last = next(iter(loader))
    loader.close()
    gc.collect()
    assert is_right(last, 0)
    assert is_right(held[0], 0)


def test_iterations_that_are_left_leak_nothing(loader: ws.Loader) -> None:
    for _ in range(12):
        for batch in islice(loader, 3):
            assert (batch == batch[0, 0] + np.arange(10)[:, None]).all()
    assert segments() <= 6 * MOST


def test_a_forked_child_keeps_its_batch(loader: ws.Loader) -> None:
    """The parent drops the batch and goes on while the child reads it."""
    batches = iter(loader)
    batch = next(batches)
    ready, go = os.pipe()
    child = os.fork()
    if not child:
        os.read(ready, 1)
        os._exit(0 if is_right(batch, 0) else 3)
    del batch
    for step, other in enumerate(batches, 1):
        assert is_right(other, step)
        del other
    os.write(go, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    os.close(ready)
    os.close(go)


def test_forks_while_a_batch_is_held_leak_nothing(loader: ws.Loader) -> None:
    """As those of the workers of an evaluation after every epoch: the last batch is still in a variable."""
    for _ in range(3):
        for step, batch in enumerate(loader):
            child = os.fork()
            if not child:
                os._exit(0 if is_right(batch, step) else 3)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    del batch
    assert segments() <= 6 * MOST


def test_a_worker_does_not_reuse_what_it_refers_to() -> None:
    """A transform may keep the arrays that it has returned."""
    own = WorkerSegments()
    first = own.take(1 << 16)
    assert own.sent(first) is not None
    pickle.loads(pickle.dumps(first))
    address = first.ctypes.data
    assert own.take(1 << 16).ctypes.data != address
    (memory,) = [memory for memory in own._segments.values() if memory.data.ctypes.data == address]
    memory.flag[0] = 0
    assert own.take(1 << 16).ctypes.data != address
    del first
    assert address in {own.take(1 << 16).ctypes.data for _ in range(3)}


def test_sizes_that_change_drop_what_does_not_fit() -> None:
    own = WorkerSegments()
    for size in (1 << 16, 1 << 20, 1 << 14, 1 << 22):
        taken = own.take(size)
        del taken
    assert len(own._segments) <= 2


@pytest.mark.parametrize("more", [0, 100])
def test_with_few_descriptors_left_nothing_is_shared(more: int) -> None:
    """A tensor is sent by a descriptor, which the consumer asks for later: it waited for ever where none was left."""

    def work(say: Callable[[Any], None]) -> None:
        own = WorkerSegments()
        os.close(0)  # as in a program of the background
        with Limit("descriptors", more).held():
            while not more:
                try:
                    os.dup(1)
                except OSError:
                    break
            shared = [own.take(1 << 16) for _ in range(100)]
            told = own.notes()
            loose = [own.shares(torch.from_numpy(np.zeros(8))) for _ in range(100)]
            say((shared[0] is not None, shared[-1] is None, loose[-1], told, own.notes()))

    ((first, last, loose, told, again),) = well(in_child(work))
    assert (first, last, loose, again) == (more > 0, True, False, [])
    assert len(told) == 1
    assert f"{'few' if more else 'no'} descriptors" in told[0]
    assert "ulimit -n" in told[0]


@pytest.mark.parametrize("part", [lambda batch: batch, lambda batch: batch[:2], lambda batch: batch.view(np.int32)])
def test_a_batch_that_is_returned_twice_stays_as_it_is(part: Any) -> None:
    """As the inputs and the labels of a language model: one of both is dropped, the other one is held."""

    def both(batch: Any) -> Any:
        return {"ids": part(batch), "labels": batch}

    with ws.Loader(Rows(), 10, ws.Sequential(), processes=1, transform=both) as loader:
        before = None
        for step, batch in enumerate(loader):
            assert (batch.pop("ids") == part(np.asarray(batch["labels"]))).all()
            assert before is None or is_right(before, step - 1)
            before = batch["labels"]
