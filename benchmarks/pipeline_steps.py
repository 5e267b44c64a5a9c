"""Three pipelines as people write them: speech to mel spectrograms, photos to tensors, pages to token ids."""

from __future__ import annotations

import io
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import warmstore as ws
from benchmarks import pipeline_data

RATE = 16_000
FRAMES = 64
WINDOW = 512


def speech(data: Path) -> ws.Pipeline | None:
    """OGG -> PCM at 16 kHz -> log-mel spectrogram of 80 bands -> a random stretch of 64 frames."""
    paths = pipeline_data.speech(data)
    return ws.Pipeline(paths).step(read).step(to_pcm).step(to_mel).step(crop, random=True) if paths else None


def images(data: Path) -> ws.Pipeline | None:
    """JPEG -> pixels -> 224 x 224 -> normalised -> flipped or not."""
    paths = pipeline_data.images(data)
    return ws.Pipeline(paths).step(read).step(decode).step(resize, size=224).step(normalise).step(flip, random=True)


def pages(data: Path) -> ws.Pipeline | None:
    """HTML -> text -> BPE ids -> a random window of 512."""
    paths = pipeline_data.pages(data)
    if not paths:
        return None
    vocabulary = str(pipeline_data.vocabulary(data))
    return ws.Pipeline(paths).step(read).step(to_text).step(to_ids, vocabulary=vocabulary).step(window, random=True)


def table(lines: Sequence[str]) -> ws.Pipeline:
    """Lines of CSV -> numbers -> standardised, a step for whole batches."""
    return ws.Pipeline(lines).step(parse).step(standardise, batched=True)


def parse(line: str) -> dict[str, Any]:
    *numbers, label = line.split(",")
    return {"x": np.array(list(map(float, numbers)), np.float32), "label": int(label)}


def standardise(batch: dict[str, Any]) -> dict[str, Any]:
    batch["x"] = (batch["x"] - np.float32(0.5)) * np.float32(3.46)
    return batch


def tiny(number: int) -> np.ndarray:
    """100 bytes."""
    return np.full(25, number, np.float32)


def read(path: str) -> bytes:
    return Path(path).read_bytes()


def to_pcm(ogg: bytes) -> np.ndarray:
    import soundfile
    from scipy.signal import resample_poly

    samples, rate = soundfile.read(io.BytesIO(ogg), dtype="float32", always_2d=True)
    return resample_poly(samples.mean(1), RATE, rate).astype(np.float32)


def to_mel(samples: np.ndarray) -> np.ndarray:
    """Log-mel energies, float32 [frames, 80]: windows of 25 ms every 10."""
    from scipy.signal import stft

    _, _, spectrum = stft(np.pad(samples, (0, max(0, 400 - len(samples)))), RATE, nperseg=400, noverlap=240, nfft=512)
    return np.log(np.abs(spectrum.T) ** 2 @ _filters() + 1e-10).astype(np.float32)


def crop(mel: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    first = int(rng.integers(0, max(1, len(mel) - FRAMES + 1)))
    cut = mel[first : first + FRAMES]
    return np.pad(cut, ((0, FRAMES - len(cut)), (0, 0)))


def decode(jpeg: bytes) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(jpeg)).convert("RGB"))


def resize(image: np.ndarray, size: int) -> np.ndarray:
    from PIL import Image

    return np.asarray(Image.fromarray(image).resize((size, size), Image.Resampling.BILINEAR))


def normalise(image: np.ndarray) -> np.ndarray:
    """float32 [3, height, width] with ImageNet's means and deviations."""
    mean = np.array([0.485, 0.456, 0.406], np.float32)
    deviation = np.array([0.229, 0.224, 0.225], np.float32)
    return np.ascontiguousarray(((image / np.float32(255) - mean) / deviation).transpose(2, 0, 1))


def flip(image: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return image[:, :, ::-1] if rng.random() < 0.5 else image


def to_text(html: bytes) -> str:
    from bs4 import BeautifulSoup

    return BeautifulSoup(html, "html.parser").get_text(" ", strip=True)


def to_ids(text: str, vocabulary: str) -> np.ndarray:
    return np.array(_tokenizer(vocabulary).encode(text).ids, np.int32)


def window(ids: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    first = int(rng.integers(0, max(1, len(ids) - WINDOW + 1)))
    cut = ids[first : first + WINDOW]
    return np.pad(cut, (0, WINDOW - len(cut)))


@cache
def _filters() -> np.ndarray:
    """Triangles on the mel scale (O'Shaughnessy, "Speech Communication", 1987), float32 [257, 80]."""
    top = 2595 * np.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (np.linspace(0, top, 82) / 2595) - 1)
    bins = np.linspace(0, RATE / 2, 257)[:, None]
    rising = (bins - edges[:-2]) / np.diff(edges)[:-1]
    falling = (edges[2:] - bins) / np.diff(edges)[1:]
    return np.maximum(0, np.minimum(rising, falling)).astype(np.float32)


@cache
def _tokenizer(path: str) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(path)
