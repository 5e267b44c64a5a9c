"""CacheOptions: the arguments of a cache, checked once and passed to other versions and processes."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from warmstore.features.keyed.cache_quota import check_bound
from warmstore.features.keyed.cache_versions import POLICIES, SUFFIX
from warmstore.features.outputs.output_structure import LISTS
from warmstore.records.format.codecs import parse_codec
from warmstore.records.write.write_options import WriteOptions
from warmstore.storage.humanize import parse_size

if TYPE_CHECKING:
    import torch

    from warmstore.features.keyed.hot_tier import HotTier

_LONGEST = 200  # characters of a folder's name. Most file systems allow 255; drafts have longer names


@dataclass(frozen=True)
class CacheOptions:
    """The keyword arguments of `FeatureCache`, which documents them."""

    flush_every: int = 2048
    async_write: bool = True
    max_pending: int | str = "256MB"
    read_only: bool = False
    variable: bool = False
    pad_value: float | None = None
    lists: str = "auto"
    versions: str = "raise"
    writer_ranks: Collection[int] | None = None
    hot_size: int | str | None = None
    hot_device: str | torch.device = "cpu"
    max_size: int | str | None = None
    allow_pickle: bool = False
    codec: str = "raw"
    threads: int | None = None
    cache_dir: str | os.PathLike[str] | None = None
    cache_size: int | str | None = "20GB"
    remote_options: Mapping[str, Any] | None = field(default=None, repr=False)
    anonymous: bool = False
    sign: bool = False

    def __post_init__(self) -> None:
        if self.flush_every < 1:
            raise ValueError(f"flush_every is {self.flush_every}; it must be at least 1")
        if self.lists not in LISTS:
            raise ValueError(f"lists is {self.lists!r}; it must be one of {LISTS}")
        if self.versions not in POLICIES:
            raise ValueError(f"versions is {self.versions!r}; it must be one of {POLICIES}")
        parse_size(self.max_pending)
        if self.hot_size not in (None, "all"):
            parse_size(self.hot_size)
        parse_codec(self.codec)
        WriteOptions.of(1, self.threads)
        if self.max_size is not None:
            check_bound(self.max_size)
        if self.cache_size is not None:
            parse_size(self.cache_size)
        ranks: Any = self.writer_ranks
        if ranks is None:
            return
        is_collection = isinstance(ranks, Collection) and not isinstance(ranks, str | bytes)
        if not is_collection or not len(ranks) or any(type(rank) is not int or rank < 0 for rank in ranks):
            raise ValueError(
                f"writer_ranks is {ranks!r}; it must be a collection of the ranks that write, such as [0], or None for "
                "all ranks. If no process should write, pass read_only=True"
            )

    @property
    def is_signed(self) -> bool:
        """Whether only signed parts of a remote are used: what others write must not be unpickled."""
        return self.sign or self.allow_pickle

    def hot_tier(self) -> HotTier | None:
        """A new hot tier, or None without `hot_size`.

        Raises:
            ValueError: `hot_device` cannot be used.
        """
        if self.hot_size is None:
            return None
        from warmstore.features.keyed.hot_tier import HotTier  # needs torch

        return HotTier(self.hot_size, self.hot_device)


def folder_name(id: str, versions: str) -> str:
    """The name of a cache's folder: its id, with reserved characters escaped.

    Raises:
        ValueError: an id that cannot name a folder. With versions="new" the suffix of a version must fit, too.
    """
    if not isinstance(id, str) or not id:
        raise ValueError(f"the cache's id is {id!r}; it must be a non-empty str such as 'resnet50_v1'")
    name = quote(id, safe="")
    longest = _LONGEST - (len(SUFFIX) if versions == "new" else 0)
    if id in (".", "..") or len(name) > longest:
        raise ValueError(
            f"the cache's id {id!r:.80} cannot name a folder; use one of at most {longest} letters and digits"
        )
    return name
