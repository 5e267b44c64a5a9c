"""Profiling: measure a few hundred real samples, the disk and some workers, within seconds.

A profile is saved in the plan's folder under a key of the steps' code, the source and the machine. The next run finds
it there.
"""

import contextlib
import errno
import logging
import math
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from warmstore.errors import BadSource
from warmstore.identity.samples.selected_samples import SelectedSamples
from warmstore.loading.samplers.counter_rng import Int64, derive_keys
from warmstore.loading.samplers.permutation import permuted
from warmstore.pipeline.chain import Chain
from warmstore.pipeline.encoders.registry import REGISTRY
from warmstore.pipeline.metering.machine_pace import machine_pace
from warmstore.pipeline.native_threads import native_threads
from warmstore.pipeline.profile.disk_speed import measure_disk
from warmstore.pipeline.profile.profile import Disk, Profile, Scaling, Stage, mean_of
from warmstore.pipeline.profile.profile_options import ProfileOptions
from warmstore.pipeline.profile.source_sizes import bucket_of, sizes_of
from warmstore.pipeline.profile.step_profiler import KEPT, LAST, ProfileRun, Tick, run_steps, stage_of
from warmstore.pipeline.profile.throughput import Ready, doubled, measure
from warmstore.pipeline.step_identities import describe, key_of
from warmstore.pipeline.tiers.tier_folders import MemoryTier, memory_room
from warmstore.storage.memory.memory_limits import total_memory
from warmstore.storage.progress import new_bar
from warmstore.storage.user_paths import user_path

_log = logging.getLogger("warmstore")

_BUCKETS = 4
_VARIED = 0.1  # relative standard deviation of raw sizes above which samples are put into buckets
_DISK_BYTES = 256 << 20
_LEAST_DISK_BYTES = 1 << 16
_SCRATCH = 4 << 20
_KIND = "profile"
_CPUINFO = Path("/proc/cpuinfo")
_MOST_OFF = 1.5  # largest factor between step times in a worker and here; more has another cause
_SHARES = {"steps": 0.3, "stores": 0.2, "disk": 0.12}  # of the time; the rest is for workers


def profile(
    chain: Chain,
    *,
    samples: int | float | None = None,
    seconds: float | None = None,
    batch_size: int | None = None,
    folder: "str | os.PathLike[str] | None" = None,
    max_workers: int | None = None,
    cutoff: float | None = None,
    refresh: bool = False,
    progress: bool | None = None,
) -> Profile:
    """Measure a pipeline on this machine, or load its saved profile, if it was made with the options that are not None.

    Args:
        samples: how many to measure at most, spread over the source; below 1 a share of it. By default 400.
        seconds: total time, approximately: about three samples are measured however long they take. By default 12.
        batch_size: of the batches that workers make. By default 64.
        folder: of the disk tier. Its disk is measured, and the profile is saved there. None: neither.
        max_workers: most workers to try; None: one per core.
        cutoff: the number of workers is doubled while the rate grows by this share. By default 0.1.
        refresh: measure again, even if a saved profile matches.
        progress: show a bar; None shows one on a terminal or in a notebook.

    Raises:
        BadSource: the source has no samples.
        ValueError: an option is out of range.
        Exception: any error of a step; of the source, if it can read no sample. Otherwise those that it cannot read are
            left out.
    """
    if not len(chain):
        is_filtered = type(chain.source) is SelectedSamples
        raise BadSource("no sample passes the filters" if is_filtered else "the source of this pipeline has no samples")
    if samples is not None:
        if not 0 < samples < math.inf:
            raise ValueError(f"samples must be above zero and finite; got {samples!r}")
        samples = int(samples) if samples >= 1 else -(-int(samples * len(chain) * 1000) // 1000)
    asked = {
        "samples": samples, "seconds": seconds, "batch_size": batch_size, "max_workers": max_workers, "cutoff": cutoff,
    }  # fmt: skip
    options = ProfileOptions.of(asked)
    key = _key(chain)
    where = None if folder is None else user_path(folder)
    kept = None if where is None or not key else where / f"profile-{key}.json"
    if kept is not None and not refresh:
        found = Profile.load(kept, key)
        if found is not None and found.options.fulfil(asked):
            return found
    made = _measured(chain, key, options, where, progress)
    if kept is not None:
        try:
            made.save(kept)
        except OSError as error:
            _log.warning("%s: the profile is not saved, so the next run measures again: %s", kept, error)
    return made


def _measured(chain: Chain, key: str, options: ProfileOptions, folder: Path | None, progress: bool | None) -> Profile:
    began, seconds = time.perf_counter(), options.seconds
    total = len(chain)
    sizes = sizes_of(chain.source)
    edges = _edges(sizes)
    counts = _counts(sizes, edges, total)
    indices = _chosen(total, options.samples)
    buckets: Sequence[int] = [0] * len(indices) if sizes is None else bucket_of(sizes[indices], edges).tolist()
    stages = len(chain.steps) + 1
    bar = new_bar(
        shown=progress,
        total=100,
        desc="profiling",
        leave=False,
        bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed}",
    )

    ends = [0.0]

    def step(name: str, share: float, parts: int) -> Tick:
        """Show that a part of the profile begins. The result is called with the number of its parts that are done."""
        bar.set_description_str(f"profiling {name}")
        bar.update(ends[-1] - bar.n)
        ends.append(ends[-1] + 100 * share)
        return lambda done: bar.update(min(100 * share * done / max(parts, 1), ends[-1] - bar.n))

    with bar:
        identities = chain.identities
        with native_threads(chain.settings.threads), identities.calling(), identities.states.making(indices):
            tick = step("steps", _SHARES["steps"], len(indices))
            room = min(KEPT, memory_room() // 4)
            run = run_steps(chain, indices, buckets, began + _SHARES["steps"] * seconds, tick, room)
        until = time.perf_counter() + _SHARES["stores"] * seconds
        names = ["source", *(step.name for step in chain.steps)]
        scratch_bytes = 2 * max(stage.kept_bytes for stage in run.stages) + _SCRATCH
        # If this process is killed, the next one removes the tier.
        tick = step("stores", _SHARES["stores"], 2 * stages)
        with MemoryTier(f"profile-{secrets.token_hex(8)}", scratch_bytes) as scratch:
            found = tuple(
                stage_of(name, stage, run.buckets, counts, scratch.folder, until, tick)
                for name, stage in zip(names, run.stages, strict=True)
            )
        tick = step("the disk", _SHARES["disk"], 1)
        disk = None if folder is None else _disk(folder, found, counts, _SHARES["disk"] * seconds)
        tick(1)
        tick = step("workers", 1 - sum(_SHARES.values()), 2 + max(options.max_workers, 1).bit_length())
        scaling, alone, overhead, delivery = _workers(chain, run, found, counts, options, began + seconds, tick)
        found = _calibrated(found, counts, scaling, overhead)
    return Profile(
        key, len(run.buckets), total, options.batch_size, edges, counts, found, scaling, alone, overhead, delivery,
        disk, time.perf_counter() - began, options, machine_pace(),
    )  # fmt: skip


def _workers(
    chain: Chain,
    run: ProfileRun,
    stages: Sequence[Stage],
    counts: Sequence[int],
    options: ProfileOptions,
    until: float,
    tick: Tick,
) -> tuple[tuple[Scaling, ...], float, float, float]:
    """Scaling, and the seconds `alone`, `overhead` and `delivery` of a `Profile`."""
    ready = Chain(Ready(run.last, max(len(run.last), 64 * options.batch_size)))
    brief = max(0.3, 0.12 * (until - time.perf_counter()))
    each = mean_of(counts, stages[-1].nbytes)
    ready_at_once = max(1, min(options.batch_size, int(LAST / max(each, 1.0))))
    alone = measure(ready, ready_at_once, 0, brief)
    steps = sum(mean_of(counts, stage.seconds) for stage in stages)
    waits = sum(mean_of(counts, stage.waiting(is_warm=True)) for stage in stages)
    scaling = [Scaling(0, 1 / max(steps + waits + alone.own, 1e-9), 0)]
    tick(1)
    if not options.max_workers:
        return tuple(scaling), alone.own, 0.0, 0.0
    handed = measure(ready, ready_at_once, 1, 2 * brief)
    tick(1)
    scaling += doubled(chain, options, steps, waits, handed.nbytes, until, tick)
    return tuple(scaling), alone.own, handed.others, handed.own


def _calibrated(
    stages: tuple[Stage, ...], counts: Sequence[int], scaling: Sequence[Scaling], overhead: float
) -> tuple[Stage, ...]:
    """Scale the seconds of the stages to add up to those of one worker, which runs with warm CPU caches."""
    single = next((entry for entry in scaling if entry.workers == 1), None)
    work = sum(mean_of(counts, stage.seconds) for stage in stages)
    waits = sum(mean_of(counts, stage.waiting(is_warm=True)) for stage in stages)
    if single is None or not work:
        return stages
    share = float(np.clip((1 / single.rate - overhead - waits) / work, 1 / _MOST_OFF, _MOST_OFF))

    def scaled(values: Sequence[float]) -> tuple[float, ...]:
        return tuple(share * each for each in values)

    return tuple(
        replace(stage, seconds=scaled(stage.seconds), seconds_rounds=tuple(map(scaled, stage.seconds_rounds)))
        for stage in stages
    )


def _disk(folder: Path, stages: Sequence[Stage], counts: Sequence[int], seconds: float) -> Disk | None:
    means = [int(mean_of(counts, stored.nbytes)) for stage in stages for stored in stage.stored.values()]
    wanted = sorted({*np.quantile(means, [0, 0.5, 1]).astype(int).tolist()}) if means else [1 << 16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        most = min(_DISK_BYTES, shutil.disk_usage(folder).free // 4)
        if most < _LEAST_DISK_BYTES:
            raise OSError(errno.ENOSPC, f"only {4 * most:,} bytes are free")
        return measure_disk(folder, wanted, seconds, most, os.cpu_count() or 1)
    except OSError as error:
        _log.warning("%s: the disk is not measured, so plans take it for as fast as memory: %s", folder, error)
        return None


def _edges(sizes: np.ndarray[Any, Any] | None) -> tuple[int, ...]:
    """Raw sizes that divide the samples into buckets of about equal bytes; () if sizes hardly vary."""
    if sizes is None or len(sizes) < 8 * _BUCKETS or sizes.std() <= _VARIED * sizes.mean():
        return ()
    ordered = np.sort(sizes)
    shares = np.cumsum(ordered) / ordered.sum()
    at = np.searchsorted(shares, np.arange(1, _BUCKETS) / _BUCKETS)
    return tuple(sorted({int(ordered[place]) for place in at} - {int(ordered[0])}))


def _counts(sizes: np.ndarray[Any, Any] | None, edges: tuple[int, ...], total: int) -> tuple[int, ...]:
    if sizes is None or not edges:
        return (total,)
    return tuple(np.bincount(bucket_of(sizes, edges), minlength=len(edges) + 1).tolist())


def _chosen(total: int, samples: int) -> Int64:
    """Indices spread over the source by a fixed permutation, int64 [n]."""
    count = min(total, max(samples, 1))
    return permuted(np.arange(count, dtype=np.uint64), total, derive_keys(_KIND, 0, 0, total)).astype(np.int64)


def _processor() -> str:
    """The model of the processor; the architecture if the system does not tell."""
    with contextlib.suppress(OSError), _CPUINFO.open("rb") as file:
        text = file.read(1 << 14).decode(errors="replace")  # the first processor; 256 of them take megabytes
        first, _, _ = text.partition("\n\n")
        if model := re.findall(r"^(?:model name|CPU implementer|CPU part)\s*:\s*(.*)$", first, re.MULTILINE):
            return " ".join(model)
    return platform.processor() or platform.machine()


def _key(chain: Chain) -> str:
    """The key of code, source and machine; "" if one of them has no identity."""
    machine = {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory": total_memory() >> 30,
        "python": platform.python_version(),
    }
    source = {"length": len(chain), "name": chain.identities.samples.name}
    encoders = {encoder.name: encoder.recorded.identity for encoder in REGISTRY.registered()}
    found = [chain.identities.identify(step) for step in chain.steps]
    if chain.identities.samples.identity.unknown or any(each.unknown for each in [*found, *encoders.values()]):
        return ""
    digests = {name: identity.digest for name, identity in encoders.items()}
    steps = [
        describe(step, identity, chain.settings.threads) for step, identity in zip(chain.steps, found, strict=True)
    ]
    return key_of([*steps, {"machine": machine, "source": source, "encoders": digests}])
