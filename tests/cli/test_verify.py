"""`warmstore store verify` and `seal` on stores with real damage: what is printed, exit codes, and what is left."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.cli.test_store import run
from tests.faults.children import in_child

import warmstore as ws

pytestmark = pytest.mark.forks

WIDTH = 100


def values(number: int) -> dict[str, Any]:
    return {"x": np.full(WIDTH, number), "t": f"text {number}"}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Records 0 to 29 in three batches; the text of record 0 is replaced, and records 3 and 5 by 29 and 28."""
    path = tmp_path / "s"
    with ws.RecordStore.create(path, {"x": ws.Array("int64", (WIDTH,)), "t": ws.Text()}) as made:
        for first in range(0, 30, 10):
            for number in range(first, first + 10):
                made.append(values(number))
            made.flush()
        made.update(0, {"t": "new"})
        made.delete([3, 5])
    return path


def numbers_of(path: Path) -> tuple[list[Any], list[Any]]:
    with ws.RecordStore.open(path) as opened:
        found = opened[:]["x"]
        first = [None if np.ma.is_masked(row) else int(row[0]) for row in found]
        return first, opened[:]["t"]


EDITED = [0, 1, 2, 29, 4, 28, *range(6, 28)]


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 4
    path.write_bytes(data)


def paths(store: Path, *names: str) -> Iterable[Path]:
    return (store / name for name in names)


WHOLE: dict[str, tuple[tuple[str, ...], int]] = {
    "store.json": (("store.json",), 30),
    "its copy": (("g0001/store.json.copy",), 30),
    "log": (("g0001/log",), 70),
    "its last entry": (("g0001/log",), 64 * 5 + 3),
    "numbers": (("g0001/numbers",), 5),
}


@pytest.mark.parametrize("damage", WHOLE)
def test_files_with_whole_copies_are_restored(store: Path, damage: str) -> None:
    names, at = WHOLE[damage]
    for path in paths(store, *names):
        flip(path, at)
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    code, said, _ = run("store", "verify", store)
    assert code == 1
    assert f"{names[0]} is damaged; its copy is intact" in said
    assert "--repair repairs what can be repaired" in said
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before  # only looked at
    code, said, _ = run("store", "verify", store, "--repair")
    assert code == 0
    assert f"restored: {names[0]}" in said
    assert "absent now" not in said
    code, said, _ = run("store", "verify", store)
    assert code == 0
    assert said.endswith("all match their checksums\n")
    assert numbers_of(store) == (EDITED, ["new", *(f"text {n}" for n in EDITED[1:])])


def test_a_damaged_value_is_absent_afterwards(store: Path) -> None:
    chunk = store / "g0001" / "000000.arrow"
    flip(chunk, chunk.read_bytes().index(np.full(WIDTH, 7).tobytes()) + 9)
    code, said, _ = run("store", "verify", store)
    assert code == 1
    assert "000000.arrow: 1 of field 'x', at positions 7" in said
    code, said, _ = run("store", "verify", store, "--repair")
    assert code == 0
    assert "absent now: 1 of field 'x', which were in 000000.arrow" in said
    assert run("store", "verify", store)[0] == 0
    numbers, texts = numbers_of(store)
    assert numbers == [None if number == 7 else number for number in EDITED]
    assert texts == ["new", *(f"text {n}" for n in EDITED[1:])]


def test_damage_in_json(store: Path) -> None:
    chunk = store / "g0001" / "000000.arrow"
    flip(chunk, chunk.read_bytes().index(np.full(WIDTH, 7).tobytes()) + 9)
    code, said, _ = run("store", "verify", store, "--json")
    found = json.loads(said)
    assert (code, found["ok"], found["problems"][0]["positions"]) == (1, False, [7])
    assert not found["repaired"]
    code, said, _ = run("store", "verify", store, "--repair", "--json")
    assert code == 0
    found = json.loads(said)
    assert "absent now: 1 of field 'x', which were in 000000.arrow" in found["repairs"]
    assert found["repaired"]
    assert json.loads(run("store", "verify", store, "--json")[1])["ok"]


def test_a_missing_chunk_leaves_absent_records(store: Path) -> None:
    (store / "g0001" / "000000.arrow").unlink()
    assert run("store", "verify", store)[0] == 1
    code, said, _ = run("store", "verify", store, "--repair")
    assert code == 0
    assert "absent now: 28 of field 't'" in said
    assert run("store", "verify", store)[0] == 0
    assert numbers_of(store) == ([None] * 28, [None] * 28)


def test_a_store_that_only_opens_with_salvage_is_said_so(store: Path) -> None:
    for path in paths(store, "g0001/numbers", "g0001/numbers.copy"):
        flip(path, 5)
    for _ in range(2):
        code, said, _ = run("store", "verify", store)
        assert code == 1
        assert "not applied: entry 4 of the log, update of 1 records" in said
        assert "it opens only with salvage=True, without the edits that are not applied" in said
    code, said, _ = run("store", "verify", store, "--repair")
    assert code == 0
    assert "left out: entry 5 of the log, delete of 2 records" in said
    assert run("store", "verify", store)[0] == 0
    assert numbers_of(store) == (list(range(30)), [f"text {n}" for n in range(30)])


def test_what_cannot_be_repaired_is_an_error(store: Path) -> None:
    for path in paths(store, "store.json", "g0001/store.json.copy"):
        flip(path, 30)
    for options in ((), ("--repair",)):
        code, said, error = run("store", "verify", store, *options)
        assert (code, said) == (1, "")
        assert "does not match its checksum; restore it from a copy" in error


def test_a_whole_store_is_neither_repaired_nor_written(store: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*")}
    code, said, _ = run("store", "verify", store, "--repair")
    assert code == 0
    assert said.count("\n") == 1
    assert said.endswith("all match their checksums\n")
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*")} == before


@pytest.fixture
def abandoned(tmp_path: Path) -> Path:
    """Two chunks of writers that died, with edits, and the sealed one of a third."""
    path = tmp_path / "a"
    ws.RecordStore.create(path, {"x": ws.Array("int64", (WIDTH,)), "t": ws.Text()}).close()

    def work(say: Callable[[Any], None]) -> None:
        writer = ws.RecordStore.open(path, "a")
        writer._hand_over()  # nobody closes it
        for number in range(3):
            writer.append(values(number))
            writer.flush()
        writer.update(0, {"t": "new"})

    for _ in range(2):
        assert not in_child(work).signal
    with ws.RecordStore.open(path, "a") as writer:
        writer.append(values(9))
    return path


def is_sealed(chunk: Path) -> bool:
    return chunk.read_bytes().endswith(b"ARROW1")


def test_chunks_of_dead_writers_are_sealed(abandoned: Path) -> None:
    chunks = sorted(abandoned.rglob("*.arrow"))
    assert [is_sealed(chunk) for chunk in chunks] == [False, False, True]
    with ws.RecordStore.open(abandoned) as store:
        expected = store[:]
    assert run("store", "seal", abandoned)[:2] == (0, f"{abandoned}: 2 chunks sealed\n")
    assert [pa.ipc.open_file(chunk).read_all()["t"].to_pylist() for chunk in chunks] == [
        ["text 0", "text 1", "text 2", "new"],
        ["text 0", "text 1", "text 2", "new"],
        ["text 9"],
    ]
    with ws.RecordStore.open(abandoned, "a") as store:
        assert store.verify().ok
        assert store[:]["t"] == expected["t"]
        store.append(values(5))
    assert run("store", "seal", abandoned)[:2] == (0, f"{abandoned}: 0 chunks sealed\n")
    flip(chunks[0], -20)
    assert "000000.arrow: damaged outside the values of records" in run("store", "verify", abandoned)[1]


def test_a_chunk_that_is_being_written_is_left_alone(abandoned: Path) -> None:
    with ws.RecordStore.open(abandoned, "a") as writer:
        writer.append(values(7))
        writer.flush()
        code, said, _ = run("store", "seal", abandoned)
        assert code == 0
        assert "2 chunks sealed" in said
        assert "g0001/000003.arrow is being written" in said
        writer.append(values(8))
    with ws.RecordStore.open(abandoned) as store:
        assert store.verify().ok
        assert store["t"][-2:] == ["text 7", "text 8"]


def test_a_damaged_chunk_is_not_sealed(abandoned: Path) -> None:
    chunk = abandoned / "g0001" / "000001.arrow"
    flip(chunk, chunk.read_bytes().index(np.full(WIDTH, 2).tobytes()))
    before = chunk.read_bytes()
    code, said, error = run("store", "seal", abandoned)
    assert code == 1
    assert "1 chunk sealed" in said
    assert "g0001/000001.arrow cannot be sealed; warmstore store rebalance" in error
    assert chunk.read_bytes() == before


def test_what_a_dead_writer_left_behind_its_last_commit_goes(abandoned: Path) -> None:
    chunk = abandoned / "g0001" / "000000.arrow"
    with open(chunk, "ab") as file:
        file.write(b"a batch that was not finished" * 500)
    assert run("store", "seal", abandoned)[0] == 0
    assert pa.ipc.open_file(chunk).read_all().num_rows == 4
    assert run("store", "verify", abandoned)[0] == 0
