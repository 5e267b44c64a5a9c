"""A small but real training job with warmstore: handwritten digits, a frozen encoder, a trained head.

Every epoch reads the same image files and runs the same frozen encoder. Only the head learns, and it compiles to the
same code at every start. So a pipeline caches the resized images on disk, a feature cache the encoder's features by
image number, and a compile cache the compiled head. Copy from `images_of`, `plan_for` and `train`; `warmstore demo`
runs this file without caches, with empty ones and with full ones.

The encoder needs no download: fixed Gabor filters, then convolutions with random weights from a fixed seed. A linear
head on such untrained features works well (Saxe et al., "On Random Weights and Unsupervised Feature Learning", ICML
2011).
"""

import argparse
import hashlib
import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from PIL import Image
from torch import Tensor, nn

import warmstore as ws
from warmstore.compiling.compile_cache import CompileCache
from warmstore.demo.stopwatch import Stopwatch, tell

SIZE = 96
BATCH = 64
GRID = 4
DISK = "40MB"  # the images take 17 MB
TEST_EVERY = 5  # every fifth image is held out


class ImageEncoder(nn.Module):
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
        # One image at a time: kernels may sum in another order for another batch size, and the last bit of an image's
        # features must not depend on its batch. On a CPU it is faster, too.
        return torch.cat([self.encode(image) for image in images.split(1)])

    def encode(self, image: Tensor) -> Tensor:
        x = F.conv2d(image[:, None].float() / 255, self.filters, stride=2, padding=5).abs()
        pooled = [pool(x)]
        for weight in self.weights:
            x = F.relu(F.instance_norm(F.conv2d(x, weight, padding=1)))
            pooled.append(pool(x))
        return torch.cat(pooled, dim=1)


class Head(nn.Module):
    """Features float32 [n, features] and labels int64 [n] to the loss of ten linear classifiers."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.linear = nn.Linear(features, 10)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, features: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.linear(features), labels)


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


def decode(file: Path) -> dict[str, Any]:
    """The pixels of a PNG file, uint8 [8, 8], and the number and label in its name, such as digit_0042_is_7.png."""
    with Image.open(file) as image:
        return {"pixels": np.array(image), "number": int(file.stem.split("_")[1]), "label": int(file.stem[-1])}


def resize(sample: dict[str, Any], size: int) -> dict[str, Any]:
    """The sample with pixels uint8 [size, size]."""
    resized = Image.fromarray(sample["pixels"]).resize((size, size), Image.Resampling.BICUBIC)
    return {**sample, "pixels": np.array(resized)}


def images_of(files: Sequence[Path]) -> ws.Pipeline:
    """The images, decoded and resized. `cache` fixes the tier, since a profile of so few images is not reliable."""
    return ws.Pipeline(files).step(decode).step(resize, size=SIZE, cache="disk")


def plan_for(pipe: ws.Pipeline, folder: Path) -> ws.Plan:
    """A plan from a short profile, which is saved in the folder for the next run."""
    profile = pipe.profile(folder=folder, samples=32, seconds=0.1, batch_size=BATCH, max_workers=0, progress=False)
    return pipe.plan(profile=profile, disk=DISK, folder=folder, workers=0)


def train(images: Path, folder: Path | None, epochs: int) -> None:
    """Train the head for some epochs, with caches in `folder` or, if that is None, without any."""
    files = sorted(images.glob("*.png"))
    if not files:
        raise FileNotFoundError(f"no PNG files in {images}; `prepare` writes them")
    train_set = images_of([file for number, file in enumerate(files) if number % TEST_EVERY])
    test_set = images_of(files[::TEST_EVERY])
    # Libraries of Inductor flush denormals to zero in the thread that loads them and in threads that it starts later.
    # Set it in all threads from the start, so that the result does not depend on what is compiled when.
    torch.set_flush_denormal(True)
    watch = Stopwatch(steps_per_epoch=sum(-(-len(part) // BATCH) for part in (train_set, test_set)))

    encoder = ImageEncoder().eval()
    plans: list[ws.Plan] = []
    filled: list[ws.FillResult] = []
    if folder is not None:
        for pipe in (train_set, test_set):
            with watch("plan"):
                plans.append(plan_for(pipe, folder / "images_96"))
            with watch("decode"):
                filled.append(pipe.fill(plans[-1], BATCH, progress=False))
        feature_cache = ws.FeatureCache(folder, "gabor_conv_seed0")
        cached_encoder = ws.CachedModule(encoder, feature_cache)
        compile_cache = ws.compile_cache.init(folder / "compiled", job="digits")
    train_plan, test_plan = plans or (None, None)
    training = train_set.loader(train_plan, BATCH, workers=0, to="torch")
    testing = test_set.loader(test_plan, BATCH, workers=0, sampler=ws.Sequential(), to="torch")

    def features_of(batch: dict[str, Tensor]) -> Any:
        with watch("features"), torch.no_grad():
            if folder is None:
                return encoder(batch["pixels"])
            return cached_encoder(batch["pixels"], cache_ids=batch["number"])

    head = Head(encoder.features)
    loss_of: Any = None
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3)
    losses, accuracies = [], []
    for _ in range(epochs):
        for batch in watch.each("decode", training):
            features = features_of(batch)
            if loss_of is None:
                with watch("compile"):
                    loss_of = compiled(head, features, batch["label"], cached=folder is not None)
            with watch("training"):
                loss = loss_of(features, batch["label"])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(float(loss.item()))
            watch.end_step()
        correct = 0
        for batch in watch.each("decode", testing):
            features = features_of(batch)
            with watch("training"), torch.no_grad():
                correct += int((head.linear(features).argmax(dim=1) == batch["label"]).sum())
            watch.end_step()
        accuracies.append(correct / len(test_set))
        watch.end_epoch()

    training.close()
    testing.close()
    caches = []
    if folder is not None:
        feature_cache.flush()  # so that the figures below count everything
        caches = [
            summary_of_images(folder / "images_96", filled, epochs),
            summary_of_features(feature_cache),
            summary_of_compiled(compile_cache),
        ]
        feature_cache.close()
        compile_cache.close()
    tell(
        "result",
        losses=[loss.hex() for loss in losses],
        accuracies=[accuracy.hex() for accuracy in accuracies],
        weights=hashlib.sha256(head.linear.weight.detach().numpy().tobytes()).hexdigest(),
        caches=caches,
        compiled=loss_of is not head,
    )


def compiled(head: Head, features: Tensor, labels: Tensor, *, cached: bool) -> Any:
    """The head compiled for batches of any size, or the head itself if there is no C++ compiler."""
    with tempfile.TemporaryDirectory(prefix="digits-") as empty:
        if not cached:  # as in a new container: torch must not find its own cache
            os.environ["TORCHINDUCTOR_CACHE_DIR"] = empty
        try:
            faster = (ws.compile if cached else torch.compile)(head, dynamic=True)
            faster(features, labels).backward()
        except Exception:
            return head
        finally:
            head.zero_grad()
    return faster


def summary_of_images(folder: Path, filled: Sequence[ws.FillResult], epochs: int) -> dict[str, Any]:
    """Entries and bytes in the folder, and how many images this run read from it (hits) and computed (misses)."""
    computed = sum(result.computed for result in filled)
    entries = computed + sum(result.found for result in filled)
    used = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    hits = entries * epochs - computed
    return {"name": "resized images", "entries": entries, "bytes": used, "hits": hits, "misses": computed}


def summary_of_features(cache: ws.FeatureCache) -> dict[str, Any]:
    """The cache's statistics of this run."""
    stats = cache.stats()
    use = {"entries": stats.entries, "bytes": stats.bytes, "hits": stats.hits, "misses": stats.misses}
    return {"name": "encoder features", **use}


def summary_of_compiled(cache: CompileCache) -> dict[str, Any]:
    """The lookups of the head's compilation."""
    if cache.session is None:
        return {"name": "compiled head", "entries": 0, "bytes": 0, "hits": 0, "misses": 0}
    cache.session.harvest()
    lookups, stats = cache.session.lookups, cache.session.store.stats()
    hits = sum(lookup.hit for lookup in lookups)
    kept = sum(size for _, size in stats.kinds.values())
    return {
        "name": "compiled head",
        "entries": stats.artifacts,
        "bytes": kept,
        "hits": hits,
        "misses": len(lookups) - hits,
    }


def write_images(folder: Path, count: int | None) -> None:
    """Write scikit-learn's 1,797 digits (8 x 8 pixels, 16 shades), or the first `count`, as PNG files."""
    from sklearn.datasets import load_digits

    folder.mkdir()
    digits = load_digits()
    for number, (shades, label) in enumerate(zip(digits.images[:count], digits.target, strict=False)):
        pixels = (shades * (255 / 16)).round().astype("uint8")
        Image.fromarray(pixels).save(folder / f"digit_{number:04d}_is_{label}.png")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m warmstore.demo.digits")
    commands = parser.add_subparsers(dest="command", required=True)
    prepare = commands.add_parser("prepare", help="write the image files")
    prepare.add_argument("images", type=Path)
    prepare.add_argument("--count", type=int)
    job = commands.add_parser("train", help="train the head on them")
    job.add_argument("images", type=Path)
    job.add_argument("--caches", type=Path, metavar="FOLDER")
    job.add_argument("--epochs", type=int, default=5)
    job.add_argument("--threads", type=int, default=2, help="affects the result: sums are split by thread")
    options = parser.parse_args()
    if options.command == "prepare":
        write_images(options.images, options.count)
        return
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(True)
    train(options.images, options.caches, options.epochs)


if __name__ == "__main__":
    main()
