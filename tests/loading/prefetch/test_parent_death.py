"""Worker processes whose parent dies."""

import os
import time
from collections.abc import Callable

import pytest
from tests.faults.children import in_child, well

from warmstore.loading.prefetch import parent_death
from warmstore.loading.prefetch.parent_death import begin_worker

pytestmark = pytest.mark.forks


def test_a_worker_whose_parent_has_died_ends() -> None:
    """Torch's workers wait for ever if their parent dies before they have looked who it is."""
    assert in_child(lambda say: begin_worker(os.getpid(), 0)).code == 1
    assert well(in_child(lambda say: say(begin_worker(os.getppid(), 0)))) == [None]
    assert well(in_child(lambda say: say(begin_worker(None, 0)))) == [None]


def test_a_worker_that_hangs_ends_after_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parent_death, "_SECONDS", 0.05)
    monkeypatch.setattr(parent_death, "_GRACE", 0.1)

    def work(say: Callable[[object], None]) -> None:
        parent = os.getpid()
        ready, begun = os.pipe()
        if not os.fork():
            begin_worker(parent, 0)
            os.write(begun, b"x")
            time.sleep(20)
            say("it is still here")
            os._exit(0)
        os.read(ready, 1)

    assert well(in_child(work)) == []
