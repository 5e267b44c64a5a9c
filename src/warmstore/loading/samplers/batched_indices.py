"""Positions of several batches computed in one call of a sampler.

A shuffle takes 4 µs for the 256 places of a batch, and the call itself 5 µs. A call for too many places would delay the
first batch.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise

import numpy as np

from warmstore.errors import PositionError
from warmstore.loading.samplers.counter_rng import Int64
from warmstore.loading.samplers.sampler import BLOCK, Sampler

AHEAD = BLOCK // 4  # the most places of a call, which takes 30 µs
FIRST = 512  # places of the first call of an epoch; the number doubles up to AHEAD


def batched_indices(
    sampler: Sampler, spans: Iterable[tuple[int, int]], n: int, epoch: int, *, ahead: int = AHEAD
) -> Iterator[Int64]:
    """Yield `sampler.indices(first, last, n, epoch)` for every span (first, last), in turn.

    Args:
        spans: places of the epoch, with gaps or without, finitely many or not.
        ahead: the most places of a call; 1 computes each span alone.

    Raises:
        PositionError: a span that ends before it begins, or is outside the epoch; raised when it is computed.
        ValueError: as `Sampler.indices`.
    """
    waiting: list[tuple[int, int]] = []
    count, together = 0, min(FIRST, ahead)
    for first, last in spans:
        if last < first:
            raise PositionError(f"a span ends before it begins: {first:,} to {last:,}")
        waiting.append((first, last))
        count += last - first
        if count >= together:
            yield from _together(sampler, waiting, n, epoch)
            waiting, count, together = [], 0, min(2 * together, ahead)
    if waiting:
        yield from _together(sampler, waiting, n, epoch)


def _together(sampler: Sampler, spans: list[tuple[int, int]], n: int, epoch: int) -> Iterator[Int64]:
    if all(span[1] == following[0] for span, following in pairwise(spans)):
        found = sampler.indices(spans[0][0], spans[-1][1], n, epoch)
    else:
        found = sampler.at(np.concatenate([np.arange(first, last) for first, last in spans]), n, epoch)
    start = 0
    for first, last in spans:
        yield found[start : start + last - first]
        start += last - first
