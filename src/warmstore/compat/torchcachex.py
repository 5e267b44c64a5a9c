"""torchcachex's two classes over feature caches. A program imports them from here, and nothing else changes.

Names, arguments and defaults are torchcachex's. Caches lie in warmstore's files, and `ws.convert(folder, target)` reads
the files of before. What has no use here is accepted and does nothing: an LRU counted in entries, and a number of
writer threads. What torchcachex leaves to its user is checked: other weights or code under one `module_id` raise
`StaleCache`, and fewer ids than samples raise `BadIds`.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from warmstore.extras import not_installed

try:
    import torch
    from torch import nn
    from torch.utils._pytree import tree_map
except ModuleNotFoundError as error:
    raise not_installed("warmstore.compat.torchcachex", error) from error

from warmstore.errors import SchemaMismatch
from warmstore.features.cache import FeatureCache
from warmstore.features.module import CachedModule

__all__ = ["ArrowIPCCacheBackend", "CacheModuleDecorator"]


class ArrowIPCCacheBackend:
    """A feature cache whose keys are `MODULE_ID:SAMPLE`, with one output for each sample.

    Args:
        cache_dir: the folder of caches.
        module_id: the name of what is cached.
        lru_size: no effect: the page cache of the system holds what is read often.
        async_write: write in the background.
        max_workers: no effect: one thread writes.
        flush_every: samples that start a flush.
        writer_rank: the one rank that writes.
        current_rank: the rank of this process; None for the variable `RANK`, and 0 without it.
    """

    def __init__(
        self,
        cache_dir: str | os.PathLike[str],
        module_id: str,
        lru_size: int = 4096,
        async_write: bool = True,
        max_workers: int = 2,
        flush_every: int = 2048,
        writer_rank: int = 0,
        current_rank: int | None = None,
    ) -> None:
        self.module_id = module_id
        self.writer_rank = int(writer_rank)
        self.current_rank = int(os.environ.get("RANK", 0) if current_rank is None else current_rank)
        self.cache = FeatureCache(
            cache_dir, module_id, flush_every=flush_every, async_write=async_write, read_only=not self._writes
        )

    @property
    def _writes(self) -> bool:
        return self.current_rank == self.writer_rank

    def get_batch(self, keys: Sequence[str], map_location: torch.device | str = "cpu") -> tuple[list[Any], list[int]]:
        """One output for each key, None where it is missing, and the missing positions."""
        found, missing = self.cache._samples(list(keys), torch.device(map_location))
        outputs, lost = iter(found), set(missing.tolist())
        return [None if place in lost else next(outputs) for place in range(len(keys))], sorted(lost)

    def put_batch(self, items: Mapping[str, Any]) -> None:
        """Keep one output for each key, all of one structure, shape and dtype. Ranks that do not write keep nothing.

        Raises:
            SchemaMismatch: dtypes or shapes differ.
        """
        if self._writes and items:
            self.cache.put_batch(list(items), tree_map(_stacked, *items.values()))

    def flush(self) -> None:
        """Write what is pending. It is on the disk when this returns."""
        self.cache.flush()


def _stacked(*leaves: torch.Tensor) -> torch.Tensor:
    dtypes = {leaf.dtype: None for leaf in leaves}
    if len(dtypes) > 1:  # torch.stack promotes them, and large integers change
        names = ", ".join(map(str, dtypes))
        raise SchemaMismatch(
            f"outputs of one batch are of several dtypes: {names}; convert them to one, with tensor.to()"
        )
    shapes = {tuple(leaf.shape): None for leaf in leaves}
    if len(shapes) > 1:
        raise SchemaMismatch(
            f"outputs of one batch are of several shapes: {', '.join(map(str, shapes))}; for those use "
            "FeatureCache(variable=True)"
        )
    return torch.stack(leaves)


class CacheModuleDecorator(CachedModule):
    """A cached module whose ids carry the module's, so that the backend finds what it computed.

    Args:
        module: a frozen module.
        cache_backend: where its outputs are kept.
        enabled: False calls the module and nothing else.
        key_from_batch_fn: called with the arguments of `forward`; returns the ids.
        enforce_stateless: refuse a module with trainable parameters.
        map_location_on_read: the device of the outputs; None for the device of the input.
    """

    def __init__(
        self,
        module: nn.Module,
        cache_backend: ArrowIPCCacheBackend,
        enabled: bool = True,
        key_from_batch_fn: Callable[..., Any] | None = None,
        enforce_stateless: bool = True,
        map_location_on_read: torch.device | str | None = None,
    ) -> None:
        super().__init__(
            module,
            cache_backend.cache,
            enabled=enabled,
            key_from_batch=key_from_batch_fn,
            enforce_stateless=enforce_stateless,
            map_location=map_location_on_read,
        )
        self.cache_backend = cache_backend

    def _ids(self, cache_ids: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[str]:
        ids = super()._ids(cache_ids, args, kwargs)
        ids = ids.tolist() if isinstance(ids, torch.Tensor) else ids  # str() of its items names their type
        return [f"{self.cache_backend.module_id}:{one}" for one in ids]
