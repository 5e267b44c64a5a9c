"""Parts of a value that are one part, or overlap in memory, do so again when the value comes back."""

import dataclasses
from collections import OrderedDict, namedtuple
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from warmstore.errors import UnsupportedType
from warmstore.pipeline.tiers.flattening import flatten, to_bytes
from warmstore.pipeline.tiers.sample_schema import SampleSchema
from warmstore.pipeline.tiers.sample_staging import block_of
from warmstore.pipeline.tiers.unflattening import Marked, from_bytes
from warmstore.records.format.array_interop import to_numpy
from warmstore.tree import shared_buffers

Pair = namedtuple("Pair", "x y")


@dataclasses.dataclass
class Box:
    x: Any
    y: Any


def image() -> np.ndarray[Any, Any]:
    return np.arange(24.0).reshape(4, 6)


def strided() -> np.ndarray[Any, Any]:
    return np.lib.stride_tricks.as_strided(np.arange(9), (3, 3), (8, 8))


def with_views(*views: Callable[[Any], Any]) -> Callable[[], Any]:
    def made() -> Any:
        array = image()
        return [array, *(each(array) for each in views)]

    return made


def twice(part: Callable[[], Any], within: Callable[[Any, Any], Any] = Pair) -> Callable[[], Any]:
    def made() -> Any:
        one = part()
        return within(one, one)

    return made


def back(value: Any) -> Any:
    return from_bytes(to_bytes(*flatten(value)))


def arrays_of(value: Any) -> list[np.ndarray[Any, Any]]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, Box):
        value = [value.x, value.y]
    if isinstance(value, list | tuple):
        return [array for part in value for array in arrays_of(part)]
    return [to_numpy(value)]


OVERLAPS = {
    "rows": with_views(lambda x: x[1:]),
    "turned": with_views(lambda x: x.T),
    "reshaped": with_views(lambda x: x.reshape(-1), lambda x: x.reshape(2, 12)),
    "reversed": with_views(lambda x: x[::-1, ::-2]),
    "other dtype": with_views(lambda x: x.view(np.int64), lambda x: x.view(np.uint8)),
    "one element": with_views(lambda x: x[2, 3:4]),
    "no dimensions": with_views(lambda x: x[2, 3, ...]),
    "columns that overlap": lambda: (lambda x: {"a": x[:, :4], "b": x[:, 2:]})(image()),
    "broadcast": with_views(lambda x: np.broadcast_to(x, (2, 4, 6))),
    "broadcast alone": lambda: np.broadcast_to(np.arange(3), (4, 3)),
    "windows": lambda: np.lib.stride_tricks.sliding_window_view(np.arange(9), 3),
    "strided": strided,
    "frozen view": with_views(lambda x: np.broadcast_to(x, x.shape)),
    "empty": with_views(lambda x: x[:0]),
    "tensor": with_views(torch.from_numpy),
    "tensor's part": with_views(lambda x: torch.from_numpy(x)[1:, 2], lambda x: torch.from_numpy(x).T),
    "tensors": lambda: (lambda x: [x[1], x, x.t(), x.view(-1)])(torch.arange(6).reshape(2, 3).bfloat16()),
    "expanded": lambda: torch.arange(3).expand(4, 3),
    "tensor and its array": lambda: (lambda x: (x, x.numpy()))(torch.arange(4.0)),
    "text": lambda: (lambda x: {"a": x, "b": x[1:].T, "bytes": x.view("S4")})(np.array([["a", "bc"], ["d", ""]])),
    "bytes swapped": with_views(lambda x: x.view(">i8"), lambda x: x.view(">i4")[:, ::2]),
    "nested": with_views(lambda x: {"a": Box([x[0]], (x[1:3],))}),
    "many": lambda: (lambda x: [x[at : at + 2] for at in range(40)])(np.arange(41)),
}


@pytest.mark.parametrize("made", OVERLAPS.values(), ids=OVERLAPS)
def test_arrays_that_overlap(made: Callable[[], Any]) -> None:
    value = made()
    found = back(value)
    before, after = arrays_of(value), arrays_of(found)
    for one, other in zip(before, after, strict=True):
        assert (one.dtype, one.shape, one.strides) == (other.dtype, other.shape, other.strides) or not one.size
        assert one.flags.writeable == other.flags.writeable
        assert one.tobytes() == other.tobytes()
        assert not np.shares_memory(one, other)
    for number, one in enumerate(before):
        if one.flags.writeable:
            one[...] = 7
            after[number][...] = 7
            assert [array.tobytes() for array in before] == [array.tobytes() for array in after]


SAME = {
    "array": twice(image),
    "tensor": twice(lambda: torch.arange(3.0)),
    "list": twice(lambda: [1, [2]]),
    "numbers": twice(lambda: [1, 2]),
    "dict": twice(lambda: {"a": 1}),
    "ordered": twice(lambda: OrderedDict(a=[1])),
    "bytearray": twice(lambda: bytearray(b"abc")),
    "object": twice(lambda: Box(1, 2)),
    "in an object": twice(image, Box),
    "in a list": twice(image, lambda one, other: [one, [other]]),
    "in a dict": twice(image, lambda one, other: {"x": one, "clean": {"x": other}}),
    "in one tuple": lambda: (lambda pair: [pair, pair])((image(), [1])),
}


@pytest.mark.parametrize("made", SAME.values(), ids=SAME)
def test_a_part_that_occurs_twice_is_one_part(made: Callable[[], Any]) -> None:
    def identities(value: Any) -> list[int]:
        if isinstance(value, dict):
            inner = list(value.values())
        elif isinstance(value, Box):
            inner = [value.x, value.y]
        else:
            inner = list(value) if isinstance(value, list | tuple) else []
        own = [] if isinstance(value, tuple | int) else [id(value)]
        return own + [each for part in inner for each in identities(part)]

    value = made()
    found = back(value)
    before, after = identities(value), identities(found)
    assert [before.index(one) for one in before] == [after.index(one) for one in after]
    assert len(set(after)) < len(after)


def test_halves_that_do_not_overlap_are_kept_apart() -> None:
    array = np.arange(48.0).reshape(4, 12)
    spec, leaves = flatten({"left": array[:, :6], "right": array[:, 6:]})
    assert [leaf.shape for leaf in leaves] == [(4, 6), (4, 6)]
    assert "view" not in str(spec)


def test_where_numpy_does_not_find_out_arrays_count_as_overlapping(monkeypatch: pytest.MonkeyPatch) -> None:
    def gives_up(*told: Any, **more: Any) -> bool:
        raise np.exceptions.TooHardError

    monkeypatch.setattr(shared_buffers.np, "shares_memory", gives_up)
    array = image()
    spec, _ = flatten([array[:, ::2], array[:, 1::2]])
    assert "view" in str(spec)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            lambda: (lambda data: {"raw": data, "x": np.frombuffer(data, np.uint8)})(bytearray(9)),
            "raw and x share memory",
        ),
        (
            lambda: (lambda x: {"x": x, "raw": memoryview(x).toreadonly()})(np.zeros(3, np.uint8)),
            "x and raw share memory",
        ),
        (lambda: memoryview(bytearray(3)), "a memoryview that is writable"),
        (
            lambda: (lambda x: [x[::9000], x[9000 * 999 :]])(np.zeros(9000 * 1000, np.uint8)),
            "0 and 1 overlap in memory",
        ),
        (lambda: torch.ones(2, dtype=torch.complex64).conj(), "lazily conjugated"),
    ],
)
def test_refused(made: Callable[[], Any], said: str) -> None:
    with pytest.raises(UnsupportedType, match=said):
        flatten(made())


def test_what_holds_itself_is_refused() -> None:
    loop: list[Any] = [1]
    loop.append({"a": loop})
    with pytest.raises(UnsupportedType, match="1/a is a part of itself"):
        flatten(loop)


@pytest.mark.parametrize("data", [b"a\xff", b""])
@pytest.mark.parametrize("form", ["B", "b", "c"])
def test_bytes_that_nobody_can_change_may_be_there_twice(data: bytes, form: str) -> None:
    view = memoryview(data).cast(form)
    found = back([view, view, np.frombuffer(data, np.uint8)])
    assert [bytes(one) for one in found[:2]] == [data, data]
    assert {(one.format, one.readonly) for one in found[:2]} == {(form, True)}
    assert not found[2].flags.writeable


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_records_of_values_that_share(codec: str) -> None:
    def value(at: int) -> Any:
        x = np.full((4, 3), at)
        return {"x": x, "rows": x[1:], "again": x, "ids": [at]}

    parts = [flatten(value(at)) for at in range(3)]
    schema = SampleSchema.of(parts, codec)
    assert schema is not None
    assert SampleSchema.from_json(schema.to_json()) == schema
    assert len(schema.fields) == 2
    block_of(schema, parts)
    columns = {name: np.stack([part[1][at] for part in parts]) for at, name in enumerate(schema.names)}
    assert schema.stacked(columns) is None
    for at, found in enumerate(schema.decode(columns)):
        found["x"] += 1
        assert found["again"] is found["x"]
        assert (found["rows"] == at + 1).all()


def test_parts_from_outside_are_marked() -> None:
    value = {"a": [1], "x": image()}
    spec, leaves = flatten(value, outside=[value["x"], value])
    assert spec[:2] == ["outside", [0, 2]]
    found = from_bytes(to_bytes(spec, leaves))
    assert isinstance(found, Marked)
    assert [part is wanted for part, wanted in zip(found.parts, [found.value, found.value["x"]], strict=True)]
    assert flatten(value, outside=[])[0] == spec[-1][0]
