"""F6: a hot tier. It never holds more bytes than it may, and never gives what the disk would not."""

import os
import pickle
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from tests.faults.children import in_child, well
from tests.faults.failing_lines import fails_at
from tests.slow import either

import warmstore as ws
from warmstore.features.keyed import hot_tier
from warmstore.features.keyed.hot_columns import InMemory, ObjectColumn, OnDevice
from warmstore.features.keyed.hot_tier import _Table

pytestmark = pytest.mark.forks

ROW = 512 * 4 + 25
Pair = namedtuple("Pair", "left right")


def value_of(ids, width=512):
    return torch.tensor(ids, dtype=torch.float32)[:, None] + torch.arange(width) / width


def filled(folder, count=400, **options):
    with ws.FeatureCache(folder, "id") as cache:
        cache.put_batch(range(count), value_of(range(count)))
    return ws.FeatureCache(folder, "id", **options)


def look(cache, ids):
    values, missing = cache.get_batch(ids)
    assert not len(missing)
    assert torch.equal(values, value_of(list(ids)))
    return values


@pytest.fixture(params=["in memory", "on a device"])
def lies(request, monkeypatch):
    """Device columns are the same code on every device; here the CPU plays one."""
    if request.param == "in memory":
        return

    def columns(schema, device):
        found = COLUMNS(schema, device)
        nodes = list(schema.nodes.values())
        return [
            OnDevice(one._width, device) if type(one) is InMemory and node == ("tensor", False) and one._width else one
            for one, node in zip(found, nodes, strict=True)
        ]

    monkeypatch.setattr(hot_tier, "columns_of", columns)


COLUMNS = hot_tier.columns_of


def test_off_unless_asked_for(tmp_path):
    with filled(tmp_path) as cache:
        look(cache, range(10))
        look(cache, range(10))
        assert (cache.stats().hot_hits, cache.stats().hot_bytes) == (0, 0)


@pytest.mark.usefixtures("lies")
class TestHits:
    def test_come_from_it_the_second_time(self, tmp_path):
        with filled(tmp_path, hot_size="10MB") as cache:
            for seen, ids in [(0, [5, 3, 5]), (3, [3, 5, 3]), (5, [9, 3, 8, 5]), (9, [8, 9, 5, 3])]:
                look(cache, ids)
                assert cache.stats().hot_hits == seen
            assert cache.get_batch([3, -1, 5])[1].tolist() == [1]
            assert cache.stats().hits == 16

    def test_do_not_alias_it(self, tmp_path):
        with filled(tmp_path, hot_size="10MB") as cache:
            for _ in range(4):
                look(cache, range(300)).zero_()
            look(cache, range(200, 400)).zero_()
            look(cache, range(400))

    def test_large_batches(self, tmp_path):
        with filled(tmp_path, 2000, hot_size="10MB") as cache:
            kept = [look(cache, range(2000)) for _ in range(3)]
            assert all(torch.equal(one, kept[0]) for one in kept)
            assert cache.stats().hot_hits == 4000

    def test_equal_what_the_disk_gives(self, tmp_path, cached):
        dtypes = (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.complex64, torch.bool, torch.uint16)
        sources = {str(dtype): (torch.rand(30, 3) * 8).to(dtype) for dtype in dtypes}
        sources["scalar"], sources["empty"] = torch.arange(30), torch.zeros(30, 0)

        def everything(x):
            which = x[:, 0].long()
            return {
                "tensors": {name: source[which] for name, source in sources.items()},
                "pair": Pair(x.numpy() * 2, None),
                "texts": [{"name": f"row {at}", "list": [at, None]} for at in which.tolist()],
                "ragged": [torch.full((at % 4, 2), at) for at in which.tolist()],
                "numbers": [torch.tensor(at) for at in which.tolist()],
            }

        x = torch.stack([torch.arange(30.0), torch.rand(30)], 1)
        plain, tiered = cached(everything, lists="per_sample"), cached(everything, lists="per_sample", hot_size="1MB")
        plain(x, cache_ids=range(30))
        plain.cache.flush()
        for at in ([3, 1], list(range(30)), list(range(29, 0, -1)), [2] * 5):
            expected = plain(x[at], cache_ids=at)
            for _ in range(2):
                found = tiered(x[at], cache_ids=at)
                assert repr(found) == repr(expected)
                found["ragged"][0].zero_()
                found["texts"][0].clear()
                found["pair"].left[:] = 0
        assert tiered.cache.stats().hot_hits > 60
        assert tiered.module.rows == []

    def test_a_batch_of_hot_cold_and_missing(self, tmp_path, cached):
        module = cached(lambda x: x * 2, hot_size="1MB")
        x = torch.rand(12, 5)
        module(x[:8], cache_ids=range(8))
        module.cache.flush()
        for ids in ([0, 1, 2], [9, 0, 5, 2], [11, 10, 1]):
            assert torch.equal(module(x[ids], cache_ids=ids), x[ids] * 2)
        assert module.rows == [8, 1, 2]


class TestBytes:
    @pytest.mark.parametrize("rows", [1, 7, 100])
    def test_never_more_than_allowed(self, tmp_path, rows):
        size, batches = rows * ROW + 100, either(100, 200)
        draw = np.random.default_rng(0)
        with filled(tmp_path, hot_size=size) as cache:
            for _ in range(batches):
                look(cache, draw.integers(0, 400, 32).tolist())
                assert 0 < cache.stats().hot_bytes <= size
            assert cache.stats().hot_hits > 0.5 * batches * 32 * rows / 400

    def test_epochs_hit_what_fits(self, tmp_path):
        """What was used last is no help here: an LRU for half of the rows hits one in six."""
        draw = np.random.default_rng(0)
        with filled(tmp_path, hot_size=200 * ROW) as cache:
            for _ in range(10):
                for ids in draw.permutation(400).reshape(10, 40):
                    look(cache, ids.tolist())
            assert cache.stats().hot_hits > 0.8 * 9 * 200

    def test_what_is_wanted_now_displaces_what_is_not(self, tmp_path):
        with filled(tmp_path, hot_size=200 * ROW) as cache:
            for _ in range(3):
                look(cache, range(200))
            for _ in range(150):
                look(cache, range(200, 400))
            before = cache.stats().hot_hits
            look(cache, range(200, 400))
            assert cache.stats().hot_hits - before > 180

    def test_rows_of_all_lengths(self, tmp_path, cached):
        def ragged(x):
            return [torch.full((int(at) * 37 % 500,), at) for at in x[:, 0].tolist()]

        x, size = torch.arange(200.0)[:, None], 60_000
        module = cached(ragged, lists="per_sample", hot_size=size)
        module(x, cache_ids=range(200))
        module.cache.flush()
        draw = np.random.default_rng(0)
        for _ in range(200):
            ids = draw.integers(0, 200, 16).tolist()
            for one, expected in zip(module(x[ids], cache_ids=ids), ragged(x[ids]), strict=True):
                assert torch.equal(one, expected)
            assert 0 < module.cache.stats().hot_bytes <= size
        assert module.cache.stats().hot_hits > 200

    @pytest.mark.parametrize(
        "function", [_Table.insert, _Table._empty, _Table._make_room, ObjectColumn.put, ObjectColumn.forget]
    )
    def test_an_error_at_any_line_of_an_insertion(self, function, tmp_path):
        """What is kept is found afterwards, and what is found is right; all that is held is counted."""
        for line in range(16):
            with ws.FeatureCache(tmp_path / str(line), "id", lists="per_sample", hot_size=4_000) as cache:
                texts = {at: f"{at} " * (at % 50) for at in range(100)}
                cache.put_batch(list(texts), {"text": list(texts.values()), "number": torch.arange(100)})
                cache.flush()

                def read(ids, cache=cache, texts=texts):
                    values, _ = cache.get_batch(ids)
                    assert values["text"] == [texts[at] for at in ids]
                    assert values["number"].tolist() == list(ids)

                read(range(0, 100, 2))
                failed = fails_at(function, line, lambda read=read: read(range(1, 100, 2)))
                table = cache._session.version.hot._table
                for column in table.columns:
                    if isinstance(column, ObjectColumn):
                        held = [len(row) + 64 for row in column._rows if row is not None]
                        assert sum(held) <= column.held <= sum(held) + 64 + 200
                for _ in range(5):
                    read(range(100))
                hits = cache.stats().hot_hits
                read(table._rows[table._rows >= 0].tolist())
                assert cache.stats().hot_hits > hits
                assert cache.stats().hot_bytes <= 4_000
            if not failed:
                break
        assert line

    def test_too_small_for_a_row(self, tmp_path, caplog):
        with filled(tmp_path, hot_size=100) as cache:
            for _ in range(3):
                look(cache, range(10))
            assert cache.stats().hot_bytes == 0
        assert caplog.text.count("too small for rows") == 1

    def test_versions_share_it(self, tmp_path, linear):
        with ws.FeatureCache(tmp_path, "id", versions="new", hot_size="100KB") as cache:
            module, x = ws.CachedModule(linear, cache), torch.rand(1000, 3)
            for _ in range(3):
                for _ in range(3):
                    assert torch.equal(module(x, cache_ids=range(1000)), linear(x))
                    cache.flush()
                assert 0 < cache.stats().hot_bytes <= 100_000
                linear.weight.mul_(2)
            assert len(cache.stats().versions) == 3


class TestWholeCaches:
    @pytest.mark.usefixtures("lies")
    def test_all_rows_are_there_at_once(self, tmp_path):
        with filled(tmp_path, hot_size="all") as cache:
            look(cache, [7])
            look(cache, range(400))
            assert cache.stats().hot_hits == 401

    def test_new_rows_of_others_are_found(self, tmp_path):
        with filled(tmp_path, hot_size="all") as cache, ws.FeatureCache(tmp_path, "id") as other:
            look(cache, [7])
            for first in range(400, 3000, 200):
                ids = range(first, first + 200)
                other.put_batch(ids, value_of(ids))
                other.flush()
                look(cache, ids)
            look(cache, [7])
            before = cache.stats().hot_hits
            look(cache, range(3000))
            assert cache.stats().hot_hits == before + 3000

    def test_that_do_not_fit_are_read_from_the_disk(self, tmp_path, caplog, monkeypatch):
        monkeypatch.setattr(hot_tier, "_AVAILABLE", 1e-9)
        with filled(tmp_path, hot_size="all") as cache:
            for _ in range(3):
                look(cache, range(400))
            assert (cache.stats().hot_hits, cache.stats().hot_bytes) == (0, 0)
        assert caplog.text.count("do not fit") == 1

    def test_a_container_is_smaller_than_its_machine(self, tmp_path, memory_cgroup):
        """The kernel would kill the process."""

        def work(say):
            memory_cgroup.enter()
            memory_cgroup.leave(48 << 20)
            with ws.FeatureCache(tmp_path, "id", hot_size="all") as cache:
                values, missing = cache.get_batch(range(100))
                say((values.numpy(), len(missing), cache.stats().hot_bytes))

        filled(tmp_path, 40_000).close()
        (found,) = well(in_child(work))
        assert np.array_equal(found[0], value_of(range(100)))
        assert found[1:] == (0, 0)


class TestNeverStale:
    @pytest.mark.parametrize("size", ["1MB", "all"])
    def test_the_last_value_of_an_id_counts(self, tmp_path, size):
        with filled(tmp_path, hot_size=size) as cache, ws.FeatureCache(tmp_path, "id") as other:
            for number in range(5):
                for writer in (cache, other):
                    look(cache, [1, 2, 3])
                    writer.put_batch([2], value_of([2 + number]))
                    writer.flush()
                    cache.get_batch([-1])  # sees what others wrote
                    assert torch.equal(cache.get_batch([1, 2, 3])[0], value_of([1, 2 + number, 3]))
                    writer.put_batch([2], value_of([2]))
                    writer.flush()
                    cache.get_batch([-1])

    @pytest.mark.parametrize("size", ["1MB", "all"])
    def test_rows_that_moved(self, tmp_path, size):
        with filled(tmp_path, hot_size=size) as cache:
            look(cache, range(400))
            look(cache, range(400))
            with ws.RecordStore.open(tmp_path / "id", "a") as store:
                store.delete(np.arange(0, 400, 2))
                store.rebalance(progress=False)
            cache.get_batch([-1])
            for ids in ([1, 3, 5], range(1, 400, 2)):
                values, missing = cache.get_batch(ids)
                known = [one for at, one in enumerate(ids) if at not in set(missing.tolist())]
                assert not known or torch.equal(values, value_of(known))

    def test_damaged_rows_do_not_enter(self, tmp_path):
        filled(tmp_path).close()
        (chunk,) = (tmp_path / "id").rglob("*.arrow")
        content = bytearray(chunk.read_bytes())
        content[content.index(value_of([17]).numpy().tobytes()) + 100] ^= 1
        chunk.write_bytes(content)
        for size in ("1MB", "all"):
            with ws.FeatureCache(tmp_path, "id", hot_size=size, read_only=True) as cache:
                for _ in range(4):
                    values, missing = cache.get_batch([16, 17, 18])
                    assert missing.tolist() == [1]
                    assert torch.equal(values, value_of([16, 18]))


class TestThreadsAndProcesses:
    @pytest.mark.usefixtures("lies")
    def test_threads_that_displace_each_others_rows(self, tmp_path):
        with filled(tmp_path, hot_size=40 * ROW) as cache, ThreadPoolExecutor(4) as pool:

            def work(seed):
                draw = np.random.default_rng(seed)
                for _ in range(either(30, 100)):
                    look(cache, draw.integers(0, 400, 24).tolist())
                    assert cache.stats().hot_bytes <= 40 * ROW

            list(pool.map(work, range(4)))

    def test_a_row_written_while_it_is_read_is_not_believed(self, tmp_path, monkeypatch):
        with filled(tmp_path, hot_size=ROW) as cache:
            look(cache, [1])
            table, gather, displaced = cache._session.version.hot._table, InMemory.gather, []

            def interrupted(column, at):
                monkeypatch.setattr(InMemory, "gather", gather)
                while table._rows[0] == 1:
                    cache._session.version.hot.read(cache._session.version.reader, *where(cache, [2]))
                displaced.append(int(table._rows[0]))
                return gather(column, at)

            monkeypatch.setattr(InMemory, "gather", interrupted)
            look(cache, [1])
            assert displaced == [2]

    def test_forked_children_read_the_disk(self, tmp_path):
        with filled(tmp_path, hot_size="all") as cache:
            look(cache, range(400))
            child = os.fork()
            if not child:
                try:
                    for _ in range(2):
                        look(cache, range(20))
                    os._exit(int(cache.stats().hot_hits != 400))
                finally:
                    os._exit(2)
            assert os.waitpid(child, 0)[1] == 0
            look(cache, range(400))
            assert cache.stats().hot_hits == 800

    def test_pickled_it_starts_empty(self, tmp_path):
        with filled(tmp_path, hot_size="1MB") as cache:
            look(cache, range(400))
            with pickle.loads(pickle.dumps(cache)) as copy:
                assert copy.stats().hot_bytes == 0
                look(copy, range(400))
                look(copy, range(400))
                assert copy.stats().hot_hits == 400

    def test_closed_it_is_gone(self, tmp_path):
        cache = filled(tmp_path, hot_size="all", read_only=True)
        look(cache, range(400))
        cache.close()
        assert cache._session.version.hot.nbytes == 0


def where(cache, ids):
    keys = ws.records.index.sample_keys.as_keys(ids)
    return keys, cache._session.version.reader.keyed.index.lookup(keys)


def test_objects_count_their_bytes():
    column = ObjectColumn(0)
    column.make(4)
    rows = hot_tier.Values and ws.features.keyed.hot_columns.Varying([b"abc", b"", b"x" * 100], None)
    column.put(np.array([0, 2, 3]), rows)
    assert column.held == int(column.sizes(rows).sum()) == 103 + 3 * 64
    column.put(np.array([3]), rows[np.array([1])])
    column.forget(np.array([0, 1]))
    assert column.held == 128


@pytest.mark.parametrize("options", [{"hot_size": "much"}, {"hot_size": "1MB", "hot_device": "meta"}])
def test_options_that_cannot_be(tmp_path, options):
    with pytest.raises(ValueError, match=r"much|hot_device is 'meta'"):
        ws.FeatureCache(tmp_path, "id", **options)
