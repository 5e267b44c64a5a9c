"""What a nested sample holds, level by level, and the paths of its leaves."""

import dataclasses
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from warmstore.tree.containers import leaves, opened, under

Point = namedtuple("Point", "x y")


@dataclasses.dataclass
class Box:
    corner: Any
    size: int = 3


@dataclasses.dataclass
class ModelOutput(dict[str, Any]):
    """As transformers has them: a dict that is a dataclass as well."""

    logits: Any


@pytest.mark.parametrize(
    ("value", "kind", "keys", "children"),
    [
        ({"b": 1, 7: 2}, "dict", ["b", 7], [1, 2]),
        (OrderedDict(b=1, a=2), "dict", ["b", "a"], [1, 2]),
        ({}, "dict", [], []),
        ([3, 4], "list", [0, 1], [3, 4]),
        ((3, 4), "tuple", [0, 1], [3, 4]),
        (Point(1, 2), "namedtuple", ["x", "y"], [1, 2]),
        (Box("c"), "dataclass", ["corner", "size"], ["c", 3]),
        (ModelOutput(5), "dataclass", ["logits"], [5]),
        (torch.Size([2, 3]), "tuple", [0, 1], [2, 3]),
    ],
)
def test_containers(value: Any, kind: str, keys: list[Any], children: list[Any]) -> None:
    container = opened(value)
    assert container is not None
    assert (container.kind, list(container.keys), list(container.children)) == (kind, keys, children)
    assert list(container.items()) == list(zip(keys, children, strict=True))


@pytest.mark.parametrize(
    "value", [None, 1, "text", b"bytes", {1, 2}, np.zeros(2), torch.zeros(2), Box, Point, range(3)]
)
def test_every_other_value_is_a_leaf(value: Any) -> None:
    assert opened(value) is None
    (found,) = leaves(value)
    assert found[0] == ""
    assert found[1] is value


def test_paths_of_leaves() -> None:
    value = {"hidden": [1, (2, Point(3, 4))], 5: Box({"a": 6}), "empty": []}
    assert list(leaves(value)) == [
        ("hidden/0", 1),
        ("hidden/1/0", 2),
        ("hidden/1/1/x", 3),
        ("hidden/1/1/y", 4),
        ("5/corner/a", 6),
        ("5/size", 3),
    ]
    assert list(leaves([1], "from")) == [("from/0", 1)]
    assert under("", 0) == "0"
    assert under("a", None) == "a/None"
