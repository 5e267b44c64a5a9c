"""Image augmentations. An image is an array of (height, width, 3), uint8 until `to_float`."""

import math
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from PIL import Image, ImageFilter

from . import geometry

MEAN = np.array([0.485, 0.456, 0.406], dtype=np.float32)
STD = np.array([0.229, 0.224, 0.225], dtype=np.float32)
LUMA = (0.299, 0.587, 0.114)
_FILTERS = {"nearest": Image.Resampling.NEAREST, "linear": Image.Resampling.BILINEAR}


def to_float(image):
    return image.astype(np.float32) / 255


def normalize(image, mean=MEAN, std=STD):
    return (to_float(image) - mean) / std


def to_gray(image):
    weights = np.array(LUMA)
    return np.rint(image @ weights).astype(np.uint8)


def resize(image, size, filter="linear"):
    """Resize so that the shorter side has `size` pixels."""
    height, width = image.shape[:2]
    factor = size / min(height, width)
    target = max(1, round(width * factor)), max(1, round(height * factor))
    return np.asarray(Image.fromarray(image).resize(target, _FILTERS[filter]))


def center_crop(image, size):
    height, width = image.shape[:2]
    top, left = (height - size) // 2, (width - size) // 2
    return image[top : top + size, left : left + size]


def pad_to_square(image, value=128):
    height, width = image.shape[:2]
    side = max(height, width)
    above, before = (side - height) // 2, (side - width) // 2
    room = [(above, side - height - above), (before, side - width - before), (0, 0)]
    return np.pad(image, room, constant_values=value)


def gaussian_kernel(sigma, radius=2):
    steps = np.arange(-radius, radius + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    return weights / weights.sum()


KERNEL = gaussian_kernel(0.8)


def blur(image):
    """Separable blur with the module's kernel."""
    rows = np.apply_along_axis(np.convolve, 0, image.astype(float), KERNEL, mode="same")
    return np.apply_along_axis(np.convolve, 1, rows, KERNEL, mode="same")


def sharpen(image, percent=120):
    mask = ImageFilter.UnsharpMask(radius=1, percent=percent, threshold=2)
    return np.asarray(Image.fromarray(image).filter(mask))


def posterize(image, bits=3):
    return image & np.uint8(256 - (1 << (8 - bits)))


def solarize(image, threshold=128):
    return np.where(image < threshold, image, 255 - image)


def equalize(channel):
    """Histogram equalisation of one uint8 channel."""
    counts = np.bincount(channel.ravel(), minlength=256)
    seen = np.cumsum(counts)
    first = seen[seen > 0][0]
    if seen[-1] == first:
        return channel
    table = np.clip((seen - first) * 255 / (seen[-1] - first), 0, 255)
    return table.astype(np.uint8)[channel]


def per_channel(operation):
    """An operation on an image from one on a channel."""

    def apply(image):
        return np.stack([operation(image[..., at]) for at in range(image.shape[-1])], axis=-1)

    return apply


def random_crop(image, rng, size=6):
    height, width = image.shape[:2]
    top, left = rng.integers(height - size + 1), rng.integers(width - size + 1)
    return image[top : top + size, left : left + size]


def random_flip(image, rng, chance=0.5):
    return image[:, ::-1] if rng.random() < chance else image


def cutout(image, rng, share=0.25, value=0):
    """Blank a square whose area is `share` of the image."""
    height, width = image.shape[:2]
    side = int(math.sqrt(share * height * width))
    row, column = rng.integers(height), rng.integers(width)
    erased = image.copy()
    erased[max(0, row - side // 2) : row + side // 2, max(0, column - side // 2) : column + side // 2] = value
    return erased


@dataclass
class Jitter:
    """Random brightness and contrast."""

    brightness: float = 0.2
    contrast: float = 0.3
    limits: tuple = (0.0, 1.0)

    def _factor(self, rng, strength):
        return rng.uniform(1 - strength, 1 + strength)

    def __call__(self, image, rng):
        values = to_float(image) * self._factor(rng, self.brightness)
        mean = values.mean()
        values = (values - mean) * self._factor(rng, self.contrast) + mean
        return np.clip(values, *self.limits)


@dataclass
class RandomRotation:
    degrees: float = 15.0
    fill: float = 0.0
    matrices: dict = field(default_factory=dict)

    def matrix(self, angle, size):
        if (angle, size) not in self.matrices:
            center = (size[1] - 1) / 2, (size[0] - 1) / 2
            self.matrices[angle, size] = geometry.about(geometry.rotation(angle), center)
        return self.matrices[angle, size]

    def __call__(self, image, rng):
        angle = round(rng.uniform(-self.degrees, self.degrees), 1)
        matrix = self.matrix(angle, image.shape[:2])
        return per_channel(lambda channel: geometry.warp(channel, matrix, self.fill))(image)


class Compose:
    """Steps in turn; those listed in `random` get the generator."""

    def __init__(self, *steps, random=()):
        self.steps = list(steps)
        self.random = frozenset(random)

    def __call__(self, image, rng):
        for at, step in enumerate(self.steps):
            image = step(image, rng) if at in self.random else step(image)
        return image


def entries():
    return {
        "normalize": normalize,
        "to_gray": to_gray,
        "resize": partial(resize, size=6),
        "resize_nearest": partial(resize, size=5, filter="nearest"),
        "center_crop": partial(center_crop, size=6),
        "pad_to_square": pad_to_square,
        "blur": blur,
        "sharpen": sharpen,
        "posterize": posterize,
        "solarize": lambda image: solarize(image, threshold=100),
        "equalize": per_channel(equalize),
        "random_crop": random_crop,
        "random_flip": random_flip,
        "cutout": partial(cutout, share=0.3),
        "jitter": Jitter(contrast=0.4),
        "rotation": RandomRotation(fill=7.0),
        "train": Compose(pad_to_square, partial(resize, size=8), random_crop, random_flip, normalize, random=(2, 3)),
    }


def examples():
    image = (np.arange(8 * 10 * 3).reshape(8, 10, 3) * 37 % 256).astype(np.uint8)
    plain, random = (image,), (image, np.random.default_rng(5))
    return {
        "*": plain,
        "random_crop": random,
        "random_flip": random,
        "cutout": random,
        "jitter": random,
        "rotation": random,
        "train": random,
    }
