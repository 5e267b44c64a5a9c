"""FillJob: which samples of which cache are computed, for the processes of a cluster that share the work."""

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from warmstore.errors import WriteFailed
from warmstore.features.block_filling import BlockFiller, Call, Columns, LeaseTable
from warmstore.features.cache import FeatureCache
from warmstore.features.leases import Leases
from warmstore.features.module import CachedModule
from warmstore.loading.fill_result import FillResult
from warmstore.loading.loader import Loader
from warmstore.loading.samplers.sequential import Sequential
from warmstore.records.format.array_interop import on_device
from warmstore.remote.location import is_remote as is_remote_url
from warmstore.storage.progress import new_bar
from warmstore.storage.temporary_folder import TemporaryFolder


@dataclass(frozen=True)
class FillJob:
    """The computation of a cache by many processes, of which each takes one shard: the tasks of a Slurm array.

    `warmstore features fill MODULE:NAME --shard I/N` runs a shard of the job that a function returns.

    Args:
        cache: the folder of caches; or a URL, to which each process pushes a part of its own.
        id: the id of the cache, see `FeatureCache`.
        module: a frozen module.
        samples: a source of `Loader` whose batches are dicts: a record store or its path, or a data set of dicts.
        ids: the field with the ids.
        call: turns a batch, a dict of arrays [n, ...] or lists, into the (args, kwargs) of a call of the module. By
            default all fields but the ids are the arguments: one is passed by position, several by name. Numbers become
            tensors.
        batch_size: the most samples that the module computes at once.
        block_size: samples that are stored together. At a URL each block is one push.
        device: of the module and of the tensors that are passed to it.
        cache_options: further options of `FeatureCache`.
        module_options: further options of `CachedModule`.
    """

    cache: str | os.PathLike[str]
    id: str
    module: nn.Module = field(repr=False)
    samples: Any = field(repr=False)
    ids: str = "id"
    call: Call | None = field(default=None, repr=False)
    batch_size: int = 64
    block_size: int = 2048
    device: str | torch.device | None = None
    cache_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    module_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def run(self, shard: int = 0, shards: int = 1, *, progress: bool | None = None) -> FillResult:
        """Compute the samples of one shard that the cache lacks. A run that was killed resumes when it is called again.

        Args:
            shard: from 0 to `shards` - 1. Shards have no samples in common, unless ids are repeated.
            progress: show a bar; None shows one on a terminal or in a notebook.

        Raises:
            ValueError: no such shard, or batches without the field `ids`.
        """
        if not 0 <= shard < shards:
            raise ValueError(f"shard {shard} of {shards} does not exist; shards are 0 to {shards - 1}")
        loader = Loader(
            self.samples,
            batch_size=self.block_size,
            sampler=Sequential(),
            rank=shard,
            world_size=shards,
            uneven="allow",
        )
        batches = computed = found = 0
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(TemporaryFolder("fill"))
            filler, cache = open_filler(self, Leases(), f"shard {shard}", folder)
            stack.enter_context(cache)
            stack.enter_context(loader)
            for block in new_bar(loader, shown=progress, desc=f"{self.id} {shard}/{shards}", unit=" blocks"):
                if self.ids not in block:
                    raise ValueError(f"the samples have no field {self.ids!r}; they have {list(block)}")
                result = filler.fill(block)
                batches, computed, found = batches + 1, computed + result.computed, found + result.found
        return FillResult(batches, computed, found)


def open_filler(job: FillJob, leases: LeaseTable, owner: str, folder: Path) -> tuple[BlockFiller, FeatureCache]:
    """The BlockFiller of one process, and its cache, which the caller closes.

    Args:
        owner: the name of this process among those that share the leases.
        folder: an empty local folder for the part of a cache at a URL. Parts of two processes in one folder could not
            be pushed while both write.
    """
    is_remote = is_remote_url(job.cache)
    options = {**job.cache_options, **({"cache_dir": folder} if is_remote else {})}
    cache = FeatureCache(job.cache, job.id, **options)
    module = job.module if job.device is None else job.module.to(job.device)
    cached = CachedModule(module, cache, **job.module_options)
    store, look_again = (partial(_push, cache), partial(_pull, cache)) if is_remote else (cache.flush, _nothing)
    call = job.call or partial(_columns, job.ids, job.device)
    return BlockFiller(cached, leases, owner, job.ids, call, job.batch_size, store, look_again), cache


def _push(cache: FeatureCache) -> None:
    pushed = cache.push(progress=False)
    if pushed.waiting:
        raise WriteFailed(f"{cache!r}: chunks of other writers in {cache.path} hold back what this process computed")


def _pull(cache: FeatureCache) -> None:
    cache.pull(progress=False)


def _nothing() -> None:
    """A cache in a folder looks for rows of other processes at every miss."""


def _columns(ids: str, device: Any, batch: Columns) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A call of the module with all columns but the ids."""
    values = {name: _as_argument(column, device) for name, column in batch.items() if name != ids}
    return (tuple(values.values()), {}) if len(values) == 1 else ((), values)


def _as_argument(column: Any, device: Any) -> Any:
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "biufc":
        return list(column)
    tensor = torch.from_numpy(np.array(column))  # arrays of Ray are read-only
    return tensor if device is None else on_device(tensor, torch.device(device))
