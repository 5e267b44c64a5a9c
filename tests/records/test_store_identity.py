"""What a store counts as in caches: its records for functions that read all of it, each record for a pipeline."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warmstore as ws
from warmstore.identity import identify

X = {"x": ws.Array("int64")}


def store_of(path: Path, *values: int) -> ws.RecordStore:
    """A store with these records, committed."""
    store = ws.RecordStore.create(path, X)
    store.extend({"x": np.array(values)})
    store.flush()
    return store


def digest(thing: Any) -> str:
    return identify(thing).digest


def big(record: dict[str, Any]) -> bool:
    return bool(record["x"] >= 50)


def near(value: int, table: ws.RecordStore) -> bool:
    return bool((np.abs(table["x"][:] - value) < 2).any())


APPENDS: dict[str, Callable[[ws.RecordStore], object]] = {
    "pending": lambda store: None,
    "flushed": lambda store: store.flush(),
    "sealed": lambda store: store.seal(),
}


@pytest.mark.parametrize("what", ["store", "field", "fields", "format"])
@pytest.mark.parametrize("how", APPENDS)
def test_a_cached_function_sees_appended_records(tmp_path: Path, how: str, what: str) -> None:
    """It returned the result of the records before, also in later runs."""
    calls: list[int] = []

    @ws.cached(tmp_path / "cache", ignore=("calls",))
    def total(values: Any) -> int:
        calls.append(1)
        found = values[:]
        return int((found if what == "field" else found["x"]).sum())

    made: dict[str, Callable[[ws.RecordStore], Any]] = {
        "store": lambda store: store,
        "field": lambda store: store["x"],
        "fields": lambda store: store[["x"]],
        "format": lambda store: store.with_format("numpy"),
    }
    with store_of(tmp_path / "s", 0, 1, 2, 3) as store:
        assert [total(made[what](store)) for _ in range(2)] == [6, 6]
        store.extend({"x": [1000]})
        APPENDS[how](store)
        assert total(made[what](store)) == 1006
        store.extend({"x": [2000]})
        assert total(made[what](store)) == 3006
    before = len(calls)
    with ws.RecordStore.open(tmp_path / "s") as again:
        assert total(made[what](again)) == 3006
        assert total(made[what](again)) == 3006
    assert len(calls) == before + 1  # the result above was that of pending records


def test_a_filter_sees_records_appended_to_an_argument(tmp_path: Path) -> None:
    with store_of(tmp_path / "s", 0, 1) as table:
        passed = lambda: len(ws.Pipeline(range(6)).filter(near, folder=tmp_path / "f", table=table))  # noqa: E731
        assert passed() == 3
        table.extend({"x": [5]})
        table.flush()
        assert passed() == 5


def test_what_changes_no_record_changes_no_identity(tmp_path: Path) -> None:
    with store_of(tmp_path / "s", 0, 1) as store:
        store.update(1, {"x": 5})
        before = digest(store), store.__sample_hashes__().tolist()
        store.seal()
        store.verify(repair=True, progress=False)
    for number in range(70):  # enough chunks for a merge
        with ws.RecordStore.open(tmp_path / "s", "a") as store:
            assert number or (digest(store), store.__sample_hashes__().tolist()) == before
            store.append({"x": number})
    with ws.RecordStore.open(tmp_path / "s", "a") as store:
        store.refresh()
        assert store._session.generation.batches.merged_away
        assert store.__sample_hashes__()[:2].tolist() == before[1]
        assert len(np.unique(store.__sample_hashes__(), axis=0)) == 72


def test_copies_with_equal_records_are_equal(tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    url = (tmp_path / "remote").as_uri()
    with store_of(tmp_path / "s", 0, 1, 2) as store:
        for _ in range(2):
            store.update([1], {"x": [5]})
            store.push(url, progress=False)
            with ws.RecordStore.open(url, cache_dir=tmp_path / "of url") as at_url:
                assert digest(at_url) == digest(store)
            ws.RecordStore.clone(url, tmp_path / "clone", progress=False).close()  # the second time it is pulled
            with ws.RecordStore.open(tmp_path / "clone") as clone:
                assert digest(clone) == digest(store)
                assert clone.__sample_hashes__().tolist() == store.__sample_hashes__().tolist()


CHANGES: dict[str, tuple[Callable[[ws.RecordStore], object], Callable[[ws.RecordStore], object]]] = {
    "updates": (lambda store: store.update(1, {"x": 7}), lambda store: store.update(1, {"x": 8})),
    "positions": (lambda store: store.update(1, {"x": 7}), lambda store: store.update(2, {"x": 7})),
    "deletes": (lambda store: store.delete(1), lambda store: store.delete(2)),
    "appends": (lambda store: store.extend({"x": [7]}), lambda store: store.extend({"x": [8]})),
    "rewrites": (
        lambda store: store.map_field("x", lambda batch: batch["x"] + 1, progress=False),
        lambda store: store.map_field("x", lambda batch: batch["x"] + 2, progress=False),
    ),
    "fields": (
        lambda store: store.add_field("y", ws.Array("int64"), progress=False),
        lambda store: store.add_field("z", ws.Array("int64"), progress=False),
    ),
    "metadata": (lambda store: store.annotate("mean", 1), lambda store: store.annotate("mean", 2)),
}


@pytest.mark.parametrize("flushed", [True, False])
@pytest.mark.parametrize("name", CHANGES)
def test_copies_that_have_diverged_differ(tmp_path: Path, name: str, flushed: bool) -> None:
    """As often edited, and as often rewritten, they had one identity."""
    store_of(tmp_path / "a", 0, 1, 2, 3).close()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    found = []
    for path, change in zip(("a", "b"), CHANGES[name], strict=True):
        with ws.RecordStore.open(tmp_path / path, "a") as store:
            change(store)
            if flushed:
                store.flush()
            found.append((digest(store), store.__sample_hashes__(), [store[at] for at in range(len(store))]))
    (one, hashes, records), (other, others, other_records) = found
    assert one != other
    for at, (record, another) in enumerate(zip(records, other_records, strict=True)):
        assert record == another or (hashes[at] != others[at]).all()


def test_a_restored_backup_that_is_edited_otherwise(tmp_path: Path) -> None:
    """What had passed the filter before it was restored passed afterwards."""
    path, backup, folder = tmp_path / "a", tmp_path / "backup", tmp_path / "f"
    store_of(path, 0, 1, 2, 3).close()
    shutil.copytree(path, backup)
    for positions, value in (([0, 1], 100), ([2, 3], 50)):
        shutil.rmtree(path)
        shutil.copytree(backup, path)
        with ws.RecordStore.open(path, "a") as store:
            store.update(positions, {"x": [value] * 2})
        with ws.RecordStore.open(path) as store:
            passed = ws.Pipeline(store).filter(big, folder=folder)
            assert [int(passed[at]["x"]) for at in range(len(passed))] == [value] * 2


def test_pending_records_that_move_behind_those_of_others(tmp_path: Path) -> None:
    """The verdict on a pending record was that on the one that another process had committed before it."""
    with store_of(tmp_path / "s", 0, 0) as writer, ws.RecordStore.open(tmp_path / "s", "a") as other:
        writer.append({"x": 77})
        passed = ws.Pipeline(writer).filter(big, folder=tmp_path / "f")
        assert [int(passed[at]["x"]) for at in range(len(passed))] == [77]
        other.append({"x": 1})
        other.flush()
        writer.flush()
        passed = ws.Pipeline(writer).filter(big, folder=tmp_path / "f")
        assert [int(passed[at]["x"]) for at in range(len(passed))] == [77]
        assert writer["x"][:].tolist() == [0, 0, 1, 77]


def test_a_pipeline_finds_the_records_that_stayed(tmp_path: Path) -> None:
    """Appends, and edits of other records, leave the key of a record as it is, and the sample that it is."""
    with store_of(tmp_path / "s", 0, 1, 2, 3) as store:
        keys = ws.Pipeline(store).identities.samples
        field = ws.Pipeline(store["x"]).identities.samples.each
        assert not (field == keys.each).all(axis=1).any()
        store.extend({"x": [4, 5]})
        assert ws.Pipeline(store).identities.samples.each[:4].tolist() == keys.each.tolist()
        store.flush()
        grown = ws.Pipeline(store).identities.samples
        assert grown.name == keys.name
        assert grown.each[:4].tolist() == keys.each.tolist()
        store.update(1, {"x": 9})
        updated = ws.Pipeline(store).identities.samples.each
        assert (updated == grown.each).all(axis=1).tolist() == [True, False, True, True, True, True]
        store.delete(0)  # the last record moves there
        deleted = ws.Pipeline(store).identities.samples.each
        assert deleted.tolist() == updated[[5, 1, 2, 3, 4]].tolist()


def test_a_salvaged_store_differs_from_the_whole_one(tmp_path: Path) -> None:
    with store_of(tmp_path / "s", 0, 1, 2) as store:
        store.update(1, {"x": 9})
        whole = digest(store), store.__sample_hashes__()
    for name in ("numbers", "numbers.copy"):
        (tmp_path / "s" / "g0001" / name).write_bytes(bytes(8))
    with ws.RecordStore.open(tmp_path / "s", salvage=True) as salvaged:
        assert salvaged["x"][:3].tolist() == [0, 1, 2]
        assert digest(salvaged) != whole[0]
        same = (salvaged.__sample_hashes__()[:3] == whole[1]).all(axis=1)
        assert same.tolist() == [True, False, True]
