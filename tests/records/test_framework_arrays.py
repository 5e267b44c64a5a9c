"""Stores in the format of another library: the same values, as its arrays."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import warmstore as ws
from warmstore.errors import SchemaMismatch


@pytest.fixture
def store(tmp_path: Path) -> ws.RecordStore:
    fields: dict[str, Any] = {
        "x": ws.Array("float32", (2, 3)),
        "half": ws.Array("bfloat16"),
        "label": ws.Array("int64"),
        "points": ws.Ragged("int16"),
        "text": ws.Text(),
    }
    store = ws.RecordStore.create(tmp_path / "s", fields)
    numbers = np.arange(10)
    store.extend(
        {
            "x": np.arange(60, dtype=np.float32).reshape(10, 2, 3),
            "half": torch.arange(10, dtype=torch.bfloat16),
            "label": numbers,
            "points": [np.arange(at, dtype=np.int16) for at in numbers],
            "text": [str(at) for at in numbers],
        }
    )
    store.flush()
    return store


def test_torch(store: ws.RecordStore) -> None:
    formatted = store.with_format("torch")
    assert len(formatted) == 10
    batch = formatted.gather([3, 1])
    assert torch.equal(batch["x"], torch.arange(60.0).reshape(10, 2, 3)[[3, 1]])
    assert batch["half"].dtype == torch.bfloat16
    assert batch["half"].tolist() == [3, 1]
    assert [value.tolist() for value in batch["points"]] == [[0, 1, 2], [0]]
    assert batch["text"] == ["3", "1"]
    batch["points"][0][:] = 7  # a tensor is writable, the file is not
    assert store[3]["points"].tolist() == [0, 1, 2]
    one = formatted[4]
    assert one["label"].item() == 4
    assert one["x"].shape == (2, 3)
    assert torch.equal(formatted[2:4]["label"], torch.tensor([2, 3]))
    assert torch.equal(formatted["label"], torch.arange(10))
    assert isinstance(store[4]["x"], np.ndarray)
    assert [int(record["label"]) for record in formatted] == list(range(10))


def test_jax(store: ws.RecordStore) -> None:
    jax = pytest.importorskip("jax")
    found = store.with_format("jax").gather([3, 1], ["x"])["x"]
    assert isinstance(found, jax.Array)
    assert np.array_equal(found, store.gather([3, 1])["x"])
    with pytest.raises(ws.UnsupportedType, match="jax_enable_x64"):
        store.with_format("jax")[0]


@pytest.mark.parametrize("to", ["torch", "jax"])
def test_arrays_of_another_byte_order_are_refused_with_advice(to: str) -> None:
    pytest.importorskip(to)
    with (
        ws.Loader({"x": np.arange(4, dtype=">i4")}, 2, to=to) as loader,
        pytest.raises(
            ws.UnsupportedType, match=r"x is an array of >i4, .* values\.astype\(values\.dtype\.newbyteorder"
        ),
    ):
        next(iter(loader))


def test_numpy_again(store: ws.RecordStore) -> None:
    assert isinstance(store.with_format("torch").with_format("numpy")[0]["x"], np.ndarray)


def test_it_is_a_data_set_to_torch_and_survives_a_pickle(store: ws.RecordStore) -> None:
    formatted = pickle.loads(pickle.dumps(store.with_format("torch")))
    loader = DataLoader(formatted, batch_size=5, collate_fn=ws.collate)
    assert [batch["label"].tolist() for batch in loader] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    ours = ws.Loader(store.with_format("torch"), 5, fields=["label"])
    assert [batch["label"].tolist() for batch in ours] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]


def test_what_cannot_be(store: ws.RecordStore) -> None:
    with pytest.raises(ValueError, match="'tf'"):
        store.with_format("tf")
    store.append({"text": "no more"})
    with pytest.raises(SchemaMismatch, match="without a value"):
        store.with_format("torch")[[10]]
