"""Pipelines and plans to test with, and what an uncached pipeline gives, computed the plain way."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warmstore as ws
from warmstore.loading.collate import stack
from warmstore.pipeline.pipeline import Pipeline
from warmstore.pipeline.plan.assignment import assign
from warmstore.pipeline.plan.plan import Plan
from warmstore.pipeline.plan.plan_figures import Placement
from warmstore.pipeline.sample_generators import sample_generator
from warmstore.pipeline.step_identities import Description, describe
from warmstore.pipeline.steps import Step
from warmstore.storage.disk_usage import folder_bytes
from warmstore.storage.files import Files
from warmstore.storage.locks import ReentrantFileLock
from warmstore.storage.quota import ByteQuota

MB = 1 << 20


def plan_of(
    pipe: Pipeline,
    placements: Sequence[tuple[int, str, str]],
    counts: Sequence[int] | None = None,
    *,
    memory: int = 64 * MB,
    disk: int = 64 * MB,
    folder: Path | None = None,
    workers: int = 0,
    fill_workers: int | None = None,
    direct_io: bool = False,
) -> Plan:
    """A plan made by hand: so many samples in each placement, by default all in equal parts."""
    if counts is None:
        counts = [len(pipe) // max(len(placements), 1)] * len(placements)
    return Plan(
        placements=tuple(Placement(*one) for one in placements),  # type: ignore[arg-type]
        counts=tuple((count,) for count in counts),
        samples=len(pipe),
        buckets=None,
        memory=memory + os.getpid() % 1000,  # tests that run at once would share a tier of one pipeline and budget
        disk=disk,
        folder=folder,
        workers=workers,
        fill_workers=workers if fill_workers is None else fill_workers,
        direct_io=direct_io,
        batch_size=8,
        world_size=1,
        strategy="joint",
        epochs=10,
        epoch_seconds=1.0,
        uncached_seconds=1.0,
        build_seconds=0.0,
        limits={},
        memory_used=0,
        disk_used=0,
        worker_bytes=0,
        steps=pipe.steps,
        profile=None,  # type: ignore[arg-type]
    )


def assigned(plan: Plan, pipe: Pipeline) -> Any:
    """The placement of each sample where nothing is cached yet: int64 [samples], -1 for none."""
    return assign(plan, pipe.identities.states.look().each)


def described(step: Step, threads: int = 1) -> Description:
    """What a step's results depend on, as it is now."""
    return describe(step, ws.Pipeline([0]).identities.identify(step), threads)


def expected(
    pipe: Pipeline,
    batch_size: int,
    seed: int,
    epoch: int,
    order: ws.Sampler | None = None,
    rank: int = 0,
    world: int = 1,
) -> Iterator[Any]:
    """The batches of an epoch, by a loop over the steps' functions and nothing of the library's that runs them."""
    order = order or ws.Shuffle(seed=seed)
    indices = order.indices(0, order.length(len(pipe)), len(pipe), epoch)
    for first in range(0, len(indices), batch_size * world):
        together = indices[first : first + batch_size * world]
        each = batch_size if len(together) == batch_size * world else None
        part = together[rank * batch_size : (rank + 1) * batch_size] if each else np.array_split(together, world)[rank]
        if len(part):
            yield stack([sample(pipe, index, seed, epoch) for index in part.tolist()])


def sample(pipe: Pipeline, index: int, seed: int, epoch: int) -> Any:
    """One sample, the plain way."""
    value = pipe.source[index]
    for number, step in enumerate(pipe.steps):
        drawn = [sample_generator(seed, epoch, index, number)] if step.random else []
        value = step.function(value, *drawn, **step.arguments)
    return value


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal bit for bit, types, dtypes and shapes included."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | np.generic):
        a, b = np.asarray(one), np.asarray(other)
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other or (one != one and other != other))


def check(loader: ws.Loader, batches: Callable[[int], Iterator[Any]], epochs: range) -> None:
    """Assert that a loader gives these batches, epoch by epoch."""
    for epoch in epochs:
        got = list(loader)
        wanted = list(batches(epoch))
        assert len(got) == len(wanted)
        for at, (one, other) in enumerate(zip(got, wanted, strict=True)):
            assert same(one, other), (epoch, at, one, other)


@contextlib.contextmanager
def watched(folder: Path) -> Iterator[Callable[[], int]]:
    """Count the bytes of the tier in a plan's folder all the time; the function returns the most there were.

    Nobody adds bytes while they are counted: else a file that is evicted and the one that takes its room both count.
    """
    tier, most, over = folder / "warmstore-samples", [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.001):
            if (tier / "room.lock").exists():
                with ReentrantFileLock(tier / "room.lock", Files()).held():
                    most[0] = max(most[0], folder_bytes(tier))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield lambda: most[0]
    finally:
        over.set()
        thread.join()


def numbered_files(folder: Path, count: int, nbytes: int) -> list[Path]:
    """Files in a new folder, each of so many bytes with its number."""
    folder.mkdir()
    found = [folder / f"{number}.bin" for number in range(count)]
    for number, path in enumerate(found):
        path.write_bytes(bytes([number] * nbytes))
    return found


def take_bytes_away(patch: pytest.MonkeyPatch, tier: Path, *, above: int, leave: int) -> list[int]:
    """Let others write into a tier once, after a process has found more than `above` bytes free for its wish.

    Returns:
        The bytes that they have taken; they leave `leave`.
    """
    free, taken = ByteQuota.free, [0]

    def racing(quota: ByteQuota, wanted: int = 0) -> int:
        left = free(quota, wanted)
        if wanted > above and not taken[0]:
            taken[0] = left - leave
            (tier / "others").write_bytes(bytes(taken[0]))
        return left

    patch.setattr(ByteQuota, "free", racing)
    return taken
