"""FilteredChain: a chain and its filters, which are evaluated when the samples are needed for the first time."""

import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any, final

import numpy as np

from warmstore.errors import NoFingerprint
from warmstore.identity.samples.sample_hashes import UInt64
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.pipeline.chain import Chain
from warmstore.pipeline.filters.filter import Filter
from warmstore.pipeline.filters.filter_pass import UNKNOWN, YES, Answers, FilterPass
from warmstore.pipeline.step_identities import key_of
from warmstore.pipeline.steps import Step
from warmstore.pipeline.tiers.sample_table import match
from warmstore.storage.cached_property import cached_property
from warmstore.storage.lease import UsageLease

Known = dict[str, tuple[UInt64, Answers]]
"""Answers that may be used again, by the key of steps and predicate: hashes of samples [n, 2], and answers [n]."""


@final
class FilteredChain:
    """A chain whose filters leave samples out. Immutable.

    base: the source and all steps, without filters.
    """

    def __init__(self, base: Chain, filters: tuple[Filter, ...] = (), known: Known | None = None) -> None:
        self.base = base
        self.filters = filters
        self._known: Known = {} if known is None else known  # shared with the chains that this one is a part of
        self._folder: Path | None = None  # of plans
        self._resolved: tuple[Chain, UInt64, list[str], Path | None] | None = None
        self._leases: dict[str, UsageLease | None] = {}  # of the kept answers that are in use, by the key of steps

    def __reduce__(self) -> Any:
        return FilteredChain, (self.base, self.filters)

    @property
    def names(self) -> list[str]:
        """The names of steps and filters, in order."""
        names = [step.name for step in self.base.steps]
        for each in reversed(self.filters):
            names.insert(each.after, each.predicate.name)
        return names

    def count_text(self) -> str:
        """The number of samples in words, without an evaluation of filters."""
        if self.filters and self._resolved is None:
            return f"some of {len(self.base):,}"
        return f"{len(self.chain):,}"

    def with_step(self, step: Step) -> "FilteredChain":
        """This chain with one more step."""
        base = self.base
        return FilteredChain(Chain(base.source, (*base.steps, step), base.settings), self.filters, self._known)

    def with_filter(self, predicate: Step, folder: Path | None, workers: int | None) -> "FilteredChain":
        """This chain with one more filter.

        Raises:
            ValueError: a step before it is random.
        """
        base = self.base
        if base.cacheable < len(base.steps):
            raise ValueError(
                f"filter {predicate.name!r} is after the random step {base.steps[base.cacheable].name!r}, so other "
                "samples would pass in every epoch: filter before the first random step"
            )
        added = Filter(predicate, len(base.steps), folder, workers)
        return FilteredChain(Chain(base.source, base.steps, base.settings), (*self.filters, added), self._known)

    @property
    def chain(self) -> Chain:
        """The chain of the samples that pass, as at the last call of `resolve`."""
        return self.resolve() if self._resolved is None else self._resolved[0]

    def resolve(self, folder: Path | None = None) -> Chain:
        """The chain of the samples that pass all filters, with steps, filters and samples as they are now.

        Args:
            folder: where the answers of filters without a folder are kept, from now on.

        Raises:
            NoFingerprint: a filter depends on something that has no identity.
            Exception: any error of a predicate, a step before it, or the source.
        """
        if not self.filters:
            return self.base
        self._folder = self._folder if folder is None else folder
        identities = self.base.identities  # known before the first call of a step
        identities.refresh(patches=True)
        for chain in self._chains:
            chain.identities.refresh()
        samples = identities.states.look().each
        for chain in self._chains:
            if chain.identities.keepable < len(chain.steps):
                raise NoFingerprint(
                    f"filter {chain.steps[-1].name!r} needs an identity, since a change of it would not be noticed. "
                    f"{chain.identities.trouble}"
                )
        keys = [key_of(chain.identities.descriptions()) for chain in self._chains]
        if self._resolved is not None:
            resolved, known, *state = self._resolved
            if np.array_equal(known, samples) and state == [keys, self._folder]:
                return resolved
        with ExitStack() as calls:
            for chain in (self.base, *self._chains):
                calls.enter_context(chain.identities.calling())  # steps may share what their calls change
            passing = np.arange(len(self.base))
            for each, chain, key in zip(self.filters, self._chains, keys, strict=True):
                before = len(passing)
                passing = passing[self._passes(each, chain, key, passing, samples)]
                if before and not len(passing):
                    warnings.warn(
                        f"filter {each.predicate.name!r} passes none of {before:,} samples, so the pipeline is empty",
                        RuntimeWarning,
                        stacklevel=3,
                    )
        self._leases = {key: self._leases[key] for key in keys}
        self._resolved = self.base.select(passing), samples, keys, self._folder
        return self._resolved[0]

    def _passes(self, each: Filter, chain: Chain, key: str, positions: Int64, samples: UInt64) -> Any:
        """Which of some samples pass a filter: bool [n]."""
        hashes = samples[positions]
        known_hashes, known = self._known.get(key, (samples[:0], np.empty(0, np.int8)))
        at = match(known_hashes, hashes)
        found = np.full(len(positions), UNKNOWN, np.int8)
        found[at >= 0] = known[at[at >= 0]]
        evaluation = FilterPass(chain, each, each.folder or self._folder)
        found = evaluation.answers(positions, found, None)
        self._leases[key] = evaluation.lease
        lasting = found <= YES
        self._known[key] = hashes[lasting], found[lasting]
        return (found & 1).astype(np.bool_)

    @cached_property
    def _chains(self) -> list[Chain]:
        """For each filter the steps before it, with the predicate as the last one."""
        return [self.base.before(each.after, each.predicate) for each in self.filters]
