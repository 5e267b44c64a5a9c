"""The budget of a tier while other processes write to it."""

from pathlib import Path

import numpy as np
import pytest
from tests.pipeline.making import check, expected, plan_of

import warmstore as ws
from warmstore.storage.disk_usage import folder_bytes
from warmstore.storage.quota import ByteQuota

pytestmark = pytest.mark.forks

DISK = 2 << 20


def large(index: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.random.default_rng(index).integers(0, 256, 20_000, np.uint8)


def test_bytes_that_others_take_before_a_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process finds bytes free, and others have taken them when it writes."""
    tier, free, taken = tmp_path / "warmstore-samples", ByteQuota.free, [0]

    def racing(quota: ByteQuota, wanted: int = 0) -> int:
        left = free(quota, wanted)
        if wanted > 500_000 and not taken[0]:  # of a batch
            taken[0] = left - 300_000
            (tier / "others").write_bytes(bytes(taken[0]))
        return left

    monkeypatch.setattr(ByteQuota, "free", racing)
    pipe = ws.Pipeline(range(90)).step(large)
    plan = plan_of(pipe, [(1, "disk", "raw")], [90], folder=tmp_path, disk=DISK)
    with pipe.loader(plan, 8, workers=0) as loader:
        check(loader, lambda epoch: expected(pipe, 8, 0, epoch), range(2))
    assert taken[0] > 1_000_000
    assert DISK - 200_000 < folder_bytes(tier) <= DISK
