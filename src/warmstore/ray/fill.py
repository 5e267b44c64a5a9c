"""Filling a feature cache with a pool of actors. A block is acknowledged once its samples are stored."""

import os
import weakref
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import ray
import ray.data
from torch import nn

from warmstore.features.block_filling import Call
from warmstore.features.fill_job import FillJob, open_filler
from warmstore.loading.fill_result import FillResult
from warmstore.ray.lease_server import LeaseServer
from warmstore.remote.location import from_anywhere
from warmstore.storage.temporary_folder import TemporaryFolder


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
        cache_options: further options of `FeatureCache`.
        module_options: further options of `CachedModule`.

    Returns:
        How many samples were computed and found. All are stored.

    Raises:
        Exception: what a module or a cache raised in an actor, as Ray raises it. Blocks that were acknowledged stay.
    """
    location = from_anywhere(cache)
    if num_cpus is None:
        num_cpus = min(1.0, ray.cluster_resources().get("CPU", 1.0) / (2 * num_actors))
    job = FillJob(
        location,
        id,
        ray.put(module),
        None,
        ids=ids,
        call=call,
        batch_size=batch_size,
        device="cuda" if num_gpus else None,
        cache_options=dict(cache_options or {}),
        module_options=dict(module_options or {}),
    )
    counts = dataset.map_batches(
        _Filler,
        fn_constructor_args=(job, LeaseServer(location, id, lease)),
        batch_size=block_size,
        batch_format="numpy",
        compute=ray.data.ActorPoolStrategy(size=num_actors),
        num_cpus=num_cpus,
        num_gpus=num_gpus,  # Ray starts actors anew and repeats their calls, without end, by default
    )
    batches = computed = found = 0
    for batch in counts.iter_batches(batch_size=None, batch_format="numpy"):
        batches += len(batch["computed"])
        computed += int(batch["computed"].sum())
        found += int(batch["found"].sum())
    return FillResult(batches, computed, found)


class _Filler:
    """One actor. Ray creates it again after a kill, with the same id: the leases of its earlier life are ended."""

    def __init__(self, job: FillJob, leases: LeaseServer) -> None:
        owner = ray.get_runtime_context().get_actor_id() or "driver"
        leases.forget(owner)
        folder = TemporaryFolder("fill")
        folder.remove.atexit = False
        with ExitStack() as stack:
            stack.enter_context(folder)
            self._filler, cache = open_filler(replace(job, module=ray.get(job.module)), leases, owner, folder.path)
            stack.callback(cache.close)  # before its files are gone: closing one at a URL reads them
            # Not at the exit of the process: on a node that dies, a thread may still compute then, and would report
            # that its files are gone, which ends the fill. A dead actor is replaced.
            weakref.finalize(self, stack.pop_all().close).atexit = False

    def __call__(self, batch: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        result = self._filler.fill(batch)
        return {"computed": np.array([result.computed]), "found": np.array([result.found])}
