"""Mixture: several sources by weight as one, without end.

A mix is two things that the loader has anyway: a source, that of all samples of all sources one after the other, and
an order over them. So a mix shards, resumes and reads ahead as everything else does.
"""

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from warmstore.errors import BadSource
from warmstore.loading.samplers.counter_rng import MOST_SEED, Int64, UInt64
from warmstore.loading.samplers.mixture_schedule import MixtureSchedule
from warmstore.loading.samplers.samplers import Sampler
from warmstore.loading.validation import MOST_SAMPLES, integer


@final
class Mixture:
    """Sources by weight, for a `Loader` or a `Dataset` with a `BatchSampler`.

    Each source is walked through in an order of its own, epoch after epoch, at its own pace: a small one comes round
    more often. A mix has no end; its epoch is `samples` places, and the next epoch goes on where the last one ended.

    Args:
        sources: what a `Loader` takes, in a list, or a dict by name. Their batches must have one structure.
        weights: for each source a number above zero: see `mixing.MixtureSchedule` for how evenly they hold.
        samplers: for each source its sampler; None takes the loader's for all, with the seed of source k raised by k.
        samples: places in an epoch; by default the number of all samples together.
        source_key: under this key of the batch the number of each sample's source, int64 [n].

    Raises:
        ValueError: weights, samplers or samples that cannot be, or not as many as sources.
    """

    def __init__(
        self,
        sources: Mapping[str, Any] | Sequence[Any],
        weights: Sequence[float] | Mapping[str, float],
        *,
        samplers: Sequence[Sampler] | Mapping[str, Sampler] | None = None,
        samples: int | None = None,
        source_key: str | None = None,
    ) -> None:
        named = sources if isinstance(sources, Mapping) else {str(at): one for at, one in enumerate(sources)}
        self.names = list(named)
        self.sources = list(named.values())
        self.mix = MixtureSchedule(self._by_source("weights", weights))
        self.samplers = None if samplers is None else self._by_source("samplers", samplers)
        self.samples = None if samples is None else integer("samples", samples, 1, MOST_SAMPLES)
        self.source_key = source_key

    def without_sources(self) -> "Mixture":
        """A copy that knows how to mix but not what, small enough to go to another process beside what was found."""
        bare = copy(self)
        bare.sources = []
        return bare

    def _by_source(self, what: str, given: Any) -> list[Any]:
        if isinstance(given, Mapping):
            if given.keys() != set(self.names):
                raise ValueError(f"{what} are for {list(given)}; the sources are {self.names}")
            return [given[name] for name in self.names]
        values = list(given)
        if len(values) != len(self.sources):
            raise ValueError(f"{what} of a mix: one for each source; got {len(values)} for {len(self.sources)} sources")
        return values

    def sampler(self, lengths: Sequence[int], default: Sampler) -> "MixtureSampler":
        """The order over all samples of all sources, one source after the other, each so long.

        Raises:
            BadSource: a source without samples.
        """
        for name, length in zip(self.names, lengths, strict=True):
            if not length:
                raise BadSource(f"source {name!r} of a mix has no samples: leave it out")
        samplers = self.samplers or [_reseeded(default, number) for number in range(len(lengths))]
        return MixtureSampler(self.mix, tuple(samplers), tuple(lengths), self.samples or sum(lengths))


@final
@dataclass(frozen=True)
class MixtureSampler(Sampler):
    """What stands where in a mix; positions count through the sources, one after the other."""

    mix: MixtureSchedule
    samplers: tuple[Sampler, ...]
    lengths: tuple[int, ...]
    samples: int

    def describe(self) -> dict[str, Any]:
        """Kind, shares, lengths and samplers as JSON keeps them."""
        return {
            "kind": "mixed",
            "shares": list(self.mix.shares),
            "lengths": list(self.lengths),
            "samplers": [sampler.describe() for sampler in self.samplers],
            "samples": self.samples,
        }

    def _length(self, n: int) -> int:
        if n != sum(self.lengths):
            raise ValueError(f"a mix of {sum(self.lengths):,} samples cannot go over {n:,}")
        return self.samples

    def _positions(self, places: UInt64, n: int, epoch: int) -> Int64:
        source, before = self.mix.at(places.astype(np.int64), epoch * self.samples)
        found = np.empty(len(places), np.int64)
        first = 0
        for number, (sampler, length) in enumerate(zip(self.samplers, self.lengths, strict=True)):
            mine = np.flatnonzero(source == number)
            found[mine] = first + _walked(sampler, before[mine], length)
            first += length
        return found


def _walked(sampler: Sampler, counts: Int64, length: int) -> Int64:
    """What stands at places counted through all epochs of one source."""
    epochs, places = np.divmod(counts, sampler.length(length))
    found = np.empty(len(counts), np.int64)
    for epoch in np.unique(epochs).tolist():
        now = epochs == epoch
        found[now] = sampler.at(places[now], length, epoch)
    return found


def _reseeded(sampler: Sampler, number: int) -> Sampler:
    """Sources of equal length would be shuffled alike."""
    seed = getattr(sampler, "seed", None)
    return sampler if seed is None else replace(sampler, seed=(seed + number) & MOST_SEED)  # type: ignore[type-var]
