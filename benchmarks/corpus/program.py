"""What a program of the corpus is, and what most of them do in a step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Compile = Callable[..., Any]
"""`ws.compile`, `torch.compile`, or what returns its argument as it is."""
Step = Callable[[], Any]
"""Makes one step. What it returns, tensors in containers, is compared."""

PROGRAMS: dict[str, Program] = {}


@dataclass(frozen=True)
class Program:
    """One program.

    Attributes:
        name: of the function that makes it.
        build: makes everything, has `Compile` compile what is to be compiled, and returns what makes a step. The clock
            starts with the first use of `Compile`.
        steps: how many are made. The first one is timed.
        random: results are those of another generator than eagerly, so they are not compared with the eager ones.
        tolerance: relative and absolute, beside the eager results.
    """

    name: str
    build: Callable[[Compile], Step]
    steps: int = 2
    random: bool = False
    tolerance: tuple[float, float] = (1e-3, 1e-4)

    @property
    def text(self) -> str:
        return (self.build.__doc__ or self.name).rstrip(".")


def program(**how: Any) -> Callable[[Callable[[Compile], Step]], Callable[[Compile], Step]]:
    """Add a function to the corpus, with attributes of `Program`."""

    def add(build: Callable[[Compile], Step]) -> Callable[[Compile], Step]:
        PROGRAMS[build.__name__] = Program(build.__name__, build, **how)
        return build

    return add


def trains(model: nn.Module, compile: Compile, *inputs: Any, **options: Any) -> Step:
    """Training steps of a module whose output is one tensor; the loss and the optimizer are outside."""
    compiled = compile(model, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> Any:
        optimizer.zero_grad()
        output = compiled(*inputs)
        output.square().mean().backward()
        result = [output.detach(), *state(model)]
        optimizer.step()
        return result

    return step


def infers(function: Callable[..., Any], compile: Compile, *inputs: Any, **options: Any) -> Step:
    """Calls of a function or module without gradients."""
    compiled = compile(function, **options)

    def step() -> Any:
        with torch.no_grad():
            return compiled(*inputs)

    return step


def state(*modules: nn.Module) -> list[Tensor]:
    """Copies of parameters, their gradients and buffers."""
    found = [part for module in modules for part in (*module.parameters(), *module.buffers())]
    gradients = [one.grad for module in modules for one in module.parameters() if one.grad is not None]
    return [one.detach().clone() for one in (*found, *gradients)]


def mlp(width: int = 16) -> nn.Module:
    """Two linear layers."""
    return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
