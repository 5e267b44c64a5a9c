"""Frozen modules for the feature benchmarks: they return their input, so what a cache hands out can be checked.

Fed with zeros once the cache is full, they also give away a row that was computed again instead of found.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import nn

import warmstore as ws


class Echo(nn.Module):
    """The smallest backbone: no tensors. It notes the number of rows of each batch it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.counts.append(len(x))
        return x.clone()


class DeepEcho(Echo):
    """As many parameters and buffers as a ResNet-50 has (small ones): a guard against new weights must watch them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(1, 1, bias=False), nn.BatchNorm1d(1)) for _ in range(53))
        for parameter in self.parameters():
            nn.init.ones_(parameter)  # drawn ones would make every instance another module: StaleCache


class SlowEcho(Echo):
    """A backbone that takes a while, as real ones do: 5 ms a batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(0.005)
        return super().forward(x)


def frozen(module: nn.Module) -> nn.Module:
    return module.eval().requires_grad_(False)


def fill(cache: ws.FeatureCache, ids: Sequence, values: torch.Tensor, backbone: nn.Module, step: int = 2048) -> None:
    """Put every value into the cache the way a first epoch does: through a cached module."""
    module = ws.CachedModule(backbone, cache)
    for first in range(0, len(values), step):
        module(values[first : first + step], cache_ids=list(ids[first : first + step]))
    cache.flush()
