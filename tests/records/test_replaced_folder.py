"""Stores whose folder was removed, and made anew by another program, while they are open."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tests.faults.children import in_child, well
from torch import nn

import warmstore as ws

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


def test_nothing_is_written_to_the_other_store(opened: ws.RecordStore, tmp_path: Path) -> None:
    if opened.mode == "a":
        opened.extend({"number": [4]})
        with pytest.raises(ws.NotAStore):
            opened.flush()
        with pytest.raises(ws.NotAStore):
            opened.annotate("of", "another")
    with ws.RecordStore.open(tmp_path / "store") as other:
        assert other[:]["number"].tolist() == [7, 8, 9]
        assert "of" not in other.metadata


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
