"""RandomInterleave: the sources of a mixture in random order, in blocks with exact shares."""

from dataclasses import dataclass
from typing import final

import numpy as np

from warmstore.loading.samplers.counter_rng import Int64, derive_keys, random_bits
from warmstore.loading.samplers.mixture_schedule import MixtureSchedule

_BLOCK = 1024  # the most places of a block, unless one period is longer
_TOGETHER = 1 << 16  # places whose blocks are computed at once: 512 KiB an array


@final
@dataclass(frozen=True)
class RandomInterleave:
    """The places of a `MixtureSchedule`, shuffled block by block.

    A block is a whole number of periods: as many as fit into 1,024 places, at least one. The sources of a block are put
    in random order, by SplitMix64 at (seed, first epoch, place); the samples of one source keep their order.
    - After any whole number of blocks every source has exactly its share.
    - Within a block of B places a source of share s is off by at most s * (1 - s) * B samples at any prefix. The
      standard deviation halfway through is sqrt(s * (1 - s) * B) / 2: 8 of 1,024 for s = 0.5.
    A place costs its block: O(B) time and memory. 8,192 consecutive places take 0.15 µs each with B = 1,020.

    mix: the schedule to shuffle. seed: an integer from 0 to 2**64 - 1. first_epoch: the first epoch of the schedule in
    a mixture, which changes the order.
    """

    mix: MixtureSchedule
    seed: int = 0
    first_epoch: int = 0

    @property
    def block(self) -> int:
        """Places that are shuffled together."""
        return self.mix.period * max(1, _BLOCK // self.mix.period)

    def at(self, places: Int64, start: int = 0) -> tuple[Int64, Int64]:
        """See `MixtureSchedule.at`.

        Raises:
            PositionError: places below 0 or above 2**62.
        """
        self.mix.check_places(places, start)
        block = self.block
        blocks, begin = divmod(start, block)
        number, within = np.divmod(places + begin, block)
        distinct, row = np.unique(number, return_inverse=True)
        source, before = np.empty_like(places), np.empty_like(places)
        rows = max(1, _TOGETHER // block)
        for first in range(0, len(distinct), rows):
            block_source, block_before = self._blocks(distinct[first : first + rows] + blocks)
            selected = np.flatnonzero((row >= first) & (row < first + rows))
            cells = row[selected] - first, within[selected]
            source[selected] = block_source[cells]
            before[selected] = block_before[cells]
        before += self._in_block()[source] * (number + blocks)
        return source, before

    def counts(self, length: int) -> tuple[int, ...]:
        """See `MixtureSchedule.counts`."""
        blocks, rest = divmod(length, self.block)
        counts = [int(count) * blocks for count in self._in_block()]
        if rest:
            source, _ = self._blocks(np.array([blocks]))
            last = np.bincount(source[0, :rest], minlength=len(counts)).tolist()
            counts = [count + more for count, more in zip(counts, last, strict=True)]
        return tuple(counts)

    def _in_block(self) -> Int64:
        return np.asarray(self.mix.shares) * (self.block // self.mix.period)

    def _blocks(self, blocks: Int64) -> tuple[Int64, Int64]:
        """The source at each place of blocks, and its number of earlier places in the block, both [blocks, B]."""
        block = self.block
        offsets = np.arange(block, dtype=np.uint64)
        places = blocks.astype(np.uint64)[:, None] * np.uint64(block) + offsets
        drawn = random_bits(places, derive_keys("interleave", self.seed, self.first_epoch, block)[0])
        # Random numbers with the offsets in their lowest bits are sorted.
        low = np.uint64((1 << (block - 1).bit_length()) - 1)
        shuffled = (np.sort((drawn & ~low) | offsets, axis=1) & low).astype(np.int64)
        source = self.mix.at(shuffled.reshape(-1))[0].reshape(shuffled.shape)
        in_block = self._in_block()
        number = np.arange(block) - np.repeat(np.cumsum(in_block) - in_block, in_block)
        by_source = np.argsort(source.astype(np.min_scalar_type(len(in_block))), axis=1, kind="stable")
        before = np.empty_like(source)
        np.put_along_axis(before, by_source, np.broadcast_to(number, before.shape), axis=1)
        return source, before
