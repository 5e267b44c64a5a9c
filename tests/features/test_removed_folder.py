"""Feature caches whose folder is removed while they are open, as by `rm -rf` beside a notebook."""

import errno
import gc
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.faults.seam import Removing
from tests.slow import either
from torch import nn

import warmstore as ws
from warmstore.records.keyed_store import despite_removal

INPUTS = torch.arange(60.0).reshape(20, 3)


class Counting(nn.Linear):
    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        super().__init__(3, 2)
        self.requires_grad_(False).eval()


def check(cached: Any, cache: ws.FeatureCache, ids: list[int], *, computed: int) -> None:
    before = cache.stats().misses
    assert torch.equal(cached(INPUTS[ids], cache_ids=ids), cached.module(INPUTS[ids]))
    assert cache.stats().misses - before == computed


@pytest.mark.parametrize("hot_size", [None, "1MB"])
@pytest.mark.parametrize("is_pending", [False, True])
def test_samples_are_computed_anew_and_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, hot_size: str | None, *, is_pending: bool
) -> None:
    """Every lookup of a missing sample was a FileNotFoundError until the cache was opened again."""
    with ws.FeatureCache(tmp_path / "caches", "features", hot_size=hot_size) as cache:
        cached = ws.CachedModule(Counting(), cache)
        check(cached, cache, [0, 1, 2, 3], computed=4)
        cache.flush()
        if is_pending:
            check(cached, cache, [4, 5], computed=2)
        shutil.rmtree(tmp_path / "caches")
        check(cached, cache, [3, 9, 0, 8], computed=4)  # rows of the removed store and missing ones in one batch
        check(cached, cache, [8, 9], computed=0)
        cache.flush()
        check(cached, cache, [0, 3, 8, 9], computed=0)
    assert sum("was removed while it was open" in record.getMessage() for record in caplog.records) == 1
    with ws.FeatureCache(tmp_path / "caches", "features") as cache:
        check(ws.CachedModule(Counting(), cache), cache, [9, 8, 3, 0, *([4, 5] * is_pending)], computed=0)
        with pytest.raises(ws.StaleCache):  # the new store is that of the module, too
            ws.CachedModule(Counting(1), cache)(INPUTS[:1], cache_ids=[0])


def test_a_cache_that_another_process_has_begun_there(tmp_path: Path) -> None:
    with ws.FeatureCache(tmp_path, "features") as cache:
        cached = ws.CachedModule(Counting(), cache)
        check(cached, cache, [0, 1, 2, 3], computed=4)
        cache.flush()
        shutil.rmtree(tmp_path / "features")
        with ws.FeatureCache(tmp_path, "features") as other:
            check(ws.CachedModule(Counting(), other), other, [5, 4, 3, 2, 1, 6, 7], computed=7)
        check(cached, cache, [0, 1, 2, 3, 4, 5, 6, 7], computed=1)
        check(cached, cache, [7, 0], computed=0)


OPERATIONS: list[Callable[[ws.FeatureCache], Any]] = [
    lambda cache: cache.rebalance(progress=False),
    ws.FeatureCache.clear,
    lambda cache: cache.__delitem__(0),
    lambda cache: cache.push(cache.path.parent.parent / "remote"),
]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operations_on_a_removed_folder(tmp_path: Path, operation: Callable[[ws.FeatureCache], Any]) -> None:
    """They were FileNotFoundErrors."""
    with ws.FeatureCache(tmp_path / "caches", "features") as cache:
        cached = ws.CachedModule(Counting(), cache)
        check(cached, cache, [0, 1], computed=2)
        cache.flush()
        shutil.rmtree(tmp_path / "caches")
        operation(cache)
        check(cached, cache, [0, 1], computed=2)


def test_a_fill_stores_what_was_removed(tmp_path: Path) -> None:
    """It found the samples in the store that was open, and left the folder without them."""
    loader = [(INPUTS[:4], [0, 1, 2, 3]), (INPUTS[4:], list(range(4, 20)))]
    with ws.FeatureCache(tmp_path, "features") as cache:
        cached = ws.CachedModule(Counting(), cache)
        assert cache.fill(cached, loader) == ws.FillResult(2, 20, 0)
        shutil.rmtree(tmp_path / "features")
        assert cache.fill(cached, loader) == ws.FillResult(2, 20, 0)
    with ws.FeatureCache(tmp_path, "features") as cache:
        assert cache.fill(Counting(), loader) == ws.FillResult(2, 0, 20)


def test_nothing_is_said_of_the_end(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with ws.FeatureCache(tmp_path, "features") as cache:
        check(ws.CachedModule(Counting(), cache), cache, [0, 1], computed=2)
        cache.flush()
        shutil.rmtree(tmp_path / "features")
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_said_of_what_others_had_stored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Batches of another process were said to be missing or damaged, when the store was left."""
    with ws.FeatureCache(tmp_path, "features") as cache, ws.FeatureCache(tmp_path, "features") as other:
        for one, ids in ((cache, [0, 1]), (other, [2, 3])):
            check(ws.CachedModule(Counting(), one), one, ids, computed=2)
            one.flush()
        shutil.rmtree(tmp_path / "features")
        check(ws.CachedModule(Counting(), cache), cache, [4], computed=1)
        gc.collect()
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert all("was removed while it was open" in message for message in messages)


def test_a_lookup_beside_a_thread_that_saw_the_removal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ws.FeatureCache(tmp_path, "c") as cache:
        # It has found rows of others, and another thread lets go of the removed folder before they are read.
        monkeypatch.setattr(type(cache._session.version), "see_others", lambda version: True)
        assert "a" not in cache


@pytest.mark.parametrize("async_write", [False, True])
@pytest.mark.parametrize("is_new", [False, True])
def test_a_removal_at_any_time_of_a_commit(tmp_path: Path, *, async_write: bool, is_new: bool) -> None:
    """The commit failed, and where it was one of the background, so did the next lookup."""
    has_removed, at = True, -1
    while has_removed:
        at += either(5, 1)
        root = tmp_path / str(at)
        files = Removing(root)
        with ws.FeatureCache(root, "features", flush_every=4, async_write=async_write, files=files) as cache:
            cached = ws.CachedModule(Counting(), cache)
            if not is_new:
                check(cached, cache, [0, 1, 2], computed=3)
                cache.flush()
            files.start(at)
            for ids in ([3, 4, 5, 6, 7], [8]):
                check(cached, cache, ids, computed=len(ids))
                cache.flush()
            has_removed = files.stop()
            for ids in ([3, 4, 5, 6, 7], [8]):
                assert torch.equal(cached(INPUTS[ids], cache_ids=ids), cached.module(INPUTS[ids]))
        with ws.FeatureCache(root, "features") as cache:
            for ids in ([3, 4, 5, 6, 7], [8]):
                check(ws.CachedModule(Counting(), cache), cache, ids, computed=0)
    assert at > 30


@pytest.mark.parametrize(
    ("error", "is_removal"),
    [
        (FileNotFoundError(errno.ENOENT, "no file"), True),
        (ws.WriteFailed(errno.ENOENT, "no folder"), True),
        (ws.WriteFailed(errno.ENOSPC, "no space"), False),
        (ws.Damaged("a file"), False),
        (ws.RemoteUnavailable("no answer"), False),
    ],
)
def test_other_errors_are_raised_at_once(error: Exception, *, is_removal: bool) -> None:
    """Above all those of a remote, after as long a wait each time."""
    calls = []

    def use() -> None:
        calls.append(0)
        raise error

    with pytest.raises(type(error)):
        despite_removal(use)()
    assert (len(calls) > 1) == is_removal
