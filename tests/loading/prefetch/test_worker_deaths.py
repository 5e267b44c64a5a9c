"""Workers that are killed: an error where the program waits for a batch, and nothing that waits for ever."""

import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import warmstore as ws
from warmstore.loading.prefetch.worker_deaths import DeathWatch

pytestmark = pytest.mark.forks

DIED = "killed by signal: Killed"


class Deadly:
    """Samples, one of which kills the process that reads it first, while it has a lock of torch or not."""

    def __init__(self, folder: Path, *, locked: bool = False) -> None:
        self.died = folder / "died"
        self.locked = locked

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> int:
        if index == 33 and not self.died.exists():
            if self.locked and (condition := getattr(event_of_the_workers(), "_cond", None)):
                condition.acquire()
            self.died.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return index


def event_of_the_workers() -> Any:
    """What tells torch's workers that their loader ends. They look at it with each task."""
    frame: Any = sys._getframe()
    while "done_event" not in frame.f_locals:
        frame = frame.f_back
    return frame.f_locals["done_event"]


def workers_of(loader: Any) -> list[Any]:
    return list(loader._producer._pool._loader._iterator._workers)


def test_a_death_between_batches_is_told_with_the_next_one() -> None:
    with ws.Loader(range(64), 4, processes=2) as loader:
        batches = iter(loader)
        next(batches)
        os.kill(workers_of(loader)[0].pid, signal.SIGKILL)
        until = time.monotonic() + 0.5
        while time.monotonic() < until:  # torch would raise here
            time.sleep(0.01)
        with pytest.raises(RuntimeError, match=DIED):
            next(batches)
        loader.load_state_dict(loader.state_dict())
        assert sum(len(batch) for batch in loader) == 60


def test_a_death_while_a_batch_is_waited_for(tmp_path: Path) -> None:
    with ws.Loader(Deadly(tmp_path), 4, processes=2) as loader:  # type: ignore[arg-type]
        found: list[int] = []
        with pytest.raises(RuntimeError, match=f"{DIED}|exited unexpectedly"):
            found.extend(number for batch in loader for number in batch.tolist())
        loader.load_state_dict(loader.state_dict())
        found.extend(number for batch in loader for number in batch.tolist())
        assert found == list(range(60))


@pytest.mark.timeout(60)
def test_a_worker_that_dies_with_a_lock_of_torch(tmp_path: Path) -> None:
    """Torch waits for it at the end of the loader, and for ever."""
    with ws.Loader(Deadly(tmp_path, locked=True), 4, processes=2) as loader:  # type: ignore[arg-type]
        batches = iter(loader)
        next(batches)
        workers = workers_of(loader)
        with pytest.raises(RuntimeError, match=f"{DIED}|exited unexpectedly"):
            list(batches)
        assert not any(worker.is_alive() for worker in workers)
        assert sum(len(batch) for batch in loader) == 60


@pytest.mark.slow
def test_a_death_is_an_error_of_the_thread_that_waits(tmp_path: Path) -> None:
    """And not of the main thread, in which torch's handler runs. Torch looks every five seconds."""
    said: list[BaseException] = []

    def read(loader: Any) -> None:
        try:
            list(loader)
        except RuntimeError as error:
            said.append(error)

    with ws.Loader(Deadly(tmp_path), 4, processes=2) as loader:  # type: ignore[arg-type]
        next(iter(loader))  # the processes begin in the main thread, which has the handler
        reader = threading.Thread(target=read, args=(loader,))
        reader.start()
        while reader.is_alive():
            time.sleep(0.01)
    (error,) = said
    assert "exited unexpectedly" in str(error)


def test_an_error_of_torch_in_the_start_of_a_thread() -> None:
    """`Thread.start` fails once more where it cleans up."""
    loader = SimpleNamespace(_iterator=None)
    limbo: dict[str, int] = {}

    def start() -> None:
        try:
            raise RuntimeError("a worker died")
        except Exception:
            del limbo["thread"]
            raise

    with pytest.raises(RuntimeError, match="a worker died"), DeathWatch(loader):
        start()
    with pytest.raises(KeyError), DeathWatch(loader):
        del limbo["thread"]


def test_a_worker_that_is_killed_during_a_close_is_no_error() -> None:
    loader = ws.Loader(range(64), 4, processes=2)
    next(iter(loader))
    prefetcher: Any = loader._producer._pool
    running = prefetcher._loader._iterator

    def killed() -> None:
        del running._shutdown_workers
        os.kill(running._workers[0].pid, signal.SIGKILL)
        time.sleep(0.5)
        running._shutdown_workers()

    running._shutdown_workers = killed
    loader.close()
    assert not any(worker.is_alive() for worker in running._workers)
