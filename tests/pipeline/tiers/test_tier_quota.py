"""The budget of a tier while other processes write to it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.pipeline.making import check, expected, plan_of, take_bytes_away

import warmstore as ws
from warmstore.pipeline.tiers.tier_quota import QuotaFiles, tier_quota
from warmstore.records.local_store import LocalStore
from warmstore.records.log.commit_log import Log
from warmstore.records.write.write_options import WriteOptions
from warmstore.storage.disk_usage import BLOCK, folder_bytes
from warmstore.storage.files import is_locked

pytestmark = pytest.mark.forks

DISK = 2 << 20


def large(index: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.random.default_rng(index).integers(0, 256, 20_000, np.uint8)


def test_bytes_that_others_take_before_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process finds bytes free, and others have taken them when it writes."""
    tier = tmp_path / "warmstore-samples"
    taken = take_bytes_away(monkeypatch, tier, above=500_000, leave=300_000)  # of a batch
    pipe = ws.Pipeline(range(90)).step(large)
    plan = plan_of(pipe, [(1, "disk", "raw")], [90], folder=tmp_path, disk=DISK)
    with pipe.loader(plan, 8, workers=0) as loader:
        check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(2))
    assert taken[0] > 1_000_000
    assert DISK - 200_000 < folder_bytes(tier) <= DISK


def test_the_lock_of_the_budget_is_taken_before_that_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that wrote to the log, which grew, and one that evicted a chunk of that store waited for each other."""
    real, held = Log.locked, []

    @contextlib.contextmanager
    def locked(log: Log) -> Iterator[None]:
        with real(log):
            held.append(is_locked(log.path.parents[3] / "room.lock"))
            yield

    monkeypatch.setattr(Log, "locked", locked)
    pipe = ws.Pipeline(range(90)).step(large)
    plan = plan_of(pipe, [(1, "disk", "raw")], [90], folder=tmp_path, disk=2 * DISK)
    with pipe.loader(plan, 8, workers=0) as loader:
        check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(2))
    assert held
    assert all(held)


def test_a_log_that_grows_in_a_full_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Room for the log was made by evicting a chunk of its own store, which waited for the lock that it held itself."""
    real, grown = Log.append, []

    def append(log: Log, *entries: Any) -> None:
        size = log.path.stat().st_size
        if size and size % BLOCK == 0:
            free = DISK - folder_bytes(tmp_path / "tier")
            (tmp_path / "tier" / "others").write_bytes(bytes(free // BLOCK * BLOCK))
            grown.append(size)
        real(log, *entries)

    monkeypatch.setattr(Log, "append", append)
    (tmp_path / "tier" / "version").mkdir(parents=True)
    files, path = QuotaFiles(tier_quota(tmp_path / "tier", DISK)), tmp_path / "tier" / "version" / "store"
    LocalStore.create(path, {"a": ws.Array("uint8", (10_000,))}, files=files).close()
    for _ in range(2):
        store = LocalStore._open_folder(path, "a", writing=WriteOptions.of(1 << 17, writer_threads=1), files=files)
        for value in range(40):
            store.extend({"a": np.full((1, 10_000), value, np.uint8)})
            store.flush()
        store.close(seal=False)
    assert grown
    assert len(list(path.glob("g*/*.arrow"))) < 8
