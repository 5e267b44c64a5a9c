"""A small but real training job with warmstore in it: handwritten digits, a frozen encoder, a trained head.

Every epoch reads the same image files and runs the same frozen encoder over them; only the head learns. So the pixels
are kept in one cache and the encoder's features in another, both by file name. `read_pixels` and `train` are what to
copy; `warmstore demo` runs this file without caches, with empty ones and with full ones.

The encoder needs no download: fixed Gabor filters, then convolutions with random weights from a fixed seed. Such an
encoder knows nothing about digits, yet a linear head on it does well (Saxe et al., "On Random Weights and Unsupervised
Feature Learning", ICML 2011).
"""

import argparse
import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from PIL import Image
from torch import Tensor, nn

import warmstore as ws
from warmstore.cli.stopwatch import Stopwatch, tell

SIZE = 96
BATCH = 64
GRID = 4
TEST_EVERY = 5  # every fifth image is held out


class Encoder(nn.Module):
    """Images uint8 [n, 96, 96] to features float32 [n, 2560]; its weights never change."""

    def __init__(self, width: int = 64, layers: int = 2, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        filters = gabor_filters()
        self.filters = nn.Parameter(filters, requires_grad=False)
        self.weights = nn.ParameterList()
        channels, self.features = len(filters), GRID**2 * (len(filters) + layers * width)
        for _ in range(layers):
            scale = math.sqrt(2 / (9 * channels))  # He et al., 2015: keeps the variance from layer to layer
            weight = torch.randn(width, channels, 3, 3, generator=generator) * scale
            self.weights.append(nn.Parameter(weight, requires_grad=False))
            channels = width

    def forward(self, images: Tensor) -> Tensor:
        # One image at a time: what comes out for an image then cannot depend on the others in its batch, not even in
        # the last bit (kernels may add in another order for another batch size). On a CPU it is faster, too.
        return torch.cat([self.encode(image) for image in images.split(1)])

    def encode(self, image: Tensor) -> Tensor:
        x = F.conv2d(image[:, None].float() / 255, self.filters, stride=2, padding=5).abs()
        pooled = [pool(x)]
        for weight in self.weights:
            x = F.relu(F.instance_norm(F.conv2d(x, weight, padding=1)))
            pooled.append(pool(x))
        return torch.cat(pooled, dim=1)


def gabor_filters(size: int = 11, orientations: int = 8) -> Tensor:
    """Edge and line detectors [32, 1, 11, 11]: 8 orientations, 2 wavelengths, 2 phases; zero mean, unit norm."""
    axis = torch.arange(size) - size // 2
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    envelope = torch.exp(-(x**2 + y**2) / (2 * (size / 4) ** 2))
    filters = []
    for wavelength in (6, 12):
        for angle in (math.pi * i / orientations for i in range(orientations)):
            across = x * math.cos(angle) + y * math.sin(angle)
            for phase in (0, math.pi / 2):
                wave = envelope * torch.cos(2 * math.pi * across / wavelength + phase)
                wave = wave - wave.mean()
                filters.append(wave / wave.norm())
    return torch.stack(filters)[:, None]


def pool(x: Tensor) -> Tensor:
    """The mean over each cell of a 4 x 4 grid, normalised per image: [n, channels, h, w] to [n, channels * 16]."""
    flat = F.adaptive_avg_pool2d(x, GRID).flatten(1)
    return F.layer_norm(flat, flat.shape[1:])


def decode(files: Sequence[Path]) -> Tensor:
    """PNG files to pixels, uint8 [n, 96, 96]."""
    pixels = torch.empty(len(files), SIZE, SIZE, dtype=torch.uint8)
    for row, file in zip(pixels, files, strict=True):
        with Image.open(file) as image:
            resized = image.resize((SIZE, SIZE), Image.Resampling.BICUBIC)
        row.copy_(torch.frombuffer(bytearray(resized.tobytes()), dtype=torch.uint8).view(SIZE, SIZE))
    return pixels


def read_pixels(files: Sequence[Path], cache: ws.FeatureCache) -> Tensor:
    """What `decode` gives, decoding only the files that are not in the cache yet."""
    names = [file.name for file in files]
    cached: Tensor | None
    cached, missing = cache.get_batch(names)
    if cached is not None and len(missing) == 0:
        return cached
    fresh = decode([files[i] for i in missing])
    cache.put_batch([names[i] for i in missing], fresh)
    if cached is None:
        return fresh
    pixels = torch.empty(len(files), SIZE, SIZE, dtype=torch.uint8)
    is_missing = torch.zeros(len(files), dtype=torch.bool)
    is_missing[torch.from_numpy(missing)] = True
    pixels[is_missing], pixels[~is_missing] = fresh, cached
    return pixels


def train(images: Path, folder: Path | None, epochs: int) -> None:
    """Train the head for some epochs, with caches in `folder` or, if that is None, without any."""
    files = sorted(images.glob("*.png"))
    if not files:
        raise FileNotFoundError(f"no PNG files in {images}; `prepare` writes them")
    labels = torch.tensor([int(file.stem[-1]) for file in files])  # digit_0042_is_7.png
    held_out = torch.arange(len(files)) % TEST_EVERY == 0
    train_set, test_set = (~held_out).nonzero().flatten(), held_out.nonzero().flatten()
    watch = Stopwatch(steps_per_epoch=len(train_set.split(BATCH)) + len(test_set.split(BATCH)))

    encoder = Encoder().eval()
    caches = []
    if folder is not None:
        pixel_cache = ws.FeatureCache(folder, "pixels_96")
        feature_cache = ws.FeatureCache(folder, "gabor_conv_seed0")
        cached_encoder = ws.CachedModule(encoder, feature_cache)
        caches = [pixel_cache, feature_cache]

    def features_of(batch: Tensor) -> Tensor:
        chosen = [files[i] for i in batch.tolist()]
        with watch("decode"):
            pixels = read_pixels(chosen, pixel_cache) if caches else decode(chosen)
        names = [file.name for file in chosen]
        with watch("features"), torch.no_grad():
            features: Tensor = cached_encoder(pixels, cache_ids=names) if caches else encoder(pixels)
        return features

    head = nn.Linear(encoder.features, 10)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3)
    losses, accuracies = [], []
    for epoch in range(epochs):
        order = torch.randperm(len(train_set), generator=torch.Generator().manual_seed(epoch))
        for batch in train_set[order].split(BATCH):
            features = features_of(batch)
            with watch("training"):
                loss = F.cross_entropy(head(features), labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(float(loss.item()))
            watch.end_step()
        correct = 0
        for batch in test_set.split(BATCH):
            features = features_of(batch)
            with watch("training"), torch.no_grad():
                correct += int((head(features).argmax(dim=1) == labels[batch]).sum())
            watch.end_step()
        accuracies.append(correct / len(test_set))
        watch.end_epoch()

    for cache in caches:
        cache.flush()  # so that the figures below count everything
    tell(
        "result",
        losses=[loss.hex() for loss in losses],
        accuracies=[accuracy.hex() for accuracy in accuracies],
        weights=hashlib.sha256(head.weight.detach().numpy().tobytes()).hexdigest(),
        caches=[
            summary(name, cache) for name, cache in zip(("decoded pixels", "encoder features"), caches, strict=False)
        ],
    )
    for cache in caches:
        cache.close()


def summary(name: str, cache: ws.FeatureCache) -> dict[str, Any]:
    """What the cache has to say about this run."""
    stats = cache.stats()
    return {"name": name, "entries": stats.entries, "bytes": stats.bytes, "hits": stats.hits, "misses": stats.misses}


def write_images(folder: Path, count: int | None) -> None:
    """Write scikit-learn's 1,797 digits (8 x 8 pixels, 16 shades), or the first `count`, as PNG files."""
    from sklearn.datasets import load_digits

    folder.mkdir()
    digits = load_digits()
    for number, (shades, label) in enumerate(zip(digits.images[:count], digits.target, strict=False)):
        pixels = (shades * (255 / 16)).round().astype("uint8")
        Image.fromarray(pixels).save(folder / f"digit_{number:04d}_is_{label}.png")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m warmstore.cli.digits")
    commands = parser.add_subparsers(dest="command", required=True)
    prepare = commands.add_parser("prepare", help="write the image files")
    prepare.add_argument("images", type=Path)
    prepare.add_argument("--count", type=int)
    job = commands.add_parser("train", help="train the head on them")
    job.add_argument("images", type=Path)
    job.add_argument("--caches", type=Path, metavar="FOLDER")
    job.add_argument("--epochs", type=int, default=5)
    job.add_argument("--threads", type=int, default=2, help="part of the result: sums are split by thread")
    options = parser.parse_args()
    if options.command == "prepare":
        write_images(options.images, options.count)
        return
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(True)
    train(options.images, options.caches, options.epochs)


if __name__ == "__main__":
    main()
