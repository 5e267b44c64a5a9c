"""Real input for the pipelines: `make bench-data` gets three Debian packages and prepares what is measured.

Speech: 1,836 recordings of letters and syllables in many languages (klettres-data, OGG). Images: tiles cut from the
photos of opencv-doc, saved as JPEG: they are tiles, and no photos that somebody took. Text: the pages of the Debian
handbook in 27 languages (HTML), and a BPE vocabulary trained on some of them. Where the packages cannot be had, the two
photos of scikit-learn give tiles, and there is no speech and no text.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

PACKAGES = ("klettres-data", "opencv-doc", "debian-handbook")
DATA = Path(__file__).parent / "data"
TILES = 2400
TILE = 400
_MOST_PER_PHOTO = 60


def speech(data: Path = DATA) -> list[str]:
    """Paths of the recordings; none where they are not there."""
    return sorted(map(str, (data / "packages/usr/share/klettres").rglob("*.ogg")))


def images(data: Path = DATA) -> list[str]:
    """Paths of the tiles; they are cut from scikit-learn's photos where `make bench-data` did not run."""
    if not (data / "tiles").exists():
        _cut(_photos(data), data / "tiles")
    return sorted(map(str, (data / "tiles").glob("*.jpg")))


def pages(data: Path = DATA) -> list[str]:
    """Paths of the handbook's pages; none where they are not there."""
    return sorted(map(str, (data / "packages/usr/share/doc/debian-handbook/html").rglob("*.html")))


def lines(count: int) -> list[str]:
    """Lines of CSV with 20 numbers and a label, drawn at random."""
    rng = np.random.default_rng(0)
    numbers, labels = rng.random((count, 20)), rng.integers(0, 10, count)
    return [
        ",".join([*(f"{number:.6f}" for number in row), str(label)]) for row, label in zip(numbers, labels, strict=True)
    ]


def vocabulary(data: Path = DATA) -> Path:
    """The file of the BPE vocabulary, trained on first use."""
    path = data / "bpe.json"
    if not path.exists():
        _train([page for page in pages(data) if "/en-US/" in page or "/de-DE/" in page], path)
    return path


def says(data: Path = DATA) -> str:
    """What the data is, in a sentence for the report."""
    if speech(data):
        return (
            f"Speech of klettres-data, tiles of {TILE} x {TILE} pixels cut from the photos of opencv-doc, pages of "
            "debian-handbook (Debian packages)."
        )
    return "Tiles cut from scikit-learn's two photos: `make bench-data` could not get the Debian packages."


def main(arguments: list[str] | None = None) -> int:
    """Get the packages, unpack them without installing, and prepare tiles and vocabulary."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.pipeline_data")
    parser.add_argument("--folder", type=Path, default=DATA)
    folder: Path = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        try:
            _unpack(package, folder / "packages")
            print(f"{package}: unpacked")
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"{package}: cannot be had ({error}); the benchmark goes without", file=sys.stderr)
    print(f"{len(images(folder)):,} tiles, {len(speech(folder)):,} recordings, {len(pages(folder)):,} pages")
    if pages(folder):
        print(f"vocabulary: {vocabulary(folder).name}")
    return 0


def _unpack(package: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(["apt-get", "download", "-qq", package], cwd=scratch, check=True)
        (archive,) = Path(scratch).glob("*.deb")
        subprocess.run(["dpkg", "-x", str(archive), str(folder)], check=True)


def _photos(data: Path) -> list[Path]:
    found = sorted((data / "packages/usr/share/doc/opencv-doc").rglob("*.jp*g"))
    if found:
        return found
    from sklearn import datasets

    return sorted((Path(datasets.__file__).parent / "images").glob("*.jpg"))


def _cut(photos: list[Path], folder: Path) -> None:
    """Tiles that overlap by at most half, at random places of each photo in proportion to its pixels."""
    from PIL import Image

    sizes = [Image.open(photo).size for photo in photos]
    large = [(photo, size) for photo, size in zip(photos, sizes, strict=True) if min(size) >= TILE]
    pixels = np.array([width * height for _, (width, height) in large], float)
    wanted = np.maximum(1, TILES * pixels / pixels.sum()).astype(int)
    wanted = np.minimum(wanted, max(_MOST_PER_PHOTO, TILES // len(large)))
    staged = folder.with_name(f"{folder.name}.new")
    staged.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number, ((photo, (width, height)), count) in enumerate(zip(large, wanted.tolist(), strict=True)):
        image = Image.open(photo).convert("RGB")
        for tile in range(count):
            left, top = int(rng.integers(0, width - TILE + 1)), int(rng.integers(0, height - TILE + 1))
            image.crop((left, top, left + TILE, top + TILE)).save(staged / f"{number:03}-{tile:03}.jpg", quality=90)
    staged.rename(folder)


def _train(pages: list[str], path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    from benchmarks.pipeline_steps import to_text

    tokenizer = Tokenizer(models.BPE(unk_token="[?]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    texts = (to_text(Path(page).read_bytes()) for page in pages)
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=16_000, special_tokens=["[?]"]))
    tokenizer.save(str(path))


if __name__ == "__main__":
    sys.exit(main())
