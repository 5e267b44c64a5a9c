"""Features of speech: frames, log-mel spectrograms, cepstra. A wave is a float array of (samples,)."""

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial, wraps

import numpy as np

RATE = 800
LOG_FLOOR = 1e-6
WINDOWS = {
    "hann": lambda n: 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(n) / n),
    "hamming": lambda n: 0.54 - 0.46 * np.cos(2 * np.pi * np.arange(n) / (n - 1)),
    "box": np.ones,
}


@dataclass(frozen=True)
class MelSettings:
    rate: int = RATE
    size: int = 64
    hop: int = 32
    bands: int = 8
    low: float = 20.0
    window: str = "hann"

    @property
    def high(self):
        return self.rate / 2

    @property
    def bins(self):
        return self.size // 2 + 1


def checked(function):
    """Refuse waves that are not one-dimensional."""

    @wraps(function)
    def wrapper(wave, *arguments, **options):
        if wave.ndim != 1:
            raise ValueError(f"a wave has one dimension, this one {wave.ndim}")
        return function(wave, *arguments, **options)

    return wrapper


def hertz_to_mel(hertz):
    return 2595 * np.log10(1 + hertz / 700)


def mel_to_hertz(mel):
    return 700 * (10 ** (mel / 2595) - 1)


@lru_cache(maxsize=4)
def filter_bank(settings):
    """Triangular filters, an array of (bands, bins)."""
    mels = np.linspace(hertz_to_mel(settings.low), hertz_to_mel(settings.high), settings.bands + 2)
    edges = mel_to_hertz(mels) / settings.high * (settings.bins - 1)
    bins = np.arange(settings.bins)
    rising = (bins - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    falling = (edges[2:, None] - bins) / (edges[2:] - edges[1:-1])[:, None]
    return np.clip(np.minimum(rising, falling), 0, None)


def frames(wave, size, hop):
    count = 1 + max(0, len(wave) - size) // hop
    starts = hop * np.arange(count)
    return wave[starts[:, None] + np.arange(size)]


@checked
def emphasize(wave, strength=0.97):
    return np.append(wave[:1], wave[1:] - strength * wave[:-1])


@checked
def power_spectrum(wave, settings):
    window = WINDOWS[settings.window](settings.size)
    spectrum = np.fft.rfft(frames(wave, settings.size, settings.hop) * window, axis=-1)
    return np.abs(spectrum) ** 2 / settings.size


def log_mel(wave, settings=MelSettings()):
    return np.log(power_spectrum(wave, settings) @ filter_bank(settings).T + LOG_FLOOR)


def cosine_transform(count, bands):
    """Rows of an orthonormal DCT-II."""
    steps = np.pi / bands * (np.arange(bands) + 0.5)
    basis = np.cos(np.outer(np.arange(count), steps)) * np.sqrt(2 / bands)
    basis[0] /= np.sqrt(2)
    return basis


class Cepstra:
    """Mel-frequency cepstra with liftering."""

    lifter = 22

    def __init__(self, count=5, settings=None):
        self.count = count
        self.settings = settings or MelSettings()

    @cached_property
    def basis(self):
        order = np.arange(self.count)
        lift = 1 + self.lifter / 2 * np.sin(np.pi * order / self.lifter)
        return cosine_transform(self.count, self.settings.bands) * lift[:, None]

    def __call__(self, wave):
        return log_mel(emphasize(wave), self.settings) @ self.basis.T


def with_deltas(features, width=2):
    """Append the slope over 2 `width` + 1 frames."""
    padded = np.pad(features, [(width, width), (0, 0)], mode="edge")
    offsets = range(1, width + 1)
    slopes = sum(
        step * (padded[width + step :][: len(features)] - padded[width - step :][: len(features)]) for step in offsets
    )
    return np.hstack([features, slopes / (2 * sum(step**2 for step in offsets))])


def mu_law(wave, levels=256):
    top = levels - 1
    squashed = np.sign(wave) * np.log1p(top * np.abs(wave)) / np.log1p(top)
    return ((squashed + 1) / 2 * top + 0.5).astype(np.int64)


def resample(wave, source=RATE, target=1000):
    count = int(len(wave) * target / source)
    return np.interp(np.arange(count) / target, np.arange(len(wave)) / source, wave)


def mask(features, rng, bands=2, steps=3, times=1):
    """SpecAugment: silence some bands and some steps."""
    masked = features.copy()
    for _ in range(times):
        band = rng.integers(0, masked.shape[1] - bands + 1)
        step = rng.integers(0, max(1, masked.shape[0] - steps + 1))
        masked[:, band : band + bands] = features.mean()
        masked[step : step + steps] = 0.0
    return masked


def trim(wave, threshold=0.1, keep=2):
    loud = np.flatnonzero(np.abs(wave) > threshold)
    if not len(loud):
        return wave[:0]
    return wave[max(0, loud[0] - keep) : loud[-1] + 1 + keep]


def entries():
    settings = MelSettings(bands=6, window="hamming")
    return {
        "emphasize": emphasize,
        "power_spectrum": partial(power_spectrum, settings=replace(settings, window="box")),
        "log_mel": log_mel,
        "log_mel_hamming": partial(log_mel, settings=settings),
        "cepstra": Cepstra(),
        "cepstra_few": Cepstra(count=3, settings=settings),
        "with_deltas": lambda wave: with_deltas(log_mel(wave)),
        "mu_law": mu_law,
        "resample": partial(resample, target=600),
        "mask": mask,
        "trim": trim,
    }


def examples():
    time = np.arange(200) / 800
    wave = np.sin(2 * np.pi * 90 * time) * 0.6 + np.sin(2 * np.pi * 210 * time) * 0.3
    wave[:20] *= 0.01
    features = np.outer(np.arange(1.0, 8.0), np.arange(1.0, 6.0))
    return {"*": (wave,), "mask": (features, np.random.default_rng(2))}
