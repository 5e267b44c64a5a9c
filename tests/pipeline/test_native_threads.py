import multiprocessing
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from tests.pipeline.making import described
from tests.slow import thinned
from threadpoolctl import threadpool_info, threadpool_limits

import warmstore as ws
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


def test_other_threads_are_other_results() -> None:
    step = ws.Pipeline(range(4)).step(product).steps[0]
    one, other = described(step, 1), described(step, 2)
    assert difference_of([one], [other]) == "step 'product' runs with 2 native threads and not 1"


def test_threads_that_cannot_be() -> None:
    with pytest.raises(ValueError, match="threads"):
        ws.Pipeline(range(4), threads=0)
