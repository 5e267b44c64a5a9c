"""Batches arrive in JAX, dtypes kept, or it is said why not. `test_frameworks` runs this in a process of its own."""

import importlib
from typing import Any

import numpy as np
import pytest
import torch

import warmstore as ws


@pytest.fixture(autouse=True)
def jax() -> Any:
    return importlib.import_module("jax")


@pytest.mark.parametrize("workers", [0, 2])
def test_arrays_arrive(jax: Any, store: ws.RecordStore, workers: int) -> None:
    loader = ws.Loader(store, 4, fields=["image", "title"], to="jax", workers=workers)
    batches = list(loader)
    assert all(isinstance(batch["image"], jax.Array) for batch in batches)
    assert [int(at) for batch in batches for at in batch["image"][:, 0, 0]] == list(range(23))
    assert batches[0]["title"][1] == "title 1"


def test_a_device_and_a_sharding(jax: Any) -> None:
    (device,) = jax.devices()[:1]
    sharding = jax.sharding.SingleDeviceSharding(device)
    for to in (device, sharding):
        (batch,) = ws.Loader(np.arange(3, dtype=np.int32), 3, to=to)
        assert batch.devices() == {device}


def test_a_dtype_that_would_be_changed_is_refused(jax: Any) -> None:
    loader = ws.Loader({"y": np.arange(3)}, 3, to="jax")
    with pytest.raises(ws.UnsupportedType, match=r"y is int64, which JAX would make int32.*jax_enable_x64"):
        next(iter(loader))
    jax.config.update("jax_enable_x64", True)
    try:
        (batch,) = loader
        assert batch["y"].dtype == np.int64
    finally:
        jax.config.update("jax_enable_x64", False)


def test_tensors_of_a_transform_and_bfloat16_arrive(jax: Any) -> None:
    def transform(batch: Any) -> Any:
        return {"x": torch.from_numpy(batch), "half": batch.astype(jax.numpy.bfloat16)}

    (batch,) = ws.Loader(np.arange(3, dtype=np.int32), 3, transform=transform, to="jax", workers=0)
    assert isinstance(batch["x"], jax.Array)
    assert batch["half"].dtype == jax.numpy.bfloat16


def test_what_jax_cannot_hold_is_refused() -> None:
    with pytest.raises(ws.UnsupportedType, match="datetime64"):
        list(ws.Loader({"t": np.zeros(3, "datetime64[s]")}, 2, to="jax"))


def test_absent_values_are_refused(tmp_path: Any) -> None:
    with ws.RecordStore.create(tmp_path / "gaps", {"x": ws.Array("int32")}) as store:
        store.extend({"x": [1, None]})
    with pytest.raises(ws.SchemaMismatch, match="x has records without a value"):
        list(ws.Loader(store.path, 2, to="jax"))
