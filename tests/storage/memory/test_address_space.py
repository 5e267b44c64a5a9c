"""The address space: spans of any length copied from anywhere, on one thread and on several."""

import errno
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import warmstore as ws
from warmstore.storage.files import Files
from warmstore.storage.memory.address_space import SLOT, AddressSpace

SIZE = 1 << 16
FIELDS = {
    "x": ws.Array("int64"),
    "text": ws.Text(),
    "ragged": ws.Ragged("int16"),
    "wide": ws.Array("uint8", (50_000,)),
}


def run_alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """A function's result in a new process, whose limits are its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> AddressSpace:
    path: Path = tmp_path_factory.mktemp("space") / "file"
    path.write_bytes(np.random.default_rng(0).bytes(SIZE))
    space = AddressSpace(Files())
    assert space.map(0, str(path)) == SIZE
    return space


@given(st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(0, 40)), max_size=30))
def test_spans_of_any_length(space: AddressSpace, spans: Any) -> None:
    starts = np.array([start for start, _ in spans], np.int64)
    lengths = np.array([min(length, SIZE - start) for start, length in spans], np.int64)
    out = np.full(int(lengths.sum()), 255, np.uint8)
    space.gather_spans(starts, lengths, out)
    whole = space.memory
    expected = [whole[start : start + length] for start, length in zip(starts, lengths, strict=True)]
    assert out.tobytes() == b"".join(part.tobytes() for part in expected)


def _little_address_space(path: Path, gibibytes: float) -> tuple[bool, int]:
    """Reads and writes a store in little address space; whether it was mapped, and the bytes of a slot."""
    import resource

    most = int(gibibytes * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    with ws.RecordStore.open(path, "a") as store:
        count = len(store)
        space = store._session.generation.gatherer.space
        found = space.is_mapped, space.slot
        rows = np.random.default_rng(0).integers(0, count, 50)
        assert store["x"][rows].tolist() == store["x"][rows].tolist() == rows.tolist()  # not checked yet, and checked
        assert store["text"][:5] == [f"text {number}" for number in range(5)]
        assert [part.tolist() for part in store["ragged"][rows]] == [list(range(number % 4)) for number in rows]
        wide = np.zeros((200, 50_000), np.uint8)
        wide[:, 0] = np.arange(200)
        store.extend({"x": np.arange(count, count + 200), "wide": wide})  # more than a slot had room for
        store.flush()
        assert store["wide"][-1][0] == 199
        assert store["x"][:].tolist() == list(range(count + 200))
        store.update(0, {"text": "edited"})
        assert store["text"][0] == "edited"
        assert store.verify(progress=False).ok
        assert store.to_arrow(fields=["x"]).num_rows == count + 200
    return found


@pytest.mark.parametrize(("gibibytes", "pad", "mapped"), [(40, 0, True), (2.5, 0, True), (2.5, 2**31, False)])
def test_stores_open_in_little_address_space(tmp_path: Path, gibibytes: float, pad: int, mapped: bool) -> None:
    with ws.RecordStore.create(tmp_path / "s", FIELDS) as store:
        store.extend(
            {
                "x": np.arange(300),
                "text": [f"text {number}" for number in range(300)],
                "ragged": [np.arange(number % 4, dtype=np.int16) for number in range(300)],
            }
        )
    if pad:  # many large chunks, most of each a hole
        with ws.RecordStore.open(tmp_path / "s", "a", chunk_size=3) as store:
            for number in range(300, 304):
                store.append({"x": number, "text": f"text {number}", "ragged": np.arange(number % 4, dtype=np.int16)})
                store.flush()
        for file in (tmp_path / "s/g0001").glob("*.arrow"):
            os.truncate(file, 2**30)
    is_mapped, slot = run_alone(_little_address_space, tmp_path / "s", gibibytes)
    assert is_mapped == mapped
    assert slot < SLOT or pad


def test_a_system_that_maps_no_more_files(tmp_path: Path) -> None:
    """As with 65,530 mappings in a process: rows come from the files, and nothing fails."""

    class Few(Files):
        left = 3

        def map(self, address: int, length: int, descriptor: int, *, write: bool = False) -> None:
            if not self.left:
                raise OSError(errno.ENOMEM, "Cannot allocate memory")
            self.left -= 1
            super().map(address, length, descriptor, write=write)

    with ws.RecordStore.create(tmp_path / "s", FIELDS, chunk_size=3) as store:
        for number in range(8):
            store.append({"x": number, "text": f"text {number}", "ragged": np.arange(number, dtype=np.int16)})
            store.flush()
    files = Few()
    store = ws.RecordStore.open(tmp_path / "s", files=files)
    assert not store._session.generation.gatherer.space.is_mapped
    for _ in range(2):
        assert store["x"][:].tolist() == list(range(8))
        assert store["text"][[5, 0]] == ["text 5", "text 0"]
        assert store["ragged"][3].tolist() == [0, 1, 2]
    assert store.verify(progress=False).ok
    assert store.to_arrow()["x"].to_pylist() == list(range(8))
