"""Keys of calls: equal where the same may be compiled for, whatever it is called and whatever its size."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from warmstore.compiling.calls import key_of_call, program_of_call
from warmstore.compiling.environment import Environment
from warmstore.errors import NoKey

X = torch.zeros(3, 4)


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.linear = nn.Linear(4, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


class Held(nn.Module):
    """A model with a module of the user's in it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)


def function(source: str, **scope: object) -> Callable[..., Any]:
    space: dict[str, Any] = {"torch": torch, "__name__": "program", **scope}
    exec(source, space)
    return space["f"]


def key(called: Any, *args: Any, options: dict[str, Any] | None = None, **kwargs: Any) -> str:
    called = called.forward if isinstance(called, nn.Module) else called
    return key_of_call(called, args or (X,), kwargs, options or {}, Environment()).digest


def test_sizes_values_and_names_of_locals_do_not_count() -> None:
    assert key(Net()) == key(Net(), torch.ones(7, 4))
    one = function("def f(x, scale=2):\n  'Doc.'\n  y = x + 1\n  return y * scale")
    other = function("# moved\ndef f(z, scale=2):\n  found = z + 1\n  return found * scale")
    assert key(one) == key(other)
    assert key(one, X, 3) == key(one, X, 4) != key(one, X, 3.0)


@pytest.mark.parametrize(
    "other",
    [
        "def f(x, scale=3):\n  return x * scale",
        "def f(x, scale=2):\n  return x + scale",
        "def f(x, *, scale=2):\n  return x * scale",
    ],
)
def test_every_real_change_of_a_function_has_another_key(other: str) -> None:
    assert key(function("def f(x, scale=2):\n  return x * scale")) != key(function(other))


def test_swapped_parameters_are_another_key_where_they_are_named() -> None:
    one, other = function("def f(a, b): return a - b"), function("def f(b, a): return b - a")
    assert key(one, X, X) == key(other, X, X)
    assert key(one, a=X, b=X) != key(other, a=X, b=X)


def test_closures_count_and_those_without_words_have_no_key() -> None:
    def closed(value: object) -> Callable[[torch.Tensor], object]:
        return lambda x: (x, value)

    assert key(closed(2)) == key(closed(2)) != key(closed(3))
    with pytest.raises(NoKey, match="closure"):
        key(closed(object()))


@pytest.mark.parametrize(
    "x",
    [X.double(), X[0], X.to_sparse(), X.clone().requires_grad_(), X.to("meta")],
    ids=["dtype", "rank", "layout", "gradient", "device"],
)
def test_every_other_kind_of_input_has_another_key(x: torch.Tensor) -> None:
    assert key(Net()) != key(Net(), x)


def test_modules_count_by_class_code_mode_and_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [key(Held(Net())), key(Held(Net(9))), key(Held(Net()).eval()), key(Held(nn.Linear(4, 8)))]
    assert len(set(found)) == len(found)
    monkeypatch.setattr(Net, "forward", lambda self, x: self.linear(x))
    assert key(Held(Net())) not in found


def test_hooks_and_what_is_the_same_tensor_or_module_count() -> None:
    def hook(module: nn.Module, args: object) -> None:
        """Has no name that others find."""

    nets = [nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(5)]
    nets[1][0].register_forward_pre_hook(print)
    nets[2][1].weight = nets[2][0].weight
    nets[3][1] = nets[3][0]
    nets[4][0].register_forward_pre_hook(hook)
    found = [key(net) for net in nets[:4]]
    assert len(set(found)) == len(found)
    with pytest.raises(NoKey, match="hook"):
        key(nets[4])


def test_arguments_in_the_same_memory_count() -> None:
    f = function("def f(x, y): return x + y")
    memory = torch.zeros(8)
    found = [key(f, memory[:4], y) for y in (torch.zeros(4), memory[2:6])] + [key(f, X, X), key(f, X, X.clone())]
    assert len(set(found)) == len(found)
    assert key(f, X, X.to_sparse())


def test_options_and_modes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = key(Net())
    assert plain != key(Net(), options={"mode": "max-autotune"})
    with torch.no_grad():
        assert plain != key(Net())
    with torch.autocast("cpu"):
        assert plain != key(Net())
    monkeypatch.setattr(torch._inductor.config, "epilogue_fusion", False)
    assert plain != key(Net())


def test_passes_of_the_programs_own_have_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._inductor.config, "post_grad_custom_pre_pass", print)
    with pytest.raises(NoKey, match="post_grad_custom_pre_pass"):
        key(Net())


def test_a_program_is_the_same_whatever_is_edited_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def program(model: nn.Module, x: torch.Tensor = X) -> str:
        return program_of_call(model.forward, (x,), {})

    before = program(Net())
    assert before == program(Net(9), torch.zeros(7, 4))
    assert before != program(Net(), X[0])
    assert before != program(Held(Net()))
    monkeypatch.setattr(Net.forward, "__code__", (lambda self, x: self.linear(x)).__code__)
    assert before == program(Net())
