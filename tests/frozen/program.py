"""The program whose results lie in `identity-N`: modules, steps and functions. It is never edited.

Identities are made of code, so an edit turns it into another program, and its specimens would only be missed. What a
later generation needs besides lies in a file of its own. All numbers are small multiples of powers of two: every
machine computes the same bits.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

SCALE = 2


def batch(numbers: list[int]) -> torch.Tensor:
    """Inputs of these samples, float32 [n, 4]."""
    return torch.tensor(numbers).float()[:, None] + torch.arange(4) / 4


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * SCALE


class Backbone(nn.Module):
    """float32 [n, 4] to float32 [n, 3]."""

    def __init__(self, shift: float = 0.5) -> None:
        super().__init__()
        self.shift = shift
        self.linear = nn.Linear(4, 3)
        with torch.no_grad():
            self.linear.weight.copy_(torch.arange(-6.0, 6.0).reshape(3, 4) / 4)
            self.linear.bias.copy_(torch.arange(3.0))
        self.register_buffer("mean", torch.arange(4.0) / 8)
        self.requires_grad_(False)
        self.eval()

    def forward(self, x: torch.Tensor, times: int = 1) -> torch.Tensor:
        return scaled(torch.relu(self.linear(x - self.mean))) * times + self.shift


class Describer(nn.Module):
    """float32 [n, 4] to one of each kind of leaf and container."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = Backbone()

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        numbers = x[:, 0].int().tolist()
        return {
            "features": self.backbone(x),
            "half": (x[:, :2].to(torch.bfloat16), {"first": x[:, 0].to(torch.int16)}),
            "boxes": [torch.arange(2.0 * number).reshape(number, 2) for number in numbers],
            "names": [{"name": f"é {number}", "known": number % 2 == 0} for number in numbers],
        }


# Steps of pipelines: text without any installed package, images with NumPy, files by their names.


def measured(text: str) -> dict[str, Any]:
    return {"text": text, "length": len(text) * SCALE}


def padded(value: dict[str, Any], size: int) -> dict[str, Any]:
    return {**value, "codes": value["text"].encode().ljust(size, b".")}


def shaken(value: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**value, "drawn": int(rng.integers(0, 1000))}


def drawn(number: int) -> np.ndarray[Any, Any]:
    return (np.arange(4 * 4 * 3).reshape(4, 4, 3) + number).astype(np.uint8)


def divided(image: np.ndarray[Any, Any], by: int) -> np.ndarray[Any, Any]:
    return image.astype(np.float32) / (by * SCALE)


def flipped(image: np.ndarray[Any, Any], rng: np.random.Generator) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(image[:, ::-1]) if rng.integers(0, 2) else image


def uneven(number: int) -> Any:
    """Samples that are not alike."""
    return b"x" * number if number % 2 else [number, {"number": number / 2}]


def read(path: str) -> np.ndarray[Any, Any]:
    return np.frombuffer(Path(path).read_bytes(), np.uint8).astype(np.int32) * SCALE


# What is compiled. A matrix product needs no kernel of its own, so it is compiled in a moment where it is missed.


def shifted(x: torch.Tensor) -> torch.Tensor:
    return x + SCALE


def fused(x: torch.Tensor) -> torch.Tensor:
    return shifted(x * 2)


def turned(x: torch.Tensor) -> torch.Tensor:
    return x.t()


def straight(x: torch.Tensor) -> torch.Tensor:
    """What `turned` is after an edit."""
    return x


def product(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x @ turned(y)


class Product(nn.Module):
    """float32 [n, 4] to float32 [n, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weight", torch.arange(16.0).reshape(4, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ turned(self.weight)
