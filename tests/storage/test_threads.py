"""Threads where there is no memory for them: an error at once, and never a wait."""

import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest
from tests.faults.children import in_child, well
from tests.faults.judging import quiet
from tests.faults.limit_campaign import Limit
from tests.slow import either

from warmstore.remote.requests import Requests, _used
from warmstore.storage.threads import Thread, ThreadPool

pytestmark = pytest.mark.forks


def pooled(count: int) -> None:
    pool = ThreadPool(count)
    for future in [pool.submit(threading.Event().wait, 0.01) for _ in range(count)]:
        future.result()


def plain(count: int) -> None:
    for _ in range(count):
        Thread(target=len, args=((),), daemon=True).start()


@pytest.mark.parametrize("begin", [plain, pooled])
@pytest.mark.parametrize("name", ["address space", "data"])
def test_a_start_fails_or_succeeds(name: str, begin: Callable[[int], None]) -> None:
    """With no memory beyond what earlier threads have left: their stacks are used again, and all else is missing."""

    def work(say: Callable[[Any], None], more: int) -> None:
        quiet()
        begin(4)  # imports, and stacks
        signal.alarm(20)
        with Limit(name, more).held():
            try:
                begin(40)
            except (RuntimeError, MemoryError) as error:
                outcome = str(error)
            else:
                outcome = ""
        say(outcome)

    for more in (*range(0, 100_000, either(25_000, 1000)), 1 << 31):
        (outcome,) = well(in_child(lambda say, more=more: work(say, more)))  # type: ignore[misc]
        assert (more < 1 << 31) == ("can't start new thread" in outcome), (more, outcome)


def test_requests_whose_thread_could_not_begin_are_tried_again() -> None:
    async def answer() -> int:
        return 3

    def work(say: Callable[[Any], None]) -> None:
        signal.alarm(20)
        _used.process = 0  # of another test in this process; obstore does nothing here
        requests = Requests("memory://", at_exit=False)
        with Limit("address space", 0).held(), pytest.raises(RuntimeError, match="can't start new thread"):
            requests.run(answer())
        say(requests.run(answer()))
        requests.close()

    assert well(in_child(work)) == [3]
