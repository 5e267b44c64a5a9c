"""A training run on a GPU with a frozen backbone: three epochs with shuffled batches, a validation loop, and again."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn

import warmstore as ws

SAMPLES, EPOCHS = 512, 3


def backbone() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.AdaptiveAvgPool2d(4), nn.Flatten()]
    return nn.Sequential(*layers).eval().requires_grad_(False)


def make_samples(folder: Path) -> None:
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (SAMPLES, 3, 32, 32)).astype(np.uint8)
    with ws.RecordStore.create(folder, {"image": ws.Array("uint8", (3, 32, 32)), "label": ws.Array("int64")}) as store:
        store.extend({"image": images, "label": images.reshape(SAMPLES, -1).sum(1, dtype=np.int64) % 10})


class Indexed(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """The samples of a store, each with its id."""

    def __init__(self, store: ws.RecordStore) -> None:
        self._store = store

    def __len__(self) -> int:
        return len(self._store)

    def __getitem__(self, at: int) -> dict[str, torch.Tensor]:
        row = self._store[at]
        return {"image": torch.tensor(row["image"]), "label": torch.tensor(row["label"]), "id": torch.tensor(at)}


def train(
    device: torch.device, store: ws.RecordStore, cache: ws.FeatureCache | None
) -> tuple[list[float], list[float]]:
    """Losses of all steps, and validation losses of all epochs."""
    frozen = backbone().to(device)
    features = frozen if cache is None else ws.CachedModule(frozen, cache)
    torch.manual_seed(1)
    head = nn.Linear(512, 10).to(device)
    optimizer = torch.optim.SGD(head.parameters(), 0.01)
    losses, validated = [], []
    samples = Indexed(store)

    def loss_of(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        image = batch["image"].to(device, non_blocking=True).float() / 255
        ids = {} if cache is None else {"cache_ids": batch["id"]}
        with torch.autocast(device.type, torch.bfloat16):
            return nn.functional.cross_entropy(head(features(image, **ids)).float(), batch["label"].to(device))

    for epoch in range(EPOCHS):
        shuffle = torch.Generator().manual_seed(epoch)
        loader = torch.utils.data.DataLoader(
            samples, 64, shuffle=True, generator=shuffle, num_workers=2, pin_memory=device.type == "cuda"
        )
        for batch in loader:
            loss = loss_of(batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            every = [loss_of(batch).item() for batch in torch.utils.data.DataLoader(samples, 64)]
        validated.append(sum(every) / len(every))
    return losses, validated


def test_three_epochs_and_a_validation_loop(gpu: torch.device, tmp_path: Path) -> None:
    make_samples(tmp_path / "samples")
    with ws.RecordStore.open(tmp_path / "samples") as store:
        plain = train(gpu, store, None)
        with ws.FeatureCache(tmp_path, "c") as cache:
            cold = train(gpu, store, cache)
            assert cache.stats().misses == SAMPLES
        with ws.FeatureCache(tmp_path, "c") as cache:
            warm = train(gpu, store, cache)
            assert cache.stats().misses == 0
        with ws.FeatureCache(tmp_path, "c", hot_size="all", hot_device=gpu) as cache:
            hot = train(gpu, store, cache)
            assert cache.stats().misses == 0
    assert cold == warm == hot
    for one, other in zip(plain, cold, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-2)
    assert all(later < earlier for earlier, later in pairwise(cold[1]))
