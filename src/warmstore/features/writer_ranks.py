"""Which processes of a distributed job write to a cache."""

import os
from collections.abc import Collection

import torch.distributed


class WriterRanks:
    """The ranks that may write; None for all.

    The rank is torch.distributed's where that is initialised, also after the cache was opened, else RANK of the
    environment, as torchrun sets it, else 0.
    """

    def __init__(self, ranks: Collection[int] | None) -> None:
        self._ranks = ranks
        self._initialised: int | None = None

    def include_this(self) -> bool:
        """Whether this process may write."""
        return self._ranks is None or self._rank() in self._ranks

    def _rank(self) -> int:
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            self._initialised = torch.distributed.get_rank()
        # Caches are closed after the group was taken down; what the rank was then still counts.
        return int(os.environ.get("RANK") or 0) if self._initialised is None else self._initialised
