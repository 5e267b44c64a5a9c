"""Profiles made up for tests: pipelines of so many seconds and bytes a step, on a machine that scales as told."""

from collections.abc import Sequence

from warmstore.pipeline.profile.profile import Disk, Profile, Scaling, Stage, StoredStage
from warmstore.pipeline.tiers.tier_overhead import tier_overhead

FAST = Disk((4096, 1 << 20), (1e12, 1e12), (1e12, 1e12), 1e12)


def profile(
    seconds: Sequence[float | tuple[float, ...]],
    nbytes: Sequence[float | tuple[float, ...]],
    *,
    counts: tuple[int, ...] = (1000,),
    workers: Sequence[int] = (),
    worker_bytes: int = 10_000_000,
    disk: Disk | None = FAST,
    read: float = 0.0,
    write: float = 0.0,
    waits: float = 0.0,
    overhead: float = 0.0,
    delivery: float = 0.0,
    squeezed: float | None = None,
    batch_size: int = 10,
) -> Profile:
    """A profile of len(seconds) stages; `squeezed`: zstd leaves that part of the bytes, for ten times the reading."""
    buckets = len(counts)

    def each(value: float | tuple[float, ...]) -> tuple[float, ...]:
        return value if isinstance(value, tuple) else (value,) * buckets

    def stored(taken: tuple[float, ...]) -> dict[str, StoredStage]:
        found = {"raw": StoredStage(taken, 0.0, each(read), each(write))}
        if squeezed is not None:
            small = tuple(squeezed * one for one in taken)
            found["zstd"] = StoredStage(small, 0.0, each(10 * read), each(10 * write))
        return found

    stages = tuple(
        Stage(f"step{k}" if k else "source", each(s), each(waits if k == 0 else 0.0), 0.0, each(b), stored(each(b)))
        for k, (s, b) in enumerate(zip(seconds, nbytes, strict=True))
    )
    per = sum(sum(c * s for c, s in zip(counts, each(one), strict=True)) for one in seconds) / sum(counts)
    scaling = tuple(
        Scaling(count, max(count, 1) / (per + overhead + delivery), worker_bytes if count else 0)
        for count in (0, *workers)
    )
    edges = tuple(range(1, buckets))
    return Profile(
        "made up", 100, sum(counts), batch_size, edges, counts, stages, scaling, overhead, overhead, delivery, disk, 1.0
    )


def budget_for(nbytes: int, sample: float = 4000) -> int:
    """The budget of a tier in which one placement of these profiles has `nbytes` for the records of its samples."""
    budget = nbytes
    while (missing := nbytes - budget + tier_overhead(budget, 1, 1, sample=sample)) > 0:
        budget += missing
    return budget
