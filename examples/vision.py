"""Train on several layers of a frozen vision network, which sees each image once. `make examples` runs it.

python examples/vision.py FOLDER

The images are tiles of 64 x 64 pixels, cut from the two photographs that scikit-learn brings along. The task: from
which photograph, and from which third of its height, is a tile? The network is a small ResNet (He et al., CVPR 2016)
with random weights from a fixed seed: nothing is downloaded, and a head on such features does well (Saxe et al., "On
Random Weights and Unsupervised Feature Learning", ICML 2011). Put a trained network in its place and nothing else
changes.
"""

import argparse
import time

import numpy as np
import torch
from sklearn.datasets import load_sample_images
from torch import nn

import warmstore as ws

TILE, STRIDE, BATCH, TEST_EVERY = 64, 16, 32, 5
WIDTHS = (64, 128, 256)


class Block(nn.Module):
    """Two convolutions and a way around them, at half the resolution."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.around = nn.Conv2d(channels, width, 1, stride=2, bias=False)
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norms[0](self.first(x)).relu()
        return (self.norms[1](self.second(y)) + self.norms[2](self.around(x))).relu()


class Backbone(nn.Module):
    """Images uint8 [n, 3, 64, 64] to three feature maps float32: [n, 64, 16, 16], [n, 128, 8, 8], [n, 256, 4, 4]."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 64, 7, stride=2, padding=3)
        self.blocks = nn.ModuleList(map(Block, (64, *WIDTHS), WIDTHS))
        seed = torch.Generator().manual_seed(0)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, generator=seed)

    def forward(self, images: torch.Tensor) -> list[torch.Tensor]:
        x = self.stem(images.float() / 127.5 - 1)
        return [x := block(x) for block in self.blocks]


class Head(nn.Module):
    """The mean of each map over 2 x 2 cells, and a linear layer on all of them."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(4 * sum(WIDTHS), classes)

    def forward(self, maps: list[torch.Tensor]) -> torch.Tensor:
        cells = [nn.functional.adaptive_avg_pool2d(x, 2).flatten(1) for x in maps]
        scores: torch.Tensor = self.linear(torch.cat(cells, 1))
        return scores


def cut_tiles(stride: int) -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """Tiles uint8 [n, 3, 64, 64], their labels int64 [n] of six classes, and their ids, such as "china.jpg 16 32"."""
    photos = load_sample_images()
    tiles, labels, ids = [], [], []
    for number, (photo, name) in enumerate(zip(photos.images, photos.filenames, strict=True)):
        height, width, _ = photo.shape
        for top in range(0, height - TILE + 1, stride):
            for left in range(0, width - TILE + 1, stride):
                tiles.append(photo[top : top + TILE, left : left + TILE].transpose(2, 0, 1))
                labels.append(3 * number + 3 * top // (height - TILE + 1))
                ids.append(f"{name.rsplit('/', 1)[-1]} {top} {left}")  # says what the sample is, not where it stands
    return torch.from_numpy(np.stack(tiles)), torch.tensor(labels), ids


def main(folder: str, epochs: int, stride: int) -> None:
    """Train the head and print what each epoch took."""
    tiles, labels, ids = cut_tiles(stride)
    test = torch.arange(len(ids)) % TEST_EVERY == 0
    torch.manual_seed(0)
    head = Head(6)
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-3)
    print(f"{len(ids)} tiles of 2 photographs")
    print(f"{'epoch':>5} {'computed':>8} {'read':>5} {'seconds':>8} {'loss':>6} {'accuracy':>8}")
    seconds = []
    # A list of three maps is no list of three samples, also where three samples are left for the last batch.
    with ws.FeatureCache(folder, "small_resnet_seed_0", lists="structure") as cache:
        features = ws.CachedModule(Backbone().eval().requires_grad_(False), cache)
        for epoch in range(1, epochs + 1):
            before, began, total, right = cache.stats(), time.perf_counter(), 0.0, 0
            order = torch.randperm(len(ids))
            for batch in order[~test[order]].split(BATCH):
                maps = features(tiles[batch], cache_ids=[ids[at] for at in batch])
                loss = nn.functional.cross_entropy(head(maps), labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                total += loss.item() * len(batch)
            for batch in test.nonzero().flatten().split(BATCH):
                with torch.no_grad():
                    scores = head(features(tiles[batch], cache_ids=[ids[at] for at in batch]))
                right += int((scores.argmax(1) == labels[batch]).sum())
            cache.flush()  # it would happen by itself; here the disk is part of what is measured
            seconds.append(time.perf_counter() - began)
            now = cache.stats()
            print(
                f"{epoch:>5} {now.misses - before.misses:>8} {now.hits - before.hits:>5} {seconds[-1]:>8.2f} "
                f"{total / int((~test).sum()):>6.3f} {right / int(test.sum()):>8.1%}"
            )
        print(f"{cache.stats().bytes / 1e6:.0f} MB on the disk")
    if len(seconds) > 1:
        print(f"the second epoch was {seconds[0] / seconds[1]:.0f} times as fast as the first one")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("folder")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--stride", type=int, default=STRIDE, help="pixels from one tile to the next")
    asked = parser.parse_args()
    main(asked.folder, asked.epochs, asked.stride)
