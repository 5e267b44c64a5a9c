"""Leases on samples: which of several processes computes a sample now. A lease ends when its owner dies or is late.

Leases save work and decide nothing else: without them a sample may be computed twice, with the same result.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from warmstore.storage.array_types import Bools, UInt64

_UNSORTED = 1 << 16
"""Stored samples that are sorted into the others together."""


@dataclass(frozen=True)
class Claim:
    """The answer to a claim of n samples.

    granted: bool [n], the caller computes them. stored: bool [n], another owner has stored them since the first claim:
    look them up again. The caller asks again for the rest, which other owners compute now.
    """

    granted: Bools
    stored: Bools


class Leases:
    """The leases of one cache. Not thread-safe. Samples are named by 64-bit hashes; two of one hash share a lease.

    Args:
        seconds: the time after which a lease ends, unless its owner renews it.
        clock: returns seconds, for tests.
    """

    def __init__(self, seconds: float = 60.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._owners: dict[int, str] = {}  # by sample
        self._ends: dict[str, float] = {}  # by owner
        self._stored = np.zeros(0, np.uint64)  # sorted
        self._recent: list[UInt64] = []

    def claim(self, owner: str, samples: UInt64) -> Claim:
        """Lease the samples that nobody else has leased or stored; renews the owner's other leases.

        Args:
            samples: uint64 [n].
        """
        self.renew(owner)
        now = self._clock()
        stored = self._is_stored(samples)
        granted = np.zeros(len(samples), bool)
        for at in np.flatnonzero(~stored).tolist():
            sample = int(samples[at])
            holder = self._owners.get(sample)
            if holder is None or holder == owner or self._ends.get(holder, 0.0) <= now:
                self._owners[sample] = owner
                granted[at] = True
        return Claim(granted, stored)

    def renew(self, owner: str) -> None:
        """Extend the leases of an owner."""
        self._ends[owner] = self._clock() + self._seconds

    def finish(self, owner: str, samples: UInt64, *, stored: bool) -> None:
        """End leases of an owner, whose samples are stored now, or were not computed."""
        for sample in samples.tolist():
            if self._owners.get(sample) == owner:
                del self._owners[sample]
        if stored:
            self._recent.append(np.array(samples))

    def forget(self, owner: str) -> None:
        """End all leases of an owner that is gone, or has begun anew."""
        self._ends.pop(owner, None)
        self._owners = {sample: holder for sample, holder in self._owners.items() if holder != owner}

    def lost(self, samples: UInt64) -> None:
        """Samples that were stored, and could not be found: they can be claimed again."""
        self._merge()
        self._stored = self._stored[~np.isin(self._stored, samples)]

    @property
    def count(self) -> int:
        """The number of leased samples."""
        return len(self._owners)

    def _is_stored(self, samples: UInt64) -> Bools:
        if sum(map(len, self._recent)) > max(_UNSORTED, len(self._stored) // 8):
            self._merge()
        at = np.searchsorted(self._stored, samples)
        found: Bools = np.zeros(len(samples), bool)
        inside = at < len(self._stored)
        found[inside] = self._stored[at[inside]] == samples[inside]
        for recent in self._recent:
            found |= np.isin(samples, recent)
        return found

    def _merge(self) -> None:
        self._stored = np.unique(np.concatenate((self._stored, *self._recent)))
        self._recent.clear()
