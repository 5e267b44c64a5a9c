"""Disks that fill or fail at every byte and every operation: an error, no row lost, none twice."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.faults.children import FIELDS, check, columns
from tests.faults.seam import Counting, FullDisk, OneByte, Refusing

import warmstore as ws
from warmstore.errors import WriteFailed

CHUNK = 4000


def failing(path: Path, files: FullDisk | Refusing, least: int) -> bool:
    """Flush on a disk that fails, then on one that works again; say whether it failed at all."""
    store = ws.RecordStore.open(path, "a", chunk_size=CHUNK, files=files)
    live = ws.RecordStore.open(path)
    store.extend(columns(range(least, least + 3)))
    failed = False
    try:
        store.flush()
    except WriteFailed as error:
        failed = True
        code = errno.ENOSPC if isinstance(files, FullDisk) else files.code
        assert error.errno == code
        assert error.filename
        assert str(path) in str(error)
        assert os.strerror(code) in str(error)
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


@pytest.mark.parametrize("part", range(8))
def test_full_after_any_number_of_bytes(tmp_path: Path, part: int) -> None:
    """Every offset of the first kilobytes, batch and entry: eight tests of each eighth byte."""
    failures = []
    room = part
    while True:
        path = tmp_path / str(room)
        ws.RecordStore.create(path, FIELDS).close()
        failures.append(failing(path, FullDisk(room), 0))
        if not failures[-1]:
            break
        room += 8
    assert len(failures) > 300  # the schema, a batch of eight fields, and its entry


@pytest.mark.parametrize("code", [errno.EIO, errno.EDQUOT, errno.ENOSPC, errno.EACCES])
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
    assert refused == ["create", "sync_folder", "write", "sync", "write", "sync"]


@pytest.mark.parametrize("forever", [False, True])
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
            try:
                store.flush()
            except WriteFailed:
                assert files.refused
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
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_real_full_disk(small_disk: Path) -> None:
    path = small_disk / "s"
    store = ws.RecordStore.create(path, FIELDS, chunk_size=20_000)
    filler = small_disk / "filler"
    count = failures = 0
    with filler.open("wb") as other:
        for _ in range(40):
            try:
                other.write(bytes(25_000))
                other.flush()
            except OSError:
                pass
            store.extend(columns(range(count, count + 20)))
            count += 20
            try:
                store.flush()
            except WriteFailed as error:
                assert error.errno == errno.ENOSPC
                failures += 1
            check(store, range(count))
    assert failures > 3
    committed = len(ws.RecordStore.open(path))
    assert 0 < committed < count
    check(ws.RecordStore.open(path), range(committed))
    filler.unlink()
    store.close()
    check(ws.RecordStore.open(path), range(count))
