"""Chunks: the bytes pyarrow would have written, room for what is to come, and one owner each."""

import errno
import fcntl
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests import warm
from tests.faults.seam import OneByte, Refusing

import warmstore as ws
from warmstore.errors import WriteFailed
from warmstore.records.format.encoded_rows import EncodedRows
from warmstore.records.format.fields import arrow_schema
from warmstore.records.format.record_batch import batch_size, record_batch
from warmstore.records.maintenance.sealing import seal_abandoned
from warmstore.records.write.chunk_writer import ChunkWriter
from warmstore.records.write.write_buffer import block_of
from warmstore.storage.files import HUGE_PAGE, Files

FIELDS: dict[str, Any] = {"a": ws.Array("uint8", (3,)), "b": ws.Text(), "r": ws.Ragged("int16")}
SCHEMA = arrow_schema(FIELDS)


def block(count: int) -> dict[str, EncodedRows]:
    values = {
        "a": np.arange(3 * count, dtype=np.uint8).reshape(count, 3),
        "b": [str(number) * (number % 7) for number in range(count)],
        "r": [np.arange(number % 3, dtype=np.int16) for number in range(count)],
    }
    return block_of(FIELDS, values)


def batch(count: int) -> pa.RecordBatch:
    return record_batch(FIELDS, block(count), SCHEMA, seed=7)


@pytest.mark.parametrize("files", [Files(), OneByte()], ids=["whole", "one byte"])
def test_a_sealed_chunk_is_what_pyarrow_writes(tmp_path: Path, files: Files) -> None:
    batches = [batch(count) for count in (1, 5, 5, 200)]
    writer = ChunkWriter(tmp_path, 3, SCHEMA, files, "store/2")
    entries = [writer.append(one) for one in batches]
    writer.seal()
    schema = pa.ipc.open_file(writer.path).schema
    assert schema.metadata == {b"warmstore": b'{"chunk": "store/2/3"}'}
    with pa.OSFile(str(tmp_path / "other"), "wb") as sink, pa.ipc.new_file(sink, schema) as other:
        for one in batches:
            other.write_batch(one)
    assert writer.path.name == "000003.arrow"
    assert writer.path.read_bytes() == (tmp_path / "other").read_bytes()
    for entry, one in zip(entries, batches, strict=True):
        assert entry["rows"][0] == one.num_rows
        assert entry["offset"][0] % 8 == 0
        start = int(entry["offset"][0])
        stored = writer.path.read_bytes()[start : start + int(entry["header"][0] + entry["body"][0])]
        assert pa.ipc.read_record_batch(pa.py_buffer(stored), SCHEMA).equals(one)


@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_a_batch_takes_no_more_room_than_was_said(tmp_path: Path, count: int) -> None:
    writer = ChunkWriter(tmp_path, 0, SCHEMA, Files())
    size = batch_size(FIELDS, block(count))
    assert writer.has_room(size, 1)  # whatever its size, an empty chunk takes it
    writer.append(batch(count))
    before = writer.path.stat().st_size
    assert writer.has_room(size, before + size)
    assert not writer.has_room(size, before + size - 1)
    writer.append(batch(count))
    assert before + size - 2048 <= writer.path.stat().st_size <= before + size
    writer.release()


def test_a_number_is_taken_by_one_writer(tmp_path: Path) -> None:
    writer = ChunkWriter(tmp_path, 0, SCHEMA, Files())
    with pytest.raises(FileExistsError):
        ChunkWriter(tmp_path, 0, SCHEMA, Files())
    other = os.open(writer.path, os.O_RDWR)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    writer.release()
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)


@pytest.mark.parametrize("operation", range(4))
def test_whatever_is_refused_at_first_leaves_no_file(tmp_path: Path, operation: int) -> None:
    files = Refusing(errno.EDQUOT)
    files.at = operation
    with pytest.raises(WriteFailed) as caught:
        ChunkWriter(tmp_path, 0, SCHEMA, files).append(batch(1))
    assert files.refused == [("create", "sync_folder", "write", "sync")[operation]]
    assert caught.value.errno == errno.EDQUOT
    assert caught.value.filename == str(tmp_path / "000000.arrow")
    if operation < 2:
        assert not list(tmp_path.iterdir())


def test_a_refused_batch_is_cut_off_again(tmp_path: Path) -> None:
    files = Refusing()
    writer = ChunkWriter(tmp_path, 0, SCHEMA, files)
    writer.append(batch(3))
    before = writer.path.read_bytes()
    for operation in (0, 1):
        files.at = operation
        with pytest.raises(WriteFailed):
            writer.append(batch(3))
        assert writer.path.read_bytes() == before
    writer.abandon()
    assert writer.path.read_bytes() == before


def test_an_empty_chunk_is_removed_and_letting_go_twice_is_fine(tmp_path: Path) -> None:
    writer = ChunkWriter(tmp_path, 0, SCHEMA, Files())
    writer.abandon()
    assert not writer.path.exists()
    number = os.open(tmp_path, os.O_RDONLY)  # takes the descriptor that was let go of
    writer.release()
    os.fstat(number)
    os.close(number)


def large_batches(writer: ChunkWriter) -> int:
    """Append batches of 0.9 MB; returns where the last one ends."""
    rows = batch(30_000)
    for _ in range(9):
        writer.append(rows)
    return writer.next_offset


@pytest.mark.slow
def test_a_large_chunk_is_longer_than_what_it_holds_until_it_is_sealed(tmp_path: Path) -> None:
    """The page cache then has what comes next in one large page."""
    writer = ChunkWriter(tmp_path, 0, SCHEMA, Files())
    end = large_batches(writer)
    length = writer.path.stat().st_size
    assert length % HUGE_PAGE == 0
    assert end <= length <= end + HUGE_PAGE
    assert not any(writer.path.read_bytes()[end:])
    sealed = writer.seal()
    assert writer.path.stat().st_size == end + int(sealed["body"][0])
    assert pa.ipc.open_file(writer.path).num_record_batches == 9


@pytest.mark.slow
def test_a_chunk_that_may_not_be_longer_is_not(tmp_path: Path) -> None:
    writer = ChunkWriter(tmp_path, 0, SCHEMA, Files(), ahead=False)
    assert writer.path.stat().st_size == 0
    assert large_batches(writer) == writer.path.stat().st_size
    writer.release()


def test_a_chunk_that_cannot_be_extended_is_written_as_it_is(tmp_path: Path) -> None:
    class Inextensible(Files):
        def extend(self, descriptor: int, offset: int) -> bool:
            raise OSError(errno.EFBIG, "too large")

    writer = ChunkWriter(tmp_path, 0, SCHEMA, Inextensible())
    assert large_batches(writer) == writer.path.stat().st_size
    writer.seal()
    assert pa.ipc.open_file(writer.path).num_record_batches == 9


KILLED = """
import os, signal, sys
import numpy as np
import warmstore as ws
store = ws.RecordStore.create(sys.argv[1], {"x": ws.Array("uint8", (300_000,))})
for number in range(9):
    store.extend({"x": np.full((3, 300_000), number, np.uint8)})
    store.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_rows_before_the_zeros_of_a_killed_writer_are_whole(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    assert warm.run([sys.executable, "-c", KILLED, str(folder)]).returncode == -signal.SIGKILL
    (chunk,) = folder.rglob("*.arrow")
    assert chunk.stat().st_size % HUGE_PAGE == 0
    with ws.RecordStore.open(folder, mode="a") as store:
        assert seal_abandoned(store).sealed
        values = store.gather(slice(None))["x"]
        assert np.array_equal(values, np.repeat(np.arange(9, dtype=np.uint8), 3)[:, None].repeat(300_000, 1))
        assert store.verify().problems == ()
    assert pa.ipc.open_file(chunk).num_record_batches == 9


def test_an_emptied_chunk_does_not_keep_others_from_being_sealed(tmp_path: Path) -> None:
    for number in range(2):
        store = ws.RecordStore.open(tmp_path / "s", "a") if number else ws.RecordStore.create(tmp_path / "s", FIELDS)
        store.append({"b": str(number)})
        store.close(seal=False)
    os.truncate(tmp_path / "s" / "g0001" / "000000.arrow", 0)
    with ws.RecordStore.open(tmp_path / "s", "a") as store:
        result = seal_abandoned(store)
        assert (result.refused, result.sealed) == (("g0001/000000.arrow",), ("g0001/000001.arrow",))


def test_an_unsealed_chunk_is_as_long_as_what_it_holds(tmp_path: Path) -> None:
    writer = ChunkWriter(tmp_path, 0, SCHEMA, Files())
    end = large_batches(writer)
    writer.abandon()
    assert writer.path.stat().st_size == end
