"""Rewrites that fail or are interrupted at any operation: one whole generation is left, and nothing that grows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.faults.children import FIELDS, check, columns, record
from tests.faults.seam import Watched
from tests.slow import thinned

import warmstore as ws
from warmstore.errors import Closed, Damaged, PositionError, SchemaMismatch
from warmstore.records.format.manifest import Manifest, manifest_bytes, manifest_of
from warmstore.records.write.store_draft import create_folder
from warmstore.records.write.write_buffer import WriteBuffer, block_of
from warmstore.storage.files import Files


class Failing(Watched):
    """Raises `error` before or after the n-th operation from when `at` is set."""

    def __init__(self, error: BaseException, moment: str) -> None:
        self.at: int | None = None
        self.error = error
        self.moment = moment

    def before(self, name: str) -> None:
        if self.at == 0 and self.moment == "before":
            self.at = None
            raise self.error

    def after(self, name: str) -> None:
        if self.at == 0:
            self.at = None
            raise self.error
        if self.at is not None:
            self.at -= 1


@pytest.mark.parametrize("moment", thinned(2, ["before", "after"]))
@pytest.mark.parametrize("error", thinned(2, [OSError(5, "broken"), KeyboardInterrupt()]), ids=["error", "interrupt"])
def test_a_rebalance_that_fails_at_any_operation(tmp_path: Path, error: BaseException, moment: str) -> None:
    raised = 0
    for at in range(100):
        path = tmp_path / str(at)
        files = Failing(error, moment)
        store = ws.RecordStore.create(path, FIELDS, files=files)
        store.extend(columns(range(5)))
        store.delete(0)
        other = ws.RecordStore.open(path, "a")
        other.append(record(5))
        files.at = at
        try:
            store.rebalance()
        except type(error):
            raised += 1
        else:
            if files.at is not None:
                break
        files.at = None
        numbers = [4, 1, 2, 3]
        check(store, numbers)
        check(ws.RecordStore.open(path), numbers)
        other.flush()
        store.append(record(6))
        store.rebalance()
        other.refresh()
        for one in (store, other, ws.RecordStore.open(path)):
            check(one, [*numbers, 5, 6])
            assert one.verify().ok
        assert len([each for each in path.iterdir() if each.name not in ("store.json", "edit.lock")]) == 1
        store.close()
        other.close()
    assert raised >= 18  # a footer that fails is no error, nor a folder that cannot be removed


def test_what_others_changed_meanwhile_is_kept(tmp_path: Path) -> None:
    """A rewrite by a store that did not look since others added fields and annotated."""
    number = ws.Array("int64")
    one = ws.RecordStore.create(tmp_path / "s", {"x": number})
    one.extend({"x": [1, 2]})
    one.flush()
    others = [ws.RecordStore.open(tmp_path / "s", "a") for _ in range(3)]
    one.annotate("note", "kept")
    one.add_field("y", number, [3, 4])
    others[0].refresh()
    one.annotate("other", "kept too")
    others[0].add_field("z", number, [5, 6])
    others[1].map_field("x", lambda batch: 10 * batch["x"])
    others[2].drop_field("z")
    with pytest.raises(SchemaMismatch, match="already"):
        one.add_field("y", number)
    with ws.RecordStore.open(tmp_path / "s") as again:
        assert list(again.fields) == ["x", "y"]
        assert again[1] == {"x": 20, "y": 4}
        assert again.metadata == {"note": "kept", "other": "kept too"}


FIELD = ws.Array("int64")
CHANGES: dict[str, tuple[Callable[[ws.RecordStore], object], list[int]]] = {
    "append": (lambda store: store.append({"x": 77}), [*range(10), 77]),
    "flush": (lambda store: (store.append({"x": 77}), store.flush()), [*range(10), 77]),
    "update": (lambda store: store.update(3, {"x": 77}), [0, 1, 2, 77, *range(4, 10)]),
    "delete": (lambda store: store.delete(3), [0, 1, 2, 9, *range(4, 9)]),
    "rebalance": (lambda store: store.rebalance(progress=False), list(range(10))),
    "annotate": (lambda store: store.annotate("name", 1), list(range(10))),
}


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize("name", CHANGES)
def test_a_function_of_records_may_not_change_their_store(name: str, add: bool, tmp_path: Path) -> None:
    """Rows that it appended were lost, edits of rows that were copied already too; one for every call had no end."""
    change, expected = CHANGES[name]
    calls = []

    def values(batch: dict[str, Any]) -> Any:
        calls.append(len(batch["x"]))
        assert len(calls) < 5
        change(store)
        return batch["x"]

    with ws.RecordStore.create(tmp_path / "s", {"x": FIELD}) as store:
        store.extend({"x": range(10)})
        with pytest.raises(PositionError, match="changed"):
            store.add_field("y", FIELD, values, progress=False) if add else store.map_field("x", values, progress=False)
        assert calls == [10]
        assert store["x"][:].tolist() == expected
        store.map_field("x", lambda batch: batch["x"] + 1, progress=False)
    with ws.RecordStore.open(tmp_path / "s") as again:
        assert again["x"][:].tolist() == [number + 1 for number in expected]
        assert list(again.fields) == ["x"]
        assert again.metadata == ({"name": 1} if name == "annotate" else {})
        assert again.verify(progress=False).ok


def test_a_function_of_records_that_closes_their_store(tmp_path: Path) -> None:
    """The error was that of a bad file descriptor."""
    store = ws.RecordStore.create(tmp_path / "s", {"x": FIELD})
    store.extend({"x": range(10)})
    with pytest.raises(Closed, match="function that makes new values closed"):
        store.map_field("x", lambda batch: store.close() or batch["x"] + 1, progress=False)
    with ws.RecordStore.open(tmp_path / "s") as again:
        assert again["x"][:].tolist() == list(range(10))


COUNTS: dict[str, Callable[[ws.RecordStore], object]] = {
    "a mean": lambda store: store.map_field("x", lambda batch: batch["x"].mean(axis=0, keepdims=True)),
    "a list without some": lambda store: store.map_field(
        "t", lambda batch: [text for text in batch["t"] if text != "3"]
    ),
    "fewer, and another type": lambda store: store.map_field("x", lambda batch: np.arange(2), ws.Array("int64")),
    "more": lambda store: store.map_field("x", lambda batch: np.repeat(batch["x"], 2)),
    "none": lambda store: store.map_field("x", lambda batch: batch["x"][:0]),
    "a new field": lambda store: store.add_field("y", ws.Array("int64"), lambda batch: np.arange(2 * len(batch["x"]))),
}


@pytest.mark.parametrize("name", COUNTS)
def test_a_function_of_records_returns_one_value_for_each(name: str, tmp_path: Path) -> None:
    """Records without a value were removed, or all fields had other counts, and the old generation was gone."""
    with ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("float64"), "t": ws.Text()}) as store:
        store.extend({"x": np.arange(10.0), "t": list(map(str, range(10)))})
        with pytest.raises(SchemaMismatch, match="one value for each of 10 records; the function returned"):
            COUNTS[name](store)
    with ws.RecordStore.open(tmp_path / "s") as again:
        assert again["x"][:].tolist() == list(range(10))
        assert again["t"][:] == list(map(str, range(10)))
        assert list(again.fields) == ["x", "t"]
        assert again.verify(progress=False).ok


def test_a_queue_takes_as_many_values_of_each_field() -> None:
    queue = WriteBuffer()
    with pytest.raises(SchemaMismatch, match="same number of records"):
        queue.add(block_of({"x": FIELD}, {"x": [1]}) | block_of({"y": FIELD}, {"y": [1, 2]}))
    assert queue.count == 0


def test_the_ten_thousandth_generation(tmp_path: Path) -> None:
    """It was written, the one before was removed, and no description of it could be read."""
    path, url = tmp_path / "s", (tmp_path / "remote").as_uri()
    (tmp_path / "remote").mkdir()
    create_folder(path, Manifest({"x": FIELD}, generation=9999), Files())
    with ws.RecordStore.open(path, "a") as store, ws.RecordStore.open(path) as reader:
        store.extend({"x": range(10)})
        for generation in ("g10000", "g10001"):
            store.rebalance(progress=False)
            assert [folder.name for folder in path.glob("g*")] == [generation]
            reader.refresh()
            assert reader["x"][:].tolist() == list(range(10))
        assert store.verify(progress=False).ok
        store.push(url, progress=False)
    (path / "store.json").unlink()
    with ws.RecordStore.open(path) as again, ws.RecordStore.clone(url, tmp_path / "clone", progress=False) as clone:
        assert again["x"][:].tolist() == clone["x"][:].tolist() == list(range(10))


def test_a_generation_is_a_number_that_names_a_folder(tmp_path: Path) -> None:
    for number in (0, -1, 1.0, True, "1", 1 << 31, None):
        with pytest.raises(Damaged, match="no store description"):
            manifest_of(manifest_bytes(Manifest({"x": FIELD}, generation=number)), "store.json")  # type: ignore[arg-type]
