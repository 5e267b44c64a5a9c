"""Cache a frozen module: run this twice, the second run computes nothing.

python examples/cache_a_module.py FOLDER
"""

import sys
from collections.abc import Iterator

import torch
from torch import nn

import warmstore as ws

SAMPLES, BATCH = 2_000, 100


class Backbone(nn.Module):
    """Stands for an expensive frozen network."""

    def __init__(self) -> None:
        super().__init__()
        weights = torch.Generator().manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 32))
        for parameter in self.layers.parameters():
            nn.init.normal_(parameter, std=0.1, generator=weights)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.layers(x)
        return {"features": hidden, "norm": hidden.norm(dim=1)}


def batches(epoch: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Shuffled batches of samples and their ids."""
    data = torch.randn(SAMPLES, 64, generator=torch.Generator().manual_seed(1))
    order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))
    for ids in order.split(BATCH):
        yield data[ids], ids


def main(folder: str) -> None:
    """Two epochs over a cached backbone."""
    with ws.FeatureCache(folder, "backbone_v1") as cache:
        features = ws.CachedModule(Backbone().requires_grad_(False), cache)
        for epoch in range(2):
            before = cache.stats()
            for x, ids in batches(epoch):
                output = features(x, cache_ids=ids)
                assert output["features"].shape == (BATCH, 32)
            now = cache.stats()
            print(f"epoch {epoch}: {now.hits - before.hits} read, {now.misses - before.misses} computed")


if __name__ == "__main__":
    main(sys.argv[1])
