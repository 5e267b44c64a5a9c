"""Sequential and Window: samplers in the order of the source."""

from dataclasses import KW_ONLY, dataclass
from typing import final

import numpy as np

from warmstore.loading.samplers.counter_rng import UInt64
from warmstore.loading.samplers.sampler import Sampler
from warmstore.loading.validation import MOST_SAMPLES, integer, set_fields


@final
@dataclass(frozen=True)
class Sequential(Sampler):
    """Every sample once, from the first to the last."""

    @property
    def shuffles(self) -> bool:
        """False: all epochs are equal."""
        return False

    def _length(self, n: int) -> int:
        return n

    def _positions(self, places: UInt64, n: int, epoch: int) -> UInt64:
        return places


@final
@dataclass(frozen=True)
class Window(Sampler):
    """A window of `size` consecutive samples that slides by `step` over the samples, which form a ring.

    Place j of window w, counted over all epochs, is sample (w * step + j) mod n: after the last sample a window
    continues with the first, and an epoch continues the one before. An epoch has ceil(n / step) windows, and every
    sample at least once unless the step is larger than the window. With batches of `size` every batch is one window.

    Args:
        size: samples in a window, at most n.
        step: samples from the start of one window to the start of the next, at most n; by default `size`, so that
            windows touch and do not overlap, as loaderx's sliding window.

    Raises:
        ValueError: a size or step that is no integer above zero; in use, one above n.
    """

    size: int
    _: KW_ONLY
    step: int | None = None

    def __post_init__(self) -> None:
        size = integer("size of a window", self.size, 1, MOST_SAMPLES)
        step = size if self.step is None else integer("step of a window", self.step, 1, MOST_SAMPLES)
        set_fields(self, size=size, step=step)

    @property
    def shuffles(self) -> bool:
        """False: the order is not random, although epochs differ in their first sample."""
        return False

    def _length(self, n: int) -> int:
        return self._windows(n) * self.size

    def _positions(self, places: UInt64, n: int, epoch: int) -> UInt64:
        start = epoch * self._windows(n) * self._step % n
        window = places // np.uint64(self.size)
        # Each of the three terms is below 2 * n, so the sum is below 2**64.
        position = places - window * np.uint64(self.size)
        position += window * np.uint64(self._step)
        position += np.uint64(start)
        position %= np.uint64(n)
        return position

    def _windows(self, n: int) -> int:
        if n and max(self.size, self._step) > n:
            raise ValueError(f"size and step of a window are at most the number of samples, {n:,}; got {self!r}")
        return -(-n // self._step)

    @property
    def _step(self) -> int:
        return self.step or self.size
