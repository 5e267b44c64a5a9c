"""Disks that fill or fail at every byte and every operation: an error, no row lost, none twice."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.children import FIELDS, check, columns
from tests.faults.seam import Counting, FullDisk, OneByte, Refusing
from tests.faults.small_disk import small_file_system
from tests.slow import either, thinned

import warmstore as ws
from warmstore.errors import WriteFailed

CHUNK = 4000


def flush(store: ws.RecordStore) -> WriteFailed | None:
    """Flush, and return the error of a disk that refused."""
    try:
        store.flush()
    except WriteFailed as error:
        return error
    return None


def failing(path: Path, files: FullDisk | Refusing, least: int) -> bool:
    """Flush on a disk that fails, then on one that works again; say whether it failed at all."""
    store = ws.RecordStore.open(path, "a", chunk_size=CHUNK, files=files)
    live = ws.RecordStore.open(path)
    store.extend(columns(range(least, least + 3)))
    raised = flush(store)
    failed = raised is not None
    if raised is not None:
        code = errno.ENOSPC if isinstance(files, FullDisk) else files.code
        assert raised.errno == code
        assert raised.filename
        assert str(path) in str(raised)
        assert os.strerror(code) in str(raised)
    check(store, range(least + 3))
    live.refresh()
    check(live, range(least + (0 if failed else 3)))
    if isinstance(files, FullDisk):
        files.room = None
    else:
        files.at = None
    store.extend(columns(range(least + 3, least + 5)))
    store.flush()
    check(store, range(least + 5))
    live.refresh()
    check(live, range(least + 5))
    store.close()
    fresh = ws.RecordStore.open(path)
    check(fresh, range(least + 5))
    fresh.to_arrow().validate(full=True)
    return failed


def fill(tmp_path: Path, first: int, step: int) -> int:
    """Fail after `first` bytes, `step` more, and so on until a flush succeeds; return after how many it does."""
    room = first
    while True:
        path = tmp_path / str(room)
        ws.RecordStore.create(path, FIELDS).close()
        if not failing(path, FullDisk(room), 0):
            return room
        room += step


def test_full_after_some_number_of_bytes(tmp_path: Path) -> None:
    """Some bytes of the schema, the batch and the entry."""
    enough = fill(tmp_path, 0, either(83, 11))
    assert enough > 2000
    assert 0 < fill(tmp_path / "entry", enough - 75, either(5, 1)) <= enough


@pytest.mark.slow
def test_full_after_any_number_of_bytes(tmp_path: Path) -> None:
    fill(tmp_path, 0, 1)


@pytest.mark.parametrize("code", thinned(3, [errno.EIO, errno.EDQUOT, errno.ENOSPC, errno.EACCES]))
@pytest.mark.parametrize("first", [True, False])
def test_any_operation_refused(tmp_path: Path, code: int, first: bool) -> None:
    refused = []
    for at in range(60):
        path = tmp_path / str(at)
        files = Refusing(code)
        with ws.RecordStore.create(path, FIELDS, chunk_size=CHUNK) as store:
            if not first:
                store.extend(columns(range(2)))
        files.at = at
        failing(path, files, 0 if first else 2)
        if not files.refused:
            break
        refused += files.refused
    assert refused == ["create", "sync_folder", "write", "sync", "write", "write", "sync"]


@pytest.mark.parametrize("forever", thinned(2, [False, True]))
def test_any_operation_refused_while_chunks_roll_over(tmp_path: Path, forever: bool) -> None:
    counting = Counting()
    with ws.RecordStore.create(tmp_path / "count", FIELDS, chunk_size=1, files=counting) as store:
        counting.seen.clear()
        for number in range(3):
            store.extend(columns([number]))
            store.flush()
        total = len(counting.seen)
    for at in range(total):
        path = tmp_path / str(at)
        files = Refusing(forever=forever)
        store = ws.RecordStore.create(path, FIELDS, chunk_size=1, files=files)
        files.at = at
        for number in range(3):
            store.extend(columns([number]))
            assert flush(store) is None or files.refused
            check(store, range(number + 1))
        assert files.refused
        files.at = None
        store.close()
        check(ws.RecordStore.open(path), range(3))


def test_short_writes_of_one_byte(tmp_path: Path) -> None:
    with ws.RecordStore.create(tmp_path / "s", FIELDS, chunk_size=CHUNK, files=OneByte()) as store:
        for first in range(0, 12, 4):
            store.extend(columns(range(first, first + 4)))
            store.flush()
        check(store, range(12))
    check(ws.RecordStore.open(tmp_path / "s"), range(12))


def test_the_queue_survives_many_failures_and_keeps_its_order(tmp_path: Path) -> None:
    files = FullDisk()
    store = ws.RecordStore.create(tmp_path / "s", FIELDS, files=files)
    for number in range(20):
        files.room = 50 * number
        store.extend(columns([number]))
        with pytest.raises(WriteFailed):
            store.flush()
        check(store, range(number + 1))
    assert len(ws.RecordStore.open(tmp_path / "s")) == 0
    files.room = None
    store.close()
    check(ws.RecordStore.open(tmp_path / "s"), range(20))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with small_file_system(tmp_path, "1m") as folder:
        yield folder


def test_a_real_full_disk(small_disk: Path) -> None:
    path = small_disk / "s"
    store = ws.RecordStore.create(path, FIELDS, chunk_size=20_000)
    filler = small_disk / "filler"
    count = failures = 0
    with filler.open("wb", buffering=0) as other:
        for _ in range(40):
            with contextlib.suppress(OSError):
                other.write(bytes(25_000))
            store.extend(columns(range(count, count + 20)))
            count += 20
            raised = flush(store)
            if raised is not None:
                assert raised.errno == errno.ENOSPC
                failures += 1
            check(store, range(count))
    assert failures > 3
    committed = len(ws.RecordStore.open(path))
    assert 0 < committed < count
    check(ws.RecordStore.open(path), range(committed))
    filler.unlink()
    store.close()
    check(ws.RecordStore.open(path), range(count))
