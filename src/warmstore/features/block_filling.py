"""Filling one cache from many processes, block by block: a block is done once all of its samples are stored.

A process leases the samples of a block that are missing, computes those that it was granted, stores them, and only then
ends the leases. Samples that others have leased are waited for. A process holds no lease while it waits, so none can
wait for another in a circle.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from warmstore.errors import AmbiguousBatch
from warmstore.features.leases import Claim
from warmstore.features.module import CachedModule
from warmstore.loading.fill_result import FillResult
from warmstore.records.index.sample_keys import Keys, as_keys
from warmstore.storage.array_types import Int64, UInt64

Columns = Mapping[str, Any]
"""A batch of n samples: arrays [n, ...] or lists of n values, by name."""
Call = Callable[[Columns], tuple[tuple[Any, ...], dict[str, Any]]]
"""Turns a batch into the (args, kwargs) of a call of the module."""

_WAIT = 0.1
_LONGEST_WAIT = 2.0


class LeaseTable(Protocol):
    """`Leases`, in this process or another one."""

    def claim(self, owner: str, samples: UInt64) -> Claim: ...

    def finish(self, owner: str, samples: UInt64, *, stored: bool) -> None: ...

    def lost(self, samples: UInt64) -> None: ...


@dataclass(frozen=True)
class BlockFiller:
    """Computes and stores the missing samples of blocks.

    Args:
        cached: the module and its cache.
        leases: of the cache, shared by all processes that fill it.
        owner: the name of this process among them.
        ids: the column with the ids.
        call: turns samples into arguments.
        batch_size: the most samples that the module computes at once.
        store: returns when all samples that the cache has accepted are where every process finds them.
        look_again: makes samples visible that other processes have stored.
    """

    cached: CachedModule
    leases: LeaseTable
    owner: str
    ids: str
    call: Call
    batch_size: int
    store: Callable[[], None]
    look_again: Callable[[], None]

    def fill(self, block: Columns) -> FillResult:
        """Return when all samples of a block are stored.

        Raises:
            AmbiguousBatch: the module was called, and its outputs could not be stored; a warning said why.
            KeyError: the block lacks the column with the ids.
            Errors of the module and of the cache: the block is not done, and may be filled again by any process.
        """
        keys = as_keys(block[self.ids])
        computed, wait = 0, _WAIT
        which = self._missing(block, keys, np.sort(keys.distinct()[0]))
        while len(which):
            hashes = _hashes(keys, which)
            claim = self.leases.claim(self.owner, hashes)
            if claim.granted.any():
                computed += self._compute(block, keys, which[claim.granted])
            if claim.stored.any():
                self.look_again()
            left = self._missing(block, keys, which[~claim.granted])
            lost = np.isin(left, which[claim.stored])  # stored by a process whose part is gone
            if lost.any():
                self.leases.lost(_hashes(keys, left[lost]))
            elif len(left):
                time.sleep(wait)
                wait = min(2 * wait, _LONGEST_WAIT)
            which = left
        return FillResult(1, computed, len(keys) - computed)

    def _compute(self, block: Columns, keys: Keys, which: Int64) -> int:
        """Compute samples that are leased, and store them. Returns their number: some may be stored by now."""
        stored = False
        try:
            missing = self._missing(block, keys, which)
            for first in range(0, len(missing), self.batch_size):
                args, kwargs = self._arguments(block, missing[first : first + self.batch_size])
                self.cached(*args, **kwargs)
            if len(missing):
                self.cached._settle(*args, **kwargs)
                self.store()
            if len(self._missing(block, keys, which)):
                raise AmbiguousBatch(
                    f"{len(missing)} samples were computed, and are not in {self.cached.cache.path}: their outputs "
                    "could not be stored. A warning in the log says why"
                )
            stored = True
        finally:
            self.leases.finish(self.owner, _hashes(keys, which), stored=stored)
        return len(missing)

    def _missing(self, block: Columns, keys: Keys, which: Int64) -> Int64:
        """Those of some samples that are not in the cache."""
        if not len(which):
            return which
        args, kwargs = self._arguments(block, which[: self.batch_size])
        session = self.cached._session_of(*args, **kwargs)
        return which if session is None else which[session.missing(keys.take(which))]

    def _arguments(self, block: Columns, which: Int64) -> tuple[tuple[Any, ...], dict[str, Any]]:
        batch = take(block, which)
        args, kwargs = self.call(batch)
        return args, {**kwargs, "cache_ids": batch[self.ids]}


def take(block: Columns, which: Int64) -> Columns:
    """Some samples of a batch."""
    return {
        name: [values[at] for at in which.tolist()] if isinstance(values, list) else values[which]
        for name, values in block.items()
    }


def _hashes(keys: Keys, which: Int64) -> UInt64:
    """One 64-bit hash for each of some keys, uint64 [n]. The low half of a key of an int is the int itself."""
    halves = keys.halves[which]
    return halves[:, 0] * np.uint64(0x9E3779B97F4A7C15) ^ halves[:, 1]
