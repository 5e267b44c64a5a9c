"""What is kept of a sample comes back as it was: type, dtype, shape, bits, and the order in memory."""

import dataclasses
import sys
from collections import OrderedDict, namedtuple
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis.extra import numpy as arrays
from tests.slow import either

from warmstore.errors import UnsupportedType
from warmstore.loading.collate import stack
from warmstore.pipeline.tiers.flattening import flatten, to_bytes
from warmstore.pipeline.tiers.sample_schema import SampleSchema
from warmstore.pipeline.tiers.sample_spec import marked_alike
from warmstore.pipeline.tiers.sample_staging import Staging, block_of
from warmstore.pipeline.tiers.unflattening import from_bytes, unflatten

Point = namedtuple("Point", "x y")


@dataclasses.dataclass(frozen=True)
class Box:
    corner: Any
    size: int = 3


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return type(other) is torch.Tensor and one.stride() == other.stride() and torch.equal(one, other)
    if isinstance(one, np.ndarray):
        axes = [sorted(range(a.ndim), key=lambda axis, a=a: -abs(a.strides[axis])) for a in (one, other)]
        kept = axes[0] == axes[1] or one.size < 2 or 1 in one.shape or one.flags.c_contiguous
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes() and kept
    if isinstance(one, dict):
        return type(one) is type(other) and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    if dataclasses.is_dataclass(one):
        return type(one) is type(other) and same(vars(one), vars(other))
    return type(one) is type(other) and bool(one == other or one != one)


class Metres(np.float64):
    """A number with a unit."""


@dataclasses.dataclass
class Late:
    """A dataclass with a field that is given later."""

    x: int
    y: int = dataclasses.field(init=False)


@dataclasses.dataclass
class Named(list[int]):
    name: str


LEAVES = st.one_of(
    arrays.arrays(
        st.sampled_from(["float32", "float64", "int64", "uint8", "bool", "complex64", "M8[s]", "float16"]),
        arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
    ),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.booleans(),
    st.none(),
    st.binary(max_size=5),
    st.binary(max_size=5).map(bytearray),
    st.text(max_size=5),
    st.integers(-5, 5).map(np.int16),
    st.lists(st.integers(), max_size=4),
    st.lists(st.floats(), max_size=4),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(st.one_of(st.text(max_size=2), st.integers(0, 3)), inner, max_size=3),
        st.builds(Point, inner, inner),
        st.builds(Box, inner),
    ),
    max_leaves=6,
)


@settings(max_examples=either(50, 150))
@given(VALUES)
def test_any_value(value: Any) -> None:
    spec, leaves = flatten(value)
    assert same(value, from_bytes(to_bytes(spec, leaves)))
    assert same(value, unflatten(spec, iter(leaves).__next__))


@pytest.mark.parametrize(
    "value",
    [
        np.arange(24.0).reshape(2, 3, 4).transpose(2, 0, 1),
        np.arange(24).reshape(2, 3, 4)[:, ::2].transpose(1, 0, 2),
        np.ones(3, ml_dtypes.bfloat16),
        torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.rand(2, 3, 4, 5).to(torch.bfloat16, memory_format=torch.channels_last),
        torch.ones(2, dtype=torch.bfloat16),
        OrderedDict(a=1, b=[True, False]),
        2**80,
        -(2**80),
        np.array([["a", "bcd"], ["\ud800", "😀"], ["\0a\0", ""]]).T,
        np.array([b"a\0b\0", b""]),
        np.array([b"ab", b"c"], "V2"),
        np.array("one"),
        np.arange(6, dtype=">i4").reshape(2, 3).T,
        np.array(["2020-01-01", "NaT"], ">M8[D]"),
        np.empty((0, 2), "U4"),
        np.str_("a\0\ud800"),
        np.bytes_(b"a\0"),
    ],
)
def test_special_values(value: Any) -> None:
    assert same(value, from_bytes(to_bytes(*flatten(value))))


@pytest.mark.parametrize(
    "value",
    [
        object(),
        {1.5: 1},
        np.zeros(2, [("x", "i4")]),
        np.array(["a"], np.dtypes.StringDType()),
        np.empty(2, "V0"),
        np.zeros(2, np.dtype("U3", metadata={"a": 1})),
        np.zeros(2, np.dtype("i4", metadata={"a": 1})),
        Metres(1.5),
        torch.ones(2, requires_grad=True),
        torch.ones(2).to_sparse(),
        torch.nn.Parameter(torch.ones(1)),
        Late(1),
        np.ma.masked_array([1], [True]),
        {"\ud83d\ude00": 1},
        {"a": [{"b": print}]},
        Named("a list with a name"),
    ],
)
def test_refused(value: Any) -> None:
    with pytest.raises(UnsupportedType, match=r"a/0/b is a|the value|has the key"):
        flatten(value)


class Shifted(namedtuple("Shifted", "x y")):
    """Its constructor makes x larger by one."""

    def __new__(cls, x: int, y: int) -> Any:
        return super().__new__(cls, x + 1, y)


class Open(namedtuple("Open", "x y")):
    """May have attributes beside its parts."""


class Plain(namedtuple("Plain", "x y")):
    __slots__ = ()


class Slotted:
    __slots__ = ("kept",)


@dataclasses.dataclass
class Mixed(Slotted):
    x: int


@dataclasses.dataclass
class Output(dict[str, int]):
    x: int


def with_attribute(value: Any) -> Any:
    value.extra = 1
    return value


@pytest.mark.parametrize(
    "value",
    [with_attribute(Open(1, 2)), Mixed(1), Output(1), with_attribute(torch.ones(1)), with_attribute(OrderedDict(a=1))],
)
def test_values_with_other_state_than_their_parts_are_refused(value: Any) -> None:
    with pytest.raises(UnsupportedType):
        flatten(value)


@pytest.mark.parametrize("value", [Open(1, 2), Plain(1, "a"), Shifted(1, 2)])
def test_named_tuples_with_methods_of_their_own(value: Any) -> None:
    assert same(value, from_bytes(to_bytes(*flatten(value))))


@settings(max_examples=either(25, 60))
@given(st.lists(VALUES, min_size=1, max_size=4), st.sampled_from(["raw", "zstd"]))
def test_records_of_any_values(values: list[Any], codec: str) -> None:
    parts = [flatten(value) for value in values]
    schema = SampleSchema.of(parts[:2], codec) or SampleSchema.of_bytes(codec)
    assert SampleSchema.from_json(schema.to_json()) == schema
    fitting = [at for at, part in enumerate(parts) if schema.fits(*part)]
    assert fitting
    block = block_of(schema, [parts[at] for at in fitting])
    assert {rows.count for rows in block.values()} == {len(fitting)}


def test_keys_that_are_equal_are_not_the_same() -> None:
    parts = [flatten([{key: np.arange(3)}]) for key in (1, True)]
    schema = SampleSchema.of(parts[:1], "raw")
    assert schema is not None
    assert schema.fits(*parts[0])
    assert not schema.fits(*parts[1])
    assert SampleSchema.of(parts, "raw") is None
    others = SampleSchema.of(parts[1:], "raw")
    assert not schema.is_same(others)
    assert schema.is_same(SampleSchema.from_json(schema.to_json()))
    like = ["outside", [0], [parts[0][0]]]
    assert marked_alike(like, *parts[0])[0] is like
    assert marked_alike(like, *parts[1])[0] is parts[1][0]


def test_a_value_that_is_nested_too_deep_is_refused() -> None:
    value: Any = 1
    for _ in range(sys.getrecursionlimit()):
        value = [value, "a"]
    with pytest.raises(UnsupportedType, match="nested too deep"):
        flatten(value)


def test_an_integer_of_more_digits_than_python_writes() -> None:
    for value in (1 << 50_000, -(1 << 50_000)):
        assert from_bytes(to_bytes(*flatten(value))) == value


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_nested_tensor_is_refused() -> None:
    with pytest.raises(UnsupportedType, match="nested"):
        flatten(torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]))


def test_many_texts_are_one_byte_string() -> None:
    few, many = ([flatten([f"{word}" for word in range(count)]) for _ in range(3)] for count in (16, 17))
    schema = SampleSchema.of(few, "raw")
    assert schema is not None
    assert len(schema.fields) == 16
    assert SampleSchema.of(many, "raw") is None


def test_values_of_no_bytes() -> None:
    parts = [flatten({"boxes": np.zeros((0, 4)), "ids": np.zeros(0, np.int32)}) for _ in range(3)]
    schema = SampleSchema.of(parts, "raw")
    assert schema is not None
    assert schema.width == 0
    assert {rows.count for rows in block_of(schema, parts).values()} == {3}


def test_an_interrupted_copy_is_no_part_of_a_sample() -> None:
    class Interrupting(np.ndarray):
        def copy(self, order: Any = "C") -> Any:
            raise KeyboardInterrupt

    values = [{"a": np.full(at + 1, at), "b": np.full(2 * at + 1, at)} for at in range(4)]
    parts = [flatten(value) for value in values]
    schema = SampleSchema.of(parts, "raw")
    assert schema is not None
    staging = Staging(schema, 8)
    staging.add(0, (0, 0), *parts[0])
    with pytest.raises(KeyboardInterrupt):
        staging.add(9, (9, 0), parts[3][0], [parts[3][1][0], parts[3][1][1].view(Interrupting)])
    staging.add(1, (1, 0), *parts[1])
    found, wanted = staging.take(), block_of(schema, parts[:2])
    for name, rows in wanted.items():
        assert found[name].data.tobytes() == rows.data.tobytes()


def test_stacked_is_what_stacking_samples_gives() -> None:
    values = [
        {"x": np.full((2, 3), at).T, "n": at, "f": at / 2, "s": np.float32(at), "ids": [at, 1], "t": (np.ones(2), True)}
        for at in range(4)
    ]
    parts = [flatten(value) for value in values]
    schema = SampleSchema.of(parts, "raw")
    assert schema is not None
    columns = {name: np.stack([part[1][at] for part in parts]) for at, name in enumerate(schema.names)}
    assert same(schema.stacked(columns), stack(values))
    assert all(map(same, schema.decode(columns), values))
    assert SampleSchema.of_bytes("raw").stacked({"value": []}) is None


def test_a_tensor_of_inference_mode_is_one_again() -> None:
    with torch.inference_mode():
        made = torch.arange(6.0).reshape(2, 3)
    value = {"made": made, "rows": made[1:], "other": torch.ones(2), "columns": made.t().clone()}
    back = from_bytes(to_bytes(*flatten(value)))
    assert [back[name].is_inference() for name in value] == [True, True, False, False]
    assert all(same(value[name], back[name]) for name in ("made", "other", "columns"))
    assert back["rows"].data_ptr() == back["made"][1:].data_ptr()
    with torch.inference_mode():
        alone = made.t().clone()
    assert from_bytes(to_bytes(*flatten(alone))).is_inference()


def test_an_array_that_is_tied_to_its_file_is_not_kept(tmp_path: Path) -> None:
    np.save(tmp_path / "array.npy", np.arange(6))
    mapped = np.load(tmp_path / "array.npy", mmap_mode="r")
    for value in (mapped, {"rows": mapped[2:]}):
        with pytest.raises(UnsupportedType, match=r"is a numpy\.memmap.* return np\.array\(value\)"):
            flatten(value)
    assert from_bytes(to_bytes(*flatten(np.asarray(mapped)))).tolist() == mapped.tolist()
