"""Mixture: several sources by weight as one endless source.

A mixture is a source, the samples of all sources one after the other, and a sampler over it. So it is sharded, resumed
and prefetched like any other source and sampler.
"""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, final

import numpy as np

from warmstore.errors import BadSource, PositionError
from warmstore.loading.samplers.counter_rng import MOST_SEED, Int64, UInt64
from warmstore.loading.samplers.mixture_schedule import MixtureSchedule
from warmstore.loading.samplers.random_interleave import RandomInterleave
from warmstore.loading.samplers.sampler import Sampler
from warmstore.loading.samplers.sampler_argument import sampler_of
from warmstore.loading.validation import MOST_SAMPLES, integer, set_fields

Weights = Sequence[float] | Mapping[str, float]
"""One number for each source, in their order or by name."""


@final
class Mixture:
    """Sources by weight, for a `Loader` or a `Dataset` with a `BatchSampler`.

    Each source has its own sampler and its own epochs: a small source is repeated more often. A mixture has no end. Its
    epoch is `samples` places, and the next epoch continues every source where the last epoch ended. Weights may change
    at the beginning of an epoch; no source loses or repeats samples.

    Precision of shares, at every prefix of the places since the beginning or since the last change of weights:
    - interleave="exact": within less than one sample, see `MixtureSchedule`. The order of the sources is periodic.
    - interleave="random": exact after every block of about 1,024 places (or one period of the weights, if longer),
      across epochs. Within a block the order of sources is random, see `RandomInterleave`.

    Args:
        sources: sources of a `Loader`, in a list, or a dict by name. Their batches must have one structure.
        weights: for each source a number, none negative and at least one above zero, valid from epoch 0 on. A source
            with weight zero is not read; it may be empty if its weight stays zero.
        samplers: for each source its sampler, or None for the loader's sampler with the seed of source k raised by k;
            None for None for all sources.
        samples: places in an epoch; by default the number of samples of all sources.
        source_key: a key of the batch for the number of each sample's source, int64 [n].
        schedule: weights by the first epoch in which they hold, 1 or later: `{3: [1, 1], 10: [1, 4]}`.
        interleave: "exact" or "random", the order of the sources.
        seed: of the random order, an integer from 0 to 2**64 - 1; 0 by default.

    Raises:
        ValueError: invalid weights, samplers, samples, schedule, interleave or seed, or not one for each source.
        TypeError: a sampler that is no `Sampler`.
    """

    def __init__(
        self,
        sources: Mapping[str, Any] | Sequence[Any],
        weights: Weights,
        *,
        samplers: Sequence[Sampler | None] | Mapping[str, Sampler | None] | None = None,
        samples: int | None = None,
        source_key: str | None = None,
        schedule: Mapping[int, Weights] | None = None,
        interleave: str = "exact",
        seed: int | None = None,
    ) -> None:
        named = sources if isinstance(sources, Mapping) else {str(at): source for at, source in enumerate(sources)}
        self.names = list(named)
        self.sources = list(named.values())
        if interleave not in ("exact", "random"):
            raise ValueError(f'interleave must be "exact" or "random"; got {interleave!r:.80}')
        if seed is not None and interleave == "exact":
            raise ValueError(f'seed={seed!r:.80} of a mix is for interleave="random"; "exact" is not random')
        self.seed = None if interleave == "exact" else integer("seed", 0 if seed is None else seed, 0, MOST_SEED)
        self.schedules = self._schedules(weights, schedule)
        self.samplers: list[Sampler | None] = [None] * len(self.names)
        if samplers is not None:
            given = self._by_source("samplers", samplers)
            self.samplers = [None if sampler is None else sampler_of(sampler) for sampler in given]
        self.samples = None if samples is None else integer("samples", samples, 1, MOST_SAMPLES)
        self.source_key = source_key

    def without_sources(self) -> "Mixture":
        """A copy without the sources, for pickling together with the resolved sources."""
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

    def _schedules(self, weights: Any, schedule: Any) -> "tuple[Schedule, ...]":
        changes = {} if schedule is None else schedule
        if not isinstance(changes, Mapping):
            raise ValueError(f"schedule of a mix must be a dict of weights by epoch; got {schedule!r:.80}")
        by_epoch = {0: weights}
        for epoch, changed in changes.items():
            by_epoch[integer("epoch of a schedule", epoch, 1, MOST_SEED)] = changed
        schedules = []
        for epoch in sorted(by_epoch):
            what = f"weights from epoch {epoch} on" if epoch else "weights"
            mix = MixtureSchedule(self._by_source(what, by_epoch[epoch]))
            schedules.append((epoch, mix if self.seed is None else RandomInterleave(mix, self.seed, epoch)))
        return tuple(schedules)

    def sampler(self, lengths: Sequence[int], default: Sampler) -> "MixtureSampler":
        """The sampler over the samples of all sources, one source after the other.

        Args:
            lengths: of each source.
            default: the sampler of sources that have none.

        Raises:
            BadSource: a source without samples that has a weight.
            ValueError: a sampler that does not fit the length of its source.
        """
        has_weight = np.any([_shares(mix) for _, mix in self.schedules], axis=0).tolist()
        samplers = []
        for number, (name, length, is_read) in enumerate(zip(self.names, lengths, has_weight, strict=True)):
            sampler = self.samplers[number] or _reseeded(default, number)
            if is_read and not (length and sampler.length(length)):
                raise BadSource(f"source {name!r} of a mix has no samples: leave it out, or give it the weight 0")
            samplers.append(sampler)
        return MixtureSampler(self.schedules, tuple(samplers), tuple(lengths), self.samples or sum(lengths))


Schedule = tuple[int, MixtureSchedule | RandomInterleave]
"""The first epoch of a schedule, and the schedule."""


@final
@dataclass(frozen=True)
class MixtureSampler(Sampler):
    """The sampler of a mixture. Positions count through the sources, one after the other.

    schedules: sorted by epoch, the first at epoch 0. samplers, lengths: of each source. samples: places in an epoch.
    """

    schedules: tuple[Schedule, ...]
    samplers: tuple[Sampler, ...]
    lengths: tuple[int, ...]
    samples: int
    _counts: tuple[tuple[int, ...], ...] = field(init=False, repr=False)  # places of each source before each schedule

    def __post_init__(self) -> None:
        counts = [(0,) * len(self.lengths)]
        for (epoch, mix), (following, _) in pairwise(self.schedules):
            more = mix.counts(min((following - epoch) * self.samples, MOST_SAMPLES))  # `_positions` refuses more
            counts.append(tuple(count + other for count, other in zip(counts[-1], more, strict=True)))
        set_fields(self, _counts=tuple(counts))

    @property
    def shuffles(self) -> bool:
        """Whether the order of any source, or the order of the sources, depends on the epoch."""
        is_random = any(isinstance(mix, RandomInterleave) for _, mix in self.schedules)
        return is_random or any(sampler.shuffles for sampler in self.samplers)

    def describe(self) -> dict[str, Any]:
        """Kind, shares, lengths and samplers as JSON values; schedule and interleaving unless they are the default."""
        (_, first), *changes = self.schedules
        described = {
            "kind": "mixed",
            "shares": list(_shares(first)),
            "lengths": list(self.lengths),
            "samplers": [sampler.describe() for sampler in self.samplers],
            "samples": self.samples,
        }
        if changes:
            described["schedule"] = [[epoch, list(_shares(mix))] for epoch, mix in changes]
        if isinstance(first, RandomInterleave):
            described["interleave"] = {"kind": "random", "seed": first.seed}
        return described

    def _length(self, n: int) -> int:
        if n != sum(self.lengths):
            raise ValueError(f"a mix of {sum(self.lengths):,} samples cannot go over {n:,}")
        return self.samples

    def _positions(self, places: UInt64, n: int, epoch: int) -> Int64:
        if (epoch + 1) * self.samples > MOST_SAMPLES:
            raise PositionError(f"a mix has at most 2**62 places; epoch {epoch:,} of {self.samples:,} each is beyond")
        current = bisect_right(self.schedules, epoch, key=lambda schedule: schedule[0]) - 1
        begin, mix = self.schedules[current]
        source, before = mix.at(places.astype(np.int64), (epoch - begin) * self.samples)
        before += np.array(self._counts[current])[source]
        positions = np.empty(len(places), np.int64)
        first = 0
        for number, (sampler, length) in enumerate(zip(self.samplers, self.lengths, strict=True)):
            of_source = np.flatnonzero(source == number)
            if len(of_source):
                positions[of_source] = first + _endless(sampler, before[of_source], length)
            first += length
        return positions


def _shares(mix: MixtureSchedule | RandomInterleave) -> tuple[int, ...]:
    return mix.mix.shares if isinstance(mix, RandomInterleave) else mix.shares


def _endless(sampler: Sampler, counts: Int64, length: int) -> Int64:
    """The positions at places that are counted through all epochs of one source."""
    epochs, places = np.divmod(counts, sampler.length(length))
    positions = np.empty(len(counts), np.int64)
    for epoch in np.unique(epochs).tolist():
        in_epoch = epochs == epoch
        positions[in_epoch] = sampler.at(places[in_epoch], length, epoch)
    return positions


def _reseeded(sampler: Sampler, number: int) -> Sampler:
    """A sampler with another seed, as sources of equal length would be shuffled in the same way."""
    seed = getattr(sampler, "seed", None)
    return sampler if seed is None else replace(sampler, seed=(seed + number) & MOST_SEED)  # type: ignore[type-var]
