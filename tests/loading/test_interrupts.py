"""An interrupt between two statements of a loader or a batch sampler: the next call does all that was left undone."""

import itertools
import re
import signal
import sys
import threading
import traceback
import types
from typing import Any

import numpy as np
import pytest

import warmstore as ws
from warmstore.loading import loader as loaders
from warmstore.loading.epoch_times import EpochTimes
from warmstore.loading.steps.epoch_steps import FixedSteps
from warmstore.loading.trainers import drawing

FIRST, SECOND = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]], [[3, 4, 5], [9, 10, 11]]
"""The batches of a single rank, and of rank 1 of 2."""
INTERRUPTED = r"/warmstore/(loading|storage)/|/threading\.py$|/concurrent/futures/"


def interrupt(*arguments: object, **options: object) -> Any:
    raise KeyboardInterrupt


def take_rank(patch: pytest.MonkeyPatch) -> None:
    patch.setenv("RANK", "1")
    patch.setenv("WORLD_SIZE", "2")


@pytest.mark.parametrize("name", ["replace", "steps_of"])
def test_a_loader_that_looks_up_its_rank(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with ws.Loader(np.arange(12), 3, ws.Sequential()) as loader:
        assert [batch.tolist() for batch in loader] == FIRST
        take_rank(monkeypatch)
        with monkeypatch.context() as patch:
            patch.setattr(loaders, name, interrupt)
            with pytest.raises(KeyboardInterrupt):
                len(loader)
        assert [batch.tolist() for batch in loader] == SECOND
        assert not loader._build.skips_batches


def test_a_batch_sampler_that_looks_up_its_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = ws.BatchSampler(12, 3, ws.Sequential())
    assert [*sampler] == FIRST
    take_rank(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(drawing, "steps_of", interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(iter(sampler))
    assert [*sampler] == SECOND


def test_a_batch_sampler_whose_epoch_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = ws.BatchSampler(12, 3, ws.Sequential())
    batches = iter(sampler)
    with monkeypatch.context() as patch:
        patch.setattr(FixedSteps, "steps", interrupt)
        with pytest.raises(KeyboardInterrupt):
            next(batches)
    assert [*batches] == FIRST
    assert sampler.state_dict()["epoch"] == 1


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("warmstore-loader")]


class Interrupting:
    def __call__(self, times: EpochTimes) -> None:
        interrupt()

    def close(self) -> None:
        pass


def test_the_last_batch_of_an_epoch_counts_once_it_is_handed_out() -> None:
    """What observes an epoch is called before."""
    with ws.Loader(np.arange(10), 4, ws.Sequential()) as loader:
        loader._observer = Interrupting()
        batches = iter(loader)
        assert [*next(batches), *next(batches)] == list(range(8))
        with pytest.raises(KeyboardInterrupt):
            next(batches)
        state = loader.state_dict()
        assert (state["epoch"], state["place"]) == (0, 8)
    with ws.Loader(np.arange(10), 4, ws.Sequential()) as loader:
        loader.load_state_dict(state)
        assert [batch.tolist() for batch in loader] == [[8, 9]]


def read(loader: ws.Loader, at: int, got: list[Any]) -> bool:
    """Read two epochs, with Ctrl-C at the n-th place of the loader where Python raises it: as a function begins, a
    generator goes on, and after a call of a function in C. Whether there are as many places."""
    left = at

    def count(frame: types.FrameType, event: str, argument: Any) -> None:
        nonlocal left
        if event in ("call", "c_return", "c_exception") and re.search(INTERRUPTED, frame.f_code.co_filename):
            left -= 1
            if not left:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

    epochs = [iter(loader), iter(loader)]
    sys.setprofile(count)
    try:
        for epoch in epochs:
            for batch in epoch:
                got.append(batch)
    finally:
        sys.setprofile(None)
    return not left


@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupt_at_any_place(workers: int) -> None:
    """It is raised as such; exactly the batches that came count; and no thread is left, also while the traceback is
    kept, as a notebook keeps it."""
    interrupts = 0
    for at in itertools.count(1):
        with ws.Loader(np.arange(10), 4, ws.Shuffle(seed=0), workers=workers, resume_partial=True) as loader:
            got: list[Any] = []
            try:
                assert not read(loader, at, got), "the interrupt is lost"
            except KeyboardInterrupt as error:
                interrupts += 1
                state = loader.state_dict()
                assert (state["epoch"], state["place"]) == (len(got) // 3, len(got) % 3 * 4), traceback.format_exc()
                assert state["finished"] == state["epoch"]
                assert not loader_threads(), traceback.format_exc()
                del error
            else:
                assert len(got) == 6
                break
    assert interrupts > 200
