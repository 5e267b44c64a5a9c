"""A record store at a remote as one push left it."""

from pathlib import Path

import numpy as np
import pytest

import warmstore as ws
from warmstore.errors import NotAStore, StoreExists

pytest.importorskip("obstore", reason="obstore is not installed: pip install 'warmstore[dev]'")


def values(store: ws.RecordStore) -> list[int]:
    return [int(value) for value in store.gather(slice(None))["x"]]


def test_a_version_is_pinned(tmp_path: Path) -> None:
    url = f"file://{tmp_path / 'remote'}"
    with ws.RecordStore.create(tmp_path / "a", {"x": ws.Array("int64")}) as store:
        for number in range(3):
            store.extend({"x": np.arange(10 * number, 10 * number + 10)})
            store.push(url)
        with ws.RecordStore.open(url, at=2, cache_dir=tmp_path / "cache") as pinned:
            assert values(pinned) == [*range(20)]
            store.rebalance()
            store.push(url)
            pinned.refresh()
            assert values(pinned) == [*range(20)]
            with ws.RecordStore.open(url, cache_dir=tmp_path / "cache") as last:
                assert values(last) == [*range(30)]
        with ws.RecordStore.clone(url, tmp_path / "b", at=1) as copy:
            assert values(copy) == [*range(10)]
        with ws.RecordStore.clone(url, tmp_path / "b", at=2) as copy:
            assert values(copy) == [*range(20)]
        with pytest.raises(StoreExists, match="after push 1"):
            ws.RecordStore.clone(url, tmp_path / "b", at=1)
        ws.RecordStore.clone(url, tmp_path / "b", at=2).close()
        for _ in range(4):
            store.extend({"x": np.zeros(1, np.int64)})
            store.push(url)
    with pytest.raises(NotAStore, match="no push 2"):
        ws.RecordStore.open(url, at=2, cache_dir=tmp_path / "other")
    with pytest.raises(ValueError, match="needs the URL"):
        ws.RecordStore.open(tmp_path / "a", at=2)
    with ws.FeatureCache(tmp_path / "c", "net") as cache:
        cache.put_batch([1], np.ones((1, 4), np.float32))
        cache.push(tmp_path / "caches")
    with pytest.raises(StoreExists, match="feature cache"):
        ws.RecordStore.clone(tmp_path / "caches" / "net", tmp_path / "d", at=1)
