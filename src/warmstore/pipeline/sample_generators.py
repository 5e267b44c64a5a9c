"""Generators of random steps: one per sample and step, made in a microsecond.

NumPy's own `default_rng([seed, epoch, index, step])` takes 11 to 17 µs, most of it in SeedSequence, which is more
than a crop takes. A hash of the same four numbers seeds PCG64 instead: xxh3 with two seeds gives the 256 bits of its
state and increment.
"""

import struct
from typing import Any

import numpy as np
import xxhash
from numpy.random.bit_generator import ISpawnableSeedSequence

_pack = struct.Struct("<QQQQ").pack
_WORDS = 4  # uint64 that PCG64 takes


class _SampleSeed(ISpawnableSeedSequence):
    """The seed of the generator of one sample in one step. It spawns like NumPy's SeedSequence of the four numbers."""

    def __init__(self, *entropy: int) -> None:
        self.entropy = entropy
        self._spawner: np.random.SeedSequence | None = None

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> np.ndarray[Any, Any]:
        if n_words == _WORDS and dtype == np.uint64:
            numbers = _pack(*self.entropy)
            state = xxhash.xxh3_128_digest(numbers, 0) + xxhash.xxh3_128_digest(numbers, 1)
            return np.frombuffer(state, np.uint64)
        return np.random.SeedSequence(self.entropy).generate_state(n_words, dtype)

    def spawn(self, n_children: int) -> list[Any]:
        if self._spawner is None:
            self._spawner = np.random.SeedSequence(self.entropy)
        return self._spawner.spawn(n_children)


def sample_generator(seed: int, epoch: int, index: int, step: int) -> np.random.Generator:
    """The generator of sample `index` in a step of a pipeline, in an epoch. It depends on these four numbers only."""
    entropy: Any = _SampleSeed(seed, epoch, index, step)
    return np.random.Generator(np.random.PCG64(entropy))
