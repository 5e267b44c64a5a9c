"""Python that stands in and around models."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property, lru_cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.corpus.program import Compile, Step, infers, mlp, program, state, trains


class Activation(Enum):
    RELU = "relu"
    TANH = "tanh"


def _activated(x: Tensor, activation: Activation) -> Tensor:
    if activation is Activation.RELU:
        return functional.relu(x) + 1
    return torch.tanh(x) - 1


@program(steps=3)
def enum_argument(compile: Compile) -> Step:
    """A function with an enum among its arguments, one value and then another."""
    compiled, x, count = compile(_activated), torch.randn(4, 8), 0

    def step() -> object:
        nonlocal count
        count += 1
        return compiled(x, Activation.TANH if count == 3 else Activation.RELU)

    return step


class WithEnum(nn.Module):
    def __init__(self, activation: Activation) -> None:
        super().__init__()
        self.activation, self.linear = activation, nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.linear(x)
        return getattr(functional, self.activation.value)(x) if self.activation == Activation.RELU else torch.tanh(x)


@program()
def enum_attribute(compile: Compile) -> Step:
    """A module with an enum for an attribute, trained."""
    return trains(WithEnum(Activation.RELU), compile, torch.randn(4, 8))


@dataclass
class Config:
    width: int = 16
    scale: float = 0.5
    activation: Activation = Activation.TANH
    layers: list[int] = field(default_factory=lambda: [16, 8])


def _configured(x: Tensor, config: Config) -> Tensor:
    for width in config.layers:
        x = _activated(x[..., :width] * config.scale, config.activation)
    return x


@program()
def dataclass_argument(compile: Compile) -> Step:
    """A function with a dataclass of settings among its arguments."""
    return infers(_configured, compile, torch.randn(4, 32), Config())


class Configured(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(nn.Linear(config.width, config.width) for _ in config.layers)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = _activated(layer(x) * self.config.scale, self.config.activation)
        return x


@program()
def dataclass_attribute(compile: Compile) -> Step:
    """A module that keeps a dataclass of settings, trained."""
    return trains(Configured(Config()), compile, torch.randn(4, 16))


class Output(NamedTuple):
    logits: Tensor
    hidden: Tensor


class NamedOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = mlp(), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Output:
        hidden = self.body(x)
        return Output(self.head(hidden), hidden)


@program()
def namedtuple_output(compile: Compile) -> Step:
    """A module that returns a named tuple, trained."""
    model, x = NamedOutput(), torch.randn(4, 16)
    compiled = compile(model)

    def step() -> object:
        model.zero_grad()
        made = compiled(x)
        made.logits.square().mean().backward()
        return made.logits.detach(), made.hidden.detach(), state(model)

    return step


@dataclass
class ModelOutput:
    logits: Tensor
    loss: Tensor | None = None


class DataclassOutput(NamedOutput):
    def forward(self, x: Tensor) -> ModelOutput:  # type: ignore[override]
        logits = self.head(self.body(x))
        return ModelOutput(logits, loss=logits.square().mean())


@program()
def dataclass_output(compile: Compile) -> Step:
    """A module that returns a dataclass of the program's own, trained."""
    model, x = DataclassOutput(), torch.randn(4, 16)
    compiled = compile(model)

    def step() -> object:
        model.zero_grad()
        made = compiled(x)
        made.loss.backward()
        return made.logits.detach(), state(model)

    return step


@lru_cache(maxsize=8)
def _window(size: int) -> tuple[float, ...]:
    return tuple(1 - abs(2 * at / (size - 1) - 1) for at in range(size))


@program()
def cached_helper(compile: Compile) -> Step:
    """A function that calls a helper under lru_cache."""

    def windowed(x: Tensor) -> Tensor:
        return x * torch.tensor(_window(x.shape[-1]))

    return infers(windowed, compile, torch.randn(4, 8))


@contextmanager
def _precision(low: bool) -> Iterator[float]:
    yield 0.5 if low else 1.0


class WithContext(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        with _precision(low=True) as scale:
            return self.linear(x) * scale


@program()
def context_manager(compile: Compile) -> Step:
    """A module with a `@contextmanager` of the program's own in its forward, trained."""
    return trains(WithContext(), compile, torch.randn(4, 8))


class WithProperty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    @cached_property
    def scale(self) -> float:
        return float(self.linear.in_features) ** -0.5

    @property
    def shift(self) -> float:
        return self.scale / 2

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * self.scale + self.shift


@program()
def cached_attribute(compile: Compile) -> Step:
    """A module with a property and a cached_property, trained."""
    return trains(WithProperty(), compile, torch.randn(4, 8))


_LAYER = re.compile(r"layer(\d+)")
_NAMES = {"skipped": frozenset({"layer1"}), "order": ("layer0", "layer2")}


class ByName(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({f"layer{at}": nn.Linear(8, 8) for at in range(3)})

    def forward(self, x: Tensor) -> Tensor:
        for name, part in self.parts.items():
            found = _LAYER.match(name)
            if found and name not in _NAMES["skipped"]:
                x = part(x) * (int(found.group(1)) + 1)
        return x


@program()
def regex(compile: Compile) -> Step:
    """A module that reads a compiled regex and a dict of the module's globals, trained."""
    return trains(ByName(), compile, torch.randn(4, 8))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.calls = nn.Linear(8, 8), 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.linear(x) / (1 + 0.1 * self.calls)


@program(steps=4)
def counted_calls(compile: Compile) -> Step:
    """A module that counts its calls in an attribute and reads it, trained."""
    return trains(Counting(), compile, torch.randn(4, 8))


class CountingTensor(nn.Module):
    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.last = self.linear(x)  # divided by calls, torch.compile's gradients are wrong: it reads them when changed
        return self.last


@program(steps=3)
def kept_output(compile: Compile) -> Step:
    """A module that counts in a buffer and keeps its last output in an attribute, trained."""
    return trains(CountingTensor(), compile, torch.randn(4, 8))


@program(steps=3)
def changing_number(compile: Compile) -> Step:
    """A function whose learning rate, a float, is another one at every call."""

    def update(weight: Tensor, gradient: Tensor, rate: float) -> Tensor:
        return weight - rate * gradient

    compiled, weight, gradient, count = compile(update), torch.randn(8), torch.randn(8), 0

    def step() -> object:
        nonlocal count
        count += 1
        return compiled(weight, gradient, 0.1 / count)

    return step
