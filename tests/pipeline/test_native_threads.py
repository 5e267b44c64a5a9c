import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.pipeline.making import described, plan_of
from tests.slow import thinned
from threadpoolctl import ThreadpoolController, threadpool_info, threadpool_limits

import warmstore as ws
from warmstore.pipeline import native_libraries
from warmstore.pipeline import native_threads as native_threads_module
from warmstore.pipeline.native_threads import native_threads
from warmstore.pipeline.step_identities import difference_of

pytestmark = pytest.mark.forks


def pools(index: int) -> dict[str, int]:
    """The most threads of any pool, in the process that makes a sample."""
    return {"index": index, "threads": most_threads()}


def most_threads() -> int:
    return max(pool["num_threads"] for pool in threadpool_info())


def product(index: int) -> Any:
    rng = np.random.default_rng(index)
    return rng.standard_normal((77, 301)).astype(np.float32) @ rng.standard_normal((301, 143)).astype(np.float32)


@pytest.mark.parametrize("workers", thinned(2, [0, 2]))
@pytest.mark.parametrize("threads", [1, 3])
def test_steps_run_with_the_threads_they_are_given(workers: int, threads: int) -> None:
    with threadpool_limits(2):
        with ws.Pipeline(range(8), threads=threads).step(pools).loader(batch_size=4, workers=workers) as loader:
            for batch in loader:
                assert (batch["threads"] == threads).all()
        assert most_threads() == 2  # the program's own are as they were


def limits_after_a_sample(told: Any) -> None:
    with threadpool_limits(2):
        assert ws.Pipeline(range(8)).step(pools)[3]["threads"] == 1
        told.send(most_threads())


def test_a_process_that_trains_gets_its_threads_back() -> None:
    """One of several ranks has a parent too, and is no worker of a loader."""
    context = multiprocessing.get_context("spawn")
    heard, told = context.Pipe()
    rank = context.Process(target=limits_after_a_sample, args=(told,))
    rank.start()
    assert heard.poll(60)
    assert heard.recv() == 2
    rank.join()


def test_all_who_make_samples_agree_on_every_bit() -> None:
    pipe = ws.Pipeline(range(40)).step(product)
    alone = [pipe[index] for index in range(40)]
    for workers in (0, 2):
        with closing(pipe.loader(batch_size=40, workers=workers, sampler=ws.Sequential())) as loader:
            (batch,) = list(loader)
        assert [each.tobytes() for each in batch] == [each.tobytes() for each in alone]


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """A program that sets the number of torch, which each of its threads takes up before its first operation."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("threads", [1, 3])
def test_each_of_several_threads_has_the_limit(threads: int) -> None:
    """OpenMP and torch count for each thread."""
    together = threading.Barrier(3, timeout=60)

    def met(index: int) -> dict[str, int]:
        together.wait()
        return {**pools(index), "torch": torch.get_num_threads()}

    pipe = ws.Pipeline(range(12), threads=threads).step(met)

    def own_threads(index: int) -> tuple[int, int, int]:
        before = torch.get_num_threads()
        made = pipe[index]
        assert torch.get_num_threads() == before
        return before, made["threads"], made["torch"]

    with torch_threads(2), ThreadPoolExecutor(3) as executor:
        assert list(executor.map(own_threads, range(12))) == [(2, threads, threads)] * 12


def sums(index: int) -> torch.Tensor:
    drawn = torch.randn(2**18, generator=torch.Generator().manual_seed(index))
    return torch.stack([drawn.sum(), (drawn * drawn).sum()])


def singular_values(index: int) -> torch.Tensor:
    return torch.linalg.svdvals(torch.randn(77, 301, generator=torch.Generator().manual_seed(index)))


@pytest.mark.parametrize("step", [sums, singular_values])
def test_threads_agree_with_a_process_that_has_set_those_of_torch(step: Callable[[int], torch.Tensor]) -> None:
    with torch_threads(1):
        wanted = torch.stack([step(index) for index in range(10)])
    with torch_threads(2):
        pipe = ws.Pipeline(range(10)).step(step)
        for data in (pipe, ws.Subset(pipe, np.arange(10)), pipe.dataset()):
            with ws.Loader(data, 5, workers=3) as loader:
                assert np.array_equal(np.concatenate(list(loader)), wanted.numpy())


def test_a_step_that_reads_another_pipeline_gets_its_threads_back() -> None:
    inner = ws.Pipeline(range(4), threads=3).step(pools)

    def around(index: int) -> list[int]:
        return [most_threads(), inner[index]["threads"], most_threads()]

    with threadpool_limits(2):
        assert ws.Pipeline(range(4)).step(around)[1] == [1, 3, 1]
        assert most_threads() == 2


def test_a_worker_of_two_pipelines_changes_between_them() -> None:
    with ws.Loader(
        {each: ws.Pipeline(range(8), threads=each).step(pools).dataset() for each in (1, 3)}, 2, processes=1
    ) as loader:
        for batch in loader:
            assert (batch[1]["threads"] == 1).all()
            assert (batch[3]["threads"] == 3).all()


@contextmanager
def another_thread_limited_to_one() -> Iterator[None]:
    begun, ended = threading.Event(), threading.Event()

    def first(index: int) -> dict[str, int]:
        begun.set()
        assert ended.wait(60)
        return pools(index)

    with ThreadPoolExecutor(1) as executor:
        kept = executor.submit(lambda: ws.Pipeline(range(2)).step(first)[0])
        assert begun.wait(60)
        try:
            yield
        finally:
            ended.set()
        assert kept.result()["threads"] == 1


one_number_per_process = pytest.mark.skipif(
    sys.platform == "darwin", reason="NumPy's BLAS has no number of threads there"
)


@one_number_per_process
def test_samples_are_not_cached_while_another_thread_needs_another_limit(tmp_path: Path) -> None:
    calls: list[int] = []

    def counted(index: int) -> int:
        calls.append(index)
        return index

    pipe = ws.Pipeline(range(16), threads=3).step(counted, version="1")
    plan = plan_of(pipe, [(1, "disk", "raw")], folder=tmp_path)
    with pipe.loader(plan, batch_size=4) as loader:
        with another_thread_limited_to_one():
            assert sorted(np.concatenate(list(loader))) == list(range(16))
        calls.clear()
        list(loader)
        assert sorted(calls) == list(range(16))  # nothing was cached
        calls.clear()
        list(loader)
        assert not calls


@one_number_per_process
def test_answers_of_filters_are_not_kept_while_another_thread_needs_another_limit() -> None:
    calls: list[int] = []

    def even(index: int) -> bool:
        calls.append(index)
        return index % 2 == 0

    pipe = ws.Pipeline(range(16), threads=3).filter(even, workers=0, version="1")
    with another_thread_limited_to_one():
        assert len(pipe.step(str)) == 8
    for evaluated in (range(16), ()):
        calls.clear()
        assert len(pipe.step(str)) == 8
        assert calls == list(evaluated)


class Loaded:
    """A library with one number of threads per process."""

    user_api, internal_api, filepath, dynlib, num_threads = "blas", "blis", "/lib/loaded.so", None, 5

    def get_num_threads(self) -> int:
        return self.num_threads

    def set_num_threads(self, num_threads: int) -> None:
        self.num_threads = num_threads


def load() -> None:
    sys.modules.setdefault("loading", ModuleType("loading"))


def test_samples_are_not_cached_that_load_a_library_with_other_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = Loaded()
    calls: list[int] = []

    def found() -> Any:
        controllers = ThreadpoolController().lib_controllers
        return SimpleNamespace(lib_controllers=controllers + [library] * ("loading" in sys.modules))

    def importing(index: int) -> int:
        calls.append(index)
        load()
        return index

    monkeypatch.setattr(native_libraries, "ThreadpoolController", found)
    monkeypatch.setattr(native_threads_module, "_limits", native_threads_module._ThreadLimits())
    pipe = ws.Pipeline(range(16)).step(importing, version="1")
    plan = plan_of(pipe, [(1, "disk", "raw")], folder=tmp_path)
    with pipe.loader(plan, batch_size=4, sampler=ws.Sequential()) as loader:
        del sys.modules["loading"]  # samples that the new store needs as examples have loaded it
        calls.clear()
        list(loader)
        assert calls == list(range(16))
        calls.clear()
        list(loader)
        assert calls == [0, 1, 2, 3]  # those of the batch that loaded it
        assert library.num_threads == 5
    del sys.modules["loading"]


def test_a_limit_ends_with_its_context_wherever_it_is_interrupted() -> None:
    with threadpool_limits(2):
        context = native_threads(3)
        context.__enter__()
        assert most_threads() == 3
        del context
        assert most_threads() == 2


def test_a_limit_that_ends_without_leaving_is_none_for_others() -> None:
    limits = native_threads_module._ThreadLimits()
    with threadpool_limits(2):
        limits.enter(native_threads_module._Limit(3))  # an interrupt comes before `leave`
        assert most_threads() == 3
        limit = native_threads_module._Limit(1)
        thread = limits.enter(limit)
        assert most_threads() == 1
        limits.leave(limit, thread)
        assert most_threads() == 2


def test_other_threads_are_other_results() -> None:
    step = ws.Pipeline(range(4)).step(product).steps[0]
    one, other = described(step, 1), described(step, 2)
    assert difference_of([one], [other]) == "step 'product' runs with 2 native threads and not 1"


def test_threads_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="threads"):
        ws.Pipeline(range(4), threads=0)
