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


class Doubled(namedtuple("Doubled", "x y")):
    def __new__(cls, x: Any, y: Any) -> Any:
        return super().__new__(cls, 2 * x, y)


@dataclasses.dataclass
class Halved:
    x: float
    norm: float = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.x /= 2
        self.norm = abs(self.x)


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any


@dataclasses.dataclass(slots=True)
class Slotted:
    x: Any
    y: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlotted(Frozen):
    y: Any = 0


@dataclasses.dataclass(slots=True)
class TwiceSlotted(Slotted):
    z: Any = 0


@dataclasses.dataclass(init=False)
class OtherOrder:
    x: Any
    y: Any

    def __init__(self) -> None:
        self.y, self.x = 1, 2


@dataclasses.dataclass
class ModelOutput(OrderedDict[str, Any]):
    """As transformers has them: fields that are not None are items, too."""

    logits: Any = None
    states: Any = None
    loss: Any = None

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None:
                self[field.name] = getattr(self, field.name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self and value is not None:
            super().__setitem__(name, value)
        super().__setattr__(name, value)


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


@pytest.mark.parametrize(
    "value",
    [Doubled(1, 2), Halved(3.0), Frozen(1), Slotted(1), FrozenSlotted(1, 2), TwiceSlotted(1, 2, 3), OtherOrder()],
    ids=repr,
)
def test_constructors_do_not_run_again(value: Any) -> None:
    container = opened(value)
    assert container is not None
    found = container_of(json.loads(json.dumps(flatten(value))), container.children)
    assert type(found) is type(value)
    assert found == value


def with_states_of_later() -> ModelOutput:
    value = ModelOutput(1)
    value.states = 5
    return value


@pytest.mark.parametrize(
    "value", [ModelOutput(), ModelOutput(1, None, 2), ModelOutput(states=2), with_states_of_later()], ids=repr
)
def test_outputs_of_transformers_come_back(value: ModelOutput) -> None:
    container = opened(value)
    assert container is not None
    found = container_of(json.loads(json.dumps(flatten(value))), container.children)
    assert type(found) is ModelOutput
    assert (list(found.items()), vars(found)) == (list(value.items()), vars(value))
    found["logits"] = 7
    assert found["logits"] == 7


def with_attribute(value: Any) -> Any:
    value.extra = 1
    return value


def with_item_of_earlier() -> ModelOutput:
    value = ModelOutput(1, 2)
    value.states = None
    return value


class Open(namedtuple("Open", "x y")):
    """May have attributes beside its parts."""


@pytest.mark.parametrize(
    "value",
    [
        with_attribute(Open(1, 2)),
        with_attribute(Halved(2.0)),
        with_attribute(ModelOutput(1)),
        with_item_of_earlier(),
    ],
    ids=repr,
)
def test_state_beside_the_fields_is_refused(value: Any) -> None:
    with pytest.raises(UnsupportedType, match=r"a/0 is a .* with other state than its fields"):
        flatten({"a": [value]})


def test_a_dataclass_that_has_other_fields_now(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = flatten(Box(1, 2))
    monkeypatch.setattr(sys.modules[__name__], "Box", Frozen)
    with pytest.raises(UnsupportedType, match=r"\['corner', 'size'\], which now has \['x'\]"):
        container_of(spec, [1, 2])


def test_a_dataclass_of_a_function_is_refused_by_its_path() -> None:
    @dataclasses.dataclass
    class Inner:
        x: int

    with pytest.raises(UnsupportedType, match=r"a/0 is a .*Inner, which .* does not have under that name"):
        flatten({"a": [Inner(1)]})
