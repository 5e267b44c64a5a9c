"""Stores whose folder was removed, and made anew by another program, while they are open."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.faults.children import in_child, well
from torch import nn

import warmstore as ws
from warmstore.records.local_store import LocalStore
from warmstore.storage.files import Files

pytestmark = pytest.mark.forks


def rewrite(path: Path) -> None:
    """Rewrite a store twice, so that it has the same fields afterwards."""
    with ws.RecordStore.open(path, "a") as store:
        store.add_field("other", ws.Array("int64"))
        store.drop_field("other")


def made(path: Path, numbers: list[int]) -> None:
    with ws.RecordStore.create(path, {"number": ws.Array("int64")}) as store:
        store.extend({"number": numbers})


@pytest.fixture(params=["r", "a"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ws.RecordStore]:
    """A store that was opened, then rewritten by another program, and then replaced by a store that is as old."""
    path = tmp_path / "store"
    made(path, [1, 2, 3])
    store = ws.RecordStore.open(path, request.param)
    rewrite(path)
    shutil.rmtree(path)
    made(path, [7, 8, 9])
    rewrite(path)
    yield store
    store._abandon()


def test_the_other_store_is_not_read(opened: ws.RecordStore) -> None:
    with pytest.raises(ws.NotAStore, match="has another store now"):
        opened.refresh()
    assert opened[:]["number"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("opened", ["a"], indirect=True)
def test_nothing_is_written_to_the_other_store(opened: ws.RecordStore, tmp_path: Path) -> None:
    opened.extend({"number": [4]})
    with pytest.raises(ws.NotAStore):
        opened.flush()
    with pytest.raises(ws.NotAStore):
        opened.annotate("of", "another")
    with ws.RecordStore.open(tmp_path / "store") as other:
        assert other[:]["number"].tolist() == [7, 8, 9]
        assert "of" not in other.metadata


def replace_by_another(path: Path) -> dict[str, bytes]:
    """Replace a store that is open by another one. Returns the files of that."""
    shutil.rmtree(path)
    made(path, [7, 8, 9])
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


WRITES: dict[str, Callable[[ws.RecordStore], Any]] = {
    "flush": lambda store: (store.extend({"number": [4]}), store.flush()),
    "close": lambda store: (store.extend({"number": [4]}), store.close()),
    "a second flush": lambda store: (store.flush(), store.append({"number": 5}), store.flush()),
}


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_nothing_is_acknowledged_after_a_removal(
    tmp_path: Path, write: Callable[[ws.RecordStore], Any], *, replaced: bool
) -> None:
    """Rows were written to files without a name, and `flush` returned."""
    path = tmp_path / "store"
    made(path, [1, 2, 3])
    store = ws.RecordStore.open(path, "a")
    store.append({"number": 4})
    store.flush()
    if replaced:
        replace_by_another(path)
    else:
        shutil.rmtree(path)
    with pytest.raises((ws.WriteFailed, ws.NotAStore), match="was removed"):
        write(store)
    assert store[:4]["number"].tolist() == [1, 2, 3, 4]
    store._abandon()


def test_a_store_without_pending_rows_closes_after_a_removal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "store"
    with ws.RecordStore.create(path, {"number": ws.Array("int64")}) as store:
        store.extend({"number": [1, 2, 3]})
        store.flush()
        shutil.rmtree(path)
        assert store[:]["number"].tolist() == [1, 2, 3]
    assert not caplog.records
    assert not path.exists()


def test_a_moved_store_is_written_where_it_is(tmp_path: Path) -> None:
    made(tmp_path / "store", [1, 2, 3])
    store = ws.RecordStore.open(tmp_path / "store", "a")
    store.append({"number": 4})
    store.flush()
    (tmp_path / "store").rename(tmp_path / "moved")
    store.append({"number": 5})
    store.flush()
    store._abandon()
    with ws.RecordStore.open(tmp_path / "moved") as moved:
        assert moved[:]["number"].tolist() == [1, 2, 3, 4, 5]


EDITS: dict[str, Callable[[ws.RecordStore], Any]] = {
    "rebalance": lambda store: store.rebalance(progress=False),
    "update": lambda store: store.update([0], {"number": [5]}),
    "delete": lambda store: store.delete([0]),
    "add_field": lambda store: store.add_field("other", ws.Array("int64"), [1, 2]),
    "annotate": lambda store: store.annotate("of", "another"),
    "repair": lambda store: store.verify(repair=True),
}


@pytest.mark.parametrize("edit", EDITS.values(), ids=EDITS)
def test_an_edit_leaves_the_other_store_alone(tmp_path: Path, edit: Callable[[ws.RecordStore], Any]) -> None:
    """A rebalance put the rows of the removed store into the place of the other one's."""
    path = tmp_path / "store"
    made(path, [1, 2, 3])
    store = ws.RecordStore.open(path, "a")
    store.delete([0])
    files = replace_by_another(path)
    with pytest.raises(ws.NotAStore, match="has another store now"):
        edit(store)
    store._abandon()
    assert {name: (path / name).read_bytes() for name in files} == files
    with ws.RecordStore.open(path) as other:
        assert other[:]["number"].tolist() == [7, 8, 9]


def test_a_store_that_is_replaced_amid_a_rewrite(tmp_path: Path) -> None:
    class Replacing(Files):
        def sync_folder(self, folder: Path) -> None:
            super().sync_folder(folder)
            if folder == path and not replaced:
                replaced.append(True)
                replace_by_another(path)

    path, replaced = tmp_path / "store", list[bool]()
    made(path, [1, 2, 3])
    store = LocalStore._open_folder(path, "a", files=Replacing())
    with pytest.raises(ws.NotAStore, match="has another store now"):
        store.add_field("other", ws.Array("int64"), [1, 2, 3])
    assert replaced
    store._abandon()
    with ws.RecordStore.open(path) as other:
        assert other[:]["number"].tolist() == [7, 8, 9]


def test_a_forked_child_computes_what_was_in_a_cache(tmp_path: Path) -> None:
    """It opens its stores anew, and took the outputs of another module for those of its own."""

    def module(seed: int) -> nn.Module:
        torch.manual_seed(seed)
        return nn.Linear(3, 2).eval().requires_grad_(False)

    def fill(seed: int) -> None:
        with ws.FeatureCache(tmp_path, "net") as cache:
            ws.CachedModule(module(seed), cache)(x, cache_ids=range(5))

    x, own = torch.arange(15.0).reshape(5, 3), module(0)
    with ws.FeatureCache(tmp_path, "net") as cache:
        features = ws.CachedModule(own, cache)
        features(x, cache_ids=range(5))
        cache.rebalance(progress=False)
        assert torch.equal(features(x, cache_ids=range(5)), own(x))
        shutil.rmtree(tmp_path / "net")
        well(in_child(lambda say: fill(1)))
        (found,) = well(in_child(lambda say: say(features(x, cache_ids=range(5)).tolist())))
        assert found == own(x).tolist()
