"""BlockShuffle: every sample once, in an order that reads blocks of neighbours together, for a cold remote."""

from dataclasses import dataclass
from typing import final

import numpy as np

from warmstore.loading.samplers.counter_rng import MOST_SEED, UInt64, derive_keys
from warmstore.loading.samplers.permutation import permuted
from warmstore.loading.samplers.sampler import Sampler
from warmstore.loading.validation import MOST_SAMPLES, integer, set_fields


@final
@dataclass(frozen=True)
class BlockShuffle(Sampler):
    """Every sample once: blocks in random order, and samples in random order within windows of `window` blocks.

    A store at a remote is fetched in blocks of bytes, so a sample costs as much as its neighbours. `Shuffle` fetches a
    block for nearly every sample while the cache is cold; this order fetches each block about once, and keeps at most
    two windows of them in use.

    It is less random than `Shuffle`. Samples of one block come within one window, so neighbours meet in a batch far
    more often: of the other samples in a batch, a share of about 1 / `window` is from the same block, whatever the
    batch size, instead of `block` / n. Write stores in random order, or choose large windows, where neighbours resemble
    each other, as in a store sorted by class.

    The last n % `block` samples belong to the last window. The order is a function of seed, epoch and n.

    Args:
        block: samples that lie together. At a remote: some times 64 KiB, by the bytes of a sample.
        window: blocks whose samples are shuffled together.
        seed: an integer from 0 to 2**64 - 1.

    Raises:
        ValueError: an invalid option.
    """

    block: int
    window: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        set_fields(
            self,
            block=integer("block", self.block, 1, MOST_SAMPLES),
            window=integer("window", self.window, 1, MOST_SAMPLES),
            seed=integer("seed", self.seed, 0, MOST_SEED),
        )

    def _length(self, n: int) -> int:
        return n

    def _positions(self, places: UInt64, n: int, epoch: int) -> UInt64:
        blocks = n // self.block
        span = min(self.block * self.window, MOST_SAMPLES)
        windows = max(-(-blocks // self.window), 1)
        # The last window also has the samples after the last whole block.
        of_window = np.minimum(places // np.uint64(span), np.uint64(windows - 1))
        drawn = np.empty_like(places)
        for window in np.unique(of_window).tolist():
            inside = of_window == np.uint64(window)
            first = window * span
            size = (n if window == windows - 1 else first + span) - first
            keys = derive_keys("in window", self.seed, epoch, window)
            drawn[inside] = np.uint64(first) + permuted(places[inside] - np.uint64(first), size, keys)
        whole = drawn < np.uint64(blocks * self.block)
        numbers, offsets = np.divmod(drawn[whole], np.uint64(self.block))
        keys = derive_keys("blocks", self.seed, epoch, n)
        drawn[whole] = permuted(numbers, blocks, keys) * np.uint64(self.block) + offsets
        return drawn
