"""State hashes of each sample's inputs: at first, after our own calls, and now.

A sample may cache something in itself, such as its decoded file, and stays the same sample. A change while we make
samples is such a cache. A change at any other time comes from the program. Beside a thread that is not the program's
own, such as one of a loader, the program may change samples too: there a change is a cache only if other samples of the
source were seen to keep one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import replace
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from warmstore.identity.samples.sample_hashes import UInt64, mixed
from warmstore.identity.samples.sample_identities import (
    SampleIdentities,
    counts_as_a_whole,
    identify_samples,
    samples_at,
)
from warmstore.identity.samples.selected_samples import SelectedSamples
from warmstore.identity.watch import SHARE
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.storage.array_types import Bools
from warmstore.storage.locks import reentrant_lock, renewed_in_children
from warmstore.storage.threads import is_program_thread

if TYPE_CHECKING:
    from warmstore.identity.patches import Patches
    from warmstore.identity.recorded_identity import RecordedIdentity
    from warmstore.pipeline.steps import ChainSettings

_BRIEF = 0.25  # seconds: all samples are checked every epoch if the last check took no longer
_FIRST = 1.0  # seconds: the same limit for the first check, which also reads code


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _locked(method: _Method) -> _Method:
    """A method of `SampleStates` that no other thread runs meanwhile."""

    @wraps(method)
    def locked(self: SampleStates, *arguments: Any, **options: Any) -> Any:
        with self._lock:
            return method(self, *arguments, **options)

    return cast(_Method, locked)


class SampleStates:
    """The states of a source's samples. Each process has its own. Safe to use from several threads.

    Args:
        folders: where the relative file names of samples are looked up.
        patches: patches of installed modules, kept up to date by the caller.
    """

    _lock: threading.RLock

    def __init__(self, source: Any, settings: ChainSettings, folders: Sequence[str], patches: Patches) -> None:
        self._source = source
        self._settings = settings
        self._folders = folders
        self._patches = patches
        self._samples: SampleIdentities | None = None
        self._left = np.empty((0, 2), np.uint64)  # hashes of the samples after our own calls; `each` if they are equal
        self._making: dict[int, dict[int, bytes]] = {}  # by thread, the hashes of their files
        self._keep_caches = False  # whether making samples was seen to change them
        self._home = threading.get_ident()
        self._seen = 0.0
        self._seconds, self._brief = 0.0, _FIRST
        renewed_in_children(self, "_lock", reentrant_lock)

    @_locked
    def select(self, source: SelectedSamples) -> SampleStates:
        """The states of some of the samples."""
        samples, chosen = self.samples, copy(self)
        each = samples.each[source.indices]
        if self._left is samples.each:
            chosen._left = each
        elif len(self._left):
            chosen._left = self._left[source.indices]
        chosen._source, chosen._samples = source, samples.select(source.indices, each)
        chosen._making = {}
        return chosen

    @property
    def samples(self) -> SampleIdentities:
        """Identities at the last check."""
        return self.look() if self._samples is None else self._samples

    @property
    def recorded(self) -> RecordedIdentity | None:
        """The identity of the source as a whole, or of its samples' classes. Sources that change when read are
        identified before the first read."""
        if self._samples is None and counts_as_a_whole(self._source):
            self.look()
        return None if self._samples is None else self._samples.recorded

    @_locked
    def look(self) -> SampleIdentities:
        """Identify all samples."""
        began = time.monotonic()
        settings, known = self._settings, self._samples
        found = identify_samples(
            self._source, version=settings.version, ignore=settings.ignore, root=settings.root, files=settings.files,
            folders=self._folders, patches=self._patches, known=known,
        )  # fmt: skip
        now = found.each
        if known is not None and len(known.each) == len(now):
            if len(self._left) == len(now):
                found = replace(found, each=np.where(_equal(now, self._left)[:, None], known.each, now))
            if np.array_equal(found.each, known.each):
                found = replace(found, name=known.name)
        self._samples = found
        if not found.may_be_written:
            now = np.empty((0, 2), np.uint64)
        self._left = found.each if np.array_equal(now, found.each) else now
        self._seen = time.monotonic()
        self._seconds, self._brief = self._seen - began, _FIRST
        return found

    @_locked
    def look_again(self) -> None:
        """Check all samples for changes, if that takes at most `SHARE` of the time since the last check."""
        samples, began = self.samples, time.monotonic()
        if SHARE * (began - self._seen) < self._seconds > self._brief:
            self.look_at_source(exactly=True)
            return
        if samples.recorded is not None:
            samples.recorded.refresh(again=True)
        self._take_all(samples)
        self._seen = time.monotonic()
        self._seconds, self._brief = self._seen - began, _BRIEF

    @_locked
    def look_at_source(self, *, exactly: bool = False) -> None:
        """Check the source, or its samples' classes, for changes that a quick check finds.

        Args:
            exactly: For those that an exact check finds, if it takes little time.
        """
        samples = self._samples
        if samples is None or samples.recorded is None:
            return
        recorded = samples.recorded
        if recorded.refresh(exactly=exactly and recorded.is_read_briefly).digest != samples.identity.digest:
            self._take_all(samples)

    def _take_all(self, samples: SampleIdentities) -> None:
        recorded = samples.recorded
        if samples.look is not None:
            self._take(np.arange(len(samples.each)))
            if recorded is not None:
                self._samples = replace(self.samples, identity=recorded.identity)
        elif recorded is not None and recorded.identity.digest != samples.identity.digest:
            self._samples = samples.as_now(self._settings.version)

    def _take(self, indices: Int64) -> UInt64:
        """Record some samples as they are now; return the hashes of their files."""
        samples, (now, stamps) = self.samples, self._hashes(indices)
        changed = ~_equal(now, samples.each[indices])
        if samples.may_be_written:
            changed &= ~_equal(now, self._left[indices])
        if changed.any():
            each, left = samples.each.copy(), self._left  # whoever has the old hashes keeps them
            each[indices[changed]] = now[changed]
            if samples.may_be_written:
                left = left.copy()
                left[indices[changed]] = now[changed]
            # No interrupt comes in between. With the second alone the change would count as one of our own calls.
            self._samples, self._left = replace(samples, each=each), left
        return stamps

    def _leave(self, indices: Int64, hashes: UInt64) -> None:
        if self._left is self.samples.each:
            self._left = self._left.copy()
        self._left[indices] = hashes

    def _hashes(self, indices: Int64) -> tuple[UInt64, UInt64]:
        """The hashes of some samples and of their files."""
        samples, source = self.samples, self._source
        assert samples.look is not None
        try:
            values, stamps = samples.look(samples_at(source, indices))
        except IndexError:
            values = stamps = np.zeros((len(indices), 2), np.uint64)  # the list is shorter than it was
        return mixed(values, stamps), stamps

    @contextmanager
    def making(self, indices: Sequence[int] | Int64) -> Iterator[None]:
        """Changes of these samples inside this context come from our own calls, unless they may be the program's."""
        samples, which, thread = self._samples, np.asarray(indices, np.int64), threading.get_ident()
        if samples is None or not samples.may_be_written or not len(which):
            yield
            return
        with self._lock:
            are_ours = is_program_thread(self._home) or self._keep_caches
            which = which[which < len(self._left)]  # the list may have grown
            stamps, before = self._take(which), self._making.get(thread, {})
            made = zip(which.tolist(), map(bytes, stamps), strict=True) if are_ours else ()
            self._making[thread] = {**before, **dict(made)}
        try:
            yield
        finally:
            with self._lock:
                self._making[thread] = before
                present = which < len(self._left)  # the list may have become shorter
                which, stamps = which[present], stamps[present]
                now, stamps_now = self._hashes(which)
                left = _equal(stamps, stamps_now)  # a file is written by the program
                left &= ~_equal(now, self._left[which])
                if left.any() and are_ours:
                    self._leave(which[left], now[left])
                    self._keep_caches = True
                elif left.any():
                    self._take(which[left])

    @_locked
    def are_unchanged(self, indices: Int64, identities: UInt64) -> Bools:
        """Which samples have unchanged inputs, as far as can be checked: bool [n].

        Args:
            identities: uint64 [samples, 2], their hashes before.
        """
        samples = self.samples
        if samples.identity.unknown or not len(indices):
            return np.zeros(len(indices), np.bool_)
        present = indices < len(samples.each)
        if not present.all():  # the list is shorter than it was
            present[present] = self.are_unchanged(indices[present], identities)
            return present
        same = _equal(samples.each[indices], identities[indices]) & identities[indices].any(axis=1)
        if samples.look is None:
            return same
        now, stamps = self._hashes(indices)
        known = _equal(now, samples.each[indices])
        if samples.may_be_written:
            known |= _equal(now, self._left[indices])
            making = self._making.get(threading.get_ident(), {})
            known |= [making.get(at) == bytes(stamp) for at, stamp in zip(indices.tolist(), stamps, strict=True)]
        same &= known
        return same

    def __getstate__(self) -> dict[str, Any]:
        state = {**vars(self), "_making": {}}
        del state["_lock"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._home = threading.get_ident()
        renewed_in_children(self, "_lock", reentrant_lock)


def _equal(these: UInt64, those: UInt64) -> Bools:
    """Which hashes of two sequences [n, 2] are equal: bool [n]."""
    equal: Bools = (these == those).all(axis=1)
    return equal
