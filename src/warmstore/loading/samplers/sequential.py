"""Sequential and Window: samplers that take samples in the order of the source."""

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
        """False: all epochs are alike."""
        return False

    def _length(self, n: int) -> int:
        return n

    def _positions(self, places: UInt64, n: int, epoch: int) -> UInt64:
        return places


@final
@dataclass(frozen=True)
class Window(Sampler):
    """A window of `size` samples in a row that slides by `step` over the samples, which form a ring.

    Place w * size + j of the windows counted over all epochs holds sample (w * step + j) mod n. Nothing is cut off at
    the end: a window that reaches the last sample goes on with the first, and an epoch begins where the one before it
    ended. An epoch has ceil(n / step) windows, and each sample at least once unless the step is larger than the window.
    With batches of `size` every batch is one window.

    Args:
        size: samples in a window, at most n.
        step: samples from the start of one window to that of the next, at most n; by default `size`: windows that
            touch and do not overlap, as loaderx's sliding window has them.

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
        """False: nothing is drawn, although an epoch begins where the one before it ended."""
        return False

    def _length(self, n: int) -> int:
        return self._windows(n) * self.size

    def _positions(self, places: UInt64, n: int, epoch: int) -> UInt64:
        start = epoch * self._windows(n) * self._step % n
        window = places // np.uint64(self.size)
        # All three are below 2 * n at most, and their sum below 2**64.
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
