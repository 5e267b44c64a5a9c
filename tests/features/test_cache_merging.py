"""cache.merge: what another cache of the same module holds and this one lacks."""

import numpy as np
import pytest
import torch

import warmstore as ws
from warmstore.features import cache_merging


def outputs(ids, factor=1.0):
    rows = torch.tensor([[float(one), factor] for one in ids])
    return {"x": rows, "text": [f"{one}" for one in ids], "points": [torch.full((one % 3, 2), factor) for one in ids]}


@pytest.fixture
def make(tmp_path):
    """A closed cache with some ids, in a folder of its own; returns its path."""

    def make(name, ids, factor=1.0, fingerprint=None, values=None):
        with ws.FeatureCache(tmp_path / name, "id", lists="per_sample") as cache:
            if fingerprint is not None:
                cache._bind({"weights": fingerprint})
            cache.put_batch(ids, outputs(ids, factor) if values is None else values)
        return cache.path

    return make


def check(cache, ids, factors):
    values, missing = cache.get_batch(ids)
    assert missing.tolist() == []
    assert values["x"].tolist() == [[float(one), factor] for one, factor in zip(ids, factors, strict=True)]
    assert values["text"] == [str(one) for one in ids]
    assert [len(one) for one in values["points"]] == [one % 3 for one in ids]


@pytest.mark.parametrize("block", [1 << 16, 7])
def test_what_is_here_stays_and_the_rest_comes(make, tmp_path, monkeypatch, block):
    monkeypatch.setattr(cache_merging, "_BLOCK_ROWS", block)
    make("a", range(20), 1.0)
    other = make("b", range(10, 50), 2.0)
    with ws.FeatureCache(tmp_path / "a", "id") as cache:
        cache.put_batch([45], outputs([45], 3.0))  # waits
        assert cache.merge(other) == ws.MergeResult(added=29, present=11, damaged=0)
        assert cache.stats().pending == 0
        assert cache.merge(str(other)) == ws.MergeResult(0, 40, 0)
    with ws.FeatureCache(tmp_path / "a", "id") as cache:
        check(cache, range(50), [1.0] * 20 + [2.0] * 25 + [3.0] + [2.0] * 4)
        assert cache.stats().entries == 50


def test_into_a_cache_that_is_new(make, tmp_path):
    other = make("b", range(30), fingerprint="w")
    with ws.FeatureCache(tmp_path / "a", "id", lists="per_sample") as cache:
        assert cache.merge(other).added == 30
        check(cache, range(30), [1.0] * 30)
    with ws.FeatureCache(tmp_path / "a", "id") as cache, pytest.raises(ws.StaleCache):
        cache._bind({"weights": "v"})


def test_keys_of_every_kind(make, tmp_path):
    ids = [1, "1", -1, 2**63, 2**70, "é"]
    with ws.FeatureCache(tmp_path / "b", "id") as other:
        other.put_batch(ids, torch.arange(6.0))
        with ws.FeatureCache(tmp_path / "a", "id") as cache:
            assert cache.merge(other).added == 6  # what waits in the other one comes too
            assert cache.get_batch(ids)[0].tolist() == [0, 1, 2, 3, 4, 5]


def test_the_later_of_two_rows_of_the_other_one_counts(make, tmp_path):
    other = make("b", range(5), 1.0)
    with ws.FeatureCache(tmp_path / "b", "id") as cache:
        cache.put_batch([3, 3], outputs([3, 3], 2.0))
        cache.flush()
        cache.put_batch([3], outputs([3], 4.0))
    with ws.FeatureCache(tmp_path / "a", "id", lists="per_sample") as cache:
        assert cache.merge(other).added == 5
        check(cache, range(5), [1, 1, 1, 4, 1])
        assert cache.stats().entries == 5


class TestRefused:
    def check(self, tmp_path, other, error, match, **options):
        with ws.FeatureCache(tmp_path / "a", "id", **options) as cache:
            before = cache.stats().entries
            with pytest.raises(error, match=match):
                cache.merge(other)
            cache.flush()
            assert cache.stats().entries == before

    def test_other_weights(self, make, tmp_path):
        make("a", range(3), fingerprint="v")
        self.check(tmp_path, make("b", range(9), fingerprint="w"), ws.StaleCache, "weights")
        self.check(tmp_path, make("c", range(9)), ws.StaleCache, "put_batch alone")

    def test_other_outputs(self, make, tmp_path):
        make("a", range(3), values=torch.ones(3, 2))
        self.check(tmp_path, make("b", range(3), values=torch.ones(3, 3)), ws.SchemaMismatch, "'output'")
        self.check(tmp_path, make("c", range(3)), ws.SchemaMismatch, "changed")

    def test_itself_and_what_is_no_cache(self, make, tmp_path):
        self.check(tmp_path, make("a", range(3)), ValueError, "itself")
        ws.RecordStore.create(tmp_path / "plain", {"x": ws.Array("int64")}).close()
        self.check(tmp_path, tmp_path / "plain", ws.StoreExists, "no feature cache")
        self.check(tmp_path, tmp_path / "nothing", ws.NotAStore, "nothing")
        self.check(tmp_path, tmp_path, ws.NotAStore, "such as FOLDER/ID")  # the folder of caches
        self.check(tmp_path, make("b", range(3)), ws.ReadOnly, "read", read_only=True)


def test_versions_take_their_own(make, tmp_path):
    make("a", range(3), 1.0, fingerprint="v")
    other = make("b", range(3), 2.0, fingerprint="w")
    with ws.FeatureCache(tmp_path / "a", "id", versions="new", lists="per_sample") as cache:
        cache._bind({"weights": "v"})
        assert cache.merge(other).added == 3
        check(cache, range(3), [1.0] * 3)
        check(cache._bind({"weights": "w"}), range(3), [2.0] * 3)


def test_damaged_rows_stay_behind(make, tmp_path):
    other = make("b", range(30), values=np.arange(60.0).reshape(30, 2))
    (chunk,) = other.rglob("*.arrow")
    data = bytearray(chunk.read_bytes())
    data[data.index(np.array([14.0, 15.0]).tobytes())] ^= 1
    chunk.write_bytes(data)
    with ws.FeatureCache(tmp_path / "a", "id") as cache:
        assert cache.merge(other) == ws.MergeResult(29, 0, 1)
        assert cache.get_batch(range(30))[1].tolist() == [7]
