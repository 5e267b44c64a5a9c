"""Arrays of objects come back with their elements, which stay one object where they were, and with shared memory."""

from typing import Any

import numpy as np
import pytest

import warmstore as ws
from warmstore.pipeline.tiers.flattening import flatten, to_bytes
from warmstore.pipeline.tiers.unflattening import from_bytes


def back(value: Any) -> Any:
    return from_bytes(to_bytes(*flatten(value)))


def objects(*items: Any) -> Any:
    made = np.empty(len(items), object)
    for at, item in enumerate(items):
        made[at] = item
    return made


def test_elements_of_all_kinds() -> None:
    items = [None, "ß", 2**80, 1.5, [1, [2]], (3, "x"), {"k": None}, np.arange(3), np.array(5), objects([1], None)]
    array = objects(*items)
    made = back(array)
    assert made.dtype == object
    assert [type(item) for item in made] == [type(item) for item in items]
    assert made[:7].tolist() == items[:7]
    assert made[7].tolist() == [0, 1, 2]
    assert made[8].shape == ()
    assert made[9][0] == [1]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0), (2, 3), (2, 3, 4)])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("writeable", [True, False])
def test_shapes_orders_and_flags(shape: tuple[int, ...], order: Any, writeable: bool) -> None:
    array = np.empty(shape, object, order)
    for number, at in enumerate(np.ndindex(*shape)):
        array[at] = [number]
    array.flags.writeable = writeable
    made = back(array)
    assert (made.shape, made.tolist()) == (array.shape, array.tolist())
    assert made.flags.f_contiguous == array.flags.f_contiguous
    assert made.flags.writeable == writeable


def test_shared_elements() -> None:
    shared, x = [1], np.arange(4)
    made = back({"a": objects(shared, shared, None), "b": shared, "x": x, "views": objects(x[1:], x)})
    assert made["a"][0] is made["a"][1] is made["b"]
    made["x"][1] = 7
    assert made["views"][0][0] == 7
    assert made["views"][1] is made["x"]


@pytest.mark.parametrize(
    "views",
    [
        lambda whole: [whole, whole[1:], whole[::-1]],
        lambda whole: [whole[2:], whole[:3]],
        lambda whole: [whole.reshape(2, 3), whole.reshape(2, 3).T, whole],
        lambda whole: [whole.reshape(2, 3)[:, 1:], whole.reshape(2, 3)[::-1, ::2]],
        lambda whole: [np.broadcast_to(whole[:1], 3)],
    ],
)
def test_views_of_one_memory(views: Any) -> None:
    wanted = views(objects(*([number] for number in range(6))))
    made = back(wanted)
    for at, array in enumerate(wanted):
        assert made[at].tolist() == array.tolist()
        assert np.array_equal(made[at].strides, array.strides)
        assert made[at].flags.writeable == array.flags.writeable
        for other, found in zip(wanted, made, strict=True):
            assert np.shares_memory(array, other) == np.shares_memory(made[at], found)
    for values in (wanted, made):
        if values[0].flags.writeable:
            values[0][(0,) * values[0].ndim] = "written"
    assert [array.tolist() for array in made] == [array.tolist() for array in wanted]


def test_halves_without_a_common_element_are_apart() -> None:
    whole = objects(1, 2, 3, 4)
    first, second = back([whole[::2], whole[1::2]])
    assert (first.tolist(), second.tolist()) == ([1, 3], [2, 4])
    assert first.base is None


def test_a_few_elements_of_a_large_memory_are_refused() -> None:
    whole = np.empty(100_000, object)
    with pytest.raises(ws.UnsupportedType, match="overlap in memory, spread over"):
        flatten([whole[::20_000], whole[::20_000]])


def test_what_is_refused() -> None:
    array = objects(None)
    array[0] = array
    with pytest.raises(ws.UnsupportedType, match="0 is a part of itself"):
        flatten(array)
    with pytest.raises(ws.UnsupportedType, match="only plain ones are kept"):
        flatten(np.zeros(2, [("x", object)]))
    with pytest.raises(ws.UnsupportedType, match=r"rows/1 is a builtins.object"):
        flatten({"rows": objects(None, object())})
    fields = np.zeros(2, [("x", object), ("y", np.int8)])
    with pytest.raises(ws.UnsupportedType, match="fields of an array of structures"):
        flatten([fields["x"], fields["x"]])


def test_text_with_surrogates() -> None:
    texts = ["\ud800", "\ud83d\ude00", "a\udcffb", "😀", "\x00"]
    made = back({"texts": texts, "one": "\udfff"})
    assert made == {"texts": texts, "one": "\udfff"}
    assert [list(map(ord, text)) for text in made["texts"]] == [list(map(ord, text)) for text in texts]
