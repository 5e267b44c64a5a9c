"""An index of a field gives what it gives of a NumPy array, or is refused: nothing else, for any index."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.faults.children import same
from tests.slow import either

import warmstore as ws
from warmstore.errors import PositionError
from warmstore.records.read.numpy_indexing import apply_index, split_index

SHAPES = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple)


@st.composite
def parts(draw: st.DrawFn, shape: tuple[int, ...]) -> Any:
    """An index of several parts, basic and advanced, mostly one that fits."""
    index: list[Any] = []
    axis = 0
    while axis < len(shape) and draw(st.integers(0, 5)):
        size = shape[axis]
        kind = draw(
            st.sampled_from(["int", "slice", "ints", "list", "mask", "masks", "none", "dots", "bool", "tensor"])
        )
        numbers = st.integers(-size, size - 1) if size else st.just(0)
        if kind == "int":
            index.append(draw(numbers | st.integers(-6, 6)))
        elif kind == "slice":
            index.append(draw(st.slices(size)))
        elif kind in ("ints", "list", "tensor"):
            dims = draw(st.sampled_from([(1,), (2,), (), (2, 2), (1, 2), (0,), (3,)]))
            values = draw(hnp.arrays(np.int64, dims, elements=numbers))
            index.append({"ints": values, "list": values.tolist(), "tensor": torch.from_numpy(values)}[kind])
        elif kind == "mask":
            mask = draw(hnp.arrays(np.bool_, (size,)))
            index.append(mask.tolist() if draw(st.booleans()) else mask)
        elif kind == "masks":
            inner = draw(st.integers(axis + 1, len(shape)))
            index.append(draw(hnp.arrays(np.bool_, shape[axis:inner])))
            axis = inner - 1
        else:
            index.append({"none": None, "dots": ..., "bool": draw(st.booleans())}[kind])
            axis -= 1
        axis += 1
        if len(index) > 6:
            break
    return index[0] if len(index) == 1 and draw(st.booleans()) else tuple(index)


def indices(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    return (
        hnp.basic_indices(shape, allow_newaxis=True, allow_ellipsis=True)
        | hnp.integer_array_indices(shape)
        | hnp.arrays(np.bool_, shape)
        | parts(shape)
    )


def of_numpy(array: np.ndarray[Any, Any], index: Any) -> Any:
    """What NumPy gives, or the error it raises."""
    lists = tuple(np.asarray(part) if isinstance(part, torch.Tensor) else part for part in index)
    try:
        return array[lists]
    except (IndexError, TypeError, ValueError) as error:
        return error


@given(st.data())
@settings(max_examples=either(200, 600))
def test_any_index_is_that_of_numpy(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    index = data.draw(indices(shape))
    array = np.arange(np.prod(shape)).reshape(shape)
    expected = of_numpy(array, index if isinstance(index, tuple) else (index,))
    try:
        positions, rest = split_index(index, shape)
        found = apply_index(array[positions], rest)
    except PositionError:
        # NumPy looks at no position of a result that has no values.
        assert isinstance(expected, Exception) or expected.size == 0
        return
    assert not isinstance(expected, Exception)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("index", "read"),
    [
        (3, [3]),
        ((-1, 2), [9]),
        ((..., 0), range(10)),
        ((slice(8, None, -3), [0, 1, 1]), [8, 5, 2]),
        (([0, 9], [2, 1]), [0, 9]),
        ([[0, 1], [2, 3]], [0, 1, 2, 3]),
        ((None, slice(2, 4)), [2, 3]),
        ((np.arange(40).reshape(10, 4) == 17,), [4]),
        ((np.arange(10) == 7, 1), [7]),
        (np.array(3), [3]),
        ((), range(10)),
        (None, range(10)),
    ],
    ids=repr,
)
def test_only_the_records_it_needs_are_read(index: Any, read: Any) -> None:
    assert split_index(index, (10, 4))[0].tolist() == list(read)


@pytest.mark.parametrize(
    "index",
    [
        *(10, -11, np.int64(10), [0, 10], (3, 4), (0, 0, 0), (..., 0, ...), "x", ["x"], 1.5, [1.5], [None], {"a": 1}),
        *(
            np.zeros(0),
            np.ones(9, bool),
            np.ones((10, 3), bool),
            ([True], 0),
            slice("a"),
            slice(0, 5, 0),
            ([0, 1], [0] * 3),
        ),
        *(
            [[1], [2, 3]],
            1 << 70,
            np.array([(1 << 64) - 1], np.uint64),
            torch.zeros(2),
            object(),
            (0, 1.5),
            (0, slice("a")),
        ),
        ((None,) * 70),
    ],
    ids=lambda index: "an object" if type(index) is object else f"{index!r:.30}",
)
def test_what_numpy_refuses_is_refused(tmp_path: Path, index: Any) -> None:
    store = ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("int64", (4,)), "t": ws.Text()})
    store.extend({"x": np.zeros((10, 4), np.int64), "t": ["a"] * 10})
    with pytest.raises(PositionError):
        store["x"][index]
    if not np.array_equal(index, np.zeros(0)):  # positions may come as no floats
        with pytest.raises(PositionError):
            store["t"][index]


@given(st.data())
@settings(max_examples=either(60, 150), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_field_of_an_edited_store(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Pending rows, updates, deletes and absent values, as a masked array that was edited the same way."""
    inner = data.draw(st.lists(st.integers(1, 3), max_size=2).map(tuple))
    count = data.draw(st.integers(2, 8))
    values = np.random.default_rng(0).integers(0, 100, (count, *inner)).astype(np.int16)
    absent = data.draw(hnp.arrays(np.bool_, (count,)))
    store = ws.RecordStore.create(tmp_path_factory.mktemp("s") / "s", {"x": ws.Array("int16", inner)})
    cut = data.draw(st.integers(0, count))
    rows = [None if gone else value for gone, value in zip(absent, values, strict=True)]
    for part in (rows[:cut], rows[cut:]):
        store.extend({"x": part})
        if data.draw(st.booleans()):
            store.flush()
    if data.draw(st.booleans()):
        store.update(0, {"x": values[-1]})
        values[0], absent[0] = values[-1], False
        store.delete(1)
        values[1], absent[1] = values[-1], absent[-1]
        values, absent = values[:-1], absent[:-1]
    whole: Any = np.array(values)
    if absent.any():
        whole[absent] = 0
        whole = np.ma.MaskedArray(whole, np.broadcast_to(absent.reshape(-1, *(1,) * len(inner)), whole.shape))
    index = data.draw(indices(whole.shape))
    lists = index if isinstance(index, tuple) else (index,)
    expected = of_numpy(whole, lists)
    try:
        found = store["x"][index]
    except PositionError:
        assert isinstance(expected, Exception) or expected.size == 0
        return
    finally:
        store.close()
    assert not isinstance(expected, Exception), index
    if found is None:
        assert absent[int(lists[0])]
        return
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    assert np.array_equal(np.ma.getmaskarray(np.ma.asarray(found)), np.ma.getmaskarray(np.ma.asarray(expected)))
    assert np.array_equal(np.ma.filled(found, 0), np.ma.filled(expected, 0))


def test_all_of_the_bits_come_through(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.uint16).reshape(6, 4).view(ws.Array("bfloat16").numpy)
    store = ws.RecordStore.create(tmp_path / "s", {"x": ws.Array("bfloat16", (4,))})
    store.extend({"x": values})
    assert same(store["x"][[[5, 0]], ::-2], values[[[5, 0]], ::-2].copy())
