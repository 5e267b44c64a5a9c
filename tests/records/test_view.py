"""A field looks like a NumPy array: every index gives what the same index gives of the array it was made from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warmstore as ws
from warmstore.errors import PositionError

VALUES = np.random.default_rng(0).standard_normal((30, 4, 5), np.float32)
LABELS = np.arange(30)
MASK = np.arange(30) % 3 == 0


@pytest.fixture(params=["flushed", "pending", "both"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ws.RecordStore:
    store = ws.RecordStore.create(
        tmp_path / "s", {"x": ws.Array("float32", (4, 5)), "y": ws.Array("int64"), "t": ws.Text()}
    )
    cut = {"flushed": 30, "pending": 0, "both": 17}[request.param]
    for part in (slice(0, cut), slice(cut, 30)):
        store.extend({"x": VALUES[part], "y": LABELS[part], "t": [str(at) for at in LABELS[part]]})
        if part.start == 0:
            store.flush()
    return store


@pytest.mark.parametrize(
    "index",
    [
        3,
        -1,
        np.int32(7),
        slice(None),
        slice(5, 25, 3),
        slice(None, None, -1),
        slice(40, 50),
        [1, -2, 1],
        [],
        np.array([29, 0]),
        MASK,
        Ellipsis,
        (),
        (4,),
        (4, 2),
        (slice(2, 9), 1),
        (slice(None), slice(None), -1),
        ([3, 1], ..., 0),
        (MASK, slice(1, 3)),
    ],
    ids=repr,
)
def test_any_index(store: ws.RecordStore, index: Any) -> None:
    found, expected = store["x"][index], VALUES[index]
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert (found == expected).all()
    if not isinstance(index, tuple):
        assert np.array_equal(store["y"][index], LABELS[index])


def test_it_is_an_array_to_numpy(store: ws.RecordStore) -> None:
    view = store["x"]
    assert view.shape == VALUES.shape
    assert view.ndim == 3
    assert view.dtype == VALUES.dtype
    assert len(view) == 30
    assert np.array_equal(np.asarray(view), VALUES)
    assert np.array_equal(np.asarray(view, np.float64), VALUES.astype(np.float64))
    assert np.mean(view) == np.mean(VALUES)
    assert np.array_equal(np.concatenate([view, view]), np.concatenate([VALUES, VALUES]))
    with pytest.raises(ValueError, match="copies"):
        np.asarray(view, copy=False)
    assert store["y"].shape == (30,)


def test_values_that_are_no_arrays_are_objects(store: ws.RecordStore) -> None:
    view = store["t"]
    assert view.shape == (30,)
    assert view.dtype == object
    assert view[3] == "3"
    assert view[[5, 4]] == ["5", "4"]
    assert np.asarray(view).tolist() == [str(at) for at in range(30)]


@pytest.mark.parametrize("index", [30, -31, [0, 30], np.ones(29, bool), 1.5, [0.0], "x", None, [[1]]], ids=repr)
def test_what_is_no_index(store: ws.RecordStore, index: Any) -> None:
    with pytest.raises(PositionError):
        store["x"][index]


def test_nothing_is_read_before_it_is_asked(store: ws.RecordStore) -> None:
    view = store["x"]
    store.append({"x": VALUES[0], "y": 30, "t": "30"})
    assert len(view) == 31
    with pytest.raises(KeyError, match="'z'"):
        store["z"]
