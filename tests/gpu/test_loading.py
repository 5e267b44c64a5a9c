"""Loaders whose batches are on a GPU: exact, copied from pinned memory ahead of their use, beside a matrix product."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.gpu.test_cached_modules import DTYPES, bits

import warmstore as ws


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("workers", [0, 2])
def test_every_dtype_arrives(gpu: torch.device, dtype: torch.dtype, workers: int, tmp_path: Path) -> None:
    values = (torch.randn(100, 24) * 4).to(torch.int64 if dtype == torch.bool else dtype)
    values = values > 0 if dtype == torch.bool else values
    with ws.RecordStore.create(tmp_path / "s", {"x": ws.Array(dtype, (24,)), "at": ws.Array("int64")}) as store:
        store.extend({"x": values, "at": np.arange(100)})
        store.flush()
        seen = []
        for batch in ws.Loader(store, 16, sampler=ws.Shuffle(seed=1), to=gpu, workers=workers):
            assert batch["x"].device == batch["at"].device == gpu
            assert batch["x"].dtype == dtype
            at = batch["at"].cpu()
            assert bits(batch["x"]) == bits(values[at])
            seen += at.tolist()
        assert sorted(seen) == list(range(100))


def test_batches_are_whole_while_the_device_is_busy(cuda: torch.device) -> None:
    """Each batch is read only after its copy, though the copies wait behind nothing that the caller does."""
    source = np.arange(400 * 4096, dtype=np.int64).reshape(400, 4096)
    busy = torch.randn(4096, 4096, device=cuda)
    for epoch in range(2):
        sums = []
        for batch in ws.Loader({"x": source}, 16, sampler=ws.Shuffle(seed=epoch), to=cuda, workers=2):
            busy = (busy @ busy).clamp(-1, 1)
            sums.append(batch["x"].sum())
            del batch  # its memory is free for the next copy once this stream has used it
        assert torch.stack(sums).sum().item() == int(source.sum())
