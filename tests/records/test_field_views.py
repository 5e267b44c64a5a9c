"""A field looks like a NumPy array: every index gives what the same index gives of the array it was made from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import warmstore as ws
from warmstore.errors import PositionError, SchemaMismatch

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
        (MASK, 1),
        ([0, 1], [2, 1]),
        (slice(None), None),
        [[0, 1], [2, 3]],
        np.array(3),
        None,
        VALUES > 0.5,
        MASK.tolist(),
    ],
    ids=repr,
)
def test_any_index(store: ws.RecordStore, index: Any) -> None:
    found, expected = store["x"][index], VALUES[index]
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert (found == expected).all()
    if not isinstance(index, tuple) and np.shape(index) != VALUES.shape:
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


@pytest.mark.parametrize("index", [30, -31, [0, 30], np.ones(29, bool), 1.5, [0.0], "x"], ids=repr)
def test_what_is_no_index(store: ws.RecordStore, index: Any) -> None:
    for field in "xyt":
        with pytest.raises(PositionError):
            store[field][index]


@pytest.mark.parametrize("index", [None, (0, 0), (..., 0), [[1]], np.zeros((2, 2), int), ([0], [0])], ids=repr)
def test_values_that_are_no_arrays_have_one_dimension(store: ws.RecordStore, index: Any) -> None:
    with pytest.raises(PositionError):
        store["t"][index]


def test_it_says_what_to_write_instead(store: ws.RecordStore) -> None:
    with pytest.raises(PositionError, match=r"field 't' holds text, of one dimension.*store\['t'\]\[records\]"):
        store["t"][0, 1]


@pytest.mark.parametrize("index", [(), (3,), ..., np.array(3), torch.tensor(-1), [1, 2], MASK, MASK.tolist()], ids=repr)
def test_one_dimension_takes_what_has_one(store: ws.RecordStore, index: Any) -> None:
    expected = np.array([str(at) for at in LABELS], object)[
        np.asarray(index) if isinstance(index, torch.Tensor) else index
    ]
    assert store["t"][index] == (expected if isinstance(expected, str) else expected.tolist())


def test_an_array_cannot_say_that_values_are_absent(store: ws.RecordStore) -> None:
    store.append({"y": 30, "t": "30"})
    for make in (np.asarray, np.array, lambda view: np.asarray(view, np.float64)):
        with pytest.raises(SchemaMismatch, match=r"'x' has records without a value, the first at position 30.*\[:\]"):
            make(store["x"])
    assert store["x"][:].mask[:, 0, 0].tolist() == [False] * 30 + [True]
    assert store["x"][30] is None
    assert store["x"][30, 0].mask.all()
    assert store["x"][30, 0, 0] is np.ma.masked
    assert not isinstance(store["x"][:30], np.ma.MaskedArray)
    for library in ("torch", "jax"):
        with pytest.raises(SchemaMismatch, match=r"x has records without a value"):
            store.with_format(library)["x"]


def test_several_fields_are_a_smaller_store(store: ws.RecordStore) -> None:
    view = store[["y", "x"]]
    assert len(view) == 30
    assert list(view.fields) == ["y", "x"]
    assert np.array_equal(view[[3, 1]]["y"], [3, 1])
    assert list(view[2:4]) == ["y", "x"]
    assert (view[-1]["y"], np.array_equal(view[-1]["x"], VALUES[29])) == (29, True)
    assert [sample["y"] for sample in view.__getitems__([4, 5])] == [4, 5]
    assert list(view.gather([0], ["x"])) == ["x"]
    assert view["y"][3] == 3
    assert list(view[["x"]].fields) == ["x"]
    for ask in (lambda: view["t"], lambda: view[["t"]], lambda: view.gather([0], ["t"])):
        with pytest.raises(KeyError, match=r"the view of .* has no field 't'"):
            ask()
    assert [row["y"] for row in view] == LABELS.tolist()


def test_positions_of_a_batch_in_any_sequence(store: ws.RecordStore) -> None:
    """A tuple of them was taken for an index of several dimensions: that of one element."""
    for positions in ((0, 1), [0, 1], range(2), np.arange(2)):
        for name in ("x", "y"):
            samples = list(store[name].__getitems__(positions))
            assert np.array_equal(samples, [store[at][name] for at in range(2)])


def test_several_fields_in_another_format(store: ws.RecordStore) -> None:
    view = store.with_format("torch")[["x", "y"]]
    assert list(view.fields) == ["x", "y"]
    assert torch.equal(view[[1, 2]]["y"], torch.tensor([1, 2]))


def test_a_loader_reads_several_fields(store: ws.RecordStore) -> None:
    store.flush()
    (batch,) = ws.Loader(store[["y", "t"]], batch_size=30)
    assert list(batch) == ["y", "t"]
    assert batch["y"].tolist() == LABELS.tolist()
    loader = ws.Loader({"a": store[["x"]], "b": store["y"]}, batch_size=30)
    (batch,) = loader
    assert list(batch["a"]) == ["x"]
    (pair,) = ws.Loader((store[["y"]], LABELS), batch_size=30)
    assert np.array_equal(pair[0]["y"], pair[1])
    with pytest.raises(KeyError, match="'t'"):
        ws.Loader(store[["y"]], batch_size=30, fields=["t"])


@pytest.mark.parametrize("pending", [False, True])
def test_names_of_fields_in_any_iterable(tmp_path: Path, pending: bool) -> None:
    """One that is there for one pass was used up by the check of its names: there was nothing in the result."""
    store = ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64"), "y": ws.Text()})
    store.append({"x": 1, "y": "one"})
    if not pending:
        store.flush()
    for read in (store.gather, store[["x", "y"]].gather, store.with_format("numpy").gather):
        for index in ([0], np.array([0])):
            assert list(read(index, (name for name in ["y", "x"]))) == ["y", "x"]
    assert list(store.gather([0], iter(["y"]), packed=True)) == ["y"]
    store.flush()
    for chosen in (None, [0]):
        assert store.to_arrow(chosen, fields=map(str, ["y"])).column_names == ["y"]


def test_a_misspelt_field_is_suggested(store: ws.RecordStore, tmp_path: Path) -> None:
    fields = {"label": ws.Array("int64"), "image": ws.Array("int64")}
    other = ws.RecordStore.create(tmp_path / "other", fields)
    other.append({"label": 1, "image": 2})
    for ask in (
        lambda: other["lable"],
        lambda: other[["image", "lable"]],
        lambda: other.gather([0], ["lable"]),
        lambda: other.drop_field("lable"),
        lambda: other.map_field("lable", lambda batch: batch["image"]),
        lambda: other.filter(tmp_path / "f", [0], fields=["lable"]),
        lambda: ws.Loader(other, batch_size=1, fields=["lable"]),
        lambda: other.present("lable"),
        lambda: other.to_arrow(fields=["lable"]),
    ):
        with pytest.raises(KeyError, match=r"'lable' \(did you mean 'label'\?\); it has"):
            ask()
    for write in (lambda: other.append({"lable": 1}), lambda: other.update(0, {"lable": 1})):
        with pytest.raises(SchemaMismatch, match=r"'lable' \(did you mean 'label'\?\)"):
            write()
    with pytest.raises(KeyError, match="no field 'z'; it has"):
        other["z"]
    for whole in (lambda: other.gather([0], "label"), lambda: other.to_arrow(fields="label")):
        with pytest.raises(TypeError, match=r"a list of names, such as \['label'\]"):
            whole()


def test_nothing_is_read_before_it_is_asked(store: ws.RecordStore) -> None:
    view = store["x"]
    store.append({"x": VALUES[0], "y": 30, "t": "30"})
    assert len(view) == 31
    with pytest.raises(KeyError, match="'z'"):
        store["z"]


def test_records_are_set_and_deleted_by_position(store: ws.RecordStore) -> None:
    store[3] = {"y": 300}
    store[[4, -1]] = {"y": [400, 2900], "t": ["a", "b"]}
    assert store["y"][[3, 4, 29]].tolist() == [300, 400, 2900]
    assert store["t"][[3, 4, 29]] == ["3", "a", "b"]
    del store[0]
    assert store["y"][0] == 2900
    del store[[0, 1]]
    del store[25:]
    assert len(store) == 25
    for index in ("y", ["y", "t"]):
        with pytest.raises(PositionError, match="map_field"):
            store[index] = {"y": 1}
        with pytest.raises(PositionError, match="drop_field"):
            del store[index]
    with pytest.raises(SchemaMismatch, match=r"a dict of values by field.*got int"):
        store[0] = 5
    with pytest.raises(PositionError):
        store[True] = {"y": 1}
    with pytest.raises(PositionError):
        del store[25]
