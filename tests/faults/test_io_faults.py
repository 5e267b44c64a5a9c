"""Calls that fail in stories of stores and caches: some of the faults that `make torture` judges, and what it found."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tests.faults.io_campaign import SHORT, Failing, Fault, campaign, faults_of
from tests.faults.power_campaign import Story
from tests.faults.record_cuts import FIELDS, check_store, value
from tests.faults.story_lists import FAULTY
from tests.faults.test_exits import Counted
from tests.slow import either, thinned

import warmstore as ws
from warmstore.errors import WriteFailed
from warmstore.storage.files import Buffer, Files
from warmstore.storage.memory.unchecked_reader import UncheckedReader

pytestmark = pytest.mark.forks


@pytest.mark.parametrize("story", thinned(2, FAULTY), ids=lambda story: story.name)
def test_some_faults(story: Story) -> None:
    found = campaign(story, 0, either(2, 60), seed=2)
    assert not found.failures, found.failures[0]
    assert found.faults
    assert found.calls > 10


def test_what_the_parent_has_open_is_not_the_story_s(tmp_path: Path) -> None:
    """Its child inherits it. What that has pending is no commit of the story's, which failed before its first one."""
    story = next(story for story in FAULTY if story.name == "deep")
    with Counted() as other:
        other._register()
        found = campaign(story, 0, 4, seed=2)  # one of these is the creation of the store
        other._unregister()
    assert not found.failures, found.failures[0]


def test_each_call_has_all_faults() -> None:
    faults = faults_of(["open", "write", "map"])
    assert len(faults) == 2 * (5 + 6 + 6)
    assert len(set(faults)) == len(faults)
    assert [str(fault) for fault in faults if fault.code == SHORT] == [
        "call 1 (write), a short write, once",
        "call 1 (write), a short write, for ever",
    ]


class Broken(Files):
    """A disk that takes writes and nothing else while `is_broken`."""

    is_broken = False

    def _check(self) -> None:
        if self.is_broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def sync(self, descriptor: int) -> None:
        if self.logs(descriptor):
            self._check()

    def logs(self, descriptor: int) -> bool:
        return Path(f"/proc/self/fd/{descriptor}").resolve().name == "log"

    def truncate(self, descriptor: int, length: int) -> None:
        self._check()
        super().truncate(descriptor, length)

    def read(self, descriptor: int, length: int, offset: int) -> bytes:
        if self.logs(descriptor) and offset >= 64:
            self._check()
        return super().read(descriptor, length, offset)


def test_a_refused_entry_that_cannot_be_cut_off_does_not_count(tmp_path: Path) -> None:
    """The log takes an entry, then neither syncs, nor lets it be cut off or read; later the disk works again."""
    files = Broken()
    store = ws.RecordStore.create(tmp_path / "s", FIELDS, files=files)
    store.append(value(0))
    store.flush()
    store.append(value(1))
    files.is_broken = True
    with pytest.raises(WriteFailed):
        store.flush()
    files.is_broken = False
    assert (tmp_path / "s" / "g0001" / "log").stat().st_size == 2 * 64
    assert check_store(store) == [0, 1]
    store.append(value(2))
    store.flush()
    assert check_store(store) == [0, 1, 2]
    store.close()
    with ws.RecordStore.open(tmp_path / "s") as again:
        assert check_store(again) == [0, 1, 2]


def test_refused_rows_behind_which_another_writer_has_appended_are_not_written_again(tmp_path: Path) -> None:
    files = Broken()
    store = ws.RecordStore.create(tmp_path / "s", FIELDS, files=files)
    store.append(value(0))
    store.flush()
    store.append(value(1))
    files.is_broken = True
    with pytest.raises(WriteFailed):
        store.flush()
    files.is_broken = False
    with ws.RecordStore.open(tmp_path / "s", "a") as other:
        other.append(value(2))
    for _ in range(2):
        with pytest.raises(WriteFailed, match="open the store again"):
            store.flush()
    store._session.generation.release()
    store._unregister()
    with ws.RecordStore.open(tmp_path / "s") as again:
        assert check_store(again) == [0, 1, 2]


class Dead(Files):
    """A disk on which the log and its copy can neither be written nor cut while `is_dead`."""

    is_dead = False

    def _check(self, descriptor: int) -> None:
        if self.is_dead and Path(f"/proc/self/fd/{descriptor}").resolve().name.startswith("log"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        self._check(descriptor)
        return super().write(descriptor, buffers, offset)

    def truncate(self, descriptor: int, length: int) -> None:
        self._check(descriptor)
        super().truncate(descriptor, length)


def test_what_another_writer_commits_in_the_place_of_refused_rows_stays(tmp_path: Path) -> None:
    """Nothing of the refused entry has arrived, and the log could not be cut: it is as long as before."""
    files = Dead()
    store = ws.RecordStore.create(tmp_path / "s", FIELDS, files=files)
    store.append(value(0))
    store.flush()
    store.append(value(1))
    files.is_dead = True
    with pytest.raises(WriteFailed):
        store.flush()
    files.is_dead = False
    with ws.RecordStore.open(tmp_path / "s", "a") as other:
        other.append(value(2))
    store.refresh()
    assert sorted(check_store(store)) == [0, 1, 2]
    store.close()
    with ws.RecordStore.open(tmp_path / "s") as again:
        assert sorted(check_store(again)) == [0, 1, 2]


class Closing(Files):
    """Every close fails once, after the descriptor was closed."""

    def __init__(self) -> None:
        self.is_failing = False
        self.closed: list[int] = []

    def close(self, descriptor: int) -> None:
        super().close(descriptor)
        if self.is_failing:
            self.closed.append(descriptor)
            raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_store_whose_files_fail_to_close_is_closed(tmp_path: Path) -> None:
    """A second call would use descriptors that may be other files' by then."""
    files = Closing()
    with ws.RecordStore.create(tmp_path / "s", FIELDS, files=files) as store:
        store.append(value(0))
        store.flush()
        store.close(seal=False)
    store = ws.RecordStore.open(tmp_path / "s", "a", files=files)
    store.append(value(1))
    store.flush()
    store.seal()
    files.is_failing = True
    with pytest.raises(OSError, match="Input/output"):
        store.close()
    closed = list(files.closed)
    assert len(set(closed)) == len(closed) >= 2
    store.close()
    assert files.closed == closed
    with ws.RecordStore.open(tmp_path / "s") as again:
        assert check_store(again) == [0, 1]


def test_files_that_were_read_and_fail_to_close_are_all_closed(tmp_path: Path) -> None:
    files = Closing()
    paths = {slot: str(tmp_path / str(slot)) for slot in range(3)}
    for path in paths.values():
        Path(path).write_bytes(bytes(8))
    reader = UncheckedReader(files, 8, paths)
    reader.rows(np.array([0, 8, 16]), 8)
    files.is_failing = True
    reader.release()
    assert len(set(files.closed)) == 3


def test_rows_that_a_dead_disk_refused_are_committed_once(tmp_path: Path) -> None:
    """Also where the copy of the log has them, and can be neither read nor cut off."""
    for at in range(100):
        files = Failing(tmp_path)
        with ws.RecordStore.create(tmp_path / str(at), {"x": ws.Array("int64")}, files=files) as store:
            store.append({"x": 0})
            store.flush()
            store.append({"x": 1})
            files._fault = Fault(len(files.seen) + at, "any", errno.EIO, forever=True)
            refused = False
            try:
                store.flush()
            except OSError:
                refused = True
            files._fault = None
            store.flush()
        with ws.RecordStore.open(tmp_path / str(at)) as store:
            assert store["x"][:].tolist() == [0, 1], at
        if not refused:
            break
    assert at > 3
