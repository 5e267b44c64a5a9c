"""A cache as a mapping: what users of a dict expect of ids, single samples, deletion and clearing."""

import threading
import uuid
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

import warmstore as ws
from warmstore.features.keyed.cache_reader import CacheReader
from warmstore.records.index.key_index import KeyIndex
from warmstore.records.index.sample_keys import as_keys
from warmstore.records.keyed_store import IndexedStore


class Out(NamedTuple):
    mean: Any
    tokens: Any
    fixed: Any


@pytest.fixture
def cache(tmp_path: Path) -> Any:
    with ws.FeatureCache(tmp_path / "cache", "id") as cache:
        yield cache


def put(cache: Any, *ids: Any) -> None:
    cache.put_batch(list(ids), np.stack([value_of(given) for given in ids]))


def value_of(given: Any) -> Any:
    return np.full(3, hash(str(given)) % 1000, np.float32)


IDS = [3, -5, 2**63 + 1, "3", "a/b.png", b"x", uuid.UUID(int=1), ("a", 1), 2**70]


class TestReading:
    def test_one_sample_by_every_kind_of_id_pending_and_stored(self, cache: Any) -> None:
        put(cache, *IDS)
        for _ in range(2):
            for given in IDS:
                assert (cache[given] == value_of(given)).all()
                assert (cache.get(given) == value_of(given)).all()
            assert (cache[Path("a/b.png")] == value_of("a/b.png")).all()
            cache.flush()

    def test_a_missing_sample(self, cache: Any) -> None:
        for _ in range(2):
            with pytest.raises(KeyError, match="8"):
                cache[8]
            with pytest.raises(KeyError, match="8"):
                del cache[8]
            assert cache.get(8) is None
            assert cache.get(8, "nothing") == "nothing"
            put(cache, 3)
            cache.flush()

    def test_what_is_no_id(self, cache: Any) -> None:
        put(cache, 1)
        for given, error in ((None, ws.BadIds), (1.5, ws.BadIdType), ([1], ws.BadIdType), (slice(None), ws.BadIdType)):
            for call in (cache.__getitem__, cache.__delitem__, cache.__contains__, cache.get):
                with pytest.raises(error):
                    call(given)
        with pytest.raises(TypeError, match=r"put_batch\(\[1\]"):
            cache[1] = value_of(1)

    def test_a_sample_has_the_structure_of_the_output_without_the_samples(self, cache: Any) -> None:
        out = Out(torch.arange(3.0), [torch.arange(n + 1) for n in range(3)], ["layer", {"x": torch.rand(3, 2)}])
        cache.put_batch([0, 1, 2], out)
        for _ in range(2):
            one = cache[2]
            assert type(one) is Out
            assert one.mean.shape == ()
            assert one.mean == 2
            assert torch.equal(one.tokens, torch.arange(3))
            assert one.fixed[0] == "layer"
            assert torch.equal(one.fixed[1]["x"], out.fixed[1]["x"][2])
            cache.flush()

    def test_samples_in_another_dimension(self, tmp_path: Path) -> None:
        class Module(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                return x.t()

        with ws.FeatureCache(tmp_path, "dims") as cache:
            x = torch.arange(6.0).reshape(2, 3)
            ws.CachedModule(Module(), cache, out_dims=1)(x, cache_ids=[0, 1])
            assert torch.equal(cache[1], x[1])

    def test_what_a_caller_writes_is_not_in_the_next(self, cache: Any) -> None:
        put(cache, 1)
        for _ in range(3):
            value = cache[1]
            assert (value == value_of(1)).all()
            value[:] = -1
            cache.flush()


MOMENTS: list[tuple[type, str]] = [(KeyIndex, "lookup"), (IndexedStore, "find"), (CacheReader, "values")]


@pytest.mark.parametrize(("kind", "name"), MOMENTS)
@pytest.mark.parametrize("is_before", [True, False])
@pytest.mark.parametrize("look", [lambda cache: cache[3], lambda cache: value_of(3) * (3 in cache)])
def test_another_thread_rebalances_meanwhile(
    cache: Any, monkeypatch: pytest.MonkeyPatch, kind: type, name: str, is_before: bool, look: Any
) -> None:
    """The row that was found is that of another sample then; the sample was said to be missing."""
    for given in (0, 1, 2, 0, 1, 2, 3, 4):
        put(cache, given)
        cache.flush()
    real = getattr(kind, name)

    def meanwhile(self: Any, *arguments: Any) -> Any:
        monkeypatch.undo()
        found = None if is_before else real(self, *arguments)
        thread = threading.Thread(target=cache.rebalance)
        thread.start()
        thread.join()
        return real(self, *arguments) if is_before else found

    cache._session.version.reader.read_all = lambda keys: None  # it is not certain of the rows
    monkeypatch.setattr(kind, name, meanwhile)
    assert (look(cache) == value_of(3)).all()


class TestIds:
    def test_keys_are_ints_and_hashes_that_stand_for_ids(self, cache: Any) -> None:
        put(cache, *IDS)
        for _ in range(2):
            keys = list(cache)
            assert set(keys) == set(cache.keys()) == set(map(ws.HashedId.of, IDS))
            assert {key for key in keys if isinstance(key, int)} == {3, -5, 2**63 + 1}
            for given in IDS:
                assert given in cache
                assert ws.HashedId.of(given) in set(cache.keys())
                assert (cache[ws.HashedId.of(given)] == value_of(given)).all()
            assert len(cache) == len(cache.keys()) == len(IDS)
            assert {key: value[0] for key, value in cache.items()} == {
                ws.HashedId.of(given): value_of(given)[0] for given in IDS
            }
            assert sorted(value[0] for value in cache.values()) == sorted(value_of(given)[0] for given in IDS)
            cache.flush()

    def test_a_hash_is_an_id_in_batches_and_parts_of_tuples(self, cache: Any) -> None:
        key = ws.HashedId.of("a")
        assert as_keys([key, "b"]).packed == as_keys(["a", "b"]).packed
        assert as_keys([(key, 1)]).packed == as_keys([("a", 1)]).packed
        assert repr(key) == f"HashedId({key.key.hex()})"

    def test_a_repeated_id_counts_once(self, cache: Any) -> None:
        for _ in range(3):
            put(cache, 1, "a")
            assert len(cache) == 2
            cache.flush()
            assert len(cache) == 2
            put(cache, 1, 2)
            assert len(cache) == len(list(cache)) == 3
            del cache[2]

    def test_a_cache_that_was_not_created(self, cache: Any) -> None:
        assert (len(cache), list(cache), dict(cache.items())) == (0, [], {})
        cache.clear()
        assert not cache.path.exists()


class TestDeletion:
    def test_a_deleted_sample_is_gone_and_can_come_back(self, cache: Any, tmp_path: Path) -> None:
        put(cache, 1, 2, "a")
        del cache[1]  # pending
        del cache["a"]
        with ws.FeatureCache(tmp_path / "cache", "id") as again:
            for each in (cache, again):
                assert (1 in each, "a" in each, 2 in each) == (False, False, True)
                assert list(each) == [2]
                values, missing = each.get_batch([1, 2, "a"])
                assert (missing.tolist(), values.shape) == ([0, 2], (1, 3))
                assert each.stats().damaged == 0
        put(cache, 1)
        for _ in range(2):
            assert (cache[1] == value_of(1)).all()
            cache.flush()

    def test_another_process_that_has_it_open_misses_it_at_once(self, cache: Any, tmp_path: Path) -> None:
        put(cache, *range(100), "a")
        cache.flush()
        other = ws.FeatureCache(tmp_path / "cache", "id")  # what it has read and mapped is its own
        hot = ws.FeatureCache(tmp_path / "cache", "id", hot_size="all", read_only=True)
        for each in (other, hot):
            assert not len(each.get_batch([*range(100), "a"])[1])
        del cache["a"]
        del cache[7]
        for each in (other, hot):
            assert each.get_batch([*range(100), "a"])[1].tolist() == [7, 100]
            assert len(each) == 99
        cache.clear()
        for each in (other, hot):
            assert len(each.get_batch([*range(100), "a"])[1]) == 101
            assert len(each) == 0
        put(cache, "a")
        cache.flush()
        for each in (other, hot):
            assert (each["a"] == value_of("a")).all()
            each.close()

    def test_rebalancing_frees_deleted_samples(self, cache: Any) -> None:
        put(cache, *range(50))
        for given in range(40):
            del cache[given]
        done = cache.rebalance(progress=False)
        assert done.records == 10
        assert sorted(cache) == list(range(40, 50))
        assert (cache[45] == value_of(45)).all()
        assert 3 not in cache

    def test_a_rebalance_between_a_deletion_and_its_index(
        self, cache: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(cache, 1, 2)
        cache.flush()
        with ws.FeatureCache(tmp_path / "cache", "id") as other:
            assert 1 in other
            keyed = other._session.version.reader.keyed
            monkeypatch.setattr(keyed, "catch_up", lambda: cache.rebalance(progress=False))
            del other[1]
            monkeypatch.undo()
        assert list(cache) == [2]

    def test_a_deletion_in_the_middle_of_a_rebalance(
        self, cache: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put(cache, 1, 2)
        cache.flush()
        with ws.FeatureCache(tmp_path / "cache", "id") as other:
            assert 1 in other
            keyed = cache._session.version.reader.keyed
            latest = keyed.latest

            def latest_and_delete(rows: Any) -> Any:
                kept = latest(rows)
                if 1 in other:
                    del other[1]
                return kept

            monkeypatch.setattr(keyed, "latest", latest_and_delete)
            cache.rebalance(progress=False)
            assert list(cache) == [2]
            assert list(other) == [2]

    def test_a_merge_leaves_deleted_samples_out(self, cache: Any, tmp_path: Path) -> None:
        put(cache, 1, 2)
        del cache[1]
        with ws.FeatureCache(tmp_path / "other", "id") as other:
            assert other.merge(cache).added == 1
            assert list(other) == [2]

    @pytest.mark.parametrize("how", ["deleted", "replaced", "equal"])
    def test_what_is_pushed_has_the_last_values(self, how: str, tmp_path: Path) -> None:
        """Also where the last one is in a chunk that was begun before that of the first one."""
        remote = (tmp_path / "remote").as_uri()
        with ws.FeatureCache(tmp_path / "here", "id") as first, ws.FeatureCache(tmp_path / "here", "id") as second:
            put(first, 900)
            first.flush()
            put(second, 1, 2)
            second.flush()
            assert 1 in first
            if how == "deleted":
                del first[1]
            else:
                first.put_batch([1], value_of(1)[None] + (how == "replaced"))
                first.flush()
        with ws.FeatureCache(tmp_path / "here", "id") as cache:
            rows = cache._session.version.entries
            cache.push(remote, progress=False)
            assert (cache._session.version.entries == rows) == (how == "equal")
        with ws.FeatureCache(tmp_path / "there", "id") as other:
            other.pull(remote, progress=False)
            assert sorted(other) == ([2, 900] if how == "deleted" else [1, 2, 900])
            if how != "deleted":
                assert (other[1] == value_of(1) + (how == "replaced")).all()

    @pytest.mark.parametrize("codec", ["raw", "zstd"])
    def test_samples_of_any_shape_and_codec(self, tmp_path: Path, codec: str) -> None:
        with ws.FeatureCache(tmp_path, "ragged", lists="per_sample", codec=codec) as cache:
            cache.put_batch([0, 1, 2], {"x": [torch.arange(n) for n in (1, 2, 3)], "y": ["a", "b", "c"]})
            del cache[1]
            assert cache.get_batch([0, 1, 2])[1].tolist() == [1]
            assert (cache[2]["x"].tolist(), cache[2]["y"]) == ([0, 1, 2], "c")

    def test_clear_frees_the_space(self, cache: Any) -> None:
        cache.put_batch(range(1000), np.zeros((1000, 500)))
        cache.flush()
        before = cache.stats().bytes
        cache.clear()
        assert cache.stats().bytes < before / 10
        assert (len(cache), list(cache)) == (0, [])
        cache.put_batch([5], np.zeros((1, 500)))
        cache.flush()
        assert list(cache) == [5]

    def test_who_has_it_open_finds_what_comes_next(self, cache: Any, tmp_path: Path) -> None:
        """At once, also where it is as many samples as were cleared."""
        with ws.FeatureCache(tmp_path / "cache", "id") as other:
            for turn in range(3):
                cache.put_batch(range(8), np.full((8, 2), turn))
                cache.flush()
                found, missing = other.get_batch(range(8))
                assert not len(missing)
                assert (found == turn).all()
                cache.clear()
            assert other.get_batch(range(8))[1].tolist() == list(range(8))

    def test_with_max_size(self, tmp_path: Path) -> None:
        with ws.FeatureCache(tmp_path, "bounded", max_size="4MB") as cache:
            for at in range(20):
                cache.put_batch([at], np.full((1, 50_000), at, np.float64))
                cache.flush()
            assert 19 in cache
            assert 0 not in cache
            del cache[19]
            assert 19 not in cache
            assert len(cache) == len(list(cache)) > 3
            cache.clear()
            assert len(cache) == 0

    def test_who_only_reads_deletes_nothing(self, cache: Any, tmp_path: Path) -> None:
        put(cache, 1)
        cache.flush()
        with ws.FeatureCache(tmp_path / "cache", "id", read_only=True) as reader:
            with pytest.raises(ws.ReadOnly, match="open it for writing to delete"):
                del reader[1]
            with pytest.raises(ws.ReadOnly):
                reader.clear()
        assert 1 in cache

    def test_a_cache_at_a_url_says_why_it_does_not(self, tmp_path: Path) -> None:
        pytest.importorskip("obstore")
        url = (tmp_path / "remote").as_uri()
        with ws.FeatureCache(url, "id", cache_dir=tmp_path / "local") as cache:
            put(cache, 1)
            with pytest.raises(ws.NotSupportedError, match="at a URL, from which other hosts"):
                del cache[1]
            with pytest.raises(ws.NotSupportedError):
                cache.clear()

    def test_the_module_computes_a_deleted_sample_again(self, tmp_path: Path) -> None:
        rows = []

        class Module(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                rows.append(len(x))
                return x * 2

        with ws.FeatureCache(tmp_path, "module") as cache:
            module = ws.CachedModule(Module(), cache)
            for _ in range(2):
                module(torch.ones(4, 2), cache_ids=range(4))
            cache.flush()
            module(torch.ones(4, 2), cache_ids=range(4))
            del cache[2]
            assert torch.equal(module(torch.ones(4, 2), cache_ids=range(4)), torch.full((4, 2), 2.0))
            assert rows == [4, 1]
            cache.clear()
            module(torch.ones(4, 2), cache_ids=range(4))
            assert rows == [4, 1, 4]
