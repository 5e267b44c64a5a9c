"""Transforms of samples as a class hierarchy: dicts of image, mask and points go in and come out."""

import abc
import functools
import operator
from functools import cached_property

import numpy as np

from . import geometry

DEFAULT_FILL = {"image": 0.5, "mask": 0}


class Described:
    """Mixin: says what a transform is, from the arguments named in `shown`."""

    shown = ()

    def describe(self):
        values = ", ".join(f"{name}={getattr(self, name)}" for name in self.shown)
        return f"{type(self).__name__.lower()}({values})"


class Transform(Described, abc.ABC):
    """A transform of a sample; `targets` are the keys that it changes."""

    targets = ("image", "mask", "points")

    def __call__(self, sample):
        changed = dict(sample)
        for key in self.targets:
            if key in changed:
                changed[key] = getattr(self, f"apply_{key}")(changed[key])
        return changed

    @abc.abstractmethod
    def apply_image(self, image):
        """The transformed image."""

    def apply_mask(self, mask):
        return self.apply_image(mask)

    def apply_points(self, points):
        return points

    def __or__(self, other):
        return Chain(self, other)


class Chain(Transform):
    def __init__(self, *parts):
        self.parts = parts

    def __call__(self, sample):
        return functools.reduce(lambda current, part: part(current), self.parts, sample)

    def apply_image(self, image):
        raise NotImplementedError

    def describe(self):
        return " | ".join(part.describe() for part in self.parts)


class Mirror(Transform):
    """Mirror along an axis of the image: 0 top and bottom, 1 left and right."""

    shown = ("axis",)

    def __init__(self, size, axis=1):
        self.size = size
        self.axis = axis

    def apply_image(self, image):
        return np.flip(image, self.axis)

    def apply_points(self, points):
        mirrored = points.copy()
        mirrored[:, 1 - self.axis] = self.size[self.axis] - 1 - mirrored[:, 1 - self.axis]
        return mirrored


class Affine(Transform):
    """Whatever a matrix does; subclasses give the matrix."""

    fills = DEFAULT_FILL

    def __init__(self, size):
        self.size = size

    @property
    @abc.abstractmethod
    def matrix(self):
        """Homogeneous (3, 3)."""

    @property
    def center(self):
        return (self.size[1] - 1) / 2, (self.size[0] - 1) / 2

    def apply_image(self, image):
        return geometry.warp(image, self.matrix, self.fills["image"])

    def apply_mask(self, mask):
        return np.rint(geometry.warp(mask, self.matrix, self.fills["mask"])).astype(int)

    def apply_points(self, points):
        return geometry.apply(self.matrix, points)


class Rotate(Affine):
    shown = ("degrees", "center")

    def __init__(self, size, degrees):
        super().__init__(size)
        self.degrees = degrees

    @cached_property
    def matrix(self):
        return geometry.about(geometry.rotation(self.degrees), self.center)


class Zoom(Affine):
    """Zoom about the centre; never beyond `limits`."""

    limits = (0.5, 2.0)

    def __init__(self, size, factor=1.0):
        super().__init__(size)
        self.factor = factor

    @property
    def factor(self):
        return self._factor

    @factor.setter
    def factor(self, value):
        low, high = self.limits
        self._factor = min(max(value, low), high)

    @property
    def matrix(self):
        return geometry.about(geometry.scaling(self.factor), self.center)


class ZoomAndShift(Zoom):
    fills = {**DEFAULT_FILL, "image": -1.0}
    shift = np.array([1.0, -0.5])

    @property
    def matrix(self):
        return geometry.compose(super().matrix, geometry.translation(*self.shift))


class Threshold(Transform):
    targets = ("image",)
    levels = (0.25, 0.75)

    @classmethod
    def with_levels(cls, *levels):
        made = cls()
        made.levels = levels
        return made

    def apply_image(self, image):
        return sum((image > level).astype(int) for level in self.levels)


class Only(Transform):
    """Another transform, of one key alone."""

    __slots__ = ("inner", "targets")

    def __init__(self, inner, *keys):
        self.inner = inner
        self.targets = keys

    def apply_image(self, image):
        return self.inner.apply_image(image)

    def apply_points(self, points):
        return self.inner.apply_points(points)


class When(Transform):
    """A transform where a test of the sample holds."""

    def __init__(self, test, inner):
        self.test = test
        self.inner = inner

    def __call__(self, sample):
        return self.inner(sample) if self.test(sample) else sample

    apply_image = None


class Crop(Transform):
    """A window, as a slice for each axis."""

    window = np.s_[1:6, 2:7]

    def apply_image(self, image):
        return image[self.window]

    def apply_points(self, points):
        rows, columns = self.window
        moved = points - (columns.start, rows.start)
        inside = (moved >= 0).all(1) & (moved < (columns.stop - columns.start, rows.stop - rows.start)).all(1)
        return moved[inside]


class Statistic:
    """Reduces the image of a sample, by name."""

    known = {"mean": np.mean, "largest": np.max, "spread": lambda values: np.max(values) - np.min(values)}

    def __init__(self, *names, of="image"):
        self.names = names
        self.get = operator.itemgetter(of)

    def __call__(self, sample):
        return {name: float(self.known[name](self.get(sample))) for name in self.names}


def bright(sample, level=0.4):
    return sample["image"].mean() > level


def entries():
    size = (8, 8)
    chain = Mirror(size) | Rotate(size, 20.0) | Threshold()
    return {
        "mirror": Mirror(size),
        "mirror_vertically": Mirror(size, axis=0),
        "rotate": Rotate(size, degrees=-30.0),
        "zoom": Zoom(size, factor=3.0),
        "zoom_and_shift": ZoomAndShift(size, 1.5),
        "threshold": Threshold.with_levels(0.1, 0.4, 0.8),
        "only_points": Only(Rotate(size, 45.0), "points"),
        "when_bright": When(bright, Crop()),
        "when_dark": When(lambda sample: not bright(sample, level=0.9), Zoom(size, 0.8)),
        "crop": Crop().apply_points,
        "statistic": Statistic("mean", "spread"),
        "chain": chain,
        "describe": lambda sample: (chain.describe(), ZoomAndShift(size).describe(), sorted(sample)),
    }


def examples():
    sample = {
        "image": (np.arange(64.0).reshape(8, 8) * 5 % 17) / 17,
        "mask": np.arange(64).reshape(8, 8) // 10,
        "points": np.array([[1.0, 2.0], [6.5, 3.0], [4.0, 4.0]]),
    }
    return {"*": (sample,), "crop": (sample["points"],)}
