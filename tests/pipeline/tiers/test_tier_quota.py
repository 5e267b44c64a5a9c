"""The budget of a tier while other processes write to it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.pipeline.making import check, expected, plan_of, take_bytes_away

import warmstore as ws
from warmstore.records.log.commit_log import Log
from warmstore.storage.disk_usage import folder_bytes
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
