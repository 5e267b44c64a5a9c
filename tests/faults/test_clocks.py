"""Clocks that jump, and files with times of any past and future: what is stored stays exact, and nothing hangs.

The stories of power cuts run with a clock that jumps by seconds to years whenever it is asked, and whatever they write
gets a drawn time. Two other processes judge the result, with other clocks.
"""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.faults.children import in_child, well
from tests.faults.io_campaign import Promises
from tests.faults.judging import SECONDS
from tests.faults.power_campaign import Story, spare_syncs
from tests.faults.recording import _Real, everywhere
from tests.faults.story_lists import STORIES
from tests.slow import either, thinned

pytestmark = pytest.mark.forks

JUMPS = (0, 0, 1, -1, 3600, -3600, 2 * 86400, -2 * 86400, 10 * 365 * 86400, -10 * 365 * 86400)
"""Seconds."""


class Jumping:
    """A clock of this process: `time.time` and `time.time_ns`."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._real = time.time_ns

    def __identity__(self) -> str:
        return "a clock"  # the identity of a step would count the patch of `time`, and with it the drawn numbers

    def time_ns(self) -> int:
        return self._real() + self._random.choice(JUMPS) * 10**9

    def start(self) -> None:
        time.time_ns = self.time_ns
        time.time = lambda: self.time_ns() / 1e9


class Drifting(_Real):  # type: ignore[misc, valid-type]
    """Files that have any times once they are closed, some in whole seconds."""

    def __init__(self, clock: Jumping) -> None:
        self._clock = clock

    def close(self, descriptor: int) -> None:
        modified = self._clock.time_ns()
        modified -= modified % 10**9 * (modified & 1)
        with contextlib.suppress(OSError):  # some descriptors are of no file
            os.utime(descriptor, ns=(modified, modified))
        _Real.close(self, descriptor)  # type: ignore[attr-defined]


def with_clock(seed: int, work: Callable[[], Any]) -> Any:
    """What `work` returns in a child whose clock jumps."""

    def run(say: Callable[[Any], None]) -> None:
        signal.alarm(SECONDS)
        spare_syncs()
        clock = Jumping(seed)
        clock.start()
        with everywhere(Drifting(clock)):
            say(work())

    (found,) = well(in_child(run))
    return found


@pytest.mark.parametrize("seed", range(either(1, 10)))
@pytest.mark.parametrize("story", thinned(3, STORIES), ids=lambda story: story.name)
def test_stories(story: Story, seed: int, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()

    def tell() -> list[Any]:
        promises = Promises()
        story.prepare(root)
        states = story.run(root, promises)  # type: ignore[arg-type]
        return states[promises.last.least : promises.last.most + 1]

    allowed = with_clock(3 * seed, tell)
    expected = with_clock(3 * seed + 1, lambda: story.check(root, allowed, thorough=True))
    with_clock(3 * seed + 2, lambda: story.again(root, expected))


def test_hosts_of_other_byte_order_are_refused() -> None:
    code = "import sys; sys.byteorder = 'big'; import warmstore"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode
    assert "ImportError: warmstore needs a little-endian machine" in done.stderr
