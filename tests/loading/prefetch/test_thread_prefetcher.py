"""A crew makes things ahead in order, and forgets what waits when it is closed."""

from typing import Any

import numpy as np
import pytest

import warmstore as ws
from warmstore.loading.prefetch.thread_prefetcher import ThreadPrefetcher


def test_in_order() -> None:
    crew = ThreadPrefetcher(3)
    assert list(crew.ahead(lambda at: at * 2, iter(range(50)), 7)) == [(at, at * 2) for at in range(50)]
    crew.close()


def test_what_waits_is_forgotten_at_close() -> None:
    made = []

    def transform(batch: Any) -> Any:
        made.append(int(batch[0]))
        if batch[0] == 1:
            loader.close()  # in the only worker thread, while others wait for it
        return batch

    loader = ws.Loader(np.arange(100), 1, transform=transform, workers=1, prefetch=10)
    batches = iter(loader)
    with pytest.raises(ws.Closed):
        list(batches)
    assert made == [0, 1]


def test_a_child_does_not_touch_the_parents_threads() -> None:
    crew = ThreadPrefetcher(1)
    own, crew._pid = crew._pid, -1
    crew.close()
    crew._pid, crew._closed = own, False
    assert list(crew.ahead(str, iter([1]), 1)) == [(1, "1")]
    crew.close()


def test_a_lack_of_memory_for_threads_is_no_closed_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise RuntimeError("can't start new thread: there is no memory for it")

    loader = ws.Loader(np.arange(4), 1, workers=1)
    monkeypatch.setattr("warmstore.storage.threads.check_room", refuse)
    with pytest.raises(RuntimeError, match="no memory") as raised:
        list(loader)
    assert not isinstance(raised.value, ws.Closed)
    monkeypatch.undo()
    assert len(list(loader)) == 4
