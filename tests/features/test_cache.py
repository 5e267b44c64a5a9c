"""FeatureCache: what was put is found, by whoever looks, and is always right."""

import copy
import os
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.slow import either

import warmstore as ws
from warmstore.records.index.sample_keys import as_keys


@pytest.fixture
def cache(tmp_path):
    cache = ws.FeatureCache(tmp_path, "id")
    yield cache
    cache.close()


def values_of(ids):
    return torch.tensor([[float(one), -float(one)] for one in ids])


class TestProgressiveEnrichment:
    """F7: every run adds what it computes to what earlier ones left."""

    def test_three_reopenings(self, tmp_path, cached):
        x = torch.rand(30, 4)
        for run, (first, last) in enumerate([(0, 10), (5, 20), (0, 30)]):
            module = cached()
            assert torch.equal(module(x[first:last], cache_ids=range(first, last)), x[first:last] * 2)
            assert module.rows == [[10], [10], [10]][run]
            module.cache.close()
        module = cached()
        assert torch.equal(module(x, cache_ids=range(30)), x * 2)
        assert module.rows == []


def test_get_batch_gives_values_in_order_and_missing_positions(cache):
    assert cache.get_batch([1, 2])[0] is None
    cache.put_batch([1, 2, 3], values_of([1, 2, 3]))
    for _ in range(2):
        values, missing = cache.get_batch([9, 3, 1, 8, 3])
        assert torch.equal(values, values_of([3, 1, 3]))
        assert missing.tolist() == [0, 3]
        assert missing.dtype == np.int64
        cache.flush()
    assert cache.get_batch([])[1].tolist() == []
    assert cache.get_batch(["1"])[0] is None


def test_which_samples_are_in_it(cache):
    cache.put_batch(["stored", 1], values_of([1, 2]))
    cache.flush()
    cache.put_batch([("pending", 2)], values_of([3]))
    assert [one in cache for one in ("stored", 1, ("pending", 2), "other", "1")] == [True, True, True, False, False]
    with pytest.raises(ws.BadIdType):
        assert 1.5 in cache


def test_waiting_and_stored_meet_in_one_batch(cache):
    cache.put_batch([1, 3], values_of([1, 3]))
    cache.flush()
    cache.put_batch([2, 4], values_of([2, 4]))
    values, missing = cache.get_batch([4, 3, 0, 2, 1])
    assert torch.equal(values, values_of([4, 3, 2, 1]))
    assert missing.tolist() == [2]


@pytest.mark.parametrize("ids", [[1, 2], ["a", "b"], [1, "a"]])
@pytest.mark.parametrize("flushed", [False, True])
def test_the_last_value_of_an_id_counts(tmp_path, ids, flushed):
    with ws.FeatureCache(tmp_path, "id") as cache:
        for value in range(3):
            cache.put_batch([ids[0], ids[1], ids[0]], torch.tensor([value, 10 + value, 20 + value]))
            if flushed:
                cache.flush()
            assert cache.get_batch(ids)[0].tolist() == [20 + value, 10 + value]
            assert cache.get_batch(ids[:1])[0].tolist() == [20 + value]
        for one in ids:  # mixed ids and ids of one kind
            cache.put_batch([one], torch.tensor([7]))
        cache.flush()
        assert cache.get_batch(ids)[0].tolist() == [7, 7]
    with ws.FeatureCache(tmp_path, "id") as cache:
        assert cache.get_batch(ids)[0].tolist() == [7, 7]


@pytest.mark.parametrize("lists", [[torch.ones(1), torch.ones(2)], ["a", "b"], torch.ones(2)])
def test_stored_hits_are_read_in_one_pass(tmp_path, lists):
    """Whatever their kind: the slower path is for batches with misses."""
    with ws.FeatureCache(tmp_path, "id", lists="per_sample") as cache:
        cache.put_batch([1, 2], lists)
        cache.flush()
        assert cache._session.version.reader is not None
        for _ in range(2):
            assert cache._session.version.reader.read_all(as_keys([2, 1])) is not None
        assert cache._session.version.reader.read_all(as_keys([2, 3])) is None


def test_ints_are_found_beside_strings(cache):
    cache.put_batch([1, 2, 3], values_of([1, 2, 3]))
    cache.flush()
    values, missing = cache.get_batch(["1", 2, "x", 3])
    assert torch.equal(values, values_of([2, 3]))
    assert missing.tolist() == [0, 2]


@pytest.mark.parametrize("outputs", [torch.ones(2), torch.ones(4), torch.tensor(1.0)])
def test_more_or_fewer_ids_than_outputs(cache, outputs):
    with pytest.raises(ValueError, match="samples"):
        cache.put_batch([1, 2, 3], outputs)
    assert len(cache) == 0


@pytest.mark.parametrize(
    "options",
    [{"id": ""}, {"id": 3}, {"id": "."}, {"id": ".."}, {"id": "x" * 300}, {"flush_every": 0}, {"lists": "no"}],
)
def test_bad_options(tmp_path, options):
    with pytest.raises(ValueError, match=next(iter(options))):
        ws.FeatureCache(tmp_path, **{"id": "id", **options})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("id", ["a/b", "../up", "ü", "CON", "a b", ".hidden", "%2F"])
def test_any_id_is_a_folder_of_its_own(tmp_path, id):
    for name in (id, id + "2"):
        with ws.FeatureCache(tmp_path / "folder", name) as cache:
            cache.put_batch([1], torch.ones(1))
            assert cache.path.parent == tmp_path / "folder"
    assert len(list(tmp_path.iterdir())) == 1
    assert len(list((tmp_path / "folder").iterdir())) == 2


class TestTwoCachesInOneFolder:
    """F8."""

    def test_ids_keep_them_apart(self, tmp_path):
        with ws.FeatureCache(tmp_path, "a") as a, ws.FeatureCache(tmp_path, "b") as b:
            a.put_batch([1], torch.ones(1))
            b.put_batch([1], torch.zeros(1, 2))
            a.flush()
            assert b.get_batch([1])[0].tolist() == [[0, 0]]

    def test_two_objects_see_each_other_live(self, tmp_path):
        one, other = ws.FeatureCache(tmp_path, "id"), ws.FeatureCache(tmp_path, "id")
        assert other.get_batch([1])[0] is None
        for at in range(5):
            writer, reader = (one, other) if at % 2 else (other, one)
            writer.put_batch([at], values_of([at]))
            assert reader.get_batch([at])[0] is None
            writer.flush()
            assert torch.equal(reader.get_batch(range(at + 1))[0], values_of(range(at + 1)))
        one.close()
        other.close()


class TestMadeByAnotherProcessMeanwhile:
    """A cache that had bound its weights before the store was there once read another module's features."""

    @pytest.fixture
    def two(self, tmp_path):
        modules = []
        for seed in range(2):
            torch.manual_seed(seed)
            module = torch.nn.Linear(3, 2).requires_grad_(False)
            modules.append(ws.CachedModule(module, ws.FeatureCache(tmp_path, "id")))
        return modules

    @pytest.mark.parametrize("waiting", [False, True])
    def test_with_other_weights(self, two, waiting):
        one, other = two
        x = torch.rand(2, 3)
        if waiting:
            one(x, cache_ids=[1, 2])
        else:
            one._bind(ws.features.calls.call_arguments.Arguments((x,), {}, 2, None))
        other(x, cache_ids=[3, 4])
        other.cache.flush()
        for ids in ([3, 4], [3, 5]):
            with pytest.raises(ws.StaleCache, match="weights"):
                one(x, cache_ids=ids)
        if waiting:
            with pytest.raises(ws.StaleCache, match="weights"):
                one.cache.flush()
        one.cache.close()
        assert torch.equal(other.cache.get_batch([3, 4])[0], other.module(x))
        assert other.cache.get_batch([1, 2])[0] is None

    def test_with_another_schema(self, tmp_path):
        one, other = ws.FeatureCache(tmp_path, "id"), ws.FeatureCache(tmp_path, "id")
        one.put_batch([1], {"x": torch.ones(1, 3)})
        other.put_batch([2], torch.ones(1, 4))
        other.flush()
        for _ in range(2):
            with pytest.raises(ws.SchemaMismatch):
                one.get_batch([2])
        with pytest.raises(ws.SchemaMismatch):
            one.flush()
        one.put_batch([1], torch.zeros(1, 4))
        one.close()
        assert other.get_batch([1, 2])[0].tolist() == [[0] * 4, [1] * 4]

    def test_with_the_same(self, two):
        one, _ = two
        other = ws.CachedModule(copy.deepcopy(one.module), ws.FeatureCache(one.cache.path.parent, "id"))
        x = torch.rand(4, 3)
        one(x[:2], cache_ids=[1, 2])
        other(x[2:], cache_ids=[3, 4])
        other.cache.flush()
        assert torch.equal(one(x, cache_ids=[1, 2, 3, 4]), torch.cat([one.module(x[:2]), one.module(x[2:])]))
        one.cache.flush()
        assert one.cache.stats().hits == 4
        assert other.cache.get_batch([1, 2])[1].tolist() == []


def test_other_weights_after_put_batch_of_ones_own(tmp_path, linear):
    cache = ws.FeatureCache(tmp_path, "id")
    cache.put_batch([1], torch.ones(1, 2))
    cache.flush()
    module = ws.CachedModule(linear, cache)
    module(torch.rand(1, 3), cache_ids=[2])
    linear.bias.add_(1)
    with pytest.raises(ws.StaleCache):
        module(torch.rand(1, 3), cache_ids=[2])


class TestDamage:
    """R12 and F12: a hit is right or it is a miss."""

    @pytest.fixture
    def filled(self, tmp_path):
        x = torch.arange(200.0).reshape(100, 2)
        with ws.FeatureCache(tmp_path, "id", flush_every=10, async_write=False, lists="per_sample") as cache:
            for at in range(0, 100, 10):
                cache.put_batch(
                    range(at, at + 10), {"x": x[at : at + 10], "names": [f"n{n}" for n in range(at, at + 10)]}
                )
        return tmp_path / "id", x

    def check(self, path, x):
        """Everything comes right, computed again where it must be; returns how much was damaged."""
        with ws.FeatureCache(path.parent, "id") as cache:
            values, missing = cache.get_batch(range(100))
            damaged = cache.stats().damaged
            lost = set(missing.tolist())
            kept = [at for at in range(100) if at not in lost]
            if kept:
                assert torch.equal(values["x"], x[kept])
                assert values["names"] == [f"n{n}" for n in kept]
            if lost:
                again = sorted(lost)
                cache.put_batch(again, {"x": x[again], "names": [f"n{n}" for n in again]})
            cache.flush()
        with ws.FeatureCache(path.parent, "id") as cache:
            values, missing = cache.get_batch(range(100))
            assert missing.tolist() == []
            assert torch.equal(values["x"], x)
        return damaged, len(lost)

    def test_flipped_bit_in_a_value(self, filled):
        path, x = filled
        chunk = next(path.rglob("*.arrow"))
        data = bytearray(chunk.read_bytes())
        at = data.index(x[42].numpy().tobytes())
        data[at] ^= 1
        chunk.write_bytes(data)
        assert self.check(path, x) == (1, 1)

    def test_flipped_bit_anywhere(self, filled):
        path, x = filled
        chunk = next(path.rglob("*.arrow"))
        whole = chunk.read_bytes()
        copies = path.parent / "copies"
        found = 0
        for at in np.random.default_rng(0).integers(0, len(whole), 40).tolist():
            shutil.rmtree(copies, ignore_errors=True)
            shutil.copytree(path, copies / "id")
            data = bytearray(whole)
            data[at] ^= 1 << at % 8
            (copies / chunk.relative_to(path.parent)).write_bytes(data)
            damaged, lost = self.check(copies / "id", x)
            found += bool(lost)
            assert damaged == lost
        assert found > 5

    @pytest.mark.parametrize("part", [0.0, 0.3, 0.99])
    def test_truncated_chunk(self, filled, part):
        path, x = filled
        chunk = next(path.rglob("*.arrow"))
        os.truncate(chunk, int(chunk.stat().st_size * part))
        damaged, lost = self.check(path, x)
        assert damaged == lost
        assert (lost == 100) == (part == 0)

    @pytest.mark.parametrize("pattern", ["keys-*", "keys-*.index", "keys-*.direct", "cost.json"])
    def test_deleted_index(self, filled, pattern):
        path, x = filled
        for file in path.glob(pattern):
            file.unlink()
        assert self.check(path, x) == (0, 0)

    @pytest.mark.parametrize(("low", "high"), [(-1, 101), (0, 100), (10, 200), (5, 10**12)])
    def test_index_full_of_nonsense(self, filled, low, high):
        """Also rows that exist and hold another key: they are misses, never another sample's values."""
        path, x = filled
        for file in path.glob("keys-*.direct"):
            rows = np.memmap(file, np.int64, "r+", offset=4096)
            assert sorted(rows[:100]) == list(range(1, 101))
            rows[:100] = np.random.default_rng(0).integers(-low, high, 100)
            rows.flush()
        damaged, lost = self.check(path, x)
        assert damaged == 0
        assert lost > 90


class TestReadOnly:
    def test_misses_are_computed_and_not_kept(self, tmp_path, cached):
        module = cached()
        module(torch.ones(2), cache_ids=[1, 2])
        module.cache.close()
        before = sorted(path.name for path in tmp_path.rglob("*"))
        module = cached(read_only=True)
        assert module(torch.ones(3), cache_ids=[1, 2, 3]).tolist() == [2, 2, 2]
        assert module(torch.ones(3), cache_ids=[1, 2, 3]).tolist() == [2, 2, 2]
        assert module.rows == [1, 1]
        with pytest.raises(PermissionError, match="read_only"):
            module.cache.put_batch([4], torch.ones(1))
        module.cache.flush()
        module.cache.close()
        assert sorted(path.name for path in tmp_path.rglob("*")) == before

    def test_nothing_there(self, tmp_path, cached):
        module = cached(read_only=True)
        assert module(torch.ones(2), cache_ids=[1, 2]).tolist() == [2, 2]
        module.cache.close()
        assert not list(tmp_path.iterdir())


def test_folder_that_is_a_plain_record_store(tmp_path):
    ws.RecordStore.create(tmp_path / "id", {"x": ws.Array("int64")}).close()
    with pytest.raises(ws.StoreExists, match="no feature cache"):
        ws.FeatureCache(tmp_path, "id")


def test_folder_that_holds_something_else(tmp_path):
    (tmp_path / "id").mkdir()
    (tmp_path / "id" / "notes.txt").write_text("mine")
    cache = ws.FeatureCache(tmp_path, "id")
    cache.put_batch([1], torch.ones(1))
    with pytest.raises(ws.StoreExists):
        cache.flush()
    assert cache.get_batch([1])[0].tolist() == [1]
    (tmp_path / "id" / "notes.txt").unlink()
    cache.close()
    assert len(ws.FeatureCache(tmp_path, "id")) == 1


def test_closed(cache):
    cache.put_batch([1], torch.ones(1))
    cache.close()
    cache.close()
    for call in (lambda: cache.get_batch([1]), lambda: cache.put_batch([1], torch.ones(1)), cache.flush):
        with pytest.raises(ws.Closed, match="closed"):
            call()
    assert len(cache) == 1
    assert cache.stats().entries == 1
    assert "id" in repr(cache)


def test_closed_by_a_with_statement_that_raises(tmp_path):
    def fail():
        with ws.FeatureCache(tmp_path, "id") as cache:
            cache.put_batch([1], torch.ones(1))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(ws.FeatureCache(tmp_path, "id")) == 1


def test_leftovers_smaller_than_a_flush(tmp_path):
    with ws.FeatureCache(tmp_path, "id", flush_every=64) as cache:
        for at in range(0, 100, 7):
            cache.put_batch(range(at, at + 7), values_of(range(at, at + 7)))
    with ws.FeatureCache(tmp_path, "id") as cache:
        assert torch.equal(cache.get_batch(range(100))[0], values_of(range(100)))


def test_pickled_cache_opens_the_same_folder(cache):
    cache.put_batch([1], torch.ones(1))
    cache.flush()
    twin = pickle.loads(pickle.dumps(cache))
    assert twin.get_batch([1])[0].tolist() == [1]
    twin.close()


IDS = st.lists(st.one_of(st.integers(0, 12), st.sampled_from(["0", "1", "x", "y", ""]), st.just(-1)), max_size=8)
ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), IDS),
        st.tuples(st.just("put"), IDS),
        st.tuples(st.sampled_from(["flush", "reopen", "switch", "copy"]), st.just([])),
    ),
    max_size=25,
)


@given(ACTIONS, st.sampled_from([1, 3, 1000]), st.booleans())
@settings(max_examples=either(8, 25), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_like_a_dict(tmp_path_factory, counting, actions, flush_every, asynchronous):
    """Any sequence of batches, flushes, reopenings and second caches finds what a dict would, once it is flushed."""
    folder = tmp_path_factory.mktemp("cache")

    def value(one, version):
        return [float(hash_of(one)), float(version), *[0.0] * 7]  # no batch of so many: its output would be a square

    def open_cache():
        return ws.FeatureCache(folder, "id", flush_every=flush_every, async_write=asynchronous)

    caches = [open_cache(), open_cache()]
    at = 0
    truth: dict = {}
    for version, (action, ids) in enumerate(actions):
        cache = caches[at]
        if action == "put":
            cache.put_batch(ids, torch.tensor([value(one, version) for one in ids]).reshape(-1, 9))
            truth |= {one: value(one, version) for one in ids}
        elif action == "call":
            known = [one for one in ids if one in truth]
            module = ws.CachedModule(counting(lambda x: x), cache, enforce_stateless=False)
            given_values = torch.tensor([truth.get(one, value(one, version)) for one in ids]).reshape(-1, 9)
            out = module(given_values, cache_ids=ids)
            truth |= {one: value(one, version) for one in ids if one not in truth}
            assert out.tolist() == [truth[one] for one in ids]
            assert sum(module.rows) == (len(set(ids) - set(known)) if ids else 0)
        elif action == "flush":
            cache.flush()
        elif action == "reopen":
            cache.close()
            cache = caches[at] = open_cache()
        elif action == "switch":
            cache.flush()
            at = 1 - at
        else:
            cache.flush()
            cache = pickle.loads(pickle.dumps(cache))
        values, missing = cache.get_batch(list(truth))
        assert missing.tolist() == []
        if truth:
            assert values.tolist() == list(truth.values())
        if action == "copy":
            cache.close()
    for cache in caches:
        cache.close()


def hash_of(one):
    return one if isinstance(one, int) else 100 + sum(map(ord, one))


def test_a_cache_filled_by_hand_is_tied_to_the_first_module_for_good(tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path, "c") as cache:
        cache.put_batch([1], torch.zeros(1, 2))
    with ws.FeatureCache(tmp_path, "c") as cache:
        cache._bind({"weights": "mine"})
    with ws.FeatureCache(tmp_path, "c") as cache, pytest.raises(ws.StaleCache, match="weights"):
        cache._bind({"weights": "others"})
