"""Shard: the places of an epoch that a rank takes at each step.

A global step takes batch size x world size consecutive places of the common order, and rank r the r-th part of them. So
the position in an epoch is one number for all ranks, independent of world size and batch size.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

from warmstore.errors import BadRank
from warmstore.loading.validation import MOST_SAMPLES, integer, set_fields

Uneven = Literal["pad", "drop", "allow", "full"]

_UNEVEN = get_args(Uneven)
_MOST_RANKS = 2**24
MOST_BATCH = MOST_SAMPLES // _MOST_RANKS


class RankStep(NamedTuple):
    """One rank's part of a global step.

    first, last: the places [first, last) of the batch. after: the place that all ranks have reached after the step.
    fill: places [start, end), modulo the length of the epoch, whose samples are repeated at the end of the batch.
    is_last: no step of this rank follows in the epoch.
    """

    first: int
    last: int
    after: int
    fill: tuple[int, int] = (0, 0)
    is_last: bool = False

    @property
    def padded(self) -> int:
        """Repeated rows at the end of the batch."""
        return self.fill[1] - self.fill[0]


@dataclass(frozen=True)
class Shard:
    """One rank's part of every epoch.

    At the end of an epoch fewer than batch size x world size places may be left. This rest is split evenly, in order,
    over the ranks, whose parts differ by at most one.

    Args:
        batch_size: samples in a batch of one rank.
        rank, world_size: the rank, and the number of ranks.
        uneven: what to do with the rest of an epoch:
            "pad": fill the last batches of all ranks up to the longest of them, with samples from the start of the
                epoch. All ranks have the same number of steps and rows. A single rank repeats no sample.
            "drop": leave the rest out.
            "allow": a rank whose part is empty has one step fewer.
            "full": as "pad", but up to the batch size, also on one rank: all batches have one shape.

    Raises:
        BadRank: a rank outside the world.
        ValueError: a batch size below 1, or an unknown `uneven`.
    """

    batch_size: int
    rank: int = 0
    world_size: int = 1
    uneven: Uneven = "pad"

    def __post_init__(self) -> None:
        set_fields(self, batch_size=integer("batch_size", self.batch_size, 1, MOST_BATCH))
        if not isinstance(self.uneven, str) or self.uneven not in _UNEVEN:
            raise ValueError(f"uneven must be one of {', '.join(map(repr, _UNEVEN))}; got {self.uneven!r}")
        try:
            world = integer("world_size", self.world_size, 1, _MOST_RANKS)
            rank = integer("rank", self.rank, 0, world - 1)
        except ValueError:
            raise BadRank(
                f"rank {self.rank!r} is outside a world of {self.world_size!r}; ranks go from 0 to world_size - 1"
            ) from None
        set_fields(self, rank=rank, world_size=world)

    @property
    def together(self) -> int:
        """Places of a global step."""
        return self.batch_size * self.world_size

    @property
    def marks(self) -> bool:
        """Whether batches may have repeated rows, and so a mask."""
        return self.uneven == "full" or (self.uneven == "pad" and self.world_size > 1)

    def count(self, length: int, start: int = 0) -> int:
        """Steps of this rank from the place `start` to the end of an epoch of `length` places."""
        whole, rest = divmod(max(length - start, 0), self.together)
        return whole + self.has_rest(rest)

    def is_over(self, length: int, start: int) -> bool:
        """Whether no rank has a step from the place `start` on."""
        left = length - start
        return left < (self.together if self.uneven == "drop" else 1)

    def steps(self, length: int, start: int = 0) -> Iterator[RankStep]:
        """The steps of this rank from the place `start` on, which all ranks have reached."""
        size, together = self.batch_size, self.together
        offset = self.rank * size
        rest = max(length - start, 0) % together
        begin = max(length, start) - rest
        has_rest = self.has_rest(rest)
        for place in range(start, begin, together):
            after = place + together
            yield RankStep(place + offset, place + offset + size, after, is_last=after == begin and not has_rest)
        if has_rest:
            each, more = divmod(rest, self.world_size)
            before = self.rank * each + min(self.rank, more)
            count = each + (self.rank < more)
            rows = {"full": size, "pad": each + bool(more)}.get(self.uneven, count)
            filled = self.rank * rows - before  # repeated rows of lower ranks
            fill = (filled, filled + rows - count) if rows > count else (0, 0)
            yield RankStep(begin + before, begin + before + count, length, fill, is_last=True)

    def has_rest(self, rest: int) -> bool:
        """Whether this rank has one more step for a rest of `rest` places or batches, too few for a global step."""
        if self.uneven == "allow":
            return self.rank < rest
        return bool(rest) and self.uneven != "drop"


def find_rank(rank: Any = None, world_size: Any = None) -> tuple[Any, Any]:
    """Rank and world size: as passed, else from torch.distributed if it is initialised, else from the environment
    variables RANK and WORLD_SIZE of torchrun, else 0 and 1.

    Raises:
        BadRank: only one of the two is passed, or variables are no numbers.
    """
    if (rank is None) != (world_size is None):
        raise BadRank(f"rank and world_size belong together; got rank {rank!r} and world_size {world_size!r}")
    if rank is not None:
        return rank, world_size
    distributed = sys.modules.get("torch.distributed")  # not imported: a program that uses it has imported it
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    texts = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if texts[0] is None and os.environ.get("NODE_RANK") == "0":  # Lightning sets the rank on the node
        texts = os.environ.get("LOCAL_RANK"), texts[1]
    if None in texts:
        return 0, 1
    try:
        return int(texts[0] or ""), int(texts[1] or "")
    except ValueError:
        raise BadRank(
            f"the environment has RANK={texts[0]!r} and WORLD_SIZE={texts[1]!r}, which are no numbers; "
            "set both, unset both, or pass rank and world_size"
        ) from None
