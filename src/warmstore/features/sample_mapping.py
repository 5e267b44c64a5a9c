"""The samples of a feature cache as a mapping from ids to outputs, one sample at a time."""

from __future__ import annotations

from abc import ABC
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from typing import TYPE_CHECKING, Any, NoReturn

from warmstore.records.index.sample_keys import HashedId, as_keys
from warmstore.storage.array_types import Int64

if TYPE_CHECKING:
    import torch

    from warmstore.features.keyed.cache_session import CacheSession
    from warmstore.features.keyed.cached_ids import CachedIds


class SampleMapping(ABC):
    """What a dict has, over the samples of the open version of a cache."""

    closed: bool
    _session: CacheSession
    _ids: CachedIds

    def __len__(self) -> int:
        """The number of cached samples, pending ones too. It reads the keys of all rows after a change; of a closed
        cache it is the number of rows."""
        return self._session.version.entries if self.closed else len(self._ids)

    def __contains__(self, id: object) -> bool:
        """Whether the output of a sample is cached, pending or on the disk.

        Raises:
            BadIds, BadIdType: it is no id.
        """
        return not len(self._session.missing(as_keys([id])))

    def __iter__(self) -> Iterator[int | HashedId]:
        """The ids of the cached samples, in no particular order. Of an id that is not an int its hash is stored."""
        return iter(self._ids)

    def __getitem__(self, id: object) -> Any:
        """The output of one sample, without the dimension of samples, on the CPU.

        Raises:
            KeyError: it is not cached.
            BadIds, BadIdType: it is no id.
        """
        value, is_cached = self._session.sample(as_keys([id]))
        if not is_cached:
            raise KeyError(id)
        return value

    def _samples(self, ids: Any, device: torch.device | None) -> tuple[list[Any], Int64]:
        """The outputs of the samples that are cached, in order, each as `cache[id]`, and the positions of the others.

        Args:
            ids, device: see `FeatureCache.get_batch`.
        """
        return self._session.samples(as_keys(ids), device)

    def __setitem__(self, id: object, output: Any) -> NoReturn:
        raise TypeError(f"a sample is put with its batch: cache.put_batch([{id!r:.80}], outputs), outputs [1, ...]")

    def __delitem__(self, id: object) -> None:
        """Delete one sample, for all processes. The next `rebalance` frees its space. Commits what is pending.

        Raises:
            KeyError: it is not cached.
            BadIds, BadIdType: it is no id.
            ReadOnly: this process does not write to the cache.
            NotSupportedError: the cache was opened at a URL.
        """
        keys = as_keys([id])
        if len(self._session.missing(keys)):
            raise KeyError(id)
        self._session.version.delete(keys)

    def get(self, id: object, default: Any = None) -> Any:
        """`cache[id]`, or `default` if the sample is not cached."""
        value, is_cached = self._session.sample(as_keys([id]))
        return value if is_cached else default

    def keys(self) -> KeysView[Any]:
        """The ids of the cached samples: ints, and a `HashedId` for any other id, which stands for the id."""
        return KeysView(self)

    def values(self) -> ValuesView[Any]:
        """The outputs of the cached samples, one by one. `get_batch` is faster."""
        return ValuesView(self)

    def items(self) -> ItemsView[Any, Any]:
        """The ids and outputs of the cached samples, one by one. `get_batch` is faster."""
        return ItemsView(self)

    def clear(self) -> None:
        """Delete all samples of this version, for all processes, and free their space.

        Raises:
            ReadOnly: this process does not write to the cache.
            NotSupportedError: the cache was opened at a URL.
        """
        self._session.version.clear()
