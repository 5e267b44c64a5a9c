"""Stories of several processes, any of which may be killed, as the kernel does where memory is short.

Each process tells what is there from now on. The story's own process must go on when a child is killed, and children
end when it is.
"""

import ctypes
import functools
import os
import signal
import threading
import traceback
from collections.abc import Callable, Sequence
from multiprocessing import queues
from pathlib import Path
from typing import Any

import torch
from tests.faults.cache_cuts import CacheStory, names, opened, values
from tests.faults.kill_campaign import Telling
from tests.faults.record_cuts import FIELDS, RecordStory, check_store, columns, value
from tests.pipeline.functions import change, make, shake
from tests.pipeline.making import expected, plan_of, same
from torch.utils.data import DataLoader

import warmstore as ws
from warmstore.pipeline.pipeline import Pipeline

LOST = ("killed by signal", "exited unexpectedly", "reset by peer")
"""What torch says where a worker was killed."""


class WritersStory(RecordStory):
    """Three writers of one store, two of them children, and a child that reads what they write."""

    has_children = True
    batches = 8

    def __init__(self) -> None:
        super().__init__(self._write_together)  # type: ignore[arg-type]
        self.name = "writers"

    def prepare(self, root: Path) -> None:
        ws.RecordStore.create(root / "s", FIELDS).close()

    def _write_together(self, root: Path, telling: Telling) -> list[Any]:
        writers = [_forked(telling, lambda writer=writer: self._write(root, writer, telling)) for writer in (1, 2)]
        parent = os.getpid()
        reader = _forked(telling, lambda: self._read(root, parent))
        self._write(root, 0, telling)
        for child in writers:
            os.waitpid(child, 0)
        (root / "written").touch()
        os.waitpid(reader, 0)
        return []

    def _write(self, root: Path, writer: int, telling: Telling) -> None:
        with ws.RecordStore.open(root / "s", "a", chunk_size=10_000) as store:
            for batch in range(self.batches):
                store.extend(columns(self._rows(writer, batch, batch + 1)))
                store.flush()
                telling.acknowledge((writer, batch + 1))

    def _read(self, root: Path, parent: int) -> None:
        with ws.RecordStore.open(root / "s") as store:
            known: list[int] = []
            while os.getppid() == parent and not (root / "written").exists():
                store.refresh()
                numbers = check_store(store)
                assert numbers[: len(known)] == known, f"{known} became {numbers}"
                known = numbers
                os.sched_yield()

    def _rows(self, writer: int, first: int, last: int) -> list[int]:
        """The rows of some of a writer's batches."""
        return [1000 * writer + 10 * batch + at for batch in range(first, last) for at in range(batch % 3 + 1)]

    def check(self, root: Path, allowed: list[Any], *, thorough: bool) -> tuple[list[int], bool]:
        reader = ws.RecordStore.open(root / "s")
        numbers = check_store(reader)
        for writer in range(3):
            own = [number for number in numbers if number // 1000 == writer]
            least = max((count for number, count in allowed if number == writer), default=0)
            whole = [self._rows(writer, 0, count) for count in range(least, self.batches + 1)]
            assert own in whole, f"{own} is there; {least} batches were promised"
        return self._appended(root / "s", reader, numbers)


class CollateStory(CacheStory):
    """Workers of torch's DataLoader put samples into a cache, and so does the process that takes their batches."""

    has_children = True

    def __init__(self) -> None:
        super().__init__(_collated)  # type: ignore[arg-type]
        self.name = "workers"

    def check(self, root: Path, allowed: list[Any], *, thorough: bool) -> int:
        return super().check(root, [[{number for ids in allowed for number in ids}]], thorough=thorough)


def _collated(root: Path, telling: Telling) -> list[Any]:
    _look_often_for_parents()
    _give_up_locks_of_interrupts()

    def collate(ids: Sequence[int]) -> Any:
        _put(root, ids, telling)
        return list(ids), values(ids)

    for _ in range(3):
        loader = DataLoader(
            range(32),  # type: ignore[arg-type]
            batch_size=4,
            num_workers=2,
            collate_fn=collate,
            worker_init_fn=functools.partial(_end_with, os.getpid()),
        )
        try:
            for ids, found in loader:
                assert (found == values(ids)).all()
                _put(root, range(50 + ids[0] // 4, 51 + ids[0] // 4), telling)
            break
        except (RuntimeError, ConnectionError, KeyError) as error:
            _check_that_a_worker_was_killed(error)
    return []


def _put(root: Path, ids: Sequence[int], telling: Telling) -> None:
    with opened(root) as cache:
        cache.put_batch(names(ids), values(ids))
        cache.flush()
        telling.acknowledge(list(ids))


class TrainerStory:
    """A trainer whose worker processes run a pipeline that keeps samples, and which logs each step in a store."""

    name = "trainer"
    has_children = True
    samples, size = 48, 8

    def prepare(self, root: Path) -> None:
        ws.RecordStore.create(root / "steps", FIELDS).close()

    def run(self, root: Path, telling: Telling) -> list[Any]:
        _look_often_for_parents()
        pipe, plan = self._pipe(root)
        with (
            pipe.loader(plan, self.size, seed=0, workers=2) as loader,
            ws.RecordStore.open(root / "steps", "a") as steps,
        ):
            for epoch in range(2):
                wanted = list(expected(pipe, self.size, 0, epoch))
                for _ in range(8):  # where memory is short, one worker after the other may be killed
                    if loader.epoch > epoch:
                        break
                    try:
                        for batch in loader:
                            place = loader.state_dict()["place"] or self.samples
                            assert same(batch, wanted[place // self.size - 1]), (epoch, place)
                            steps.append(value(len(steps)))
                            steps.flush()
                            telling.acknowledge(len(steps))
                    except (RuntimeError, ConnectionError) as error:
                        _check_that_a_worker_was_killed(error)
                        loader.load_state_dict(loader.state_dict())
        return []

    def _pipe(self, root: Path) -> tuple[Pipeline, Any]:
        pipe: Pipeline = ws.Pipeline(range(self.samples)).step(make, kind="dict").step(change).step(shake, random=True)
        half = self.samples // 2
        return pipe, plan_of(pipe, [(2, "disk", "raw"), (1, "memory", "raw")], [half, half], folder=root / "plan")

    def check(self, root: Path, allowed: list[Any], *, thorough: bool) -> int:
        reader = ws.RecordStore.open(root / "steps")
        numbers = check_store(reader)
        least = max(allowed, default=0)
        assert numbers in (list(range(least)), list(range(least + 1))), f"{numbers} is there; {least} were promised"
        self._epoch(root, 0)
        return len(numbers)

    def again(self, root: Path, expected: int) -> None:
        with ws.RecordStore.open(root / "steps") as steps:
            assert check_store(steps) == list(range(expected))
        assert self._epoch(root, 1) == self.samples

    def _epoch(self, root: Path, number: int) -> int:
        """Compare an epoch with what the steps make. Returns how many samples are kept at its end."""
        pipe, plan = self._pipe(root)
        with pipe.loader(plan, self.size, seed=number, workers=0) as loader:
            for batch, like in zip(loader, expected(pipe, self.size, number, 0), strict=True):
                assert same(batch, like)
            return int((loader._source.cached.open().rows >= 0).sum())


def _forked(telling: Telling, work: Callable[[], None]) -> int:
    """Run a function in a forked child, which ends with it. Its errors are the story's."""
    child = os.fork()
    if child:
        return child
    try:
        work()
    except BaseException:
        telling.fail(traceback.format_exc())
    os._exit(0)


def _look_often_for_parents() -> None:
    """Let torch's workers look every 50 ms, and not every 5 s, whether their parent lives."""
    torch.utils.data._utils.worker.MP_STATUS_CHECK_INTERVAL = 0.05


def _give_up_locks_of_interrupts() -> None:
    """An interrupt that comes as one of Python's queues takes its lock leaves it locked; then the queue ends never."""
    end = queues.Queue._finalize_close

    def end_unless_locked(buffer: Any, condition: threading.Condition) -> None:
        if condition.acquire(timeout=5):
            condition.release()
            end(buffer, condition)

    queues.Queue._finalize_close = staticmethod(end_unless_locked)


def _end_with(parent: int, worker: int) -> None:
    """Torch's workers never end if their parent has died before they looked first who it is."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        os._exit(1)


def _check_that_a_worker_was_killed(error: Exception) -> None:
    """Torch's error may come where a thread is started, which then fails to clean up."""
    if not any(words in f"{error} {error.__context__}" for words in LOST):
        raise error


STORIES = [WritersStory(), CollateStory(), TrainerStory()]
