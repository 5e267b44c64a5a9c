"""A thread does not wait for a lock that it holds itself."""

import errno
import gc
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import warmstore as ws
from warmstore.errors import WriteFailed
from warmstore.storage import held_locks


def created(path: Path) -> ws.RecordStore:
    store = ws.RecordStore.create(path, {"number": ws.Array("int64")})
    store.extend({"number": [0, 1, 2]})
    store.flush()
    return store


def wait_for_closing() -> None:
    for thread in threading.enumerate():
        if thread.name == "warmstore-closing":
            thread.join()


class InACycle:
    """An object that only the collector ends."""

    def __init__(self, held: Any) -> None:
        self.held, self.cycle = held, self


def test_a_function_of_records_that_writes_to_the_store(tmp_path: Path) -> None:
    with created(tmp_path / "s") as store, ws.RecordStore.open(tmp_path / "s", "a") as other:

        def write(values: dict[str, Any]) -> Any:
            other.update(0, {"number": 9})
            return values["number"] + 1

        with pytest.raises(WriteFailed, match="this thread writes through another handle") as raised:
            store.map_field("number", write, progress=False)
        assert raised.value.errno == errno.EDEADLK
        assert store[:]["number"].tolist() == [0, 1, 2]
        other.update(0, {"number": 9})
        store.map_field("number", lambda values: values["number"] + 1, progress=False)
        assert store[:]["number"].tolist() == [10, 2, 3]


def test_rows_that_are_collected_amid_a_write_of_the_same_store(tmp_path: Path) -> None:
    with created(tmp_path / "s") as store:
        other = InACycle(ws.RecordStore.open(tmp_path / "s", "a"))
        other.held.extend({"number": [3]})
        with store._session.generation.log.locked():
            del other
            gc.collect()
        wait_for_closing()
        store.refresh()
        assert store[:]["number"].tolist() == [0, 1, 2, 3]


def test_a_cache_that_is_collected_amid_a_write_of_the_same_cache(tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path, "c") as cache:
        cache.put_batch([0], torch.zeros(1, 2))
        cache.flush()
        other = InACycle(ws.FeatureCache(tmp_path, "c"))
        other.held.put_batch([1], torch.ones(1, 2))
        with ws.RecordStore.open(cache.path, "a") as store, store._session.generation.log.locked():
            del other
            gc.collect()
        wait_for_closing()
        assert cache.get_batch([0, 1])[0].tolist() == [[0, 0], [1, 1]]


def test_another_thread_waits(tmp_path: Path) -> None:
    with created(tmp_path / "s") as store, ws.RecordStore.open(tmp_path / "s", "a") as other:
        other.extend({"number": [3]})
        with store._session.generation.log.locked():
            thread = threading.Thread(target=other.flush)
            thread.start()
        thread.join()
        store.refresh()
        assert len(store) == 4


def test_a_store_that_is_open_is_amid_no_write(tmp_path: Path) -> None:
    """Its chunk is locked as long as it is open; another store that is dropped is closed at once all the same."""
    with created(tmp_path / "s"):
        assert not held_locks.held()
        other = ws.RecordStore.open(tmp_path / "s", "a")
        other.extend({"number": [3]})
        del other
        assert len(ws.RecordStore.open(tmp_path / "s")) == 4
