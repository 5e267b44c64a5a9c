"""Writers killed at every operation: what was flushed is there and exact, and everybody can go on."""

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.faults.children import FIELDS, check, columns, in_child, record
from tests.faults.seam import Counting, Killing
from tests.slow import thinned

import warmstore as ws
from warmstore.errors import NotAStore
from warmstore.storage.files import Files

pytestmark = pytest.mark.forks

BATCHES, SIZE, CHUNK = 6, 3, 10_000


def write(path: Path, files: Files, say: Callable[[Any], None] = lambda _: None) -> None:
    """Create a store and append batches; say how many rows are flushed."""
    store = ws.RecordStore.create(path, FIELDS, chunk_size=CHUNK, files=files)
    say(0)
    for batch in range(BATCHES):
        store.extend(columns(range(batch * SIZE, (batch + 1) * SIZE)))
        store.flush()
        say(len(store))
    store.close()
    say(len(store))


OPERATIONS = 62


def test_the_scenario_has_so_many_operations(tmp_path: Path) -> None:
    counting = Counting()
    write(tmp_path / "s", counting)
    assert len(counting.seen) == OPERATIONS, counting.seen
    assert len(list((tmp_path / "s").rglob("*.arrow"))) == 2


def go_on(path: Path, least: int, live: ws.RecordStore | None) -> None:
    """Assert what must hold after a kill when `least` rows were said to be flushed."""
    store = ws.RecordStore.open(path, "a", chunk_size=CHUNK)
    rows = len(store)
    assert least <= rows <= BATCHES * SIZE
    assert rows % SIZE == 0  # a batch is there or not
    everybody = [store, ws.RecordStore.open(path), *([live] if live else [])]
    for one in everybody:
        one.refresh()
        check(one, range(rows))
    store.extend(columns(range(rows, rows + 2)))
    store.flush()
    for one in [*everybody, ws.RecordStore.open(path)]:
        one.refresh()
        check(one, range(rows + 2))
        assert one.to_arrow().num_rows == rows + 2
    store.close()


MOMENTS = [(at, moment) for at in range(OPERATIONS) for moment in ("before", "middle", "after")]


@pytest.mark.parametrize(("at", "moment"), thinned(12, MOMENTS))
def test_killed_at_any_operation(tmp_path: Path, at: int, moment: str) -> None:
    path = tmp_path / "s"
    ended = in_child(lambda say: write(path, Killing(at, moment), say))
    assert ended.signal == signal.SIGKILL, ended.error
    if not (path / "store.json").exists():
        assert not ended.said
        with pytest.raises(NotAStore):
            ws.RecordStore.open(path)
        ws.RecordStore.create(path, FIELDS, chunk_size=CHUNK).close()
    go_on(path, max(ended.said, default=0), None)


@pytest.mark.parametrize("flushes", thinned(4, range(1, 21)))
def test_killed_from_outside_at_any_instant(tmp_path: Path, flushes: int) -> None:
    """The parent kills as soon as it hears of the n-th flush, wherever the child is by then; a reader watches."""
    path = tmp_path / "s"
    ws.RecordStore.create(path, FIELDS).close()
    live = ws.RecordStore.open(path)
    reading, writing = os.pipe()

    def work(say: Callable[[Any], None]) -> None:
        store = ws.RecordStore.open(path, "a", chunk_size=CHUNK)
        for batch in range(10_000):
            store.extend(columns(range(batch * SIZE, (batch + 1) * SIZE)))
            store.flush()
            if batch == 0:
                os.write(writing, b"%d\n" % os.getpid())
            os.write(writing, b".")

    def killer() -> None:
        with open(reading, "rb", buffering=0) as pipe:
            child = b""
            while not child.endswith(b"\n"):
                child += pipe.read(1)
            for _ in range(flushes):
                pipe.read(1)
            os.kill(int(child), signal.SIGKILL)

    thread = threading.Thread(target=killer)
    thread.start()
    ended = in_child(work)
    thread.join()
    os.close(writing)
    assert ended.signal == signal.SIGKILL, ended.error
    store = ws.RecordStore.open(path, "a", chunk_size=CHUNK)
    rows = len(store)
    assert rows >= flushes * SIZE
    assert rows % SIZE == 0
    for one in (store, live):
        one.refresh()
        check(one, range(rows))
    store.append(record(rows))
    store.flush()
    live.refresh()
    check(live, range(rows + 1))


def test_two_killed_writers_beside_a_living_one(tmp_path: Path) -> None:
    path = tmp_path / "s"
    store = ws.RecordStore.create(path, FIELDS, chunk_size=CHUNK)
    store.append(record(0))
    store.flush()

    def work(say: Callable[[Any], None]) -> None:
        mine = ws.RecordStore.open(path, "a", files=Killing(11, "middle"))
        for number in range(1, 20):
            mine.append(record(number))
            mine.flush()
            say(number)

    for _ in range(2):
        store.refresh()
        before = len(store)
        ended = in_child(work)
        assert ended.signal == signal.SIGKILL
        store.append(record(0))
        store.flush()
        numbers = store[:]["number"].tolist()
        check(store, numbers)
        assert numbers[before:-1] == [*ended.said, len(ended.said) + 1]  # killed between the write and its sync
    check(ws.RecordStore.open(path), numbers)
