"""Keys that say what is compiled, not where it was written: equal on every machine, under every name.

A key is the digest of what a program may look at while it is traced, of its inputs without their sizes, of the kind of
device, of torch's version and of torch's global modes. `calls` makes it; torch has keys of its own for graphs.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property

import torch
from blake3 import blake3


@dataclass(frozen=True)
class InputSpec:
    """What is known of an input that is a tensor: all but its sizes and strides, which guards check."""

    ndim: int
    dtype: str
    layout: str
    device: str
    requires_grad: bool


@dataclass(frozen=True)
class GraphKey:
    """What a compiled artifact is of.

    Args:
        program: digest of all that tracing may look at.
        inputs: by argument; a text where it is not a tensor.
        device: "cuda" or "cpu".
        torch: its version.
        modes: global settings of torch.
    """

    program: str
    inputs: tuple[InputSpec | str, ...]
    device: str
    torch: str
    modes: tuple[str, ...]

    @cached_property
    def digest(self) -> str:
        """32 hexadecimal digits."""
        inputs = [one if isinstance(one, str) else vars(one) for one in self.inputs]
        return digest([self.program, inputs, self.device, self.torch, self.modes])


def modes() -> tuple[str, ...]:
    """Global settings of torch under which the same program compiles to something else."""
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


def digest(what: object) -> str:
    """32 hexadecimal digits of what JSON can say."""
    return blake3(json.dumps(what, separators=(",", ":")).encode()).hexdigest(length=16)
