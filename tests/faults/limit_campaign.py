"""Limits of a process: a story runs where no more memory, address space or descriptors are to be had.

The limits are the kernel's (`ulimit`). A story ends well, or with an error that says what is missing. Then the limit is
lifted, what is open is closed, and two other processes judge what is there, as after calls that fail.
"""

import ctypes
import errno
import gc
import random
import resource
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from tests.faults.children import in_child, well
from tests.faults.io_campaign import Promises, judge_each, prepared, states_after
from tests.faults.judging import quiet
from tests.faults.power_campaign import SHARED, Story

from warmstore.errors import WarmstoreError
from warmstore.storage.memory import buffer_pool

MISSING = (errno.ENOMEM, errno.EMFILE)
"""What an OSError says that is none of warmstore's."""
RESOURCES = {"address space": resource.RLIMIT_AS, "data": resource.RLIMIT_DATA, "descriptors": resource.RLIMIT_NOFILE}
_BATCH = 24


@dataclass(frozen=True)
class Limit:
    """A limit of a process. more: bytes or descriptors beyond those that it has when the story begins."""

    name: str
    more: int

    def __str__(self) -> str:
        return f"{self.more:,} more {'' if self.name == 'descriptors' else 'bytes of '}{self.name}"

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the limit inside a `with`."""
        kind = RESOURCES[self.name]
        before, most = resource.getrlimit(kind)
        limit = self._limit()
        resource.setrlimit(kind, (limit, most))
        try:
            yield
        finally:
            resource.setrlimit(kind, (before, most))

    def _limit(self) -> int:
        if self.name == "descriptors":
            used = {int(path.name) for path in Path("/proc/self/fd").iterdir()}
            free = sorted(set(range(len(used) + self.more + 1)) - used)
            return free[self.more]
        buffer_pool._pool.cache_clear()
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)  # what the allocator has kept needs no more memory
        memory = psutil.Process().memory_info()
        return int(memory.vms if self.name == "address space" else memory.data) + self.more


@dataclass
class LimitResult:
    """What came of a story. limits: how many were judged; stopped: how many of them ended the story early."""

    story: str
    limits: int = 0
    stopped: int = 0
    failures: list[str] = field(default_factory=list)


def limit_of(story: Story, number: int, seed: int = 0) -> Limit:
    """A story's limit of a number."""
    rng = random.Random(f"{seed} {story.name} {number}")
    name = sorted(RESOURCES)[number % len(RESOURCES)]
    powers = {"address space": rng.choice(((8, 21), (21, 38))), "data": (8, 22), "descriptors": (0, 5)}
    return Limit(name, int(2 ** rng.uniform(*powers[name])) - 1)


def campaign(story: Story, first: int, last: int, seed: int = 0) -> LimitResult:
    """Judge the limits `first` to `last` of a story, which the seed gives."""
    result = LimitResult(story.name)
    with tempfile.TemporaryDirectory(prefix="warmstore-limits-", dir=SHARED if SHARED.is_dir() else None) as name:
        folder = Path(name)
        states = _states(story, folder / "whole")
        for start in range(first, last, _BATCH):
            limits = [limit_of(story, number, seed) for number in range(start, min(start + _BATCH, last))]
            failures, stopped = judge_each(story, folder, limits, _run, states, in_one_process=False)
            result.failures += [f"{story.name}, {limit}: {why}" for limit, why in failures]
            result.stopped += stopped
            result.limits += len(limits)
    return result


def _states(story: Story, folder: Path) -> list[Any]:
    """The states of a story's data where there are no limits."""

    def run(say: Callable[[Any], None]) -> None:
        quiet()
        say(story.run(prepared(story, folder), Promises()))  # type: ignore[arg-type]

    (states,) = well(in_child(run))
    shutil.rmtree(folder)
    return list(states)


def _run(story: Story, folder: Path, limit: Limit) -> tuple[int, int]:
    """Run a story with a limit. Returns which states of its data may be there."""
    story.run(prepared(story, folder / "before"), Promises())  # type: ignore[arg-type]  # imports what it needs
    root = prepared(story, folder)
    allowed = states_after(story, root, limit.held(), _is_told)
    if hasattr(story, "settle"):
        story.settle(root)
    return allowed


def _is_told(error: Exception) -> bool:
    if isinstance(error, OSError) and error.errno in MISSING:
        return True
    if isinstance(error, RuntimeError) and "start new thread" in str(error):  # Python's own
        return True
    return isinstance(error, MemoryError | WarmstoreError)
