"""The cached samples of a pipeline: several threads, several passes over one epoch, interrupts."""

import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.pipeline.making import numbered_files, plan_of
from torch.utils.data import DataLoader

import warmstore as ws
from warmstore.pipeline.pipeline_dataset import PipelineDataset
from warmstore.pipeline.plan.plan import Plan
from warmstore.pipeline.sample_states import SampleStates
from warmstore.pipeline.tiers.sample_store import SampleStore
from warmstore.pipeline.tiers.tier_folders import LOCK, tier_folder
from warmstore.storage.files import PLAIN, file_lock

THREADS = 4
COUNT = 16


def large(index: int) -> Any:
    """A sample of which Python does not copy the bytes at once."""
    return np.full(250_000, index, np.float32)


@pytest.fixture
def turns() -> Iterator[None]:
    """Threads take turns as often as Python can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("turns")
@pytest.mark.parametrize("is_pickled", [False, True])
def test_threads_that_read_and_fill_at_once(tmp_path: Path, is_pickled: bool) -> None:
    pipe = ws.Pipeline(range(COUNT)).step(large)
    plan = plan_of(pipe, [(1, "disk", "raw")], [COUNT], folder=tmp_path, disk=1 << 30)
    together = threading.Barrier(THREADS)
    with pipe.dataset(plan) as made:
        data = pickle.loads(pickle.dumps(made)) if is_pickled else made

        def read(first: int) -> list[int]:
            wrong = []
            for index in range(first, COUNT, THREADS):
                together.wait()
                try:
                    sample = data[index]
                except BaseException:
                    together.abort()  # else the other threads would wait for this one
                    raise
                if (sample != index).any():
                    wrong.append(index)
            return wrong

        with ThreadPoolExecutor(THREADS) as threads:
            assert list(threads.map(read, range(THREADS))) == [[]] * THREADS
        data.close()
    with pipe.dataset(plan) as again:
        assert (again._source.cached.open().rows >= 0).all()
        assert [index for index in range(COUNT) if (again[index] != index).any()] == []


@pytest.mark.filterwarnings("ignore:step 'after'")
def test_a_step_that_reads_its_own_data_set(tmp_path: Path) -> None:
    opened: list[PipelineDataset] = []

    def after(index: int) -> Any:
        return opened[0][index - 1] + 1 if index else np.zeros(3)

    pipe = ws.Pipeline(range(COUNT)).step(after)
    with pipe.dataset(plan_of(pipe, [(1, "disk", "raw")], [COUNT], folder=tmp_path)) as data:
        opened.append(data)
        assert data[5].tolist() == [5] * 3


@pytest.mark.filterwarnings("ignore:step")
def test_a_step_that_opens_another_data_set_of_the_folder(tmp_path: Path) -> None:
    inner = ws.Pipeline(range(COUNT)).step(np.full, args={"fill_value": 7})
    plan = plan_of(inner, [(1, "disk", "raw")], [COUNT], folder=tmp_path)
    opened: list[PipelineDataset] = []

    def after(index: int) -> Any:
        with file_lock(tier_folder(tmp_path) / LOCK, PLAIN, wait=False) as is_free:
            pass
        if is_free and not opened:  # else it would wait for itself
            opened.append(inner.dataset(plan))
        return opened[0][index] + 1

    pipe = ws.Pipeline(range(COUNT)).step(after, version="1")
    with pipe.dataset(plan_of(pipe, [(1, "disk", "raw")], [COUNT], folder=tmp_path)) as data:
        assert len(opened) == 1  # by one of the samples that show their form
        assert [sample.tolist() for sample in data] == [[8] * number for number in range(COUNT)]
        opened[0].close()


def test_an_iteration_that_ends_while_its_thread_waits_for_the_lock(tmp_path: Path) -> None:
    """As where the garbage collector closes it while the main thread reads a sample."""
    has_begun, is_held, is_done = (threading.Event() for _ in range(3))

    def transform(batch: Any) -> Any:
        if batch[0] == 1:
            has_begun.set()
            is_held.wait()
            data[0]
            is_done.set()
        return batch

    pipe = ws.Pipeline(range(COUNT)).step(float)
    with pipe.dataset(plan_of(pipe, [(1, "disk", "raw")], [COUNT], folder=tmp_path)) as data:
        batches = iter(ws.Loader(data, 1, transform=transform, workers=1))
        assert next(batches).tolist() == [0]
        has_begun.wait()
        with data._source.cached.lock:
            is_held.set()
            del batches
            assert not is_done.is_set()
        is_done.wait()


def first_byte(path: Path) -> Any:
    return np.frombuffer(path.read_bytes(), np.uint8)[0]


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    return numbered_files(tmp_path / "files", 8, 4)


@pytest.fixture
def pipe(paths: list[Path]) -> ws.Pipeline:
    return ws.Pipeline(paths).step(first_byte)


@pytest.fixture
def plan(pipe: ws.Pipeline, tmp_path: Path) -> Plan:
    made = plan_of(pipe, [(1, "disk", "raw")], [8], folder=tmp_path / "tiers")
    assert pipe.fill(made).computed == 8
    return made


def replace(path: Path, number: int) -> None:
    """Write a file anew, with another time."""
    earlier = path.stat().st_mtime_ns - 10**9
    path.write_bytes(bytes([number] * 4))
    os.utime(path, ns=(earlier, earlier))


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Grows with each check of all samples."""
    check, found = SampleStates.look_again, list[None]()

    def counted(states: SampleStates) -> None:
        check(states)
        found.append(None)

    monkeypatch.setattr(SampleStates, "look_again", counted)
    return found


def broken_off(loader: ws.Loader) -> list[int]:
    return next(iter(loader)).tolist()  # type: ignore[no-any-return]


def epoch_zero(loader: ws.Loader) -> list[int]:
    loader.set_epoch(0)
    return [number for batch in loader for number in batch.tolist()]


def resumed(loader: ws.Loader) -> list[int]:
    loader.load_state_dict({**loader.state_dict(), "epoch": 0, "place": 0})
    return epoch_zero(loader)


@pytest.mark.forks
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("read", [broken_off, epoch_zero, resumed])
def test_a_pass_over_the_same_epoch_sees_changed_files(
    pipe: ws.Pipeline, plan: Plan, paths: list[Path], read: Callable[[ws.Loader], list[int]], workers: int
) -> None:
    with pipe.loader(plan, 2, workers=workers, sampler=ws.Sequential()) as loader:
        assert read(loader)[:2] == [0, 1]
        for number in (77, 78):
            replace(paths[0], number)
            assert read(loader)[:2] == [number, 1]


def test_a_pass_checks_once(pipe: ws.Pipeline, plan: Plan, paths: list[Path], checks: list[None]) -> None:
    with pipe.loader(plan, 2, workers=0, sampler=ws.Sequential()) as loader:
        training = iter(loader)
        assert next(training).tolist() == [0, 1]
        assert len(checks) == 1
        replace(paths[1], 77)
        assert [batch.tolist() for batch in loader] == [[0, 77], [2, 3], [4, 5], [6, 7]]
        assert [batch.tolist() for batch in training] == [[2, 3], [4, 5], [6, 7]]
        assert len(checks) == 2
        stream = loader.stream()
        assert len([next(stream) for _ in range(9)]) == 9
        assert len(checks) == 5


@pytest.mark.forks
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_a_data_set_sees_changed_files_where_nobody_sets_epochs(
    pipe: ws.Pipeline, plan: Plan, paths: list[Path], workers: int, persistent: bool
) -> None:
    with pipe.dataset(plan) as data:
        loader: Any = DataLoader(
            data, 2, num_workers=workers, persistent_workers=persistent, collate_fn=ws.collate,
            multiprocessing_context="fork" if workers else None,
        )  # fmt: skip
        for number in (0, 77, 78):
            if number:
                replace(paths[0], number)
            assert [int(each) for batch in loader for each in batch] == [number, *range(1, 8)]
        del loader


def test_a_data_set_checks_once_in_each_pass(
    pipe: ws.Pipeline, plan: Plan, paths: list[Path], checks: list[None]
) -> None:
    with pipe.dataset(plan) as data:
        for _ in range(3):
            assert [int(data[index]) for index in range(8)] == [*range(8)]
        assert len(checks) == 3
        for number in (77, 78):  # of one epoch, broken off
            replace(paths[0], number)
            data.set_epoch(0)
            assert [int(data[index]) for index in range(3)] == [number, 1, 2]
        assert len(checks) == 5
        sampler = ws.BatchSampler(data, 4, sampler=ws.Sequential())
        for number in (79, 80):
            replace(paths[0], number)
            assert int(data.__getitems__(next(iter(sampler)))[0]) == number
        assert len(checks) == 7


def test_an_interrupted_check_is_repeated(
    pipe: ws.Pipeline, plan: Plan, paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(states: SampleStates) -> None:
        raise KeyboardInterrupt

    with pipe.dataset(plan) as data:
        assert [int(data[index]) for index in range(8)] == [*range(8)]
        replace(paths[0], 77)
        with monkeypatch.context() as patch:
            patch.setattr(SampleStates, "look_again", interrupted)
            with pytest.raises(KeyboardInterrupt):
                data[0]
        assert data[0] == 77


@pytest.mark.parametrize("seen", [0, 1, 3])
def test_an_interrupt_while_changed_samples_are_invalidated(
    pipe: ws.Pipeline, plan: Plan, paths: list[Path], monkeypatch: pytest.MonkeyPatch, seen: int
) -> None:
    invalidate, invalidated = SampleStore.invalidate, list[int]()

    def interrupted(store: SampleStore, index: int) -> None:
        if len(invalidated) == seen:
            raise KeyboardInterrupt
        invalidated.append(index)
        invalidate(store, index)

    with pipe.loader(plan, 4, workers=0, sampler=ws.Sequential()) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        for number, path in enumerate(paths):
            replace(path, 100 + number)
        with monkeypatch.context() as patch:
            patch.setattr(SampleStore, "invalidate", interrupted)
            with pytest.raises(KeyboardInterrupt):
                next(iter(loader))
        for _ in range(2):
            assert [batch.tolist() for batch in loader] == [[100, 101, 102, 103], [104, 105, 106, 107]]


def test_fills_count_what_they_have_computed(tmp_path: Path) -> None:
    calls: list[int] = []

    def counted(index: int) -> Any:
        calls.append(index)
        return np.random.default_rng(index).bytes(20_000)

    pipe = ws.Pipeline(range(200)).step(counted, version="1")
    plan = plan_of(pipe, [(1, "disk", "raw")], [200], folder=tmp_path, disk=1_000_000)
    pipe.loader(plan).close()  # some are computed to know their form
    found = 0
    for _ in range(2):
        calls.clear()
        result = pipe.fill(plan, 16, workers=0, progress=False)
        assert result.found == found
        assert result.computed == len(calls) < 100  # the rest has no room
        with pipe.loader(plan) as loader:
            found = int((loader._source.cached.open().rows >= 0).sum())  # type: ignore[attr-defined]
        assert 0 < found <= 48
    assert plan._recorder.usage.misses < 200
