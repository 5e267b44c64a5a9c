"""What is compiled: modules of torch's own, parts of modules, methods, and functions of all kinds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.corpus.program import Compile, Step, infers, mlp, program, state, trains
from benchmarks.corpus.vision import VAE, Encoder, Residual


@program()
def sequential_of_layers(compile: Compile) -> Step:
    """An nn.Sequential of torch's own layers, trained."""
    return trains(nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), compile, torch.randn(4, 8))


@program()
def sequential_of_blocks(compile: Compile) -> Step:
    """An nn.Sequential of the program's own blocks, trained."""
    return trains(nn.Sequential(Residual(3, 4), Residual(4, 4)), compile, torch.randn(2, 3, 8, 8))


@program()
def sequential_nested(compile: Compile) -> Step:
    """An nn.Sequential of nn.Sequentials and blocks, trained."""
    model = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()),
        nn.Sequential(Residual(4, 4), nn.AdaptiveAvgPool2d(1)),
        nn.Flatten(),
        nn.Linear(4, 2),
    )
    return trains(model, compile, torch.randn(2, 3, 8, 8))


@program()
def encoder_root(compile: Compile) -> Step:
    """An nn.TransformerEncoder, trained."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return trains(model, compile, torch.randn(2, 6, 16))


@program()
def linear_root(compile: Compile) -> Step:
    """A single nn.Linear without gradients."""
    return infers(nn.Linear(8, 8), compile, torch.randn(4, 8))


@program()
def method_of_a_module(compile: Compile) -> Step:
    """`model.encode`, a method other than forward."""
    return infers(VAE().encode, compile, torch.rand(4, 32))


@program()
def each_block(compile: Compile) -> Step:
    """Six equal blocks, each compiled by itself and put back into the model, trained."""
    blocks = [Encoder(16) for _ in range(6)]
    model, x = nn.Sequential(*(compile(block) for block in blocks)), torch.randn(2, 6, 16)

    def step() -> object:
        model.zero_grad()
        y = model(x)
        y.square().mean().backward()
        return y.detach(), state(*blocks)

    return step


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList(nn.Linear(8, 8 * (at + 1)) for at in range(3))
        self.named = nn.ModuleDict({"tanh": nn.Tanh(), "relu": nn.ReLU()})

    def forward(self, x: Tensor, branch: int, activation: str = "tanh") -> Tensor:
        return self.named[activation](self.branches[branch](x))


@program(steps=3)
def branch_by_index(compile: Compile) -> Step:
    """A module list with an index that is an argument, and a module dict with a name."""
    compiled, x, count = compile(Branches()), torch.randn(4, 8), 0

    def step() -> object:
        nonlocal count
        count += 1
        with torch.no_grad():
            return compiled(x, count % 2, activation="relu" if count > 2 else "tanh")

    return step


@program()
def lambda_root(compile: Compile) -> Step:
    """A lambda."""
    return infers(lambda x, y: torch.sin(x) @ y.t() + x.sum(), compile, torch.randn(4, 8), torch.randn(4, 8))


def _scaled(x: Tensor, scale: float, *, power: int = 2) -> Tensor:
    return (x * scale).pow(power).softmax(-1)


@program()
def partial_root(compile: Compile) -> Step:
    """A functools.partial."""
    return infers(partial(_scaled, scale=0.5, power=3), compile, torch.randn(4, 8))


@program()
def closure(compile: Compile) -> Step:
    """A function in a function that reads a module, a tensor and a number around it."""
    model, shift, scale = mlp(), torch.randn(16), 0.3

    def call(x: Tensor) -> Tensor:
        return model(x) * scale + shift

    return infers(call, compile, torch.randn(4, 16))


def _logged(message: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            assert message
            return function(*args, **kwargs)

        return call

    return decorate


@_logged("attention")
def _gated(x: Tensor, gate: Tensor) -> Tensor:
    return x * torch.sigmoid(gate)


@program()
def decorated(compile: Compile) -> Step:
    """A function under a decorator with functools.wraps."""
    return infers(_gated, compile, torch.randn(4, 8), torch.randn(4, 8))


class DecoratedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()

    @_logged("forward")
    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


@program()
def decorated_forward(compile: Compile) -> Step:
    """A module whose forward has a decorator with functools.wraps, trained."""
    return trains(DecoratedForward(), compile, torch.randn(4, 16))


class Callable_:  # noqa: N801
    def __init__(self) -> None:
        self.weight = torch.randn(8, 8)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.weight)


@program()
def callable_object(compile: Compile) -> Step:
    """The `__call__` of an object that is no module."""
    return infers(Callable_().__call__, compile, torch.randn(4, 8))


@program()
def full_graph(compile: Compile) -> Step:
    """Options: fullgraph and dynamic."""
    return infers(mlp(), compile, torch.randn(4, 16), fullgraph=True, dynamic=True)
