"""JAX on a GPU: batches arrive exact on the device, and the next process finds what was compiled."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.compiling.programs import SQUARES, run

import warmstore as ws

NO_PREALLOCATION = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
"""JAX takes most of the memory of a GPU at its start, and torch is here too."""


@pytest.fixture
def jax(cuda: torch.device) -> Any:
    os.environ.update(NO_PREALLOCATION)
    found = pytest.importorskip("jax")
    if found.default_backend() != "gpu":
        pytest.skip("this JAX finds no GPU")
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_arrive_on_the_device(jax: Any, workers: int, tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((100, 24), np.float32)
    (device,) = jax.devices()[:1]
    with ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("float32", (24,)), "at": ws.Array("int32")}) as store:
        store.extend({"x": values, "at": np.arange(100, dtype=np.int32)})
        store.flush()
        for to in ("jax", device):
            seen = []
            for batch in ws.Loader(store, 16, sampler=ws.Shuffle(seed=1), to=to, workers=workers):
                assert batch["x"].devices() == {device}
                at = np.asarray(batch["at"])
                np.testing.assert_array_equal(np.asarray(batch["x"]), values[at])
                seen += at.tolist()
            assert sorted(seen) == list(range(100))


def test_batches_are_whole_while_the_device_is_busy(jax: Any) -> None:
    """Host memory of a batch is not used again before the device has its copy."""
    source = np.arange(400 * 4096, dtype=np.int32).reshape(400, 4096)
    busy = jax.numpy.ones((4096, 4096))
    product = jax.jit(lambda x: jax.numpy.clip(x @ x, -1, 1))
    for epoch in range(2):
        sums = []
        for batch in ws.Loader({"x": source}, 16, sampler=ws.Shuffle(seed=epoch), to="jax", workers=2):
            busy = product(busy)
            sums.append(batch["x"][:, 0].sum())
        assert sum(int(one) for one in sums) == int(source[:, 0].sum())


def test_the_next_process_finds_what_was_compiled(jax: Any, tmp_path: Path) -> None:
    first = run(SQUARES, tmp_path / "store", fresh=True, env=NO_PREALLOCATION)
    assert first.right
    assert first.kept
    second = run(SQUARES, tmp_path / "store", fresh=True, env=NO_PREALLOCATION)
    assert second.right
    assert second.hits
    assert second.misses == []
