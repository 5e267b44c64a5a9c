"""Keys of programs, equal on every machine and under every name of a variable.

A key is a digest of all code and values that tracing may read, of the inputs without their sizes, and of the kind of
device, torch's version and torch's global modes. `call_keys` makes keys; torch has other keys for graphs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import torch
from blake3 import blake3

from warmstore.storage.cached_property import cached_property


@dataclass(frozen=True)
class InputSpec:
    """A tensor among the inputs, without sizes and strides, which guards check. `device` has the model of a GPU."""

    ndim: int
    dtype: str
    layout: str
    device: str
    requires_grad: bool


@dataclass(frozen=True)
class GraphKey:
    """What an artifact is compiled from.

    `program` is a digest of all code and values that tracing may read. `inputs` has one item for each argument, a text
    for an argument that is no tensor. `device` is "cuda" or "cpu", and `torch` the version of torch.
    """

    program: str
    inputs: tuple[InputSpec | str, ...]
    device: str
    torch: str
    modes: tuple[str, ...]

    @cached_property
    def digest(self) -> str:
        """32 hexadecimal digits."""
        inputs = [spec if isinstance(spec, str) else vars(spec) for spec in self.inputs]
        return digest([self.program, inputs, self.device, self.torch, self.modes])


def modes() -> tuple[str, ...]:
    """Global settings of torch that change how a program is compiled."""
    autocast = [
        f"{kind} {torch.get_autocast_dtype(kind)}" for kind in ("cpu", "cuda") if torch.is_autocast_enabled(kind)
    ]
    return (
        f"grad {torch.is_grad_enabled()}",
        f"inference {torch.is_inference_mode_enabled()}",
        f"autocast {autocast}",
        f"deterministic {torch.are_deterministic_algorithms_enabled()}",
        f"dtype {torch.get_default_dtype()}",
        f"matmul {torch.get_float32_matmul_precision()}",
    )


def digest(value: object) -> str:
    """Hash a JSON value to 32 hexadecimal digits."""
    return blake3(json.dumps(value, separators=(",", ":")).encode()).hexdigest(length=16)
