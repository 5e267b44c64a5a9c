"""Mixture: several sources by weight as one, without end.

A mix is two things that the loader has anyway: a source, that of all samples of all sources one after the other, and
an order over them. So a mix shards, resumes and reads ahead as everything else does.
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
from warmstore.loading.validation import MOST_SAMPLES, integer

Weights = Sequence[float] | Mapping[str, float]
"""One number for each source, in their order or by name."""


@final
class Mixture:
    """Sources by weight, for a `Loader` or a `Dataset` with a `BatchSampler`.

    Each source is walked through in an order of its own, epoch after epoch, at its own pace: a small one comes round
    more often. A mix has no end; its epoch is `samples` places, and the next epoch goes on where the last one ended.
    Weights may change at the beginning of an epoch; every source goes on where it was, and loses and repeats nothing.

    How evenly shares hold, at every prefix of the places since the beginning, or since the last change of weights:
    - interleave="exact": within less than one sample, see `MixtureSchedule`. The order of the sources repeats itself.
    - interleave="random": exactly after every block of about 1,024 places (or one period of the weights where that is
      longer), whatever epochs it lies in. Within a block sources come in random order, see `RandomInterleave`.

    Args:
        sources: what a `Loader` takes, in a list, or a dict by name. Their batches must have one structure.
        weights: for each source a number, none negative and one at least above zero. They hold from epoch 0 on. A
            source of weight zero never comes; it may be empty if it has no weight later either.
        samplers: for each source its sampler, or None for the loader's with the seed of source k raised by k; None for
            all does that for every source.
        samples: places in an epoch; by default the number of all samples together.
        source_key: under this key of the batch the number of each sample's source, int64 [n].
        schedule: weights by the epoch, 1 or later, from which they hold until the next: `{3: [1, 1], 10: [1, 4]}`.
        interleave: "exact" or "random", the order in which the sources come.
        seed: of a random order, an integer from 0 to 2**64 - 1; 0 by default.

    Raises:
        ValueError: weights, samplers, samples, schedule, interleave or seed that cannot be, or not as many as sources.
        TypeError: a sampler that is none.
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
        named = sources if isinstance(sources, Mapping) else {str(at): one for at, one in enumerate(sources)}
        self.names = list(named)
        self.sources = list(named.values())
        if interleave not in ("exact", "random"):
            raise ValueError(f'interleave must be "exact" or "random"; got {interleave!r:.80}')
        if seed is not None and interleave == "exact":
            raise ValueError(f'seed={seed!r:.80} of a mix is for interleave="random"; nothing is drawn for "exact"')
        self.seed = None if interleave == "exact" else integer("seed", 0 if seed is None else seed, 0, MOST_SEED)
        self.schedules = self._schedules(weights, schedule)
        self.samplers: list[Sampler | None] = [None] * len(self.names)
        if samplers is not None:
            given = self._by_source("samplers", samplers)
            self.samplers = [None if sampler is None else sampler_of(sampler) for sampler in given]
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

    def _schedules(self, weights: Any, schedule: Any) -> "tuple[Schedule, ...]":
        changes = {} if schedule is None else schedule
        if not isinstance(changes, Mapping):
            raise ValueError(f"schedule of a mix must be a dict of weights by epoch; got {schedule!r:.80}")
        by_epoch = {0: weights}
        for epoch, changed in changes.items():
            by_epoch[integer("epoch of a schedule", epoch, 1, MOST_SEED)] = changed
        found = []
        for epoch in sorted(by_epoch):
            what = f"weights from epoch {epoch} on" if epoch else "weights"
            mix = MixtureSchedule(self._by_source(what, by_epoch[epoch]))
            found.append((epoch, mix if self.seed is None else RandomInterleave(mix, self.seed, epoch)))
        return tuple(found)

    def sampler(self, lengths: Sequence[int], default: Sampler) -> "MixtureSampler":
        """The order over all samples of all sources, one source after the other, each so long.

        Raises:
            BadSource: a source without samples that has a weight.
            ValueError: a sampler that cannot go over its source.
        """
        coming = np.any([_shares(mix) for _, mix in self.schedules], axis=0).tolist()
        samplers = []
        for number, (name, length, comes) in enumerate(zip(self.names, lengths, coming, strict=True)):
            sampler = self.samplers[number] or _reseeded(default, number)
            if comes and not (length and sampler.length(length)):
                raise BadSource(f"source {name!r} of a mix has no samples: leave it out, or give it the weight 0")
            samplers.append(sampler)
        return MixtureSampler(self.schedules, tuple(samplers), tuple(lengths), self.samples or sum(lengths))


Schedule = tuple[int, MixtureSchedule | RandomInterleave]
"""What holds from an epoch on."""


@final
@dataclass(frozen=True)
class MixtureSampler(Sampler):
    """What stands where in a mix; positions count through the sources, one after the other.

    schedules: the first at epoch 0, by epoch. samplers, lengths: of each source. samples: places in an epoch.
    """

    schedules: tuple[Schedule, ...]
    samplers: tuple[Sampler, ...]
    lengths: tuple[int, ...]
    samples: int
    _counts: tuple[tuple[int, ...], ...] = field(init=False, repr=False)  # of each source, before each schedule

    def __post_init__(self) -> None:
        counts = [(0,) * len(self.lengths)]
        for (epoch, mix), (following, _) in pairwise(self.schedules):
            more = mix.counts(min((following - epoch) * self.samples, MOST_SAMPLES))  # beyond, places are refused
            counts.append(tuple(count + other for count, other in zip(counts[-1], more, strict=True)))
        object.__setattr__(self, "_counts", tuple(counts))

    @property
    def shuffles(self) -> bool:
        """Whether the order of a source, or that of the sources, is another one in another epoch."""
        drawn = any(isinstance(mix, RandomInterleave) for _, mix in self.schedules)
        return drawn or any(sampler.shuffles for sampler in self.samplers)

    def describe(self) -> dict[str, Any]:
        """Kind, shares, lengths and samplers as JSON keeps them; and schedule and interleaving where they are asked."""
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
        found = np.empty(len(places), np.int64)
        first = 0
        for number, (sampler, length) in enumerate(zip(self.samplers, self.lengths, strict=True)):
            mine = np.flatnonzero(source == number)
            if len(mine):
                found[mine] = first + _walked(sampler, before[mine], length)
            first += length
        return found


def _shares(mix: MixtureSchedule | RandomInterleave) -> tuple[int, ...]:
    return mix.mix.shares if isinstance(mix, RandomInterleave) else mix.shares


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
