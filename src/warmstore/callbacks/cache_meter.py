"""CacheMeter: what caches did since the last reading, as figures with names for a logger."""

import itertools
import os
from collections.abc import Iterable
from dataclasses import astuple, dataclass, fields, replace
from typing import Any
from weakref import WeakKeyDictionary

from warmstore.features.cache import FeatureCache
from warmstore.functions.function_cache import FunctionCache
from warmstore.loading.loader import Loader
from warmstore.pipeline.metering.epoch_observer import EpochObserver
from warmstore.pipeline.plan.plan import Plan
from warmstore.pipeline.plan.plan_recorder import PlanRecorder
from warmstore.storage.lifecycle import Closeable, open_objects

PREFIX = "warmstore/"
"""The names of all figures begin with it."""

_Cache = FeatureCache | FunctionCache | PlanRecorder


@dataclass(frozen=True)
class _Reading:
    """hits, misses: samples or calls. computed_seconds, seconds_saved: of computing. bytes_read: of values found."""

    hits: float = 0
    misses: float = 0
    computed_seconds: float = 0.0
    seconds_saved: float = 0.0
    bytes_read: float = 0

    @classmethod
    def of(cls, cache: _Cache) -> "_Reading":
        if isinstance(cache, PlanRecorder):
            return cls(*astuple(cache.usage))
        use, seconds_saved, bytes_read = cache._usage_now()
        return cls(use.hits, use.misses, use.seconds, seconds_saved, bytes_read)

    def since(self, before: "_Reading", cache: _Cache) -> "_Reading":
        part = _Reading(*(getattr(self, each.name) - getattr(before, each.name) for each in fields(self)))
        if isinstance(cache, PlanRecorder):
            return part
        # By the mean as it is now: it moves, and all hits before with it.
        return replace(part, seconds_saved=self.seconds_saved * part.hits / max(self.hits, 1))

    def __add__(self, other: "_Reading") -> "_Reading":
        return _Reading(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


class CacheMeter:
    """Reads what feature caches, cached functions and plans of pipelines did for this process.

    What the loaders of a plan read counts from the end of each epoch on, with that of their worker processes.

    Args:
        caches: `FeatureCache` objects, functions of `ws.cached`, plans of pipelines or their loaders, or one of these.
            None reads all that are open at each reading; a plan while a loader of it is open.

    Raises:
        TypeError: something else.
    """

    def __init__(self, caches: Any = None) -> None:
        self._given = None if caches is None else [_cache(one) for one in _listed(caches)]
        self._names: WeakKeyDictionary[_Cache, str] = WeakKeyDictionary()
        self._begin({cache: _Reading.of(cache) for cache in self._caches()})

    def _begin(self, before: dict[_Cache, _Reading]) -> None:
        self._process = os.getpid()
        self._before = WeakKeyDictionary(before)
        self._saved = 0.0

    def figures(self) -> dict[str, float]:
        """What happened since the last call, by name. Empty if nothing was looked up.

        warmstore/hit_rate: 0 to 1. warmstore/hits, warmstore/misses: samples and calls. warmstore/seconds_saved: that
        hits would have taken to compute; for a plan, that the program waited less than without, so fewer than none
        while an epoch fills the tiers. warmstore/computed_seconds: that misses took. warmstore/bytes_read: of values
        that were found, but for plans. warmstore/total_seconds_saved: since the meter was made. With several caches
        also the hit_rate and seconds_saved of each, as warmstore/NAME/hit_rate; a second one of a name is NAME-2.
        """
        if self._process != os.getpid():
            self._begin({})  # in a forked child all caches count anew
        parts: list[tuple[str, _Reading]] = []
        for cache in self._caches():
            now = _Reading.of(cache)
            part = now.since(self._before.get(cache, _Reading()), cache)
            name = self._name(cache)  # in the order of the caches, also of those that were not used since
            if part.hits or part.misses:
                parts.append((name, part))
            self._before[cache] = now  # it may be closed at some reading, and opened again
        if not parts:
            return {}
        whole = sum((part for _, part in parts), _Reading())
        self._saved += whole.seconds_saved
        found = {f"{PREFIX}hit_rate": _hit_rate(whole)}
        found |= {f"{PREFIX}{each.name}": float(getattr(whole, each.name)) for each in fields(whole)}
        found[f"{PREFIX}total_seconds_saved"] = self._saved
        for name, part in parts if len(parts) > 1 else ():
            found[f"{PREFIX}{name}/hit_rate"] = _hit_rate(part)
            found[f"{PREFIX}{name}/seconds_saved"] = part.seconds_saved
        return found

    def _name(self, cache: _Cache) -> str:
        """The name of a cache, which it keeps."""
        if cache not in self._names:
            name = cache.id if isinstance(cache, FeatureCache) else cache.name
            taken = {name for each, name in self._names.items() if not getattr(each, "closed", False)}
            names = (f"{name}-{number}" if number > 1 else name for number in itertools.count(1))
            self._names[cache] = next(each for each in names if each not in taken)
        return self._names[cache]

    def _caches(self) -> list[_Cache]:
        if self._given is not None:
            return self._given
        # A plan may have several loaders.
        found = dict.fromkeys(cache for each in open_objects() if (cache := _read_of(each)) is not None)
        inner = {version for each in found if isinstance(each, FeatureCache) for version in each._others.values()}
        return [each for each in found if each not in inner]


def _listed(caches: Any) -> Iterable[Any]:
    is_one = isinstance(caches, Closeable) or _read_of(caches) is not None
    return [caches] if is_one or not isinstance(caches, Iterable) else caches


def _cache(given: Any) -> _Cache:
    found = _read_of(given)
    if found is None:
        raise TypeError(
            "caches are FeatureCache objects, modules with one, functions of ws.cached, plans of pipelines or loaders "
            f"of a plan; got {given!r:.80}"
        )
    return found


def _read_of(given: Any) -> _Cache | None:
    """What has the figures of an object; None for an object without."""
    if isinstance(given, Plan):
        return given._recorder
    if isinstance(given, Loader):
        recorder = given._observer.recorder if isinstance(given._observer, EpochObserver) else None
        return recorder if isinstance(recorder, PlanRecorder) else None
    found = given if isinstance(given, FeatureCache | FunctionCache) else getattr(given, "cache", None)
    return found if isinstance(found, FeatureCache | FunctionCache) else None


def _hit_rate(reading: _Reading) -> float:
    return reading.hits / max(reading.hits + reading.misses, 1)
