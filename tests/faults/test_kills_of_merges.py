"""Updates of several batches, merges, upgrades and seals killed at every operation: all of it or nothing.

Each job is counted first, so that every operation has its kill. Afterwards whoever has the store open, and whoever
opens it, sees one of the states that may be, reads every value, and goes on; disks that fill leave the first state.
"""

import contextlib
import errno
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.children import FIELDS, check, columns, in_child, record
from tests.faults.seam import Counting, FullDisk, Killing, Refusing
from tests.faults.stories import Hasty
from tests.slow import either, thinned

import warmstore as ws
from warmstore.errors import WriteFailed
from warmstore.records import store_session
from warmstore.records.write import chunk_merging
from warmstore.storage.files import Files

pytestmark = pytest.mark.forks

HERE = Path(__file__).parents[1]
BEFORE = list(range(9))
Job = Callable[[Path, Files], None]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunk_merging, "FAN_IN", 3)
    monkeypatch.setattr(store_session, "BATCH_BYTES", 300)


@contextlib.contextmanager
def without_merges() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chunk_merging, "FAN_IN", 100)
        yield


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three small chunks, which the next close merges."""
    path = tmp_path_factory.mktemp("template") / "s"
    ws.RecordStore.create(path, FIELDS, files=Hasty()).close()
    with without_merges():
        for first in (0, 3, 6):
            with ws.RecordStore.open(path, "a", files=Hasty()) as store:
                store.extend(columns(range(first, first + 3)))
    return path


@pytest.fixture
def path(tmp_path: Path, template: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "s"))


def update(path: Path, files: Files) -> None:
    """An update of three batches or more."""
    store = ws.RecordStore.open(path, "a", files=files)
    store.update([1, 8, 4, 0, 3, 5, 6], columns(range(20, 27)))
    store.close(seal=False)


def merge(path: Path, files: Files) -> None:
    """A chunk more, and all of them become one."""
    with ws.RecordStore.open(path, "a", files=files) as store:
        store.append(record(9))


def seal(path: Path, files: Files) -> None:
    with without_merges():
        store = ws.RecordStore.open(path, "a", files=files)
        store.append(record(9))
        store.seal()
        store.append(record(10))
        store.seal()
        store.close()


UPDATED = [23, 20, 2, 24, 22, 25, 26, 7, 21]
STATES: dict[Job, list[list[int]]] = {
    update: [BEFORE, UPDATED],
    merge: [BEFORE, [*BEFORE, 9]],
    seal: [BEFORE, [*BEFORE, 9], [*BEFORE, 9, 10]],
}
MOMENTS = ("before", "middle", "after")
STEP = either(16, 8)
PARTS = [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 8))]
"""Eighths of the cases, of which the short run has half of one."""


def operations(path: Path, job: Job) -> list[str]:
    """Those of a job on a copy of the store."""
    counting = Counting()
    copy = Path(shutil.copytree(path, path.with_name("count")))
    job(copy, counting)
    with ws.RecordStore.open(copy) as store:
        check(store, STATES[job][-1])
    shutil.rmtree(copy)
    return counting.seen


def test_the_jobs_do_what_they_are_to(path: Path) -> None:
    assert operations(path, update).count("write") >= 3 * 3 + 2
    merge(path, Files())
    assert sorted(file.name for file in path.rglob("*.arrow")) == ["000003.arrow", "000004.arrow"]


def go_on(path: Path, numbers: list[int]) -> None:
    """Assert that a store holds these records and is whole; append, edit, merge and rebalance it."""
    with ws.RecordStore.open(path, "a", files=Hasty()) as store:
        check(store, numbers)
        report = store.verify(progress=False)
        assert report.ok, str(report)
        store.update([0], columns([30]))
        store.append(record(31))
        store.delete([1])
        numbers = [30, 31, *numbers[2:]]
        check(store, numbers)
    for number in range(40, 43):  # and the close of the last one merges
        with ws.RecordStore.open(path, "a", files=Hasty()) as store:
            store.append(record(number))
        numbers = [*numbers, number]
    with ws.RecordStore.open(path, "a", files=Hasty()) as store:
        check(store, numbers)
        chunks = {f"{chunk:06d}.arrow" for chunk in store._snapshot.chunk.tolist()}
        live = {file.name for file in path.rglob("*.arrow")}
        assert chunks <= live
        store.rebalance(progress=False)
        check(store, numbers)
        assert store.verify(progress=False).ok


@pytest.mark.parametrize("part", thinned(12, PARTS))
@pytest.mark.parametrize("job", STATES)
def test_killed_at_any_operation(path: Path, job: Job, part: int) -> None:
    names = operations(path, job)
    seen = set()
    cases = [
        (at, moment) for at in range(len(names)) for moment in MOMENTS if moment != "middle" or names[at] == "write"
    ]
    for at, moment in dict.fromkeys((*cases[part::STEP], cases[-1])):  # all parts see a job that was killed at its end
        copy = Path(shutil.copytree(path, path.with_name(f"{at} {moment}")))
        reader = ws.RecordStore.open(copy)
        late = ws.RecordStore.open(copy)
        check(late, BEFORE)
        ended = in_child(lambda say: job(copy, Killing(at, moment)))  # noqa: B023 - called before the next
        assert ended.signal == signal.SIGKILL, (at, moment, ended.error)
        check(reader, BEFORE)  # nobody takes from it what it has mapped
        with ws.RecordStore.open(copy) as store:
            numbers = store["number"][:].tolist()
            assert numbers in STATES[job], (at, moment)
            check(store, numbers)
            assert store.verify(progress=False).ok, (at, moment)
        late.refresh()
        assert late["number"][:].tolist() == numbers, (at, moment)  # who refreshes sees what others have seen
        seen.add(STATES[job].index(numbers))
        go_on(copy, numbers)
        for opened in (reader, late):
            opened.refresh()
            assert opened["number"][:].tolist()[-3:] == [40, 41, 42], (at, moment)
            opened.close()
        shutil.rmtree(copy)
    assert len(seen) > 1


@pytest.mark.parametrize("job", thinned(3, STATES))
def test_a_disk_that_is_full_leaves_a_whole_state(path: Path, job: Job) -> None:
    room, failures = 0, 0
    while True:
        copy = Path(shutil.copytree(path, path.with_name("full")))
        files = FullDisk(room)
        try:
            job(copy, files)
            done = files.room is not None and files.room > 0
        except WriteFailed as error:
            done = False
            failures += error.errno == errno.ENOSPC
        with ws.RecordStore.open(copy) as store:
            numbers = store["number"][:].tolist()
            assert numbers in STATES[job]
            assert job is not update or done or numbers == BEFORE
            check(store, numbers)
            assert store.verify(progress=False).ok
        shutil.rmtree(copy)
        if done:
            break
        room += 331
    assert failures > 3


def test_an_update_of_several_batches_that_a_full_disk_refused_is_done_later(path: Path) -> None:
    for room in range(0, 5000, 499):
        copy = Path(shutil.copytree(path, path.with_name("full")))
        files = FullDisk()
        store = ws.RecordStore.open(copy, "a", files=files)
        files.room = room
        with pytest.raises(WriteFailed):
            store.update([1, 8, 4, 0, 3, 5, 6], columns(range(20, 27)))
        check(store, BEFORE)
        files.room = None
        store.update([1, 8, 4, 0, 3, 5, 6], columns(range(20, 27)))
        check(store, UPDATED)
        store.close()
        with ws.RecordStore.open(copy) as again:
            check(again, UPDATED)
        shutil.rmtree(copy)


@pytest.mark.parametrize("part", thinned(6, PARTS))
@pytest.mark.parametrize("forever", [False, True])
@pytest.mark.parametrize("job", STATES)
def test_any_operation_refused(path: Path, job: Job, forever: bool, part: int) -> None:
    names = operations(path, job)
    for at in range(part, len(names), STEP):
        copy = Path(shutil.copytree(path, path.with_name(str(at))))
        files = Refusing(forever=forever)
        files.at = at
        with contextlib.suppress(OSError):
            job(copy, files)
        files.at = None
        with ws.RecordStore.open(copy) as store:
            numbers = store["number"][:].tolist()
            assert numbers in STATES[job], (at, names[at])
            check(store, numbers)
        go_on(copy, numbers)
        shutil.rmtree(copy)


@pytest.mark.slow
@pytest.mark.parametrize(("version", "name"), [(1, "edited"), (1, "killed"), (3, "adopted")])
def test_an_upgrade_killed_at_any_operation(tmp_path: Path, version: int, name: str) -> None:
    frozen = HERE / "frozen" / f"format-{version}" / name

    def work(path: Path, files: Files) -> None:
        with ws.RecordStore.open(path, "a", files=files) as store, store._editing():
            pass

    def read(path: Path, mode: Any = "r") -> list[Any]:
        with ws.RecordStore.open(path, mode) as store:
            assert store.verify(progress=False).ok
            return [store.gather(slice(None), packed=False)["scalar"].tolist(), store["text"][:]]

    expected = read(frozen)
    counting = Counting()
    work(Path(shutil.copytree(frozen, tmp_path / "count")), counting)
    assert counting.seen.count("rename") == 2
    for at in range(len(counting.seen)):
        for moment in MOMENTS:
            path = Path(shutil.copytree(frozen, tmp_path / f"{at} {moment}"))
            reader = ws.RecordStore.open(path)
            ended = in_child(lambda say: work(path, Killing(at, moment)))  # noqa: B023 - called before the next
            assert ended.signal == signal.SIGKILL
            reader.refresh()
            assert reader["scalar"][:].tolist() == expected[0]
            reader.close()
            assert read(path) == expected
            work(path, Files())
            assert read(path, "a") == expected
            with ws.RecordStore.open(path) as store:
                assert store._manifest.format == 4
            assert not list(path.rglob("*.tmp")) or at > 0
            shutil.rmtree(path)
