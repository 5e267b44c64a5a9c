"""Stores that memory cannot hold: rows are read from the files, by their number, and nothing is read around them."""

import dataclasses
import os
import resource
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.children import FIELDS, check, columns, in_child, well
from tests.faults.memory_cgroup import MemoryCgroup
from tests.faults.power_campaign import SHARED
from tests.slow import either

import warmstore as ws
from warmstore.errors import Damaged
from warmstore.records.read import chunk_files
from warmstore.storage.files import lies_in_memory
from warmstore.storage.memory import address_space

MB = 1 << 20


@pytest.fixture
def available(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The available memory, of which a store asks each time."""
    memory = [0]
    monkeypatch.setattr(chunk_files, "lies_in_memory", lambda _: False)
    monkeypatch.setattr(chunk_files, "_SMALL", 0)
    monkeypatch.setattr(chunk_files, "_WEIGHED_FOR", -1.0)
    monkeypatch.setattr(chunk_files, "available_memory", lambda: memory[0])
    return memory


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_all_kinds_of_fields(tmp_path: Path, codec: str, available: list[int]) -> None:
    kinds = {name: dataclasses.replace(field, codec=codec) for name, field in FIELDS.items()}
    with ws.RecordStore.create(tmp_path / "s", kinds, chunk_size=4000) as store:
        for first in range(0, 60, 6):
            store.extend(columns(range(first, first + 6)))
            store.flush()
    with ws.RecordStore.open(tmp_path / "s") as store:
        for memory, reads_files in ((0, True), (0, True), (1 << 40, False), (0, True), (1 << 40, False)):
            available[0] = memory
            check(store, range(60))
            assert store._gatherer.space.reads_files == reads_files
            positions = np.random.default_rng(0).integers(0, 60, 200)
            assert store.gather(positions)["number"].tolist() == positions.tolist()


def test_large_values_are_views_of_the_mapping(
    tmp_path: Path, available: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of many would not fit into the memory that is too small for the store."""
    blobs = [bytes([number]) * 1000 for number in range(40)]
    with ws.RecordStore.create(tmp_path / "s", {"blob": ws.Bytes()}) as store:
        store.extend({"blob": blobs})
    with ws.RecordStore.open(tmp_path / "s") as store:
        assert store["blob"][:] == blobs
        for most, is_copied in ((40_000, False), (40_001, True)):
            monkeypatch.setattr(address_space, "_COPIED", most)
            found = store["blob"][:]
            assert found == blobs
            first = np.frombuffer(found[0], np.uint8)
            assert np.shares_memory(first, store._gatherer.space.memory) != is_copied
        assert store.to_arrow()["blob"].to_pylist() == blobs


@pytest.mark.skipif(not SHARED.is_dir(), reason="no folder in memory")
@pytest.mark.usefixtures("available")
def test_files_in_memory_are_there_however_little_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """As those of a pipeline's memory tier."""
    monkeypatch.setattr(chunk_files, "lies_in_memory", lies_in_memory)
    with tempfile.TemporaryDirectory(dir=SHARED) as folder:
        with ws.RecordStore.create(Path(folder) / "s", {"x": ws.Array("int64")}) as store:
            store.extend({"x": np.arange(64)})
        with ws.RecordStore.open(Path(folder) / "s") as store:
            for _ in range(2):
                assert store["x"][:].tolist() == list(range(64))
            assert store._gatherer.column("x") is not None


def test_a_file_that_was_cut_is_damage(tmp_path: Path, available: list[int]) -> None:
    """Reading the mapping would be the end of the process."""
    with ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64", (512,))}) as store:
        store.extend({"x": np.arange(64)[:, None].repeat(512, 1)})
    with ws.RecordStore.open(tmp_path / "s") as store:
        assert store["x"][:, 0].tolist() == list(range(64))
        (chunk,) = tmp_path.rglob("*.arrow")
        os.truncate(chunk, chunk.stat().st_size // 2)
        with pytest.raises(Damaged, match="truncated while it was open"):
            store["x"][:]
        assert store["x"][:8, 0].tolist() == list(range(8))


def test_rows_of_a_generation_that_is_over(tmp_path: Path, available: list[int]) -> None:
    with ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64")}) as store:
        store.extend({"x": np.arange(64)})
    with ws.RecordStore.open(tmp_path / "s") as reader:
        assert reader["x"][:].tolist() == list(range(64))
        with ws.RecordStore.open(tmp_path / "s", "a") as store:
            store.delete(range(0, 64, 2))
            store.rebalance()
        assert reader["x"][:].tolist() == list(range(64))
        reader.refresh()
        assert sorted(reader["x"][:].tolist()) == list(range(1, 64, 2))


@pytest.mark.forks
def test_later_epochs_do_not_wait_for_page_faults(tmp_path: Path, memory_cgroup: MemoryCgroup) -> None:
    """A page fault reads 64 KiB around a row, which takes the memory of as many rows that were there: an epoch took a
    hundred times as long as the first, which reads the files."""
    rows = np.arange(48 * 1024, dtype=np.int64)[:, None].repeat(128, axis=1)
    with ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64", (128,))}) as store:
        store.extend({"x": rows})
    for path in tmp_path.rglob("*.arrow"):  # what was in memory before would count elsewhere
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    def work(say: Callable[[Any], None]) -> None:
        signal.alarm(120)
        memory_cgroup.enter()
        memory_cgroup.leave(32 * MB)
        shuffled = np.random.default_rng(0).permutation(len(rows)).reshape(-1, 512)
        with ws.RecordStore.open(tmp_path / "s") as store:
            for _ in range(either(2, 4)):
                before = resource.getrusage(resource.RUSAGE_SELF).ru_majflt
                for numbers in shuffled:
                    assert np.array_equal(store["x"][numbers], rows[numbers])
                say(resource.getrusage(resource.RUSAGE_SELF).ru_majflt - before)

    faults = well(in_child(work))
    assert len(faults) == either(2, 4)
    assert max(faults) < 1000
