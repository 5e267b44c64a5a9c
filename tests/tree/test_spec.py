"""A spec is JSON, and a value comes back from it with its types and in its order."""

import dataclasses
import json
import sys
from collections import OrderedDict, namedtuple
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from tests.slow import either

from warmstore.errors import UnsupportedType
from warmstore.tree.containers import leaves, opened, under
from warmstore.tree.spec import TreeSpec, children_of, container_of, keys_of, leaf_specs, spec_of, unflatten

Point = namedtuple("Point", "x y")


@dataclasses.dataclass
class Box:
    corner: Any
    size: Any = 3


def flatten(value: Any, path: str = "") -> TreeSpec:
    container = opened(value)
    if container is None:
        return {"node": "number"}
    children = [flatten(child, under(path, key)) for key, child in container.items()]
    return spec_of(value, container, children, path or "the value")


VALUES = st.recursive(
    st.integers(),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.text(max_size=2), st.integers(0, 3)), inner, max_size=3),
        st.dictionaries(st.text(max_size=2), inner, max_size=3).map(OrderedDict),
        st.builds(Point, inner, inner),
        st.builds(Box, inner, inner),
    ),
    max_leaves=8,
)


def same(one: Any, other: Any) -> bool:
    container, found = opened(one), opened(other)
    if container is None or found is None:
        return type(one) is type(other) and bool(one == other)
    pairs = zip(container.children, found.children, strict=True)
    return type(one) is type(other) and list(container.keys) == list(found.keys) and all(same(*pair) for pair in pairs)


@settings(max_examples=either(75, 150))
@given(VALUES)
def test_any_value_comes_back(value: Any) -> None:
    spec = json.loads(json.dumps(flatten(value)))
    assert spec == flatten(value)
    assert [path for path, _ in leaf_specs(spec)] == [path for path, _ in leaves(value)]
    each = leaves(value)
    found = unflatten(spec, lambda _, path: dict([next(each)])[path])
    assert same(found, value)


def test_a_spec_as_it_is_stored() -> None:
    """Caches of earlier versions hold this form."""
    spec = flatten({"a": [1, (2,)], "p": Point(3, OrderedDict(z=4))})
    number, here = {"node": "number"}, __name__
    assert json.dumps(spec) == json.dumps(
        {
            "node": "dict",
            "keys": ["a", "p"],
            "children": [
                {"node": "list", "children": [number, {"node": "tuple", "children": [number]}]},
                {
                    "node": "namedtuple",
                    "type": [here, "Point"],
                    "keys": ["x", "y"],
                    "children": [
                        number,
                        {
                            "node": "dict",
                            "type": ["collections", "OrderedDict"],
                            "keys": ["z"],
                            "children": [number],
                        },
                    ],
                },
            ],
        }
    )
    assert list(keys_of(spec)) == ["a", "p"]
    assert [path for path, _ in children_of(spec, "at")] == ["at/a", "at/p"]
    assert children_of(number) == []
    assert list(keys_of(number)) == []


def test_tuples_of_torch_come_back() -> None:
    value = torch.tensor([[1, 3], [4, 2]]).max(1)
    spec = flatten(value)
    found = container_of(spec, list(value))
    assert type(found) is torch.return_types.max
    assert found.indices.tolist() == [1, 0]


def test_classes_that_the_program_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    pair, box = flatten(Point(1, 2)), flatten(Box(1, 2))
    monkeypatch.delattr(sys.modules[__name__], "Point")
    monkeypatch.delattr(sys.modules[__name__], "Box")
    found = container_of(pair, [1, 2])
    assert (type(found).__name__, found.x, found.y) == ("Point", 1, 2)
    with pytest.raises(UnsupportedType, match="is a Box; import"):
        container_of(box, [1, 2])


def test_a_dataclass_of_a_function_is_refused_by_its_path() -> None:
    @dataclasses.dataclass
    class Inner:
        x: int

    with pytest.raises(UnsupportedType, match=r"a/0 is a .*Inner, which .* does not have under that name"):
        flatten({"a": [Inner(1)]})
