"""Sketches: what another process compares where torch's guards compare nothing."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from warmstore.compiling.sketches import class_digest, class_of, sketch
from warmstore.type_names import find_type

SOURCE = """
def scaled(by):
    def decorate(function):
        def wrapper(self, x):
            return function(self, x) * by
        return wrapper
    return decorate

class Base:
    def helper(self, x):
        return x

class Other:
    def helper(self, x):
        return -x

class Model(Base, Other):
    SCALE = [2.0, "a"]

    @property
    def size(self):
        return 3

    @scaled(2)
    def forward(self, x, shift=1):
        return self.helper(x) + shift
"""


def made(source: str = SOURCE) -> type:
    space: dict[str, Any] = {"__name__": "program"}
    exec(source, space)
    model: type = space["Model"]
    return model


def test_a_class_is_the_same_whatever_the_code_of_its_methods() -> None:
    assert class_digest(made()) == class_digest(made(SOURCE.replace("return 3", "return 4")))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Base, Other", "Other, Base"),
        ("Base, Other", "Base"),
        ("2.0", "3.0"),
        ("@scaled(2)", "@scaled(3)"),
        ("    @scaled(2)\n", ""),
        ("shift=1", "shift=2"),
        ("    @property\n", ""),
        ("def size", "def helper(self, x): return 2 * x\n\n    def size"),
    ],
)
def test_what_decides_which_code_runs_counts(old: str, new: str) -> None:
    source = SOURCE.replace("    @property\n", "") if new.startswith("def helper") else SOURCE
    assert old in source
    assert class_digest(made(source)) != class_digest(made(source.replace(old, new)))


def test_a_method_that_was_replaced_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(self: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
        return x

    before = class_digest(torch.nn.Linear)
    monkeypatch.setattr(torch.nn.Linear, "forward", forward)
    assert class_digest(torch.nn.Linear) != before


def test_classes_are_found_by_name_and_those_of_c_are_left_out() -> None:
    assert find_type("torch.nn.modules.linear", "Linear") is torch.nn.Linear
    assert find_type("torch", "nn.functional") is find_type("nowhere", "Linear") is None
    assert class_of(torch.nn.ReLU()) is class_of(torch.nn.ReLU) is torch.nn.ReLU
    assert class_of(3) is class_of(torch.ones(1)) is None


@pytest.mark.parametrize(
    "values",
    [
        (1, 1.0, True, "1", None),
        (torch.float32, torch.float64),
        (torch.zeros(2), torch.zeros(3), torch.zeros(2).double(), torch.zeros(2, requires_grad=True)),
        ({"a": 1}, {"b": 1}, {}),
        ([1], [1, 2], (1,)),
        (torch.nn.ReLU(), torch.nn.Tanh()),
        (torch.sin, torch.cos, torch.nn, torch.nn.ReLU),
    ],
)
def test_different_values_have_different_sketches(values: tuple[object, ...]) -> None:
    found = [sketch(value) for value in values]
    assert None not in found
    assert len(set(found)) == len(found)


def test_what_has_no_name_has_no_sketch() -> None:
    nameless: Callable[[], int] = lambda: 1  # noqa: E731
    assert sketch(nameless) is None
    assert sketch(functools.partial(int)) == "object of functools:partial"
