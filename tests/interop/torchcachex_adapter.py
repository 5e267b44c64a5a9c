"""torchcachex's two classes over warmstore, as a program that uses them would replace them.

Names, arguments and defaults are those of its README. What we have no use for is accepted and does nothing: an LRU
counted in entries, and a number of writer threads.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

import warmstore as ws


class ArrowIPCCacheBackend:
    """Keys are `MODULE_ID:SAMPLE`; values are one output per sample."""

    def __init__(
        self,
        cache_dir: str,
        module_id: str,
        lru_size: int = 4096,
        async_write: bool = True,
        max_workers: int = 2,
        flush_every: int = 2048,
        writer_rank: int = 0,
        current_rank: int | None = None,
    ) -> None:
        self.module_id = module_id
        self.writes = current_rank is None or current_rank == writer_rank
        self.cache = ws.FeatureCache(
            cache_dir, module_id, flush_every=flush_every, async_write=async_write, read_only=not self.writes
        )

    def get_batch(self, keys: Sequence[str], map_location: str = "cpu") -> tuple[list[Any], list[int]]:
        """One output per key, None where it is missing, and the missing positions."""
        values, missing = self.cache.get_batch(list(keys))
        results: list[Any] = [None] * len(keys)
        for row, place in enumerate(sorted(set(range(len(keys))) - set(missing.tolist()))):
            results[place] = tree_map(lambda leaf, row=row: leaf[row].to(map_location), values)
        return results, missing.tolist()

    def put_batch(self, items: dict[str, Any]) -> None:
        """Keep one output per key."""
        if self.writes and items:
            self.cache.put_batch(list(items), tree_map(lambda *leaves: torch.stack(leaves), *items.values()))

    def flush(self) -> None:
        self.cache.flush()


class CacheModuleDecorator(ws.CachedModule):
    """A cached module whose ids carry the module's, so that the backend finds what it computed."""

    def __init__(
        self,
        module: nn.Module,
        cache_backend: ArrowIPCCacheBackend,
        enabled: bool = True,
        key_from_batch_fn: Callable[..., Any] | None = None,
        enforce_stateless: bool = True,
        map_location_on_read: str | None = None,
    ) -> None:
        options: dict[str, Any] = {"enabled": enabled, "enforce_stateless": enforce_stateless}
        super().__init__(module, cache_backend.cache, map_location=map_location_on_read, **options)
        self._prefix, self._key_from_batch = cache_backend.module_id, key_from_batch_fn

    def _ids(self, cache_ids: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        return [f"{self._prefix}:{one}" for one in super()._ids(cache_ids, args, kwargs)]
