"""A data set with transforms that are bound methods, subsets, and labels in a file beside the code."""

import bisect
import json
import logging
import threading
from collections import ChainMap
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType

import numpy as np
from torch.utils.data import Dataset

logger = logging.getLogger(__name__)

LABELS = Path(__file__).parent / "labels.json"
SPLITS = MappingProxyType({"train": (0.0, 0.6), "test": (0.6, 1.0)})
COLOR_NAMES = ("red", "green", "blue")


def load_labels(path=LABELS):
    with open(path) as file:
        return json.load(file)


def scale(image, low=-1.0, high=1.0):
    return image / 255 * (high - low) + low


class Pictures(Dataset):
    """Pictures made from their number; `transform` is a method by default."""

    size = 6
    mean = np.array([0.5, 0.4, 0.3])

    def __init__(self, names, transform=None, cut=2, seed=3):
        self.names = list(names)
        self.cut = cut
        self.seed = seed
        self.transform = transform or self.normalize
        self.lock = threading.Lock()
        self.seen = 0

    @cached_property
    def labels(self):
        return {name: number for number, name in enumerate(sorted(set(self.names)))}

    def __len__(self):
        return len(self.names)

    def _pixels(self, index):
        rng = np.random.default_rng((self.seed, index))
        return rng.integers(0, 256, (self.size, self.size, 3))

    def normalize(self, image):
        return scale(self.border(image), low=0.0) - self.mean

    def border(self, image):
        framed = image.copy()
        framed[: self.cut] = 0
        return framed

    def shape_of(self, image):
        return image.shape[: -1 if self.cut else None]

    def __getitem__(self, index):
        if index >= len(self):
            raise IndexError(index)
        with self.lock:
            self.seen += 1
        logger.debug("reads %d", index)
        return {"image": self.transform(self._pixels(index)), "label": self.labels[self.names[index]]}


class BluePictures(Pictures):
    channel = COLOR_NAMES.index("blue")

    def normalize(self, image):
        return super().normalize(image)[..., self.channel]


class Subset(Dataset):
    def __init__(self, dataset, indices):
        self.dataset = dataset
        self.indices = indices

    @classmethod
    def split(cls, dataset, name):
        low, high = (int(share * len(dataset)) for share in SPLITS[name])
        return cls(dataset, range(low, high))

    def __len__(self):
        return len(self.indices)

    def __getitem__(self, index):
        return self.dataset[self.indices[index]]

    def __getattr__(self, name):
        if name == "dataset":
            raise AttributeError(name)
        return getattr(self.dataset, name)


class Concatenated(Dataset):
    def __init__(self, *parts):
        self.parts = parts
        self.ends = list(accumulate(map(len, parts)))

    def __getitem__(self, index):
        part = bisect.bisect_right(self.ends, index)
        return self.parts[part][index - (self.ends[part - 1] if part else 0)]


class Labeler:
    """Text of labels to numbers; overrides come before those of the file."""

    def __init__(self, overrides, path=LABELS, unknown=-1):
        self.table = ChainMap(overrides, load_labels(path))
        self.unknown = unknown

    def __call__(self, names):
        return np.array([self.table.get(name, self.unknown) for name in names])


def label_from_file(name, path=LABELS):
    """Reads the file at each call."""
    return load_labels(path)[name]


def one_hot(number, count=None):
    return np.eye(count or len(load_labels()))[number]


def entries():
    names = ["owl", "cat", "dog", "cat", "fox", "owl", "dog"]
    pictures = Pictures(names)
    return {
        "getitem": pictures.__getitem__,
        "getitem_scaled": Pictures(names, transform=partial(scale, high=2.0)).__getitem__,
        "blue": BluePictures(names, cut=1).__getitem__,
        "transform": pictures.transform,
        "shape_of": Pictures(names, cut=0).shape_of,
        "subset": Subset.split(pictures, "test").__getitem__,
        "subset_border": Subset(pictures, [1]).border,
        "concatenated": Concatenated(pictures, BluePictures(names[:3])).__getitem__,
        "labeler": Labeler({"cat": 7}),
        "label_from_file": label_from_file,
        "one_hot": partial(one_hot, count=5),
    }


def examples():
    image = np.arange(6 * 6 * 3).reshape(6, 6, 3)
    return {
        "*": (1,),
        "transform": (image,),
        "shape_of": (image,),
        "subset_border": (image,),
        "concatenated": (8,),
        "labeler": (["dog", "cat", "emu", "owl"],),
        "label_from_file": ("fox",),
    }
