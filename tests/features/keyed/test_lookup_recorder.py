"""The history of a feature cache: its epochs, what they found and computed, and the modules that it refused."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.faults.children import in_child

import warmstore as ws
from warmstore.features.keyed import lookup_recorder
from warmstore.storage.files import Files
from warmstore.storage.history import NAME, Pace, read_history

pytestmark = pytest.mark.forks


@pytest.fixture(autouse=True)
def no_record_is_due_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine an epoch of three lookups may take the 15 seconds after which one is written."""
    monkeypatch.setattr(lookup_recorder, "Pace", lambda: Pace(clock=lambda: 1e9))


def records(path: Path, event: str = "use") -> list[dict]:
    return [record for record in read_history(path) if record["event"] == event]


def epochs(cache: ws.FeatureCache, module: ws.CachedModule, count: int, samples: int = 12) -> None:
    for _ in range(count):
        for ids in np.split(np.random.default_rng(0).permutation(samples), 3):
            module(torch.ones(len(ids), 2), cache_ids=ids)


def test_a_record_an_epoch(cached) -> None:
    module = cached()
    epochs(module.cache, module, 3)
    assert not module.cache.path.exists()  # and no history keeps the store from being created
    module.cache.close()
    found = records(module.cache.path)
    assert [(record["epoch"], record.get("hits", 0), record.get("misses", 0)) for record in found] == [
        (0, 0, 12),
        (1, 12, 0),
        (2, 12, 0),
    ]
    stats = module.cache.stats()
    assert sum(record.get("bytes_read", 0) for record in found) == stats.bytes_read == 24 * 8
    assert found[0]["computed"] == 12
    assert sum(record.get("computed_seconds", 0) for record in found) == pytest.approx(stats.computed_seconds, abs=1e-5)
    assert sum(record["saved_seconds"] for record in found) == pytest.approx(stats.seconds_saved, abs=1e-5)
    assert found[-1]["bytes_written"] == 12 * 8
    assert [record["entries"] for record in found] == [12, 12, 12]
    assert all(record["kind"] == "features" and record["seconds"] > 0 for record in found)


def test_an_epoch_that_goes_on_with_what_a_killed_run_left(cached) -> None:
    with cached().cache as cache:
        cache.put_batch(range(6), torch.ones(6, 2))
    module = cached()
    epochs(module.cache, module, 2)
    module.cache.close()
    found = records(module.cache.path)
    assert [(record["epoch"], record["hits"], record.get("misses", 0)) for record in found[-2:]] == [
        (0, 6, 6),
        (1, 12, 0),
    ]


def test_a_cache_that_is_opened_again_counts_its_epochs_on(cached) -> None:
    """A cell of a notebook that is run again."""
    for _ in range(3):
        module = cached()
        epochs(module.cache, module, 2)
        module.cache.close()
    found = [(record["epoch"], record.get("hits", 0)) for record in records(module.cache.path)]
    assert found == [(0, 0), (1, 12), (2, 12), (3, 12), (4, 12), (5, 12)]


def test_a_rank_looks_up_its_share(cached, monkeypatch: pytest.MonkeyPatch) -> None:
    with cached().cache as cache:
        cache.put_batch(range(12), torch.ones(12, 2))
    monkeypatch.setenv("WORLD_SIZE", "2")
    module = cached()
    epochs(module.cache, module, 3, samples=6)
    module.cache.close()
    assert [(record["epoch"], record["hits"]) for record in records(module.cache.path)[1:]] == [(0, 6), (1, 6), (2, 6)]


def test_short_epochs_share_records(cached, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1e9]  # later than any other clock
    monkeypatch.setattr(lookup_recorder, "Pace", lambda: Pace(soon=2, clock=lambda: now[0]))
    module = cached()
    epochs(module.cache, module, 6)
    now[0] += 1.0
    epochs(module.cache, module, 1)
    module.cache.close()
    found = records(module.cache.path)
    assert [(record["epoch"], record.get("epochs", 1)) for record in found] == [(0, 1), (1, 1), (2, 4), (6, 1)]
    assert found[2]["hits"] == 48


def test_a_long_epoch_is_recorded_before_its_end(cached) -> None:
    module = cached(flush_every=1, async_write=False)
    module(torch.ones(1, 2), cache_ids=[0])
    module.cache._session.version.recorder._pace.due = 0
    module(torch.ones(1, 2), cache_ids=[1])
    assert [record["misses"] for record in records(module.cache.path)] == [2]
    module.cache.close()


def test_the_flush_of_a_sigterm_writes_it(cached) -> None:
    module = cached()
    epochs(module.cache, module, 1)
    module.cache.flush()
    assert [record["misses"] for record in records(module.cache.path)] == [12]
    module.cache.flush()
    module.cache.close()
    assert len(records(module.cache.path)) == 1


def test_a_refusal_is_recorded_once_with_what_differs(tmp_path: Path, linear) -> None:
    with ws.FeatureCache(tmp_path, "id") as cache:
        ws.CachedModule(linear, cache)(torch.ones(2, 3), cache_ids=[0, 1])
    linear.weight.data += 1
    with ws.FeatureCache(tmp_path, "id") as cache:
        module = ws.CachedModule(linear, cache)
        for _ in range(3):
            with pytest.raises(ws.StaleCache):
                module(torch.ones(2, 3), cache_ids=[0, 1])
    (record,) = records(cache.path, "stale")
    assert record["changed"] == "the values of the tensor `module.weight` changed"
    with ws.FeatureCache(tmp_path, "id", read_only=True) as cache, pytest.raises(ws.StaleCache):
        ws.CachedModule(linear, cache)(torch.ones(2, 3), cache_ids=[0, 1])
    assert len(records(cache.path, "stale")) == 1


def test_who_does_not_write_leaves_no_record(tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path, "id") as cache:
        cache.put_batch([0], torch.ones(1, 2))
        cache.flush()
    size = (cache.path / NAME).stat().st_size
    for options in ({"read_only": True}, {"writer_ranks": [1]}):
        with ws.FeatureCache(tmp_path, "id", **options) as cache:
            cache.get_batch([0])
    assert (cache.path / NAME).stat().st_size == size


def test_evicted_files_are_counted(tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path, "id", max_size="4MB", async_write=False) as cache:
        for number in range(30):
            cache.put_batch([number], torch.full((1, 60_000), float(number)))
            cache.flush()
    found = records(cache.path)
    assert sum(record.get("evicted_files", 0) for record in found) > 0
    assert sum(record.get("evicted_bytes", 0) for record in found) > 240_000
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) <= 4_000_000


def test_the_history_of_a_small_cache_is_small(tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path, "id", max_size="4MB", async_write=False) as cache:
        cache.put_batch([0], torch.ones(1, 2))
        cache.flush()
        recorder = cache._session.version.recorder
        for _ in range(500):
            recorder.looked_up(cache._session.version, 1, 0, 8, 0.0)
            recorder.record(cache._session.version)
        assert (cache.path / NAME).stat().st_size <= 4_000_000 // 64


def test_a_forked_child_does_not_record_what_its_parent_counted(cached) -> None:
    module = cached()
    epochs(module.cache, module, 1)
    module.cache.flush()
    module(torch.ones(3, 2), cache_ids=[0, 1, 2])

    def child(say) -> None:
        module(torch.ones(2, 2), cache_ids=[0, 1])
        module.cache.close()

    assert in_child(child).error == ""
    module.cache.close()
    found = records(module.cache.path)
    assert [record.get("hits", 0) for record in found if record["pid"] == os.getpid()] == [0, 3]
    assert [record["hits"] for record in found if record["pid"] != os.getpid()] == [2]


def test_clear_removes_it_and_verification_passes(cached) -> None:
    from warmstore.features.cache_inspection import clear

    module = cached()
    epochs(module.cache, module, 1)
    module.cache.close()
    with ws.RecordStore.open(module.cache.path) as store:
        assert store.verify().ok
    clear(module.cache.path)
    assert not module.cache.path.exists()


def test_nothing_is_written_where_it_is_off(cached, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARMSTORE_HISTORY", "0")
    module = cached()
    epochs(module.cache, module, 2)
    module.cache.close()
    assert not (module.cache.path / NAME).exists()


@pytest.mark.remotes
def test_a_remote_gets_no_history(cached, tmp_path: Path) -> None:
    module = cached()
    epochs(module.cache, module, 1)
    module.cache.flush()
    assert (module.cache.path / NAME).exists()
    module.cache.push(tmp_path / "remote")
    assert [path for path in (tmp_path / "remote").rglob("*") if path.is_file()]
    assert not list((tmp_path / "remote").rglob(NAME))
    module.cache.close()


def test_a_rebalance_keeps_it(cached) -> None:
    module = cached()
    epochs(module.cache, module, 1)
    module.cache.rebalance(progress=False)
    module.cache.close()
    assert [record["misses"] for record in records(module.cache.path)] == [12]


def test_a_full_disk_changes_nothing_else(cached, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Files, descriptor: int, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Files, "append", refuse)
    module = cached()
    epochs(module.cache, module, 2)
    module.cache.close()
    assert not records(module.cache.path)
    with ws.FeatureCache(module.cache.path.parent, "id") as cache:
        assert len(cache) == 12


def test_a_damaged_history_changes_nothing_else(cached) -> None:
    module = cached()
    epochs(module.cache, module, 1)
    module.cache.flush()
    path = module.cache.path / NAME
    path.unlink()
    path.mkdir()
    epochs(module.cache, module, 1)
    module.cache.close()
    assert path.is_dir()
