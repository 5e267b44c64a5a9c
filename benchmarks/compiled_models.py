"""The models whose starts `compiling` measures, each with an input."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


class Block(nn.Module):
    """A block of a transformer."""

    def __init__(self, width: int = 128, heads: int = 4) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.into, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.into(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(functional.gelu(self.wide(self.second(x))))


class Residual(nn.Module):
    """Two convolutions, with batch norms, and a way round them."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.one, self.two = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.norm_one, self.norm_two = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(x + self.norm_two(self.two(functional.relu(self.norm_one(self.one(x))))))


class Convolutions(nn.Module):
    """Four residual blocks of 32 channels, and a head of 10 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Conv2d(3, 32, 3), nn.Linear(32, 10)
        self.blocks = nn.ModuleList(Residual() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


def transformer() -> tuple[nn.Module, Tensor]:
    """Six blocks of width 128, 4 heads, between an embedding of 256 tokens and a head; 4 sequences of 32 tokens."""
    blocks = [Block() for _ in range(6)]
    model = nn.Sequential(nn.Embedding(256, 128), *blocks, nn.LayerNorm(128), nn.Linear(128, 256))
    return model, torch.randint(0, 256, (4, 32))


def convolutions() -> tuple[nn.Module, Tensor]:
    """8 images of 32 x 32."""
    return Convolutions(), torch.randn(8, 3, 32, 32)


def small() -> tuple[nn.Module, Tensor]:
    return nn.Sequential(nn.Linear(8, 8), nn.GELU()), torch.randn(4, 8)
