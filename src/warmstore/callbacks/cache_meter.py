"""CacheMeter: what caches did since the last reading, as figures with names for a logger."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from warmstore.features.cache import FeatureCache
from warmstore.functions.function_cache import FunctionCache
from warmstore.storage.lifecycle import open_objects

_PREFIX = "warmstore/"


@dataclass(frozen=True)
class _Reading:
    """hits, misses: samples or calls. computed_seconds, seconds_saved: of computing. bytes_read: of values found."""

    hits: float = 0
    misses: float = 0
    computed_seconds: float = 0.0
    seconds_saved: float = 0.0
    bytes_read: float = 0

    @classmethod
    def of(cls, cache: FeatureCache | FunctionCache) -> "_Reading":
        use, seconds_saved, bytes_read = cache._usage_now()
        return cls(use.hits, use.misses, use.seconds, seconds_saved, bytes_read)

    def since(self, before: "_Reading") -> "_Reading":
        return _Reading(*(getattr(self, each.name) - getattr(before, each.name) for each in fields(self)))

    def __add__(self, other: "_Reading") -> "_Reading":
        return _Reading(*(getattr(self, each.name) + getattr(other, each.name) for each in fields(self)))


class CacheMeter:
    """Reads what feature caches and cached functions did in this process.

    Args:
        caches: `FeatureCache` objects, functions of `ws.cached`, or one of either. None reads all that are open at each
            reading.

    Raises:
        TypeError: something else.
    """

    def __init__(self, caches: Any = None) -> None:
        self._given = None if caches is None else [_cache(one) for one in _listed(caches)]
        self._before = {id(cache): (cache, _Reading.of(cache)) for cache in self._caches()}
        self._saved = 0.0

    def figures(self) -> dict[str, float]:
        """What happened since the last call, by name. Empty if nothing was looked up.

        warmstore/hit_rate: 0 to 1. warmstore/hits, warmstore/misses: samples and calls. warmstore/seconds_saved: that
        hits would have taken to compute. warmstore/computed_seconds: that misses took. warmstore/bytes_read: of values
        that were found. warmstore/total_seconds_saved: since the meter was made. With several caches also the
        hit_rate and seconds_saved of each, as warmstore/NAME/hit_rate.
        """
        now = {id(cache): (cache, _Reading.of(cache)) for cache in self._caches()}
        parts: list[tuple[str, _Reading]] = []
        for number, (cache, reading) in now.items():
            known = self._before.get(number)
            part = reading.since(known[1] if known is not None and known[0] is cache else _Reading())
            if part.hits or part.misses:
                parts.append((_name(cache), part))
        self._before = now
        if not parts:
            return {}
        whole = sum((part for _, part in parts), _Reading())
        self._saved += whole.seconds_saved
        found = {f"{_PREFIX}hit_rate": _hit_rate(whole)}
        found |= {f"{_PREFIX}{each.name}": float(getattr(whole, each.name)) for each in fields(whole)}
        found[f"{_PREFIX}total_seconds_saved"] = self._saved
        if len(parts) > 1:
            seen: Counter[str] = Counter()
            for name, part in parts:
                seen[name] += 1
                unique = name if seen[name] == 1 else f"{name}-{seen[name]}"
                found[f"{_PREFIX}{unique}/hit_rate"] = _hit_rate(part)
                found[f"{_PREFIX}{unique}/seconds_saved"] = part.seconds_saved
        return found

    def _caches(self) -> list[FeatureCache | FunctionCache]:
        if self._given is not None:
            return self._given
        found = [each for each in open_objects() if isinstance(each, FeatureCache | FunctionCache)]
        inner = {id(version) for each in found if isinstance(each, FeatureCache) for version in each._others.values()}
        return [each for each in found if id(each) not in inner]


def _listed(caches: Any) -> Iterable[Any]:
    is_one = isinstance(caches, FeatureCache | FunctionCache) or hasattr(caches, "cache")
    return [caches] if is_one else caches


def _cache(given: Any) -> FeatureCache | FunctionCache:
    found = given if isinstance(given, FeatureCache | FunctionCache) else getattr(given, "cache", None)
    if not isinstance(found, FeatureCache | FunctionCache):
        raise TypeError(
            f"caches are FeatureCache objects, modules with one, or functions of ws.cached; got {given!r:.80}"
        )
    return found


def _name(cache: FeatureCache | FunctionCache) -> str:
    return cache.id if isinstance(cache, FeatureCache) else cache.name


def _hit_rate(reading: _Reading) -> float:
    return reading.hits / max(reading.hits + reading.misses, 1)
