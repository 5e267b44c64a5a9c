"""What is compiled, identified while the program runs: code that moves is seen, and data is left to guards."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from tests.slow import thinned
from torch import nn

from warmstore.compiling.keys.identified import Identified, IdentifiedArguments, codes_of

SCALE = 2
calls = 0


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)

    def helper(self, x: torch.Tensor) -> torch.Tensor:
        return helper(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.helper(self.linear(x))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Inner()
        self.step = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


@dataclass
class Given:
    by: float

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


def helper(x: torch.Tensor, by: float = 3.0) -> torch.Tensor:
    return x * by * SCALE


def surrounded() -> tuple[Callable[[torch.Tensor], torch.Tensor], Callable[[float], None]]:
    scale = 2.0

    def inside(x: torch.Tensor) -> torch.Tensor:
        return x * scale

    def change(value: float) -> None:
        nonlocal scale
        scale = value

    return inside, change


def counting(x: torch.Tensor) -> torch.Tensor:
    global calls
    calls += 1
    return helper(x)


def identified(thing: Any) -> Identified:
    return Identified(thing, None, ())


MOVES: dict[str, Callable[[pytest.MonkeyPatch, Model], object]] = {
    "code of a function": lambda patch, model: patch.setattr(helper, "__code__", (lambda x, by: x + by).__code__),
    "a default": lambda patch, model: patch.setattr(helper, "__defaults__", (4.0,)),
    "a global that is a number": lambda patch, model: patch.setitem(globals(), "SCALE", 3),
    "a global that is a function": lambda patch, model: patch.setitem(globals(), "helper", lambda x: x),
    "a method": lambda patch, model: patch.setattr(Inner, "helper", lambda self, x: x),
    "a constant of a class": lambda patch, model: patch.setattr(Model, "GAIN", 1, raising=False),
    "a hook of a module within": lambda patch, model: model.inner.linear.register_forward_hook(print),
    "a hook of gradients": lambda patch, model: model.inner.register_full_backward_hook(print),
}


@pytest.mark.parametrize("name", thinned(3, MOVES))
def test_code_that_moves_is_seen_and_has_another_identity(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    found = identified(model)
    before = found.identity.digest
    assert not found.has_moved()
    MOVES[name](monkeypatch, model)
    assert found.has_moved()
    assert found.look().digest != before
    assert not found.has_moved()
    monkeypatch.undo()
    for hooks in (model.inner.linear._forward_hooks, model.inner._backward_hooks):
        hooks.clear()
    model.inner._is_full_backward_hook = None
    assert found.look().digest == before


def test_a_variable_around_a_function_is_seen() -> None:
    inside, change = surrounded()
    found = identified(inside)
    change(5.0)
    assert found.has_moved()


def test_data_is_left_to_guards_and_counts_in_the_next_identity() -> None:
    model = Model()
    found = identified(model)
    before = found.identity.digest
    model.step = 7
    model.inner.linear.weight.grad = torch.zeros(2, 2)
    model.eval()
    assert not found.has_moved()
    assert found.look().digest != before


def test_what_a_program_moves_as_it_runs_is_no_change_of_the_program() -> None:
    found = identified(counting)
    before = found.identity.digest
    for _ in range(5):
        counting(torch.zeros(1))
        found.called()
        assert not found.has_moved()
    assert found.look().digest != before  # but it counts where a package is looked for
    assert found.has_moved() is False
    globals()["calls"] = 0
    assert found.has_moved()


def test_code_is_found_by_its_address_with_all_that_is_within() -> None:
    def inner() -> Callable[[], int]:
        return lambda: 1

    codes = codes_of([inner])
    assert set(codes) == {id(inner.__code__), id(inner().__code__)}
    assert id(helper.__code__) in identified(Model()).codes


def test_code_of_arguments_is_watched_and_not_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    given = Given(2.0)
    found = IdentifiedArguments((given, torch.zeros(1)), {}, None, ())
    assert id(Given.scaled.__code__) in found.codes
    assert found.watch is not None
    given.by = 3.0
    assert not found.watch.has_moved()
    monkeypatch.setattr(Given, "scaled", lambda self, x: x)
    assert found.watch.has_moved()


def test_plain_arguments_have_nothing_to_watch() -> None:
    found = IdentifiedArguments((torch.zeros(1), 1, "a"), {"x": [torch.zeros(2), None]}, None, ())
    assert found.watch is None
    assert found.codes == {}
    assert found.identity.digest == IdentifiedArguments((torch.ones(3),), {}, None, ()).identity.digest


def test_patches_of_installed_modules_are_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced code may run into them without naming them."""
    identified = Identified(torch.nn.GELU(), None, ())
    before = identified.identity
    monkeypatch.setattr(torch.nn.functional, "gelu", partial(torch.nn.functional.gelu, approximate="tanh"))
    patched = identified.look()
    assert not patched.unknown
    assert patched.digest != before.digest
    monkeypatch.undo()
    assert identified.look() == before
