"""The cached samples of a pipeline: several threads, several passes over one epoch, interrupts."""

import pickle
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.pipeline.making import plan_of

import warmstore as ws
from warmstore.pipeline.pipeline_dataset import PipelineDataset

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
