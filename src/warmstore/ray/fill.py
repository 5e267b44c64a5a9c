"""Filling a feature cache with a pool of actors. A block is acknowledged once its samples are stored."""

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import ray
import ray.data
import torch
from torch import nn

from warmstore.errors import WriteFailed
from warmstore.features.block_filling import BlockFiller, Call, Columns
from warmstore.features.cache import FeatureCache
from warmstore.features.module import CachedModule
from warmstore.loading.fill_result import FillResult
from warmstore.ray.lease_server import LeaseServer


def fill(
    cache: str | os.PathLike[str],
    module: nn.Module,
    dataset: "ray.data.Dataset",
    *,
    id: str,
    num_actors: int,
    ids: str = "id",
    call: Call | None = None,
    batch_size: int = 64,
    block_size: int = 2048,
    num_cpus: float | None = None,
    num_gpus: float = 0,
    lease: float = 60.0,
    cache_options: Mapping[str, Any] | None = None,
    module_options: Mapping[str, Any] | None = None,
) -> FillResult:
    """Compute the samples of a dataset that a cache lacks, with a pool of actors.

    Each actor writes a part of its own. A block is acknowledged to Ray once its samples are on the disk, or at the
    remote where the cache has a URL. So an actor or a node may be killed at any time: Ray gives its blocks to another
    actor, which computes what is missing. No two actors compute the same sample, but for blocks that were lost.
    A fill that was killed as a whole resumes when it is called again.

    Args:
        cache: the folder of caches, on a local disk of a cluster of one node; or a URL.
        module: a frozen module. Its classes must be importable by the actors.
        dataset: its columns are the ids and the module's arguments.
        id: the id of the cache, see `FeatureCache`.
        num_actors: the size of the pool.
        ids: the column with the ids.
        call: turns a batch, a dict of arrays [n, ...] or lists, into the (args, kwargs) of a call of the module. By
            default all columns but the ids are the arguments: one is passed by position, several by name. Numbers
            become tensors, on the GPU if the actors have one.
        batch_size: the most samples that the module computes at once.
        block_size: samples that are stored and acknowledged together. At a URL each block is one push.
        num_cpus: CPUs of each actor. None for one, or less on a small cluster: half of the CPUs stay for reading.
        num_gpus: GPUs of each actor.
        lease: seconds after which samples of an actor that died are given to others. Longer than a block takes.
        cache_options, module_options: further options of `FeatureCache` and `CachedModule`.

    Returns:
        How many samples were computed and found. All are stored.

    Raises:
        Exception: what a module or a cache raised in an actor, as Ray raises it. Blocks that were acknowledged stay.
    """
    location = os.fspath(cache)
    if "://" not in location:
        location = os.path.abspath(os.path.expanduser(location))  # noqa: PTH100,PTH111 - workers start elsewhere
    if num_cpus is None:
        num_cpus = min(1.0, ray.cluster_resources().get("CPU", 1.0) / (2 * num_actors))
    leases = LeaseServer(f"{location} {id}", lease)
    job = _Job(
        location, id, ids, call, batch_size, num_gpus > 0, leases, dict(cache_options or {}), dict(module_options or {})
    )
    counts = dataset.map_batches(
        _Filler,
        fn_constructor_args=(job, ray.put(module)),
        batch_size=block_size,
        batch_format="numpy",
        compute=ray.data.ActorPoolStrategy(size=num_actors),
        num_cpus=num_cpus,
        num_gpus=num_gpus,
        max_restarts=-1,
        max_task_retries=-1,
    )
    batches = computed = found = 0
    for batch in counts.iter_batches(batch_size=None, batch_format="numpy"):
        batches += len(batch["computed"])
        computed += int(batch["computed"].sum())
        found += int(batch["found"].sum())
    return FillResult(batches, computed, found)


@dataclass(frozen=True)
class _Job:
    """What an actor needs to know; the module comes through Ray's object store."""

    location: str
    id: str
    ids: str
    call: Call | None = field(repr=False)
    batch_size: int
    on_gpu: bool
    leases: LeaseServer = field(repr=False)
    cache_options: dict[str, Any] = field(repr=False)
    module_options: dict[str, Any] = field(repr=False)

    @property
    def is_remote(self) -> bool:
        return "://" in self.location


class _Filler:
    """One actor. Ray creates it again after a kill, with the same id: the leases of its earlier life are ended."""

    def __init__(self, job: _Job, module: Any) -> None:
        module = ray.get(module) if isinstance(module, ray.ObjectRef) else module
        options = dict(job.cache_options)
        if job.is_remote:  # a part of its own: a chunk with a live writer cannot be pushed
            self._folder = tempfile.TemporaryDirectory(prefix="warmstore-fill-", dir=options.pop("cache_dir", None))
            options["cache_dir"] = self._folder.name
        cache = FeatureCache(job.location, job.id, **options)
        if job.on_gpu:
            module = module.cuda()
        cached = CachedModule(module, cache, **job.module_options)
        owner = ray.get_runtime_context().get_actor_id() or "driver"
        job.leases.forget(owner)
        store, look_again = (_pushing(cache), _pulling(cache)) if job.is_remote else (cache.flush, _nothing)
        device = torch.device("cuda") if job.on_gpu else None
        call = job.call or _columns_of(job.ids, device)
        self._cache = cache
        self._filler = BlockFiller(cached, job.leases, owner, job.ids, call, job.batch_size, store, look_again)

    def __call__(self, batch: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        result = self._filler.fill(batch)
        return {"computed": np.array([result.computed]), "found": np.array([result.found])}


def _pushing(cache: FeatureCache) -> Callable[[], None]:
    def push() -> None:
        pushed = cache.push(progress=False)
        if pushed.waiting:
            raise WriteFailed(f"{cache!r}: chunks of other writers in {cache.path} hold back what this actor computed")

    return push


def _pulling(cache: FeatureCache) -> Callable[[], None]:
    def pull() -> None:
        cache.pull(progress=False)

    return pull


def _nothing() -> None:
    """A cache in a folder looks for rows of other processes at every miss."""


def _columns_of(ids: str, device: torch.device | None) -> Call:
    """A call of the module with the columns of a batch."""

    def call(batch: Columns) -> tuple[tuple[Any, ...], dict[str, Any]]:
        values = {name: _as_argument(column, device) for name, column in batch.items() if name != ids}
        return (tuple(values.values()), {}) if len(values) == 1 else ((), values)

    return call


def _as_argument(column: Any, device: torch.device | None) -> Any:
    if not isinstance(column, np.ndarray) or column.dtype.kind not in "biufc":
        return list(column)
    tensor = torch.from_numpy(np.array(column))  # Ray's arrays are read-only
    return tensor if device is None else tensor.to(device)
