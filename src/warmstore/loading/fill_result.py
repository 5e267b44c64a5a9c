"""FillResult: the result of filling a cache ahead of training."""

from dataclasses import dataclass


@dataclass(frozen=True)
class FillResult:
    """The result of a `fill`. computed, found: samples. The second sample with the same id counts as found.

    Where not all fit into a budget, some are computed that are not kept.
    """

    batches: int
    computed: int
    found: int
