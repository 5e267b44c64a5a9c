"""Two objects are the same if pickle would write the same of them, bit for bit."""

import dataclasses
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch

from warmstore.pipeline.encoders.comparison import difference


class Plain:
    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)


class Slots:
    __slots__ = ("x", "y")

    def __init__(self, x: Any) -> None:
        self.x = x


class Listed(list[Any]):
    pass


class Shut:
    """It cannot be pickled, and nothing says when two are equal."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError("shut")


class ShutEqual(Shut):
    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ShutEqual) and self.number == other.number

    __hash__ = None  # type: ignore[assignment]


@dataclasses.dataclass
class Box:
    item: Any


def objects(*items: Any) -> Any:
    made = np.empty(len(items), object)
    made[:] = items
    return made


def circle() -> Any:
    made: list[Any] = [1]
    made.append(made)
    return made


@pytest.mark.parametrize(
    "make",
    [
        lambda: Plain(a=[1, np.arange(3)], b={"c": float("nan")}),
        lambda: Slots(np.float32(1)),
        lambda: Listed([1, [2]]),
        lambda: Box(torch.arange(3)),
        lambda: objects(None, [1], "a", np.zeros(2)),
        lambda: Fraction(3, 4),
        lambda: ShutEqual(3),
        lambda: [
            np.zeros((2, 3), order="F"),
            np.zeros((4, 3))[::-2],
            torch.zeros(2, 3).T,
            torch.ones(2, requires_grad=True),
        ],
        lambda: (np.array(["a", "bc"]), np.zeros(2, ">i4"), b"", bytearray(b"a"), {1, 2}),
        circle,
        lambda: int,
    ],
)
def test_the_same(make: Any) -> None:
    assert difference(make(), make(), by_order=True) == ""


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        (Plain(a=1), Plain(a=2), "`state/a` is 2 and not 1"),
        (Plain(a=1), Plain(a=1, b=2), "`state` has the entries ['a', 'b']"),
        (Plain(a=1), Plain(a=True), "`state/a` is a bool and not a int"),
        (Plain(a=0.0), Plain(a=-0.0), "`state/a` has other values"),
        (Slots(1), Slots(2), "state/1/x"),
        (Listed([1]), Listed([2]), "`items/0` is 2"),
        (Plain(), Slots(1), "it is a Slots and not a Plain"),
        (np.zeros(2), np.zeros(2, np.float32), "it is float32 (2,) and not float64 (2,)"),
        (np.zeros(2), np.zeros((2, 1)), "(2, 1)"),
        (objects([1]), objects([2]), "`0/0` is 2"),
        (torch.zeros(2), torch.ones(2), "other values"),
        (torch.zeros(2), torch.zeros(2, requires_grad=True), "it has requires_grad=True and not False"),
        (np.zeros((2, 3), order="F"), np.zeros((2, 3)), "it has another order of axes in memory"),
        (torch.zeros(2, 3), torch.zeros(3, 2).T, "it has another order of axes in memory"),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, "entries"),
        ({1: 0}, {True: 0}, "entries"),
        ({(1, 0.0): 0}, {(1, -0.0): 0}, "entries"),
        ({(1,): 0}, {(True,): 0}, "entries"),
        (Plain(a={1, 2}), Plain(a={True, 2}), "`state/a` is {True, 2} and not {1, 2}"),
        (frozenset([0.0]), frozenset([-0.0]), "it is frozenset({-0.0})"),
        ((1, 2), (1, 2, 3), "entries"),
        (Shut(), Shut(), "cannot be compared: shut"),
        (ShutEqual(3), ShutEqual(4), "not equal"),
        (Fraction(1, 2), Fraction(1, 3), "arguments"),
        (int, float, "float"),
    ],
)
def test_different(first: Any, second: Any, says: str) -> None:
    assert says in difference(first, second, by_order=True)


def test_rows_of_batches_are_the_same_in_any_order_of_axes() -> None:
    assert difference(np.zeros((2, 3), order="F"), np.zeros((2, 3))) == ""


def test_objects_that_are_nested_too_deep_count_as_different() -> None:
    made: list[Any] = [[], []]
    for _ in range(200):
        made = [[each] for each in made]
    assert "too deep" in difference(*made)
