"""An interrupt between two statements of a loader or a batch sampler: the next call does all that was left undone."""

import itertools
import threading
import time
import traceback
import weakref
from typing import Any

import numpy as np
import pytest
from tests.faults.interrupters import CallInterrupter

import warmstore as ws
from warmstore.loading import loader as loaders
from warmstore.loading.epoch_times import EpochTimes
from warmstore.loading.steps.epoch_steps import FixedSteps
from warmstore.loading.trainers import drawing

FIRST, SECOND = [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]], [[3, 4, 5], [9, 10, 11]]
"""The batches of a single rank, and of rank 1 of 2."""


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


def read(loader: ws.Loader, got: list[Any]) -> None:
    for _ in range(2):
        for batch in loader:
            got.append(batch)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_an_interrupt_at_any_place(workers: int) -> None:
    """It is raised as such; exactly the batches that came count; and no thread and no prefetched batch is left, also
    while the traceback is kept, as a notebook keeps it."""
    made: list[weakref.ref[Any]] = []

    def slowly(batch: Any) -> Any:
        time.sleep(0.0003)  # so that the loader waits
        made.append(weakref.ref(batch))
        return batch

    interrupts = 0
    for place in itertools.count():
        made.clear()
        with ws.Loader(
            np.arange(10), 4, ws.Shuffle(seed=0), transform=slowly, workers=workers, resume_partial=True
        ) as loader:
            interrupter, got = CallInterrupter(place), list[Any]()
            try:
                with interrupter:
                    read(loader, got)
            except KeyboardInterrupt:
                interrupts += 1
                state = loader.state_dict()
                assert (state["epoch"], state["place"]) == (len(got) // 3, len(got) % 3 * 4), traceback.format_exc()
                assert state["finished"] == state["epoch"]
                assert not loader_threads(), traceback.format_exc()
                kept = [batch for each in made if (batch := each()) is not None]
                assert len(kept) <= len(got) + 1, traceback.format_exc()  # one was on its way
                del kept
            else:
                assert len(got) == 6
                if not interrupter.has_come:  # else it came in a finalizer, where Python only prints it
                    break
    assert interrupts > 0.8 * place > 200  # the others came in finalizers
