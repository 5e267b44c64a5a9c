"""Steps of a training run that read the settings module in many ways."""

import argparse
import operator
from functools import partial, singledispatchmethod

import numpy as np

from . import settings
from . import settings as cfg
from .settings import OFFSETS, SCHEDULE, scaled

READERS = {"scale": operator.attrgetter("SCALE"), "seed": lambda module: module.SEED * 2}
_calls = 0


def crop(image):
    return image[: cfg.SIZE, : cfg.SIZE] * cfg.SCALE


def shift(image):
    global _calls
    _calls += 1
    return image + np.resize(OFFSETS, image.shape[-1])


def noisy(image):
    """Adds the same noise at each call."""
    options = settings.AUGMENT["noise"]
    noise = np.random.default_rng(settings.SEED).normal(0, options["std"], image.shape)
    limit = options["clip"] * options["std"]
    flipped = image[:, ::-1] if settings.AUGMENT.get("flip") else image
    return flipped + noise.clip(-limit, limit)


def rate(step, options=settings.OPTIMIZER):
    gain = 2 if options.momentum.nesterov else 1
    return options.rate * gain * SCHEDULE.factor(step) / (1 - options.momentum.value)


def rate_by_name(step, name="SCHEDULE"):
    schedule = getattr(settings, name)
    return [schedule.factor(at) for at in range(step)]


def scale_with(image, module):
    return scaled(image) * module.SIZE


def read(image, readers=tuple(READERS)):
    return [float(image.sum() * READERS[name](settings)) for name in readers]


def place(name):
    return str(settings.ROOT / name.lower())


def numbers():
    """All numbers among the settings, by name."""
    return {name: value for name, value in sorted(vars(settings).items()) if isinstance(value, (int, float))}


def scaled_numbers(factor):
    return {name: value * factor for name, value in numbers().items()}


class Step:
    """One step of the run, with parsed options."""

    parser = argparse.ArgumentParser(prog="train")
    parser.add_argument("--gamma", type=float, default=1.5)
    parser.add_argument("--mode", choices=["power", "root"], default="power")

    def __init__(self, arguments=()):
        self.options = self.parser.parse_args(list(arguments))
        self.schedule = settings.Schedule(steps=(2,), decay=0.5)

    @property
    def gamma(self):
        return self.options.gamma if self.options.mode == "power" else 1 / self.options.gamma

    @singledispatchmethod
    def apply(self, value):
        raise TypeError(f"no step for {type(value).__name__}")

    @apply.register
    def _(self, value: np.ndarray):
        return np.abs(value) ** self.gamma

    @apply.register
    def _(self, value: int):
        return self.schedule.factor(value)


def entries():
    return {
        "crop": crop,
        "shift": shift,
        "noisy": noisy,
        "rate": rate,
        "rate_by_name": rate_by_name,
        "scale_with": partial(scale_with, module=cfg),
        "read": read,
        "place": place,
        "scaled_numbers": scaled_numbers,
        "step_array": Step().apply,
        "step_root": Step(["--mode", "root", "--gamma", "3"]).apply,
        "step_count": Step().apply,
    }


def examples():
    image = np.linspace(-1, 1.5, 64).reshape(8, 8)
    return {
        "*": (image,),
        "rate": (4,),
        "rate_by_name": (8,),
        "step_count": (3,),
        "place": ("Cat_01.JPG",),
        "scaled_numbers": (3,),
    }
