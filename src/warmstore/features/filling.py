"""Filling a cache before training: the module computes every batch of a loader that is not cached completely."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from warmstore.errors import BadIds, ReadOnly
from warmstore.features.module import CachedModule
from warmstore.features.open_cache import OpenCache
from warmstore.loading.fill_result import FillResult
from warmstore.storage.progress import new_bar

Call = Callable[[Any], tuple[tuple[Any, ...], dict[str, Any]]]


def fill(
    cache: OpenCache, module: nn.Module, loader: Iterable[Any], call: Call | None, progress: bool | None
) -> FillResult:
    """See `FeatureCache.fill`."""
    if cache.read_only:
        raise ReadOnly(f"the cache {cache.path} was opened with read_only=True; open it without to fill it")
    cached = _cached(cache, module)
    batches = computed = found = 0
    if not cache.writes:
        return FillResult(batches, computed, found)
    with new_bar(loader, shown=progress, desc=cache.id, unit=" batches") as bar:
        for batch in bar:
            args, kwargs = _arguments(batch) if call is None else call(batch)
            samples, missing = cached._count_missing(*args, **kwargs)
            if missing:
                cached(*args, **kwargs)
            batches += 1
            computed += missing
            found += samples - missing
            bar.set_postfix(computed=computed, found=found, refresh=False)
    if batches:
        cached._settle(*args, **kwargs)
    cache.flush()
    return FillResult(batches, computed, found)


def _cached(cache: OpenCache, module: nn.Module) -> CachedModule:
    if not isinstance(module, CachedModule):
        return CachedModule(module, cache)
    if module.cache is not cache:
        raise ValueError(f"the module stores its outputs in {module.cache.path}, not in {cache.path}; fill that cache")
    if not module.enabled:
        raise ValueError("the module has enabled=False, so its outputs are not stored; set module.enabled = True")
    return module


def _arguments(batch: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(batch, dict):
        return (batch,), {}
    if isinstance(batch, list | tuple) and len(batch) > 1:
        return tuple(batch[:-1]), {"cache_ids": batch[-1]}
    raise BadIds(
        f"the loader gave a {type(batch).__name__}, which has no ids: give dicts with 'cache_ids', or tuples of the "
        "module's arguments and the ids, in this order; or pass call=, a function from a batch to (args, kwargs)"
    )
